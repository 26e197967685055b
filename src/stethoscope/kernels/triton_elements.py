"""The device code that reads elements: where a program's span lies, and what its bytes are as numbers.

`READ` says how: "single" and "double" are calculated with as float32 and float64, every other name is an 8-bit float.
"""

# mypy: ignore-errors
# ruff: noqa: N803, N806
from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def bits_of(x, READ: tl.constexpr):
    """The bits of the magnitude: ordered like it, and blind to the processor's treatment of subnormals."""
    if READ == "double":
        bits = x.to(tl.int64, bitcast=True) & 0x7FFFFFFFFFFFFFFF
    else:
        bits = x.to(tl.int32, bitcast=True) & 0x7FFFFFFF
    return bits


@triton.jit
def place_of(pointers, owners, firsts, lengths, DTYPE: tl.constexpr, ALIGNED: tl.constexpr):
    """This program's span: where it begins, how long it is, whose it is."""
    program = tl.program_id(0)
    owner = tl.load(owners + program)
    first = tl.load(firsts + program)
    length = tl.load(lengths + program)
    data = tl.load(pointers + owner).to(tl.pointer_type(DTYPE))
    if ALIGNED:
        data = tl.multiple_of(data, 16)
        first = tl.multiple_of(first, 16)
    return data + first, length, owner


@triton.jit
def wide(raw, READ: tl.constexpr):
    """What is calculated with: float32, or float64 for what float32 does not hold."""
    if READ == "double":
        x = raw.to(tl.float64)
    elif READ == "single":
        x = raw.to(tl.float32)
    else:
        x = _of_byte(raw.to(tl.int32), READ)
    return x


@triton.jit
def read(positions, inside, READ: tl.constexpr):
    """The elements at these places, zero for those that are outside."""
    x = wide(tl.load(positions, mask=inside, other=0), READ)
    if READ == "e8m0fnu":  # which has no zero
        x = tl.where(inside, x, 0.0)
    return x


@triton.jit
def zeros_of(BLOCK: tl.constexpr, READ: tl.constexpr):
    """What sums begin with."""
    if READ == "double":
        x = tl.zeros([BLOCK], dtype=tl.float64)
    else:
        x = tl.zeros([BLOCK], dtype=tl.float32)
    return x


@triton.jit
def _of_byte(byte, READ: tl.constexpr):
    """The 8-bit float of this format as float32, exactly."""
    if READ == "e5m2":  # the upper half of a float16
        x = (byte << 8).to(tl.int16).to(tl.float16, bitcast=True).to(tl.float32)
    elif READ == "e8m0fnu":  # a power of two, the least of them under float32's smallest normal number
        bits = tl.where(byte == 0, 0x00400000, tl.where(byte == 255, 0x7FC00000, byte << 23))
        x = bits.to(tl.float32, bitcast=True)
    else:
        FRACTION: tl.constexpr = 2 if READ == "e5m2fnuz" else 3
        BIAS: tl.constexpr = 16 if READ == "e5m2fnuz" else (8 if READ == "e4m3fnuz" else 7)
        size = byte & 0x7F
        normal = ((size << (23 - FRACTION)) + ((127 - BIAS) << 23)).to(tl.float32, bitcast=True)
        x = tl.where(size >> FRACTION == 0, size.to(tl.float32) * 2.0 ** (1 - BIAS - FRACTION), normal)
        x = tl.where(byte >= 128, -x, x)
        if READ == "e4m3fn":
            x = tl.where(size == 0x7F, float("nan"), x)
        else:
            x = tl.where(byte == 0x80, float("nan"), x)
    return x
