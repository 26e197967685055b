"""Does a series rise, fall or swing, and could chance do the same?

Every answer carries its p-value; nothing here compares with a constant of its own choosing. The values are in
time order; non-finite ones are left out before a test.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import StrEnum

import numpy as np
import numpy.typing as npt

from stethoscope.record import FloatArray

MIN_VALUES = 4
"""Fewer values than this carry no trend."""
MAX_PAIRWISE = 600
"""Longer series are averaged into this many blocks before the pairwise tests, which are quadratic."""


class Direction(StrEnum):
    """Which way a series goes."""

    RISING = "Rising"
    FALLING = "Falling"
    STEADY = "Steady"


@dataclass(frozen=True, slots=True)
class Trend:
    """The Mann-Kendall test of a series, with the Theil-Sen slope."""

    direction: Direction
    tau: float
    """Kendall's tau-b against time: -1 falls always, 1 rises always."""
    p_value: float
    slope: float
    """Median change per step (Theil-Sen)."""
    num_values: int

    @property
    def significant(self) -> bool:
        """Whether the direction is more than chance."""
        return self.direction is not Direction.STEADY


@dataclass(frozen=True, slots=True)
class Oscillation:
    """Whether a series swings from one value to the next more than chance would."""

    found: bool
    p_value: float
    amplitude: float
    """Half the typical swing between neighbouring turns, in the units of the values."""
    period: float
    """Steps from one peak to the next; 0 where nothing was found."""


def finite(values: npt.ArrayLike) -> FloatArray:
    """The finite values as float64, in their order."""
    array = np.asarray(values, dtype=np.float64).reshape(-1)
    return array[np.isfinite(array)]


def kendall_s(values: FloatArray) -> tuple[float, float]:
    """Kendall's S of the values against time, and its variance with the correction for ties."""
    n = len(values)
    signs = np.sign(values[None, :] - values[:, None])
    s = float(signs[np.triu_indices(n, 1)].sum())
    _, ties = np.unique(values, return_counts=True)
    tied = float((ties * (ties - 1) * (2 * ties + 5)).sum())
    return s, (n * (n - 1) * (2 * n + 5) - tied) / 18.0


def mann_kendall(values: npt.ArrayLike, *, alpha: float = 0.01, correlated: bool = False) -> Trend:
    """Mann-Kendall's test for a monotonic trend (Mann 1945, Kendall 1975), ties corrected.

    `correlated` widens the variance by the autocorrelation of the ranks after the trend is taken out (Hamed
    and Rao 1998), for series such as gradient norms in which one step resembles the next.
    """
    array = finite(values)
    if len(array) < MIN_VALUES:
        return Trend(Direction.STEADY, 0.0, 1.0, 0.0, len(array))
    short, stride = shorten(array)
    s, variance = kendall_s(short)
    slope = theil_sen(short) / stride
    if variance <= 0:
        return Trend(Direction.STEADY, 0.0, 1.0, 0.0, len(array))
    if correlated:
        variance *= variance_inflation(short - theil_sen(short) * np.arange(len(short)))
    p_value = math.erfc(abs(s) / math.sqrt(2.0 * variance))
    steady = p_value >= alpha or s == 0
    direction = Direction.STEADY if steady else Direction.RISING if s > 0 else Direction.FALLING
    return Trend(direction, _tau_b(s, short), p_value, slope, len(array))


def _tau_b(s: float, values: FloatArray) -> float:
    pairs = len(values) * (len(values) - 1) / 2.0
    _, ties = np.unique(values, return_counts=True)
    untied = pairs - float((ties * (ties - 1) / 2.0).sum())
    return s / math.sqrt(pairs * untied) if untied > 0 else 0.0


def variance_inflation(residuals: FloatArray) -> float:
    """How much autocorrelation inflates the variance of S: Hamed and Rao's n/n*, at least 1."""
    n = len(residuals)
    ranks = np.empty(n)
    ranks[np.argsort(residuals, kind="stable")] = np.arange(n)
    correlation = autocorrelation(ranks)
    lags = np.arange(1, len(correlation))
    # Up to the first lag that could be chance: beyond it the trend taken out leaves spurious negative ones.
    small = np.flatnonzero(correlation[1:] < 1.64 / math.sqrt(n))
    counted = int(small[0]) if len(small) else len(lags)
    weights = (n - lags) * (n - lags - 1.0) * (n - lags - 2.0)
    extra = float((weights * correlation[1:])[:counted].sum())
    return max(1.0, 1.0 + 2.0 * extra / (n * (n - 1.0) * (n - 2.0)))


def autocorrelation(values: FloatArray) -> FloatArray:
    """The autocorrelation at lags 0, 1, ... up to a third of the length."""
    centered = values - values.mean()
    total = float(centered @ centered)
    num_lags = max(2, len(values) // 3)
    if total <= 0:
        return np.concatenate([[1.0], np.zeros(num_lags)])
    return np.array([float(centered[lag:] @ centered[: len(values) - lag]) / total for lag in range(num_lags + 1)])


def theil_sen(values: FloatArray) -> float:
    """The median slope over all pairs, per position; robust against a third of outliers."""
    n = len(values)
    if n < 2:
        return 0.0
    first, second = np.triu_indices(n, 1)
    return float(np.median((values[second] - values[first]) / (second - first)))


def shorten(values: FloatArray, limit: int = MAX_PAIRWISE) -> tuple[FloatArray, int]:
    """The values averaged in equal blocks so that at most `limit` remain, and the block's length."""
    stride = -(-len(values) // limit)
    if stride <= 1:
        return values, 1
    whole = len(values) // stride * stride
    blocks: FloatArray = values[:whole].reshape(-1, stride).mean(axis=1)
    return blocks, stride


def noise(values: npt.ArrayLike) -> float:
    """The standard deviation of the jitter between neighbours, deaf to slow changes and to outliers.

    The median of |second differences| of independent normal noise is 0.6745 * sqrt(6) of its standard
    deviation.
    """
    array = finite(values)
    if len(array) < 3:
        return 0.0
    return float(np.median(np.abs(np.diff(array, 2)))) / (0.6745 * math.sqrt(6.0))


def oscillation(values: npt.ArrayLike, *, alpha: float = 1e-3, amplitude: float = 0.0) -> Oscillation:
    """Whether the values swing: more turning points than chance gives, or a period that repeats.

    The turning-point test: n independent values have 2(n-2)/3 turning points on average with variance
    (16n-29)/90 (Bienaymé 1874), so plain noise is not called an oscillation. A swing smaller than `amplitude`
    does not count.
    """
    array = finite(values)
    n = len(array)
    if n < 8 or not np.ptp(array) > 0:
        return Oscillation(False, 1.0, 0.0, 0.0)
    change = np.diff(array)
    turns = np.flatnonzero(change[1:] * change[:-1] < 0) + 1
    z = (len(turns) - 2.0 * (n - 2) / 3.0) / math.sqrt((16.0 * n - 29.0) / 90.0)
    p_turns = 0.5 * math.erfc(z / math.sqrt(2.0))
    size = 0.5 * float(np.median(np.abs(np.diff(array[turns])))) if len(turns) > 1 else 0.0
    period = 2.0 * (n - 1) / max(1, len(turns))
    p_value = p_turns
    if p_turns >= alpha:
        p_value, period = _periodic(array)
        size = max(size, float(np.percentile(array, 90) - np.percentile(array, 10)) / 2.0)
    found = p_value < alpha and size > amplitude
    return Oscillation(found, p_value, size, period if found else 0.0)


def _periodic(values: FloatArray) -> tuple[float, float]:
    """Fisher's exact g test (1929) for one strong period, on the values with their straight line removed.

    Only periods of which at least three fit are looked for: one bump is not an oscillation.
    """
    n = len(values)
    time = np.arange(n)
    line = np.polynomial.polynomial.polyval(time, np.polynomial.polynomial.polyfit(time, values, 1))
    power = np.abs(np.fft.rfft(values - line)) ** 2
    power = power[1 : (n - 1) // 2 + 1]
    num, total = len(power), float(power.sum())
    if num < 4 or total <= 0:
        return 1.0, 0.0
    peak = int(np.argmax(power))
    if peak + 1 < 3:
        return 1.0, 0.0
    share = float(power[peak]) / total
    p_value = (
        sum(
            (-1) ** (k - 1) * math.comb(num, k) * (1.0 - k * share) ** (num - 1)
            for k in range(1, min(num, int(1.0 / share)) + 1)
            if 1.0 - k * share > 0
        )
        if share > 0.25
        else 1.0
    )
    return min(1.0, max(0.0, p_value)), n / (peak + 1.0)
