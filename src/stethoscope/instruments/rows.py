"""One row of statistics per array, whatever the arrays are: the instruments' one door to the kernels.

Instruments compare what they measure with thresholds that people write down, so a row here keeps what is true of every
mean and norm to the last digit, where the kernels' sums stray by one: a mean lies between the smallest and the largest
value, and the norm of a single value is that value.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from stethoscope.instruments.array_input import ArrayError, as_numpy
from stethoscope.kernels import Table, UnsupportedArrayError, measure, stat
from stethoscope.kernels.columns import INDEX, num_finite
from stethoscope.kernels.tensors import is_tensor
from stethoscope.record import FloatArray

_CHUNK = 1 << 20
_PLAIN_SQUARES = (1e-140, 1e140)
"""Between these a square neither vanishes nor overflows, nor does the sum of as many as fit into memory."""


def measure_rows(arrays: Sequence[Any], names: Sequence[str]) -> Table:
    """Rows in the order given, one per array; where one cannot be read the error names it."""
    try:
        return _within_bounds(measure(arrays))
    except UnsupportedArrayError:
        for array, name in zip(arrays, names, strict=True):
            try:
                measure([array])
            except UnsupportedArrayError as error:
                raise ArrayError(error.what, where=name, do=error.do) from error
        raise


def _within_bounds(table: Table) -> Table:
    """The rows with mean_abs and norm inside the bounds that the extremes and the counts of values set."""
    largest, smallest = stat(table, "abs_max"), stat(table, "abs_min")
    num_zero = stat(table, "num_zero")
    num_other = num_finite(table) - num_zero
    with np.errstate(invalid="ignore", over="ignore"):
        root = np.sqrt(num_other)
        least = np.where(num_zero > 0, 0.0, smallest)
        table[:, INDEX["mean_abs"]] = np.clip(stat(table, "mean_abs"), least, largest)
        table[:, INDEX["norm"]] = np.clip(stat(table, "norm"), largest, np.fmax(root * largest, largest))
    return table


def mean_within(values: FloatArray) -> float:
    """The mean, not past the smallest or the largest value by its own rounding; 0 without values."""
    if not len(values):
        return 0.0
    return float(np.clip(values.mean(), values.min(), values.max()))


def plain_norms(arrays: Sequence[Any], table: Table, names: Sequence[str]) -> FloatArray:
    """The L2 norm of each array's finite values as the root of the sum of squares in float64; 0 without any.

    The kernels take it from the mean and the spread, so that the norm of 3, 4 and zeros may pass 5 by the last digit.
    Theirs stand for tensors on a device, sparse and sharded ones, which are not fetched or spread out for this, and where
    squares leave float64's range.
    """
    norms: FloatArray = np.nan_to_num(stat(table, "norm"), nan=0.0)
    low, high = _PLAIN_SQUARES
    for index, (array, name) in enumerate(zip(arrays, names, strict=True)):
        largest = float(stat(table[index], "abs_max"))
        if low < largest < high and _is_plain(array):
            norms[index] = _root_of_squares(array, name)
    return norms


def _is_plain(array: Any) -> bool:
    """Whether all its elements lie in this machine's memory: an array, or a dense tensor of no subclass."""
    if not is_tensor(array):
        return True
    is_dense = str(array.layout) == "torch.strided" and array.device.type == "cpu"
    return is_dense and type(array).__name__ in ("Tensor", "Parameter")


def _root_of_squares(array: Any, name: str) -> float:
    flat = as_numpy(array, name).reshape(-1)
    total = 0.0
    for begin in range(0, flat.size, _CHUNK):
        part = flat[begin : begin + _CHUNK].astype(np.float64)
        part[~np.isfinite(part)] = 0.0
        total += float(part @ part)
    return float(np.sqrt(total))
