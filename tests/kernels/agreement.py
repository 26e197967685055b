"""When two kernels agree, and tensors of every kind to try them on."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from stethoscope.kernels.columns import INDEX, NUM_COUNTS

EXACT = (*range(NUM_COUNTS), *(INDEX[name] for name in ("min", "max", "abs_max", "abs_min")))
FLOATS = (torch.float32, torch.bfloat16, torch.float16, torch.float64)
FP8 = tuple(
    getattr(torch, name)
    for name in ("float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz", "float8_e8m0fnu")
    if hasattr(torch, name)
)
INTEGERS = (
    torch.bool,
    torch.uint8,
    torch.int8,
    torch.uint16,
    torch.int16,
    torch.uint32,
    torch.int32,
    torch.uint64,
    torch.int64,
)
COMPLEX = (torch.complex32, torch.complex64, torch.complex128)


def assert_rows_agree(found: Any, truth: Any, *, relative: float = 2e-6) -> None:
    """Counts and extremes exactly, moments as well as float32 sums of 64 terms allow."""
    found, truth = np.atleast_2d(found), np.atleast_2d(truth)
    assert found.shape == truth.shape
    for got, want in zip(found, truth, strict=True):
        np.testing.assert_array_equal(got[list(EXACT)], want[list(EXACT)])
        column = INDEX
        std, size = np.nan_to_num(want[column["std"]]), np.nan_to_num(want[column["mean_abs"]])
        mean_off = relative * std + 1e-9 * size
        np.testing.assert_allclose(got[column["mean"]], want[column["mean"]], rtol=1e-12, atol=mean_off)
        for name in ("mean_abs", "norm", "std"):
            np.testing.assert_allclose(got[column[name]], want[column[name]], rtol=relative, err_msg=name)
        for name in ("skewness", "kurtosis"):
            np.testing.assert_allclose(
                got[column[name]], want[column[name]], rtol=10 * relative, atol=10 * relative, err_msg=name
            )


def tensor_of_bits(dtype: torch.dtype, count: int, seed: int) -> torch.Tensor:
    """Any bit pattern there is: NaN payloads, Inf, subnormals, zeros of both signs."""
    random = np.random.default_rng(seed)
    size = torch.empty(0, dtype=dtype).element_size()
    raw = random.integers(0, 256, size=count * size, dtype=np.uint8)
    if dtype == torch.bool:
        raw &= 1
    return torch.from_numpy(raw).view(dtype) if count else torch.empty(0, dtype=dtype)


def ordinary_tensor(dtype: torch.dtype, count: int, seed: int) -> torch.Tensor:
    """What training makes: bell-shaped numbers of some scale and offset, with some zeros."""
    random = np.random.default_rng(seed)
    scale, offset = 10.0 ** random.integers(-6, 4), random.choice([0.0, 0.0, 1.0, -30.0])
    values = (random.normal(size=count) + offset) * scale
    values[random.random(count) < random.choice([0.0, 0.3])] = 0.0
    if dtype in INTEGERS:
        return torch.from_numpy(np.clip(np.abs(values), 0, 100)).to(dtype)
    return torch.from_numpy(values).to(dtype)


def with_specials(tensor: torch.Tensor, seed: int) -> torch.Tensor:
    """NaN and both infinities at a few places."""
    random = np.random.default_rng(seed)
    if tensor.numel() and tensor.dtype in FLOATS:
        positions = random.integers(0, tensor.numel(), size=3)
        for position, value in zip(positions, (np.nan, np.inf, -np.inf), strict=True):
            tensor[int(position)] = value
    return tensor


def laid_out(tensor: torch.Tensor, layout: str) -> torch.Tensor:
    """The same kind of tensor in another memory layout."""
    count = tensor.numel()
    if layout == "transposed" and count >= 6:
        return tensor[: count // 2 * 2].reshape(2, -1).t()
    if layout == "strided":
        return tensor[::3]
    if layout == "window" and count >= 20:
        return tensor[: count // 5 * 5].reshape(5, -1)[1:4, 1:-1]
    if layout == "expanded" and count:
        return tensor[:7].expand(3, min(7, count))
    if layout == "shifted":
        return tensor[1:]
    if layout == "misaligned" and count and tensor.element_size() > 1:
        raw = bytearray(1 + tensor.nbytes)
        raw[1:] = tensor.view(torch.uint8).numpy().tobytes()
        # torch refuses unaligned views, but takes any pointer from NumPy.
        packed = np.ndarray(count, dtype=f"u{tensor.element_size()}", buffer=raw, offset=1)
        return torch.from_numpy(packed).view(tensor.dtype)
    return tensor
