"""Which statistics a row holds, in which order, and how two rows merge.

A row is `NUM_COLUMNS` float64 numbers. Counts come first and are exact integers up to 2**53. Everything
after them is over the finite values only, and NaN ("null") where there is no finite value to speak of: a
row never claims a zero that was not measured. Spread is kept as std, skewness and excess kurtosis; with the
count they give back the central moments, so two rows merge exactly as if their values had been one tensor.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt

from stethoscope.kernels.statistics import COUNT_COLUMNS, VALUE_COLUMNS, derive, statistic

Table = npt.NDArray[np.float64]

COUNTS: Final = tuple(one.name for one in COUNT_COLUMNS)
COLUMNS: Final = COUNTS + tuple(one.name for one in VALUE_COLUMNS)
NUM_COLUMNS: Final = len(COLUMNS)
NUM_COUNTS: Final = len(COUNTS)
INDEX: Final = {name: position for position, name in enumerate(COLUMNS)}


def empty_rows(num_rows: int) -> Table:
    """Rows of tensors without elements: counts zero, all else null."""
    table = np.full((num_rows, NUM_COLUMNS), np.nan)
    table[:, :NUM_COUNTS] = 0.0
    return table


def num_finite(table: Table) -> npt.NDArray[np.float64]:
    """How many finite values each row speaks of."""
    count: npt.NDArray[np.float64] = table[..., 0] - table[..., 1] - table[..., 2] - table[..., 3]
    return count


def stat(table: Table, name: str) -> npt.NDArray[np.float64]:
    """One named statistic of every row, columns and derived ones alike."""
    inputs = statistic(name).inputs or (name,)
    return derive(name, {column: table[..., INDEX[column]] for column in inputs})


def merge(a: Table, b: Table) -> Table:
    """The rows of the two tables' values taken together, row by row (Pébay's formulas for the moments)."""
    out = np.empty(np.broadcast_shapes(a.shape, b.shape))
    col = INDEX
    out[..., :NUM_COUNTS] = a[..., :NUM_COUNTS] + b[..., :NUM_COUNTS]
    out[..., col["min"]] = np.fmin(a[..., col["min"]], b[..., col["min"]])
    out[..., col["max"]] = np.fmax(a[..., col["max"]], b[..., col["max"]])
    out[..., col["abs_max"]] = np.fmax(a[..., col["abs_max"]], b[..., col["abs_max"]])
    out[..., col["abs_min"]] = np.fmin(a[..., col["abs_min"]], b[..., col["abs_min"]])
    n_a, n_b = num_finite(a), num_finite(b)
    n = n_a + n_b
    # A power of two brings the largest value near one, so that fourth powers neither overflow nor vanish.
    exponent = np.frexp(np.where(n > 0, out[..., col["abs_max"]], 1.0))[1]
    with np.errstate(invalid="ignore", divide="ignore", over="ignore", under="ignore"):
        share_a, share_b = n_a / n, n_b / n
        mean_a, mean_b = _or_zero(a, "mean", n_a), _or_zero(b, "mean", n_b)
        delta = np.ldexp(mean_b, -exponent) - np.ldexp(mean_a, -exponent)
        delta = np.where((n_a > 0) & (n_b > 0), delta, 0.0)
        mean = mean_a + np.ldexp(delta * share_b, exponent)
        out[..., col["mean"]] = np.where(n_a == 0, mean_b, np.where(n_b == 0, mean_a, mean))
        abs_a, abs_b = _or_zero(a, "mean_abs", n_a), _or_zero(b, "mean_abs", n_b)
        out[..., col["mean_abs"]] = abs_a * share_a + abs_b * share_b
        out[..., col["norm"]] = np.hypot(_or_zero(a, "norm", n_a), _or_zero(b, "norm", n_b))
        moments_a, moments_b = _central(a, n_a, exponent), _central(b, n_b, exponent)
        var, third, fourth = _merge_moments(moments_a, moments_b, share_a, share_b, delta)
        std = np.sqrt(var)
        flat = var <= 0
        out[..., col["std"]] = np.ldexp(std, exponent)
        out[..., col["skewness"]] = np.where(flat, np.nan, third / (std * var))
        out[..., col["kurtosis"]] = np.where(flat, np.nan, fourth / (var * var) - 3.0)
    out[..., NUM_COUNTS:][n == 0] = np.nan
    return out


def _or_zero(table: Table, name: str, n: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    return np.where(n > 0, table[..., INDEX[name]], 0.0)


def _merge_moments(
    a: tuple[Table, Table, Table], b: tuple[Table, Table, Table], p: Table, q: Table, delta: Table
) -> tuple[Table, Table, Table]:
    """Second to fourth central moments (per element) of the union; p and q are the two shares."""
    var_a, third_a, fourth_a = a
    var_b, third_b, fourth_b = b
    pq = p * q
    var = p * var_a + q * var_b + pq * delta**2
    third = p * third_a + q * third_b + pq * (p - q) * delta**3 + 3 * pq * delta * (var_b - var_a)
    fourth = (
        p * fourth_a
        + q * fourth_b
        + pq * (p * p - pq + q * q) * delta**4
        + 6 * pq * delta**2 * (p * var_b + q * var_a)
        + 4 * pq * delta * (third_b - third_a)
    )
    return var, third, fourth


def _central(table: Table, n: Table, exponent: npt.NDArray[np.int32]) -> tuple[Table, Table, Table]:
    """Second to fourth central moments per element, of the values times 2**-exponent."""
    std = np.ldexp(_or_zero(table, "std", n), -exponent)
    var = std * std
    skewness, kurtosis = table[..., INDEX["skewness"]], table[..., INDEX["kurtosis"]]
    third = np.where(np.isnan(skewness), 0.0, skewness) * std * var
    fourth = np.where(np.isnan(kurtosis), 0.0, kurtosis + 3.0) * var * var
    return var, third, fourth
