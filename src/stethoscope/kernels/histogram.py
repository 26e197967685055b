"""The exponent histogram: which bins there are, and what percentiles it can promise.

One bin for each binary exponent and sign, one for zero; NaN and Inf are in no bin (the row counts them). The
bins are fixed, so there is no range to find first and any two histograms add. They are ordered by value: from
the most negative numbers over zero to the most positive. The bin of exponent e holds 2**e <= |x| < 2**(e+1);
the bins of MIN_EXPONENT also hold all that is smaller, those of MAX_EXPONENT all that is larger.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt

MIN_EXPONENT: Final = -96
MAX_EXPONENT: Final = 31
NUM_EXPONENTS: Final = MAX_EXPONENT - MIN_EXPONENT + 1
ZERO_BIN: Final = NUM_EXPONENTS
NUM_BINS: Final = 2 * NUM_EXPONENTS + 1


@dataclasses.dataclass(frozen=True, eq=False, slots=True)
class Percentiles:
    """Percentiles read off a histogram: the true one lies within [low, high], the estimate between them.

    `low` and `high` are the edges of the bin that holds the percentile, a factor of two apart, so the
    estimate (values taken as spread evenly over their bin) is never off by more than that factor. Only in
    the four outermost bins are they further apart: from 0 to 2**-95, and from 2**31 without end.
    """

    estimate: npt.NDArray[np.float64]
    low: npt.NDArray[np.float64]
    high: npt.NDArray[np.float64]


def edges() -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    """Lowest and highest value of each bin, in the order of the bins."""
    inner = np.ldexp(1.0, np.arange(MIN_EXPONENT, MAX_EXPONENT + 1))
    outer = 2.0 * inner
    inner[0] = 0.0
    outer[-1] = np.inf
    zero = np.zeros(1)
    return np.concatenate([-outer[::-1], zero, inner]), np.concatenate([-inner[::-1], zero, outer])


def bin_index(values: npt.NDArray[np.float64]) -> npt.NDArray[np.int64]:
    """The bin of each finite value."""
    _, exponents = np.frexp(values)
    position = np.clip(exponents.astype(np.int64) - 1, MIN_EXPONENT, MAX_EXPONENT) - MIN_EXPONENT
    index = np.where(values > 0, ZERO_BIN + 1 + position, ZERO_BIN - 1 - position)
    return np.where(values == 0, ZERO_BIN, index)


def percentiles(
    histogram: npt.NDArray[Any],
    qs: Sequence[float],
    *,
    minimum: float | None = None,
    maximum: float | None = None,
) -> Percentiles:
    """The percentiles `qs` (0 to 100) of the finite values that were counted, with bounds.

    `minimum` and `maximum`, known from the row, tighten the outermost bins. Null where nothing was counted.
    """
    wanted = np.asarray(qs, dtype=np.float64)
    if wanted.size and not ((wanted >= 0) & (wanted <= 100)).all():
        raise ValueError(f"percentiles are between 0 and 100, not {list(qs)}")
    counts = np.asarray(histogram, dtype=np.float64)
    if counts.shape != (NUM_BINS,):
        raise ValueError(f"a histogram has {NUM_BINS} bins, not the shape {counts.shape}")
    cumulative = np.cumsum(counts)
    total = cumulative[-1]
    if total == 0:
        null = np.full(wanted.shape, np.nan)
        return Percentiles(null, null.copy(), null.copy())
    low, high = _bounded_edges(minimum, maximum)
    # The value of rank ceil(q n / 100), counted from one (NumPy's "inverted_cdf"): always an element.
    rank = np.maximum(np.ceil(wanted / 100.0 * total), 1.0)
    position = np.searchsorted(cumulative, rank)
    within = (rank - (cumulative[position] - counts[position]) - 0.5) / counts[position]
    low, high = low[position], high[position]
    with np.errstate(invalid="ignore"):
        estimate = low + within * (high - low)
    # Where a bin has no end, its other edge is the best that is known.
    estimate = np.where(np.isinf(high), low, np.where(np.isinf(low), high, estimate))
    return Percentiles(estimate, low, high)


def _bounded_edges(
    minimum: float | None, maximum: float | None
) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    low, high = edges()
    for bound in (minimum, maximum):
        if bound is not None and np.isfinite(bound):
            position = int(bin_index(np.array([bound]))[0])
            if bound == minimum:
                low[position] = max(low[position], bound)
            if bound == maximum:
                high[position] = min(high[position], bound)
    return low, high
