"""Moments as the ancestor adds them up: in float32, in order, so that numbers that cancel to nearly 0 agree with its own.

Only where that is harmless: the values are float32's own, and what rounding can do to their mean at worst is under a
thousandth of their spread. So small tensors agree to the last digits; for large ones, and for those whose mean is far
from 0, the error of such sums grows past what they measure, and the kernels' exact moments are what counts.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from stethoscope.record import FloatArray

ROUNDING: Final = 2.0**-24
"""What one addition in float32 can be off by, relative to its result."""
HARMLESS: Final = 1e-3
SMALLEST, LARGEST = 1e-9, 1e9
"""Between these fourth powers, and squares of spreads, are within float32's range."""


class Moments(NamedTuple):
    """Of one tensor; std divides by n, kurtosis is excess."""

    mean: float
    std: float
    skewness: float
    kurtosis: float


def ancestral(values: FloatArray, exact: Moments) -> Moments:
    """The ancestor's moments of these values where its arithmetic is harmless, else the exact ones."""
    if len(values) < 2 or exact.std < SMALLEST:
        return exact
    largest = float(np.abs(values).max())
    if largest > LARGEST or len(values) * ROUNDING * largest > HARMLESS * exact.std:
        return exact
    singles = values.astype(np.float32)
    if not (singles == values).all():
        return exact
    count = np.float32(len(singles))
    mean = _total(singles) / count
    off = singles - mean
    std = np.sqrt(_total(off * off) / count)
    z = off / std
    square = z * z
    skewness = _total(z * square) / count
    kurtosis = _total(square * square) / count - np.float32(3.0)
    return Moments(float(mean), float(std), float(skewness), float(kurtosis))


def _total(values: npt.NDArray[np.float32]) -> np.float32:
    """Added up one by one."""
    return np.float32(np.add.accumulate(values, dtype=np.float32)[-1])
