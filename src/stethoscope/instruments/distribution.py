"""How the values of one array are spread: histogram, percentiles, outliers, entropy.

Exact up to `MAX_EXACT` elements; beyond that a fixed random sample of that many stands for all, and
`num_sampled` says so. Non-finite values are left out here: the alerts speak of them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from stethoscope.record import FloatArray

NUM_BINS: Final = 50
PERCENTILES: Final = (5, 25, 50, 75, 95, 99)
OUTLIER_REACH: Final = 1.5
MAX_OUTLIERS: Final = 100
MAX_EXACT: Final = 1 << 22
HUGE: Final = float(np.finfo(np.float64).max) / 4


@dataclass(frozen=True, slots=True)
class TensorOutlier:
    """One value outside the fences, and where it sits."""

    index: tuple[int, ...]
    value: float


@dataclass(frozen=True, eq=False, slots=True)
class TensorDistribution:
    """Histogram, percentiles, outliers and entropy of the finite values."""

    histogram: npt.NDArray[np.int64]
    """Counts of 50 equal bins from the smallest to the largest value."""
    bin_edges: FloatArray
    percentiles: dict[str, float]
    """p5, p25, p50, p75, p95, p99, interpolated linearly."""
    outliers: tuple[TensorOutlier, ...]
    """By index; where there are more than 100, the 100 farthest from the median."""
    num_outliers: int
    """Values farther than 1.5 interquartile ranges from the nearest quartile, all of them; an
    estimate where sampled."""
    entropy: float
    """Shannon entropy of the histogram in bits: 0 for one bin, log2(50) for a flat one."""
    num_sampled: int | None = None
    """How many elements stood for all of them; None where every element was read."""

    @property
    def median(self) -> float:
        """The middle value."""
        return self.percentiles["p50"]


def distribution(array: npt.NDArray[Any]) -> TensorDistribution | None:
    """The distribution of an array's finite values, or None where it has none."""
    flat = array.reshape(-1)
    indices = _sample_indices(flat.size)
    read = np.asarray(flat if indices is None else flat[indices], dtype=np.float64)
    kept = np.isfinite(read)
    values = read if kept.all() else read[kept]
    if not values.size:
        return None
    counts, edges = _histogram(values)
    percentiles = {f"p{q}": float(x) for q, x in zip(PERCENTILES, _percentiles(values), strict=True)}
    outliers, num_outliers = _find_outliers(read, percentiles, array.shape, indices)
    return TensorDistribution(
        histogram=counts,
        bin_edges=edges,
        percentiles=percentiles,
        outliers=outliers,
        num_outliers=num_outliers if indices is None else round(num_outliers * flat.size / len(read)),
        entropy=entropy(counts),
        num_sampled=None if indices is None else len(read),
    )


def _sample_indices(size: int) -> npt.NDArray[np.int64] | None:
    """One index at random from each of `MAX_EXACT` equal stretches; None where all are read.

    At random within its stretch, because every n-th element of a matrix can be the same column again and
    again.
    """
    if size <= MAX_EXACT:
        return None
    edges = np.linspace(0, size, MAX_EXACT + 1).astype(np.int64)
    jitter = np.random.default_rng(0).random(MAX_EXACT)
    return edges[:-1] + (jitter * np.diff(edges)).astype(np.int64)


def _scale(values: FloatArray) -> float:
    """What to divide by so that the difference of two values does not overflow; 1 nearly always."""
    return 4.0 if max(abs(float(values.min())), abs(float(values.max()))) > HUGE else 1.0


def _percentiles(values: FloatArray) -> FloatArray:
    """Interpolated linearly."""
    scale = _scale(values)
    scaled = values if scale == 1.0 else values / scale
    return np.asarray(np.percentile(scaled, PERCENTILES) * scale, dtype=np.float64)


def _histogram(values: FloatArray) -> tuple[npt.NDArray[np.int64], FloatArray]:
    """50 equal bins from the smallest to the largest value."""
    scale = _scale(values)
    scaled = values if scale == 1.0 else values / scale
    low, high = float(scaled.min()), float(scaled.max())
    if low + (high - low) / NUM_BINS == low:  # one value, or nothing between two of them
        low, high = low - max(0.5, abs(low) * 1e-6), high + max(0.5, abs(high) * 1e-6)
    counts, edges = np.histogram(scaled, bins=NUM_BINS, range=(low, high))
    return counts.astype(np.int64), np.asarray(edges * scale, dtype=np.float64)


def entropy(counts: npt.NDArray[Any]) -> float:
    """Shannon entropy of the counts, in bits."""
    share = counts[counts > 0] / counts.sum()
    return float(-(share * np.log2(share)).sum()) + 0.0


def _find_outliers(
    values: FloatArray,
    percentiles: dict[str, float],
    shape: tuple[int, ...],
    sampled: npt.NDArray[np.int64] | None,
) -> tuple[tuple[TensorOutlier, ...], int]:
    """The kept outliers, and how many there are among the values read."""
    with np.errstate(invalid="ignore", over="ignore"):
        reach = np.float64(OUTLIER_REACH) * (percentiles["p75"] - percentiles["p25"])
        low, high = percentiles["p25"] - reach, percentiles["p75"] + reach
        indices = np.flatnonzero(((values < low) | (values > high)) & np.isfinite(values))
    num = len(indices)
    if num > MAX_OUTLIERS:
        far = np.abs(values[indices] / 2 - percentiles["p50"] / 2)
        indices = np.sort(indices[np.argsort(-far, kind="stable")[:MAX_OUTLIERS]])
    where = indices if sampled is None else sampled[indices]
    kept = [TensorOutlier(index_of(int(w), shape), float(values[p])) for w, p in zip(where, indices, strict=True)]
    return tuple(kept), num


def index_of(flat: int, shape: tuple[int, ...]) -> tuple[int, ...]:
    """The index of the flat-th element in an array of this shape."""
    return tuple(int(i) for i in np.unravel_index(flat, shape)) if shape else ()
