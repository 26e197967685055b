"""How the values of one array are spread: histogram, percentiles, outliers, entropy.

Exact up to `MAX_EXACT` elements; beyond that an evenly spaced sample of that many stands for all, and
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
MAX_EXACT: Final = 1 << 24
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
    """Values farther than 1.5 interquartile ranges from the nearest quartile, all of them."""
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
    stride = -(-flat.size // MAX_EXACT)
    read = np.asarray(flat[::stride] if stride > 1 else flat, dtype=np.float64)
    kept = np.isfinite(read)
    values = read if kept.all() else read[kept]
    if not values.size:
        return None
    counts, edges = _histogram(values)
    scale = (
        4.0 if float(np.abs(values).max()) > HUGE else 1.0
    )  # where a difference of two values would overflow
    levels = np.percentile(values / scale, PERCENTILES) * scale
    percentiles = {f"p{q}": float(level) for q, level in zip(PERCENTILES, levels, strict=True)}
    outliers, num_outliers = _outliers(read, percentiles, array.shape, stride)
    return TensorDistribution(
        histogram=counts,
        bin_edges=edges,
        percentiles=percentiles,
        outliers=outliers,
        num_outliers=num_outliers,
        entropy=entropy(counts),
        num_sampled=len(read) if stride > 1 else None,
    )


def _histogram(values: FloatArray) -> tuple[npt.NDArray[np.int64], FloatArray]:
    """50 equal bins; scaled down first where the range itself would overflow."""
    low, high = float(values.min()), float(values.max())
    scale = 4.0 if max(abs(low), abs(high)) > HUGE else 1.0
    span = (high - low) if scale == 1.0 else (high / scale - low / scale)
    if span <= 0 or low / scale + span / NUM_BINS == low / scale:  # one value, or nothing between two of them
        low, high = low - max(0.5, abs(low) * 1e-6), high + max(0.5, abs(high) * 1e-6)
    counts, edges = np.histogram(values / scale, bins=NUM_BINS, range=(low / scale, high / scale))
    return counts.astype(np.int64), np.asarray(edges * scale, dtype=np.float64)


def entropy(counts: npt.NDArray[Any]) -> float:
    """Shannon entropy of the counts, in bits."""
    share = counts[counts > 0] / counts.sum()
    return float(-(share * np.log2(share)).sum()) + 0.0


def _outliers(
    values: FloatArray, percentiles: dict[str, float], shape: tuple[int, ...], stride: int
) -> tuple[tuple[TensorOutlier, ...], int]:
    with np.errstate(invalid="ignore", over="ignore"):
        reach = np.float64(OUTLIER_REACH) * (percentiles["p75"] - percentiles["p25"])
        low, high = percentiles["p25"] - reach, percentiles["p75"] + reach
        places = np.flatnonzero(((values < low) | (values > high)) & np.isfinite(values))
    num = len(places)
    if num > MAX_OUTLIERS:
        far = np.abs(values[places] / 2 - percentiles["p50"] / 2)
        places = np.sort(places[np.argsort(-far, kind="stable")[:MAX_OUTLIERS]])
    kept = tuple(TensorOutlier(index_of(int(p) * stride, shape), float(values[p])) for p in places)
    return kept, num * stride


def index_of(flat: int, shape: tuple[int, ...]) -> tuple[int, ...]:
    """The place of the flat-th element in an array of this shape."""
    return tuple(int(i) for i in np.unravel_index(flat, shape)) if shape else ()
