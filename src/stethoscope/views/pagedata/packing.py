"""Numbers as JSON carries them: arrays as base64 of little-endian bytes, single numbers with names for NaN and Inf."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from typing import Any, NotRequired, TypedDict

import numpy as np
import numpy.typing as npt

from stethoscope.analyse.bins import Bins, Mark, bins_over
from stethoscope.record import FloatArray, IntArray, Series, printable
from stethoscope.views.common.numbers import json_number

MAX_TEXT = 400

Number = float | str | None
"""A number as JSON holds it: NaN and the infinities by name."""


class Packed(TypedDict):
    """A series in bins: float32 and uint8 arrays, packed."""

    start: int
    size: int
    count: int
    mean: str
    marks: str
    low: NotRequired[str]
    high: NotRequired[str]
    first: NotRequired[int]
    last: NotRequired[int]


def floats(values: npt.ArrayLike) -> str:
    """float32, little-endian, base64."""
    with np.errstate(over="ignore"):
        return base64.b64encode(np.asarray(values).astype("<f4").tobytes()).decode("ascii")


def small(values: npt.ArrayLike) -> str:
    """uint8, base64."""
    return base64.b64encode(np.asarray(values).astype(np.uint8).tobytes()).decode("ascii")


def number(value: float | None) -> Number:
    """A number JSON can hold: NaN and infinities by name."""
    return None if value is None else json_number(float(value))


def plain(value: Any, limit: int = MAX_TEXT) -> Any:
    """Anything as JSON values: text cut to size, numbers by `number`, the unknown as text."""
    if isinstance(value, bool | None):
        return value
    if isinstance(value, str):
        return text(value, limit)
    if isinstance(value, int):
        return value if abs(value) < 2**53 else str(value)
    if isinstance(value, float):
        return number(value)
    if isinstance(value, Mapping):
        return {text(str(key), limit): plain(item, limit) for key, item in list(value.items())[:512]}
    if isinstance(value, list | tuple):
        return [plain(item, limit) for item in value[:512]]
    return text(str(value), limit)


def text(value: str, limit: int = MAX_TEXT) -> str:
    """Text that cannot move the reader's eye elsewhere: control and bidi characters escaped, cut in the middle."""
    return printable(value, limit)


def binned(series: Series, first: int, last: int, width: int, bins: Bins | None = None) -> Packed:
    """A series over first..last in at most `width` bins: mean, lowest, highest, and what is no number."""
    inside = series.between(first, last)
    bins = bins_over(inside.steps, width) if bins is None else bins
    if not len(bins):
        return {"start": first, "size": 1, "count": 0, "mean": "", "marks": ""}
    mean, low, high, marks = reduced(inside.steps, inside.values, bins)
    out: Packed = {
        "start": int(bins.starts[0]),
        "size": bins.size,
        "count": len(bins),
        "mean": floats(mean),
        "marks": small(marks),
    }
    if bins.size > 1:
        out["low"], out["high"] = floats(low), floats(high)
    return out


def spark(series: Series, width: int, first: int | None = None, last: int | None = None) -> Packed | None:
    """A series as a small picture over first..last, by default all of it; None where it has less than two values."""
    if len(series) < 2:
        return None
    first = int(series.steps[0]) if first is None else first
    last = int(series.steps[-1]) if last is None else last
    return {**binned(series, first, last, width), "first": first, "last": last}


def reduced(
    steps: IntArray, values: FloatArray, bins: Bins
) -> tuple[FloatArray, FloatArray, FloatArray, npt.NDArray[np.uint8]]:
    """Mean, lowest and highest finite value of each bin, and its mark: NaN over Inf over plain."""
    count = len(bins)
    index = bins.index(steps)
    if len(index) and (index[0] < 0 or index[-1] >= count or bool((np.diff(index) < 0).any())):
        inside = np.flatnonzero((index >= 0) & (index < count))
        inside = inside[np.argsort(index[inside], kind="stable")]
        index, values = index[inside], values[inside]
    mean, low, high = (np.full(count, np.nan) for _ in range(3))
    marks = np.full(count, Mark.MISSING, dtype=np.uint8)
    if not len(index):
        return mean, low, high, marks
    edges = np.flatnonzero(np.diff(index, prepend=-1))
    at = index[edges]
    finite = np.isfinite(values)
    marks[at] = Mark.PLAIN
    num = np.diff(np.append(edges, len(index)))
    total = values
    if not finite.all():
        marks[index[np.isinf(values)]] = Mark.INF
        marks[index[np.isnan(values)]] = Mark.NAN
        num = np.add.reduceat(finite.astype(np.int64), edges)
        total, values = np.where(finite, values, 0.0), np.where(finite, values, np.nan)
    with np.errstate(invalid="ignore", divide="ignore", over="ignore"):
        mean[at] = np.add.reduceat(total, edges) / num
    low[at], high[at] = np.fmin.reduceat(values, edges), np.fmax.reduceat(values, edges)
    return mean, low, high, marks
