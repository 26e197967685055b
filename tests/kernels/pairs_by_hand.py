"""What NVIDIA's devices do with two 16-bit numbers in one instruction, written out so that triton's interpreter can run it.

The interpreter knows no instructions of a device; without these, the code that reads bfloat16, float16 and 8-bit floats in pairs would
run on a device alone.
"""

# mypy: ignore-errors
from __future__ import annotations

import dataclasses

import triton
import triton.language as tl

from stethoscope.kernels import triton_kernels, variants
from stethoscope.kernels.triton_elements import wide
from stethoscope.kernels.triton_kernels import _pair


@triton.jit
def _joined(x, y, DTYPE: tl.constexpr):
    """Two float32 that a 16-bit type holds, as one word."""
    if tl.bfloat16 == DTYPE:
        word = ((x.to(tl.int32, bitcast=True) >> 16) & 0xFFFF) | (y.to(tl.int32, bitcast=True) & -65536)
    else:
        low = x.to(tl.float16).to(tl.int16, bitcast=True).to(tl.int32) & 0xFFFF
        word = low | (y.to(tl.float16).to(tl.int16, bitcast=True).to(tl.int32) << 16)
    return word


@triton.jit
def _lesser(x, y):
    """The smaller one, and the other one of a NaN."""
    return tl.where(x != x, y, tl.where(y != y, x, tl.where(y < x, y, x)))


@triton.jit
def _lesser_pair(words, others, DTYPE: tl.constexpr):
    x, y = _pair(words, DTYPE)
    a, b = _pair(others, DTYPE)
    return _joined(_lesser(x, a), _lesser(y, b), DTYPE)


@triton.jit
def _pair_extremes(words, sizes, lo, hi, smallest, DTYPE: tl.constexpr):
    x, y = _pair(words, DTYPE)
    a, b = _pair(hi, DTYPE)
    greatest = _joined(-_lesser(-x, -a), -_lesser(-y, -b), DTYPE)
    return _lesser_pair(words, lo, DTYPE), greatest, _lesser_pair(sizes, smallest, DTYPE)


@triton.jit
def _halves_of_bytes(words, READ: tl.constexpr):
    first = wide(words & 0xFF, READ)
    second = wide((words >> 8) & 0xFF, READ)
    third = wide((words >> 16) & 0xFF, READ)
    fourth = wide((words >> 24) & 0xFF, READ)
    return _joined(first, second, tl.float16), _joined(third, fourth, tl.float16)


@triton.jit
def _tally(sizes, least, tally):
    x, y = _pair(sizes, tl.float16)
    a, b = _pair(least, tl.float16)
    first, second = _pair(tally, tl.float16)
    return _joined(first + (x >= a).to(tl.float32), second + (y >= b).to(tl.float32), tl.float16)


def use() -> None:
    """From now on the interpreter reads 16-bit and 8-bit floats as NVIDIA's newer devices do."""
    triton_kernels._pair_extremes = _pair_extremes
    triton_kernels._halves_of_bytes = _halves_of_bytes
    triton_kernels._tally = _tally
    plain = variants._SOURCES["tensor_sums"]

    def paired(variant, capability):
        source = plain(variant, capability)
        return dataclasses.replace(source, constants={**source.constants, "PAIRED": True, "CONVERTS": True})

    variants._SOURCES["tensor_sums"] = paired
