"""A history in bins, as heatmaps show it.

Promises: a cell shows the worst thing in it (NaN over Inf over an extreme), but not the tail of its own noise.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

import numpy as np

from stethoscope.analyse.bins import Bins, Mark, MarkArray, bins_over
from stethoscope.analyse.history.values import History, log_ratios
from stethoscope.record import FloatArray, IntArray


@dataclasses.dataclass(frozen=True, eq=False, slots=True)
class Grid:
    """A history in bins: one mark and one level for each row and bin."""

    bins: Bins
    marks: MarkArray
    """[R, C]"""
    levels: FloatArray
    """[R, C]; log2 ratio, or the value itself; meant only where the mark is PLAIN."""
    usual: FloatArray
    """[R]"""
    can_be_refined: bool = False
    """As the history says."""


def grid(source: History, width: int, *, raw: bool = False) -> Grid:
    """The history in at most `width` bins, as ratios to the usual or (`raw`) as values."""
    bins = bins_over(source.steps, width, finest=source.bucket_steps)
    marks = np.full((len(source.rows), len(bins)), Mark.MISSING, dtype=np.uint8)
    levels = np.full(marks.shape, np.nan)
    extremes = [source.values] if source.low is None or source.high is None else [source.high, source.low]
    ratios = [log_ratios(values, source.usual) for values in extremes]
    limits = extreme_limits(ratios[0]) if len(ratios) == 1 else _bucket_limits(*ratios)
    typical = source.values if raw else source.ratios
    shown = extremes if raw else ratios
    for part, inside in _bins_of_a_size(bins.index(source.steps), len(bins)):
        marks[:, part] = _worst_marks(source.marks[inside]).T
        levels[:, part] = _typical_or_extreme(
            typical[inside],
            np.concatenate([values[inside] for values in shown], axis=1),
            np.concatenate([values[inside] for values in ratios], axis=1),
            limits,
        ).T
    marks[[row.frozen for row in source.rows], :] = Mark.FROZEN
    return Grid(bins, marks, levels, source.usual, source.can_be_refined)


def _bins_of_a_size(indices: IntArray, num_bins: int) -> Iterator[tuple[IntArray, IntArray]]:
    """Bins with the same number of steps: which, and the indices of their steps [B, S]. `indices` must be sorted."""
    begins = np.searchsorted(indices, np.arange(num_bins + 1))
    amounts = np.diff(begins)
    for amount in np.unique(amounts[amounts > 0]).tolist():
        part = np.flatnonzero(amounts == amount)
        yield part, begins[part, None] + np.arange(amount)


def _worst_marks(marks: MarkArray) -> MarkArray:
    """One mark a row for the marks of bins [B, S, R]."""
    plain = (marks == Mark.PLAIN).any(axis=1)
    worst = marks.max(axis=1)
    out: MarkArray = np.where(plain & (worst < Mark.INF), np.uint8(Mark.PLAIN), worst).astype(np.uint8)
    return out


def extreme_limits(ratios: FloatArray) -> FloatArray:
    """How far from usual, in log2, a value of each row must be to stand for its whole bin.

    The farthest of many noisy values is always far: a wide bin would call every healthy row strange. So it
    takes a factor of three, and seven times what the row's own values usually stray from each other.
    """
    with np.errstate(invalid="ignore"):  # infinite values, about an infinite middle
        spread = _lower_median(np.abs(ratios - _lower_median(ratios)[None, :]))
    limits: FloatArray = np.fmax(np.log2(3.0), 7.0 * np.where(np.isfinite(spread), spread, 0.0))
    return limits


def _bucket_limits(high: FloatArray, low: FloatArray) -> FloatArray:
    """The same for buckets: a factor of three, and twice what buckets usually stray to either side of their mean."""
    with np.errstate(invalid="ignore"):
        spread = np.where(np.isfinite(high - low), high - low, np.nan)
    limits = np.full(spread.shape[1], np.log2(3.0))
    known = ~np.isnan(spread).all(axis=0)
    if known.any():
        limits[known] = np.fmax(limits[known], np.nanmedian(spread[:, known], axis=0))
    return limits


def _typical_or_extreme(
    typical: FloatArray, extremes: FloatArray, ratios: FloatArray, limits: FloatArray
) -> FloatArray:
    """Of each row of the bins [B, S, R] the extreme farthest from usual where that is past its limit, else the middle value."""
    distance = np.where(np.isnan(ratios), -1.0, np.abs(ratios))
    farthest = distance.argmax(axis=1)[:, None]
    is_extreme = np.take_along_axis(distance, farthest, axis=1)[:, 0] > limits
    middle = typical[:, 0] if typical.shape[1] == 1 else _lower_median(typical, axis=1)
    out: FloatArray = np.where(is_extreme, np.take_along_axis(extremes, farthest, axis=1)[:, 0], middle)
    return out


def _lower_median(values: FloatArray, axis: int = 0) -> FloatArray:
    """The middle value along an axis, one that is there; NaN where there is none."""
    ordered = np.sort(values, axis=axis)
    middle = np.maximum((~np.isnan(values)).sum(axis=axis, keepdims=True) - 1, 0) // 2
    if not values.shape[axis]:
        return np.full(np.delete(values.shape, axis), np.nan)
    out: FloatArray = np.take_along_axis(ordered, middle, axis=axis).squeeze(axis)
    return out
