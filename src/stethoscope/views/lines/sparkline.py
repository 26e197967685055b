"""A series as one row of small bars, on the bins it is given: a spike stays a spike, NaN stays NaN."""

from __future__ import annotations

import numpy as np

from stethoscope.analyse.bins import Bins, Mark, MarkArray, bins_over, trend
from stethoscope.record import FloatArray, Series
from stethoscope.views.common.glyphs import Glyphs
from stethoscope.views.common.styled_text import BROKEN, PLAIN, Line, Span, join_runs

_FLAT = 0.005
"""A series that moves less than this share of its size is drawn flat: noise is not a trend."""


def sparkline(series: Series, width: int, glyphs: Glyphs, *, bins: Bins | None = None) -> Line:
    """The series in at most `width` cells, or on `bins` where a picture shares its axis."""
    if bins is None:
        bins = bins_over(series.steps, width)
    values, marks = trend(series.steps, series.values, bins)
    return bars(values, marks, glyphs)


def bars(values: FloatArray, marks: MarkArray, glyphs: Glyphs, *, usual: float = 1.0) -> Line:
    """One cell a bin: its height, or what it is where it is no number.

    `usual` keeps the scale from being finer than this factor either way of the median: what stays well within
    it is drawn as the steady thing it is.
    """
    heights = _bar_heights(np.where(marks == Mark.PLAIN, values, np.nan), len(glyphs.spark), usual)
    return join_runs(_cell_span(int(h), int(m), glyphs) for h, m in zip(heights, marks, strict=True))


def _cell_span(height: int, mark: int, glyphs: Glyphs) -> Span:
    if mark == Mark.NAN:
        return glyphs.nan, BROKEN
    if mark == Mark.INF:
        return glyphs.inf, BROKEN
    if mark in (Mark.PLAIN, Mark.DEAD):
        return glyphs.spark[height], PLAIN
    return glyphs.missing, PLAIN


def _bar_heights(values: FloatArray, num_levels: int, usual: float) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    """0 to num_levels - 1 for each value; log where all are positive and pass two decades."""
    out = np.zeros(len(values), dtype=np.int64)
    finite = np.isfinite(values)
    if not finite.any():
        return out
    shown = values[finite]
    middle = float(np.median(shown))
    ends = np.array([shown.min(), shown.max()])
    if usual > 1.0 and middle > 0:
        ends = np.array([min(ends[0], middle / usual), max(ends[1], middle * usual)])
    if ends[0] > 0 and ends[1] / ends[0] > 100:
        shown, ends = np.log(shown), np.log(ends)
    low, high = float(ends[0]), float(ends[1])
    if high - low > _FLAT * max(abs(low), abs(high)):
        share = (shown - low) / (high - low)
        out[finite] = np.minimum((share * num_levels).astype(np.int64), num_levels - 1)
    return out
