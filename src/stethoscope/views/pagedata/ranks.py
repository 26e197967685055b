"""Ranks and time: what is recorded of each process, and where a step's time goes."""

from __future__ import annotations

import dataclasses
from typing import Any, Final

import numpy as np

from stethoscope.analyse.bins import Bins
from stethoscope.record import FloatArray, IntArray, Series
from stethoscope.store import Run
from stethoscope.views.common.open_run import OpenRun
from stethoscope.views.pagedata import facts
from stethoscope.views.pagedata.log import starts_data
from stethoscope.views.pagedata.packing import binned, floats, number, reduced

MAX_RANKS: Final = 256
_PARTS: Final = (
    ("data", "data_ms", "s6"),
    ("forward", "forward_ms", "s1"),
    ("backward", "backward_ms", "s2"),
    ("optimizer", "optimizer_ms", "s3"),
    ("ours", "overhead_ms", "ink"),
)


def ranks_data(viewed: OpenRun) -> dict[str, Any]:
    """Each rank: how far, how fast, its loss, what it lost."""
    run = viewed.run
    rows = []
    for rank in run.ranks[:MAX_RANKS]:
        loss = run.metric("loss", rank=rank) if "loss" in run.metrics() else _nothing()
        step = run.metric("step_ms", rank=rank) if "step_ms" in run.metrics() else _nothing()
        values = step.values[np.isfinite(step.values)]
        rows.append(
            {
                "rank": rank,
                "lastLoss": number(float(loss.values[-1])) if len(loss) else None,
                "stepMs": number(float(np.median(values))) if len(values) else None,
                "worstMs": number(float(np.percentile(values, 99))) if len(values) else None,
                "loss": _trend(loss),
                "step": _trend(step),
            }
        )
    return {"version": viewed.version, "ranks": rows, "starts": starts_data(run), "numRanks": len(run.ranks)}


@dataclasses.dataclass(frozen=True, slots=True)
class Spread:
    """One metric of several ranks: its mean at every step, and the lowest and highest of them."""

    mean: Series
    low: Series
    high: Series


def over_ranks(run: Run, name: str) -> Spread | None:
    """A metric over the ranks that have it, None where fewer than two do. A rank's NaN makes the mean NaN."""
    found = [run.metric(name, rank=rank) for rank in run.ranks[:MAX_RANKS]] if name in run.metrics() else []
    found = [series for series in found if len(series)]
    if len(found) < 2:
        return None
    steps = np.unique(np.concatenate([series.steps for series in found]))
    table, there = np.zeros((len(found), len(steps))), np.zeros((len(found), len(steps)), dtype=bool)
    for row, series in enumerate(found):
        place = np.searchsorted(steps, series.steps)
        table[row, place], there[row, place] = series.values, True
    with np.errstate(invalid="ignore"):
        mean = np.where(there, table, 0.0).sum(axis=0) / there.sum(axis=0)
        low, high = np.where(there, table, np.inf).min(axis=0), np.where(there, table, -np.inf).max(axis=0)
    return Spread(Series(steps, mean), Series(steps, low), Series(steps, high))


def spread_bins(spread: Spread, view: tuple[int, int, int]) -> dict[str, Any]:
    """The mean in bins, its band from the lowest to the highest rank in each."""
    out = binned(spread.mean, *view)
    if out["count"]:
        bins = Bins(np.arange(out["count"], dtype=np.int64) * out["size"] + out["start"], out["size"])
        out["low"] = floats(reduced(spread.low.steps, spread.low.values, bins)[1])
        out["high"] = floats(reduced(spread.high.steps, spread.high.values, bins)[2])
    return out


def _trend(series: Series) -> dict[str, Any] | None:
    if len(series) < 2:
        return None
    first, last = int(series.steps[0]), int(series.steps[-1])
    return binned(series, first, last, 176) | {"first": first, "last": last}


def _nothing() -> Series:
    steps: IntArray = np.empty(0, np.int64)
    values: FloatArray = np.empty(0)
    return Series(steps, values)


def profile_data(viewed: OpenRun, view: tuple[int, int, int]) -> dict[str, Any]:
    """The mean step as parts, the time of every step, and the slowest ones."""
    run = viewed.run
    known = run.metrics()
    if "step_ms" not in known:
        return {"version": viewed.version, "parts": [], "series": None, "slowest": [], "meanMs": None}
    steps = run.metric("step_ms")
    inside = _window(steps, view)
    mean = float(np.nanmean(inside.values)) if len(inside) else float("nan")
    found = [(label, color, _window(run.metric(name), view)) for label, name, color in _PARTS if name in known]
    other = inside.values.copy()
    for _, _, part in found:
        other -= np.nan_to_num(_at(part, inside.steps))
    label, color = ("other", "mark") if len(found) > 0 else ("training", "s1")
    found.append((label, color, Series(inside.steps, np.maximum(0.0, other))))
    parts = [
        {
            "label": label,
            "color": color,
            "ms": number(float(np.nanmean(part.values)) if len(part) else 0.0),
            "series": binned(part, *view),
        }
        for label, color, part in found
    ]
    order = np.argsort(-np.nan_to_num(inside.values))[:10]
    slowest = [
        {
            "step": int(inside.steps[at]),
            "ms": number(float(inside.values[at])),
            "parts": [number(float(_at(part, inside.steps[at : at + 1])[0])) for _, _, part in found],
        }
        for at in order.tolist()
    ]
    return {
        "version": viewed.version,
        "parts": parts,
        "meanMs": number(mean),
        "numSteps": len(inside),
        "medianMs": number(float(np.nanmedian(inside.values))) if len(inside) else None,
        "series": binned(steps, *view),
        "cost": facts.cost_share(run),
        "slowest": slowest,
    }


def _at(series: Series, steps: IntArray) -> FloatArray:
    """The values at these steps, NaN where there is none."""
    out = np.full(len(steps), np.nan)
    if len(series):
        place = np.minimum(np.searchsorted(series.steps, steps), len(series) - 1)
        there = series.steps[place] == steps
        out[there] = series.values[place[there]]
    return out


def _window(series: Series, view: tuple[int, int, int]) -> Series:
    keep = (series.steps >= view[0]) & (series.steps <= view[1])
    return Series(series.steps[keep], series.values[keep])
