"""Buckets of many sites as dense arrays: `count` buckets of each site, one after the other.

Values that are no number are left out of lowest, highest and mean; `broken` says where they were.
"""

from __future__ import annotations

import dataclasses
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from stethoscope.kernels.columns import COLUMNS
from stethoscope.record import IntArray

BROKEN_BY: Final = ("num_nan", "num_posinf", "num_neginf")
"""Columns of which only whether they are above zero is kept, as `broken`."""
STATS: Final = tuple(name for name in COLUMNS if name not in BROKEN_BY)
"""The columns that dense buckets hold."""
PARTS: Final = ("min", "max", "mean")
INF, NAN = 1, 2
NO_ROW: Final = 255

Single = npt.NDArray[np.float32]


@dataclasses.dataclass(slots=True, eq=False)
class DenseBuckets:
    """`low`, `high`, `mean` [sites, buckets, stats]; `rows` (how many) and `broken` (INF or NAN) [sites, buckets].

    Each bucket is of 2**level steps; the number of the first one is `first`: its first step divided by that.
    """

    level: int
    first: int
    low: Single
    high: Single
    mean: Single
    rows: npt.NDArray[np.uint32]
    broken: npt.NDArray[np.uint8]

    @classmethod
    def empty(cls, level: int, first: int, num_sites: int, count: int, num_stats: int) -> DenseBuckets:
        """Buckets in which nothing is."""
        shape = (num_sites, count, num_stats)
        low, high, mean = (np.full(shape, np.nan, np.float32) for _ in range(3))
        flat = shape[:2]
        return cls(level, first, low, high, mean, np.zeros(flat, np.uint32), np.zeros(flat, np.uint8))

    @property
    def starts(self) -> IntArray:
        """The first step of each bucket."""
        return (np.arange(self.low.shape[1], dtype=np.int64) + self.first) << self.level

    def take(self, sites: IntArray) -> DenseBuckets:
        """Only these sites."""
        low, high, mean = (part[sites] for part in (self.low, self.high, self.mean))
        return DenseBuckets(self.level, self.first, low, high, mean, self.rows[sites], self.broken[sites])

    def add(self, other: DenseBuckets, sites: IntArray | slice = slice(None)) -> None:
        """Takes up finer or equal buckets; of `other`'s sites the n-th is `sites[n]` here."""
        shift = self.level - other.level
        target = ((np.arange(other.low.shape[1]) + other.first) >> shift) - self.first
        inside = np.flatnonzero((target >= 0) & (target < self.low.shape[1]))
        if not len(inside):
            return
        target = target[inside]
        edges = np.flatnonzero(np.diff(target, prepend=target[0] - 1))
        cut, at = slice(int(inside[0]), int(inside[-1]) + 1), slice(int(target[0]), int(target[-1]) + 1)
        sums, weights = _weighted_sums(other.mean[:, cut], other.rows[:, cut], edges)
        low = np.fmin.reduceat(other.low[:, cut], edges, axis=1)
        high = np.fmax.reduceat(other.high[:, cut], edges, axis=1)
        broken = np.maximum.reduceat(other.broken[:, cut], edges, axis=1)
        self.low[sites, at] = np.fmin(self.low[sites, at], low)
        self.high[sites, at] = np.fmax(self.high[sites, at], high)
        self.broken[sites, at] = np.maximum(self.broken[sites, at], broken)
        known = self.mean[sites, at].astype(np.float64)
        weight = np.where(np.isnan(known), 0.0, self.rows[sites, at].astype(np.float64)[..., None])
        with np.errstate(invalid="ignore", divide="ignore", over="ignore"):
            mean = (np.nan_to_num(known) * weight + sums) / (weight + weights)
            self.mean[sites, at] = mean.astype(np.float32)
        self.rows[sites, at] += np.add.reduceat(other.rows[:, cut], edges, axis=1)


def _weighted_sums(mean: Single, rows: npt.NDArray[np.uint32], edges: IntArray) -> tuple[Any, Any]:
    """Sums and weights of means over buckets that are taken together; what is no number has no weight."""
    there = ~np.isnan(mean)
    weights = np.where(there, rows[..., None], 0).astype(np.float64)
    sums = np.where(there, mean, 0.0) * weights
    return np.add.reduceat(sums, edges, axis=1), np.add.reduceat(weights, edges, axis=1)


def from_steps(steps: IntArray, values: Any, broken: Any, level: int) -> DenseBuckets:
    """Rows [steps, sites, stats] as buckets; `broken` [steps, sites] is NO_ROW where there is none."""
    first = int(steps[0]) >> level
    count = (int(steps[-1]) >> level) - first + 1
    out = DenseBuckets.empty(level, first, values.shape[1], count, values.shape[2])
    target = (steps >> level) - first
    edges = np.flatnonzero(np.diff(target, prepend=-1))
    at = target[edges]
    with np.errstate(over="ignore", invalid="ignore"):
        single = values.astype(np.float32)
    out.low[:, at] = np.fmin.reduceat(single, edges, axis=0).transpose(1, 0, 2)
    out.high[:, at] = np.fmax.reduceat(single, edges, axis=0).transpose(1, 0, 2)
    there = ~np.isnan(values)
    with np.errstate(invalid="ignore", divide="ignore", over="ignore"):
        total = np.add.reduceat(np.where(there, values, 0.0), edges, axis=0)
        mean = total / np.add.reduceat(there.astype(np.float64), edges, axis=0)
        out.mean[:, at] = mean.astype(np.float32).transpose(1, 0, 2)
    out.rows[:, at] = np.add.reduceat((broken != NO_ROW).astype(np.uint32), edges, axis=0).T
    out.broken[:, at] = np.maximum.reduceat(np.where(broken == NO_ROW, 0, broken).astype(np.uint8), edges, axis=0).T
    return out
