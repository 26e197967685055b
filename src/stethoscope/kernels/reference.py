"""The truth that every other kernel is tested against: NumPy in float64, exact sums, no thought of speed.

Takes anything that holds numbers: NumPy arrays, torch tensors, JAX arrays, lists. Complex numbers are
measured as their real and imaginary parts, twice as many values. Integers and booleans are measured as
numbers. What float64 cannot hold (int64 beyond 2**53) is rounded to it first.
"""

from __future__ import annotations

import math
import sys
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from stethoscope.kernels import histogram as bins
from stethoscope.kernels import sketch as sketches
from stethoscope.kernels.columns import INDEX, NUM_COLUMNS, Table, empty_rows
from stethoscope.record import StethoscopeError

Values = npt.NDArray[np.float64]

SMALLEST_NORMAL: Final = {
    "float64": 2.0**-1022,
    "float32": 2.0**-126,
    "bfloat16": 2.0**-126,
    "float16": 2.0**-14,
    "float8_e4m3fn": 2.0**-6,
    "float8_e4m3fnuz": 2.0**-7,
    "float8_e5m2": 2.0**-14,
    "float8_e5m2fnuz": 2.0**-15,
    "float8_e8m0fnu": 2.0**-127,
    "complex128": 2.0**-1022,
    "complex64": 2.0**-126,
    "complex32": 2.0**-14,
}
"""The smallest normal number of each floating dtype; integers have none, so nothing is tiny there."""


class UnsupportedArrayError(StethoscopeError, TypeError):
    """Something that holds no numbers we can read was handed in to be measured."""


def values(array: Any) -> tuple[Values, float]:
    """All values as flat float64 in logical order, and the smallest normal number of the array's dtype."""
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(array, torch.Tensor):
        name = str(array.dtype).removeprefix("torch.")
        plain = array.detach().cpu()
        if plain.is_complex():
            plain = torch.view_as_real(plain.resolve_conj())
        flat = plain.resolve_neg().to(torch.float64, copy=True).reshape(-1).numpy()
        return flat, SMALLEST_NORMAL.get(name, 0.0)
    plain = np.asarray(array)
    name = plain.dtype.name
    if plain.dtype.kind == "c":
        parts = np.stack([plain.real, plain.imag], axis=-1)
        return parts.astype(np.float64).reshape(-1), SMALLEST_NORMAL.get(name, 0.0)
    if plain.dtype.kind not in "fiub" and name not in SMALLEST_NORMAL:
        raise UnsupportedArrayError(
            f"an array of dtype {plain.dtype} holds no numbers to measure", do="Hand in numbers."
        )
    return plain.astype(np.float64).reshape(-1), SMALLEST_NORMAL.get(name, 0.0)


def row(array: Any, limit: float | None = None) -> Table:
    """The row of one array, as `columns` defines it."""
    flat, tiny = values(array)
    return row_of_values(flat, tiny, limit)


def row_of_values(flat: Values, tiny: float, limit: float | None = None) -> Table:
    """The row of flat float64 values whose own dtype has `tiny` as its smallest normal number."""
    out: Table = empty_rows(1)[0]
    finite = flat[np.isfinite(flat)]
    size = np.abs(finite)
    out[INDEX["count"]] = flat.size
    out[INDEX["num_nan"]] = np.isnan(flat).sum()
    out[INDEX["num_posinf"]] = (flat == np.inf).sum()
    out[INDEX["num_neginf"]] = (flat == -np.inf).sum()
    out[INDEX["num_zero"]] = (finite == 0).sum()
    out[INDEX["num_tiny"]] = ((size > 0) & (size < tiny)).sum()
    out[INDEX["num_huge"]] = 0 if limit is None or math.isnan(limit) else (size > limit).sum()
    if finite.size == 0:
        return out
    out[INDEX["min"]] = finite.min()
    out[INDEX["max"]] = finite.max()
    out[INDEX["abs_max"]] = size.max()
    if (size > 0).any():
        out[INDEX["abs_min"]] = size[size > 0].min()
    out[INDEX["mean"] :] = _moments(finite, float(size.max()))
    return out


def rows(arrays: Any, limits: Any = None) -> Table:
    """The rows of several arrays."""
    out = np.empty((len(arrays), NUM_COLUMNS))
    for position, array in enumerate(arrays):
        out[position] = row(array, None if limits is None else limits[position])
    return out


def _moments(finite: Values, largest: float) -> list[float]:
    """mean, mean_abs, norm, std, skewness, kurtosis; scaled by a power of two so that no power overflows."""
    exponent = math.frexp(largest)[1]
    scaled = np.ldexp(finite, -exponent)
    n = finite.size
    mean = math.fsum(scaled) / n
    rest = math.fsum(scaled - mean) / n
    centred = (scaled - mean) - rest
    square = centred * centred
    var = math.fsum(square) / n
    std = math.sqrt(var)
    flat = finite.min() == finite.max() or var == 0
    out = [
        mean,
        math.fsum(np.abs(scaled)) / n,
        math.sqrt(math.fsum(scaled * scaled)),
        0.0 if flat else std,
    ]
    with np.errstate(over="ignore"):
        out = [float(np.ldexp(number, exponent)) for number in out]
    if flat:
        return [float(finite[0]) if finite.min() == finite.max() else out[0], *out[1:], math.nan, math.nan]
    skewness = math.fsum(square * centred) / n / (std * var)
    return [*out, skewness, math.fsum(square * square) / n / (var * var) - 3.0]


def histogram(array: Any) -> npt.NDArray[np.uint32]:
    """Exponent histogram by sign of the finite values."""
    flat, _ = values(array)
    counts = np.bincount(bins.bin_index(flat[np.isfinite(flat)]), minlength=bins.NUM_BINS)
    return np.minimum(counts, np.iinfo(np.uint32).max).astype(np.uint32)


def sketch(array: Any, seed: int = 0) -> npt.NDArray[np.float32]:
    """Random-sign sums of the values in logical order, non-finite ones left out."""
    flat, _ = values(array)
    width = sketches.SKETCH_WIDTH
    count = -(-flat.size // width)
    padded = np.zeros(count * width)
    padded[: flat.size] = np.where(np.isfinite(flat), flat, 0.0)
    rotation, signs = sketches.blocks(0, count, seed)
    lane = np.arange(width)
    bit = (signs[:, None] >> lane.astype(np.uint64)) & np.uint64(1)
    signed = np.where(bit == 1, -1.0, 1.0) * padded.reshape(count, width)
    out = np.zeros(width)
    with np.errstate(over="ignore", invalid="ignore"):
        np.add.at(out, (lane + rotation[:, None]) % width, signed)
        return out.astype(np.float32)
