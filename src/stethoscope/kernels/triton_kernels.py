"""The device code: spans of many tensors to one line of sums each.

Imported only where triton is at hand; `triton.py` launches it. A tensor is cut into spans. A
span is scaled by a power of two so that fourth powers stay in range, and powers of the distance from a number
near its mean are summed, many in each thread before threads are added up. Whoever is done last with a tensor's spans combines
what they left (`triton_merging.py`): a launch of its own for that took an eighth of the time over a small model.
"""

# mypy: ignore-errors
# ruff: noqa: N803, N806, SIM300
from __future__ import annotations

import triton
import triton.language as tl

from stethoscope.kernels.triton_elements import bits_of, place_of, read, wide, zeros_of
from stethoscope.kernels.triton_merging import NUM_SUMS, merge_when_last, moments

LINE = tl.constexpr(32)
"""Neighbours of a sample that are read together."""


@triton.jit
def _scale(largest, READ: tl.constexpr):
    """A power of two that brings `largest` near one, as far as its type has it."""
    if READ == "double":
        exponent = (largest.to(tl.int64, bitcast=True) >> 52) & 0x7FF
        scale = ((2046 - tl.minimum(tl.maximum(exponent, 3), 2043)) << 52).to(tl.float64, bitcast=True)
    else:
        exponent = (largest.to(tl.int32, bitcast=True) >> 23) & 0xFF
        scale = ((254 - tl.minimum(tl.maximum(exponent, 2), 252)) << 23).to(tl.float32, bitcast=True)
    return scale


@triton.jit
def _store_line(
    out, apart, n, nans, posinfs, neginfs, zeros, tiny, huge, lo, hi, smallest, scale, mean, sum_abs, m2, m3, m4
):
    """What one span leaves, its numbers `apart` from each other; the last five are of the scaled values."""
    tl.store(out + 0 * apart, n.to(tl.float64))
    tl.store(out + 1 * apart, nans.to(tl.float64))
    tl.store(out + 2 * apart, posinfs.to(tl.float64))
    tl.store(out + 3 * apart, neginfs.to(tl.float64))
    tl.store(out + 4 * apart, zeros.to(tl.float64))
    tl.store(out + 5 * apart, tiny.to(tl.float64))
    tl.store(out + 6 * apart, huge.to(tl.float64))
    tl.store(out + 7 * apart, lo.to(tl.float64))
    tl.store(out + 8 * apart, hi.to(tl.float64))
    tl.store(out + 9 * apart, smallest)
    tl.store(out + 10 * apart, scale.to(tl.float64))
    tl.store(out + 11 * apart, mean)
    tl.store(out + 12 * apart, sum_abs)
    tl.store(out + 13 * apart, m2)
    tl.store(out + 14 * apart, m3)
    tl.store(out + 15 * apart, m4)


@triton.jit
def _pilot(data, length, READ: tl.constexpr, BLOCK: tl.constexpr):
    """A scale and a shift near the span's own and whether it holds zeros, from a sparse sample of it: a few whole lines of memory.

    The mean of a part that is 1/k of the whole is never further from the mean of the whole than sqrt(k)
    standard deviations, so powers of the distance from it lose little; the true mean is taken out afterwards.
    (Single elements, spread evenly, cost a tenth of the bandwidth: each fetches a sector of its own.)
    """
    lane = tl.arange(0, BLOCK)
    apart = tl.maximum(length // (BLOCK // LINE) // LINE * LINE, LINE)
    position = lane // LINE * apart + lane % LINE
    inside = position < length
    x = read(data + position, inside, READ)
    scale = _scale(tl.max(tl.abs(x), 0), READ)
    count = tl.minimum(length, BLOCK)
    zeros = tl.max((inside & (bits_of(x, READ) == 0)).to(tl.int32), 0)
    return scale, tl.sum(x * scale, 0) / count.to(x.dtype), zeros > 0


@triton.jit
def _add_powers(y, s1, s2, s3, s4):
    """Sums of the first four powers, lane by lane."""
    square = y * y
    return s1 + y, s2 + square, s3 + square * y, s4 + square * square


@triton.jit
def _pair(words, DTYPE: tl.constexpr):
    """The two 16-bit numbers of each word, as float32."""
    if DTYPE == tl.bfloat16:
        first = (words << 16).to(tl.float32, bitcast=True)
        second = (words & -65536).to(tl.float32, bitcast=True)
    else:
        first = (words & 0xFFFF).to(tl.int16).to(DTYPE, bitcast=True).to(tl.float32)
        second = (words >> 16).to(tl.int16).to(DTYPE, bitcast=True).to(tl.float32)
    return first, second


@triton.jit
def _pair_extremes(words, sizes, lo, hi, smallest, DTYPE: tl.constexpr):
    """Least, greatest and smallest magnitude so far of both halves of each word, two comparisons an instruction."""
    kind: tl.constexpr = "bf16x2" if DTYPE == tl.bfloat16 else "f16x2"
    lo = tl.inline_asm_elementwise(
        "min." + kind + " $0, $1, $2;", "=r,r,r", [lo, words], dtype=tl.int32, is_pure=True, pack=1
    )
    hi = tl.inline_asm_elementwise(
        "max." + kind + " $0, $1, $2;", "=r,r,r", [hi, words], dtype=tl.int32, is_pure=True, pack=1
    )
    smallest = tl.inline_asm_elementwise(
        "min." + kind + " $0, $1, $2;", "=r,r,r", [smallest, sizes], dtype=tl.int32, is_pure=True, pack=1
    )
    return lo, hi, smallest


@triton.jit
def _look(x, scale, shift, total_abs, s1, s2, s3, s4):
    """One more number in each lane: its magnitude, and powers of its distance from the shift."""
    s1, s2, s3, s4 = _add_powers(x * scale - shift, s1, s2, s3, s4)
    return total_abs + tl.abs(x), s1, s2, s3, s4


@triton.jit
def _without_zeros(sizes, INFINITY: tl.constexpr):
    """Of both halves of each word: one where it is not zero, and its magnitude, infinite where it is.

    No half carries into the other: a magnitude has 15 bits.
    """
    some = ((sizes + 0x7FFF7FFF) >> 15) & 0x00010001
    return some, sizes + INFINITY - some * (INFINITY & 0xFFFF)


@triton.jit
def _halves_of_bytes(words, READ: tl.constexpr):
    """Of the four 8-bit floats of each word, as two words of 16-bit ones that hold them exactly."""
    if READ == "e5m2":  # the upper half of a float16
        low = ((words & 0xFF) << 8) | ((words & 0xFF00) << 16)
        high = ((words >> 8) & 0xFF00) | (words & -16777216)
    else:
        low, high = tl.inline_asm_elementwise(
            "{ .reg .b16 a, b; mov.b32 {a, b}, $2; cvt.rn.f16x2.e4m3x2 $0, a; cvt.rn.f16x2.e4m3x2 $1, b; }",
            "=r,=r,r",
            [words],
            dtype=(tl.int32, tl.int32),
            is_pure=True,
            pack=1,
        )
    return low, high


@triton.jit
def _tally(sizes, least, tally):
    """One more in each half of `tally`, a float16, whose half of `sizes` is not less than that of `least`."""
    return tl.inline_asm_elementwise(
        "{ .reg .b32 t; set.ge.f16x2.f16x2 t, $1, $2; add.f16x2 $0, $3, t; }",
        "=r,r,r,r",
        [sizes, least, tally],
        dtype=tl.int32,
        is_pure=True,
        pack=1,
    )


@triton.jit
def _take_pair(
    word,
    scale,
    shift,
    sums,
    floats,
    pairs,
    tallies,
    DTYPE: tl.constexpr,
    PAIRED: tl.constexpr,
    COUNTS: tl.constexpr,
    BYTES: tl.constexpr,
    INFINITY: tl.constexpr,
    NORMAL: tl.constexpr,
):
    """The two 16-bit numbers of each word, added to what is known of those before."""
    total_abs, s1, s2, s3, s4 = sums
    lo, hi, smallest = floats
    low_pair, high_pair, small_pair = pairs
    x, y = _pair(word, DTYPE)
    total_abs, s1, s2, s3, s4 = _look(x, scale, shift, total_abs, s1, s2, s3, s4)
    total_abs, s1, s2, s3, s4 = _look(y, scale, shift, total_abs, s1, s2, s3, s4)
    if PAIRED:
        sizes = word & 0x7FFF7FFF
        num_some, num_normal = tallies
        if COUNTS and BYTES:
            num_some = _tally(sizes, word * 0 + 0x00010001, num_some)
            num_normal = _tally(sizes, word * 0 + NORMAL, num_normal)
            # One less, and no number for zero, which a minimum passes over.
            sizes = (sizes + 0x7FFF7FFF) & 0x7FFF7FFF
        elif COUNTS:
            some, sizes = _without_zeros(sizes, INFINITY)
            num_some += some
        tallies = num_some, num_normal
        low_pair, high_pair, small_pair = _pair_extremes(word, sizes, low_pair, high_pair, small_pair, DTYPE)
    else:
        lo = tl.minimum(lo, tl.minimum(x, y))
        hi = tl.maximum(hi, tl.maximum(x, y))
        smallest = tl.minimum(smallest, tl.minimum(tl.abs(x), tl.abs(y)))
    return (
        (total_abs, s1, s2, s3, s4),
        (lo, hi, smallest),
        (low_pair, high_pair, small_pair),
        tallies,
    )


@triton.jit
def _pair_sums(
    data,
    whole,
    scale,
    shift,
    DTYPE: tl.constexpr,
    READ: tl.constexpr,
    PAIRED: tl.constexpr,
    COUNTS: tl.constexpr,
    BLOCK: tl.constexpr,
    UNROLL: tl.constexpr,
):
    """The first part of a span of 16-bit floats, or of 8-bit ones as such, word by word: arithmetic, not memory, is what bounds
    these types.

    Where it counts, the smallest magnitude is that of what is not zero. The last two numbers say how many are not zero, and of
    8-bit floats how many are not subnormal either.
    """
    lane = tl.arange(0, BLOCK)
    words = data.to(tl.pointer_type(tl.int32))
    nothing = tl.zeros([BLOCK], dtype=tl.float32)
    sums = (nothing, nothing, nothing, nothing, nothing)
    floats = (nothing + float("inf"), nothing - float("inf"), nothing + float("inf"))
    none = tl.zeros([BLOCK], dtype=tl.int32)
    tallies = (none, none)
    BYTES: tl.constexpr = READ != "single"
    # The same infinities, twice in a word, and the smallest normal number of the 8-bit format.
    top: tl.constexpr = 0x7F807F80 if DTYPE == tl.bfloat16 else 0x7C007C00
    normal: tl.constexpr = 0x24002400 if READ == "e4m3fn" else 0x04000400
    infinities = none + top
    # Where one less than the magnitudes is compared, one less than infinity.
    pairs = (infinities, infinities | -2147450880, infinities - 0x00010001 if BYTES and COUNTS else infinities)
    for first in range(0, whole // (4 if BYTES else 2), BLOCK * UNROLL):
        for turn in tl.static_range(UNROLL):
            word = tl.load(words + (first + turn * BLOCK) + lane)
            if BYTES:
                low, high = _halves_of_bytes(word, READ)
                sums, floats, pairs, tallies = _take_pair(
                    low, scale, shift, sums, floats, pairs, tallies, DTYPE, PAIRED, COUNTS, True, top, normal
                )
                sums, floats, pairs, tallies = _take_pair(
                    high, scale, shift, sums, floats, pairs, tallies, DTYPE, PAIRED, COUNTS, True, top, normal
                )
            else:
                sums, floats, pairs, tallies = _take_pair(
                    word, scale, shift, sums, floats, pairs, tallies, DTYPE, PAIRED, COUNTS, False, top, normal
                )
    total_abs, s1, s2, s3, s4 = sums
    lo, hi, smallest = floats
    num_some, num_normal = tallies
    if PAIRED:
        x, y = _pair(pairs[0], DTYPE)
        lo = tl.minimum(x, y)
        x, y = _pair(pairs[1], DTYPE)
        hi = tl.maximum(x, y)
        x, y = _pair(pairs[2] + 0x00010001 if BYTES and COUNTS else pairs[2], DTYPE)
        smallest = tl.minimum(x, y)
    if BYTES:
        x, y = _pair(num_some, tl.float16)
        num_some = (x + y).to(tl.int32)
        x, y = _pair(num_normal, tl.float16)
        num_normal = (x + y).to(tl.int32)
    else:
        num_some = (num_some & 0xFFFF) + (num_some >> 16)
    return total_abs, s1, s2, s3, s4, lo, hi, smallest, num_some, num_normal


@triton.jit
def _single_sums(data, whole, scale, shift, READ: tl.constexpr, BLOCK: tl.constexpr, UNROLL: tl.constexpr):
    """The first part of a span of any type, number by number."""
    lane = tl.arange(0, BLOCK)
    total_abs = zeros_of(BLOCK, READ)
    s1 = total_abs
    s2 = total_abs
    s3 = total_abs
    s4 = total_abs
    lo = total_abs + float("inf")
    hi = total_abs - float("inf")
    smallest = lo
    for first in range(0, whole, BLOCK * UNROLL):
        for turn in tl.static_range(UNROLL):
            x = wide(tl.load(data + (first + turn * BLOCK) + lane), READ)
            lo = tl.minimum(lo, x)
            hi = tl.maximum(hi, x)
            smallest = tl.minimum(smallest, tl.abs(x))
            total_abs, s1, s2, s3, s4 = _look(x, scale, shift, total_abs, s1, s2, s3, s4)
    return total_abs, s1, s2, s3, s4, lo, hi, smallest


@triton.jit
def _less_one(x, READ: tl.constexpr):
    """One less than the bits of the magnitude, so that the least of them is the smallest magnitude but zero."""
    if READ == "double":
        less = (bits_of(x, READ) - 1).to(tl.uint64, bitcast=True)
    else:
        less = (bits_of(x, READ) - 1).to(tl.uint32, bitcast=True)
    return less


@triton.jit
def _single_counts(data, whole, scale, shift, READ: tl.constexpr, BLOCK: tl.constexpr, UNROLL: tl.constexpr):
    """As `_single_sums`, with the zeros, and one less than the bits of the smallest magnitude but zero."""
    lane = tl.arange(0, BLOCK)
    total_abs = zeros_of(BLOCK, READ)
    s1 = total_abs
    s2 = total_abs
    s3 = total_abs
    s4 = total_abs
    lo = total_abs + float("inf")
    hi = total_abs - float("inf")
    zeros = tl.zeros([BLOCK], dtype=tl.int32)
    less = _less_one(lo, READ)
    for first in range(0, whole, BLOCK * UNROLL):
        for turn in tl.static_range(UNROLL):
            x = wide(tl.load(data + (first + turn * BLOCK) + lane), READ)
            lo = tl.minimum(lo, x)
            hi = tl.maximum(hi, x)
            zeros += (bits_of(x, READ) == 0).to(tl.int32)
            less = tl.minimum(less, _less_one(x, READ))
            total_abs, s1, s2, s3, s4 = _look(x, scale, shift, total_abs, s1, s2, s3, s4)
    return total_abs, s1, s2, s3, s4, lo, hi, zeros, less


@triton.jit
def _counting_sums(
    data,
    length,
    scale,
    shift,
    tiny_bits,
    HALF: tl.constexpr,
    READ: tl.constexpr,
    PAIRS: tl.constexpr,
    BLOCK: tl.constexpr,
    UNROLL: tl.constexpr,
):
    """As `_fast_sums`, and zeros are counted by the way: of a rectifier's outputs half are, and reading twice takes twice as long.

    Of 8-bit floats what is subnormal is counted, too: most spans hold some.
    """
    lane = tl.arange(0, BLOCK)
    infinity = float("inf")
    if PAIRS:
        STRETCH: tl.constexpr = 2 * BLOCK * UNROLL
        TURNS: tl.constexpr = UNROLL if READ == "single" else UNROLL // 2
        whole = length // STRETCH * STRETCH
        total_abs, s1, s2, s3, s4, lo, hi, smallest, num_some, num_normal = _pair_sums(
            data, whole, scale, shift, HALF, READ, True, True, BLOCK, TURNS
        )
        zeros = whole // BLOCK - num_some
        # Of 16-bit numbers nobody counted the normal ones: what is subnormal is counted afterwards, where there is any.
        tiny = zeros * 0 if READ == "single" else num_some - num_normal
        less = _less_one(smallest, READ)
    else:
        whole = length // (BLOCK * UNROLL) * (BLOCK * UNROLL)
        total_abs, s1, s2, s3, s4, lo, hi, zeros, less = _single_counts(data, whole, scale, shift, READ, BLOCK, UNROLL)
        tiny = zeros * 0
    for first in range(whole, length, BLOCK):
        inside = first + lane < length
        x = read(data + first + lane, inside, READ)
        bits = bits_of(x, READ)
        zeros += (inside & (bits == 0)).to(tl.int32)
        tiny += ((bits > 0) & (bits < tiny_bits)).to(tl.int32)
        less = tl.minimum(less, _less_one(x, READ))
        lo = tl.minimum(lo, tl.where(inside, x, infinity))
        hi = tl.maximum(hi, tl.where(inside, x, -infinity))
        total_abs += tl.abs(x)
        s1, s2, s3, s4 = _add_powers(tl.where(inside, x * scale - shift, 0.0), s1, s2, s3, s4)
    return (
        tl.sum(total_abs, 0),
        tl.sum(s1.to(tl.float64), 0),
        tl.sum(s2.to(tl.float64), 0),
        tl.sum(s3.to(tl.float64), 0),
        tl.sum(s4.to(tl.float64), 0),
        tl.min(lo, 0),
        tl.max(hi, 0),
        tl.sum(zeros, 0),
        tl.sum(tiny, 0),
        tl.min(less, 0),
    )


@triton.jit
def _fast_sums(
    data,
    length,
    scale,
    shift,
    HALF: tl.constexpr,
    READ: tl.constexpr,
    PAIRS: tl.constexpr,
    PAIRED: tl.constexpr,
    BLOCK: tl.constexpr,
    UNROLL: tl.constexpr,
):
    """Over the span once: sum of magnitudes, powers of the distance from the shift, extremes; as if all is finite."""
    lane = tl.arange(0, BLOCK)
    infinity = float("inf")
    if PAIRS:
        STRETCH: tl.constexpr = 2 * BLOCK * UNROLL
        TURNS: tl.constexpr = UNROLL if READ == "single" else UNROLL // 2
        whole = length // STRETCH * STRETCH
        total_abs, s1, s2, s3, s4, lo, hi, smallest, _, _ = _pair_sums(
            data, whole, scale, shift, HALF, READ, PAIRED, False, BLOCK, TURNS
        )
    else:
        whole = length // (BLOCK * UNROLL) * (BLOCK * UNROLL)
        total_abs, s1, s2, s3, s4, lo, hi, smallest = _single_sums(data, whole, scale, shift, READ, BLOCK, UNROLL)
    for first in range(whole, length, BLOCK):
        inside = first + lane < length
        x = read(data + first + lane, inside, READ)
        total_abs += tl.abs(x)
        lo = tl.minimum(lo, tl.where(inside, x, infinity))
        hi = tl.maximum(hi, tl.where(inside, x, -infinity))
        smallest = tl.minimum(smallest, tl.where(inside, tl.abs(x), infinity))
        s1, s2, s3, s4 = _add_powers(tl.where(inside, x * scale - shift, 0.0), s1, s2, s3, s4)
    return (
        tl.sum(total_abs, 0),
        tl.sum(s1.to(tl.float64), 0),
        tl.sum(s2.to(tl.float64), 0),
        tl.sum(s3.to(tl.float64), 0),
        tl.sum(s4.to(tl.float64), 0),
        tl.min(lo, 0),
        tl.max(hi, 0),
        tl.min(smallest, 0),
    )


@triton.jit
def _counts(data, length, tiny_bits, limit, READ: tl.constexpr, BLOCK: tl.constexpr):
    """Over the span again, where there is something to count: counts, and the extremes of what is finite."""
    lane = tl.arange(0, BLOCK)
    none = tl.zeros([BLOCK], dtype=tl.int32)
    zero = zeros_of(BLOCK, READ)
    infinity = float("inf")
    nans = none
    posinfs = none
    neginfs = none
    zeros = none
    tiny = none
    huge = none
    lo = zero + infinity
    hi = zero - infinity
    smallest = bits_of(zero + infinity, READ)
    for first in range(0, length, BLOCK):
        inside = first + lane < length
        x = read(data + first + lane, inside, READ)
        bits = bits_of(x, READ)
        finite = inside & (tl.abs(x) < infinity)
        nans += (inside & (x != x)).to(tl.int32)
        posinfs += (x == infinity).to(tl.int32)
        neginfs += (x == -infinity).to(tl.int32)
        zeros += (inside & (bits == 0)).to(tl.int32)
        tiny += ((bits > 0) & (bits < tiny_bits)).to(tl.int32)
        huge += (finite & (tl.abs(x).to(tl.float64) > limit)).to(tl.int32)
        lo = tl.minimum(lo, tl.where(finite, x, infinity))
        hi = tl.maximum(hi, tl.where(finite, x, -infinity))
        smallest = tl.minimum(smallest, tl.where(finite & (bits != 0), bits, bits_of(zero + infinity, READ)))
    return (
        tl.sum(nans, 0),
        tl.sum(posinfs, 0),
        tl.sum(neginfs, 0),
        tl.sum(zeros, 0),
        tl.sum(tiny, 0),
        tl.sum(huge, 0),
        tl.min(lo, 0),
        tl.max(hi, 0),
        tl.min(smallest, 0),
    )


@triton.jit
def _small_counts(data, length, tiny_bits, READ: tl.constexpr, BLOCK: tl.constexpr, UNROLL: tl.constexpr):
    """Over a span of finite values again: zeros, what is very small, and the smallest magnitude beside zero."""
    lane = tl.arange(0, BLOCK)
    none = tl.zeros([BLOCK], dtype=tl.int32)
    beyond = bits_of(zeros_of(BLOCK, READ) + float("inf"), READ)
    zeros = none
    tiny = none
    smallest = beyond
    whole = length // (BLOCK * UNROLL) * (BLOCK * UNROLL)
    for first in range(0, whole, BLOCK * UNROLL):
        for turn in tl.static_range(UNROLL):
            bits = bits_of(wide(tl.load(data + (first + turn * BLOCK) + lane), READ), READ)
            zeros += (bits == 0).to(tl.int32)
            tiny += (bits < tiny_bits).to(tl.int32)
            smallest = tl.minimum(smallest, tl.where(bits == 0, beyond, bits))
    for first in range(whole, length, BLOCK):
        inside = first + lane < length
        bits = bits_of(read(data + first + lane, inside, READ), READ)
        zeros += (inside & (bits == 0)).to(tl.int32)
        tiny += (inside & (bits < tiny_bits)).to(tl.int32)
        smallest = tl.minimum(smallest, tl.where(inside & (bits != 0), bits, beyond))
    num_zeros = tl.sum(zeros, 0)
    return num_zeros, tl.maximum(tl.sum(tiny, 0) - num_zeros, 0), tl.min(smallest, 0)


@triton.jit
def _careful_sums(data, length, n, scale, READ: tl.constexpr, BLOCK: tl.constexpr):
    """Over the finite values of the span twice, for its own scale: the mean, then powers of the distance from it."""
    lane = tl.arange(0, BLOCK)
    zero = zeros_of(BLOCK, READ)
    infinity = float("inf")
    total = zero
    total_abs = zero
    for first in range(0, length, BLOCK):
        x = read(data + first + lane, first + lane < length, READ)
        kept = tl.where(tl.abs(x) < infinity, x * scale, 0.0)
        total += kept
        total_abs += tl.abs(kept)
    shift = tl.sum(total, 0) / tl.maximum(n, 1).to(total.dtype)
    s1 = zero
    s2 = zero
    s3 = zero
    s4 = zero
    for first in range(0, length, BLOCK):
        inside = first + lane < length
        x = read(data + first + lane, inside, READ)
        y = tl.where(inside & (tl.abs(x) < infinity), x * scale - shift, 0.0)
        s1, s2, s3, s4 = _add_powers(y, s1, s2, s3, s4)
    return (
        shift,
        tl.sum(total_abs.to(tl.float64), 0),
        tl.sum(s1.to(tl.float64), 0),
        tl.sum(s2.to(tl.float64), 0),
        tl.sum(s3.to(tl.float64), 0),
        tl.sum(s4.to(tl.float64), 0),
    )


@triton.jit
def tensor_sums(
    pointers,
    owners,
    firsts,
    lengths,
    starts,
    done,
    counted,
    limits,
    partials,
    sums,
    tiny_bits,
    DTYPE: tl.constexpr,
    READ: tl.constexpr,
    PAIRED: tl.constexpr,
    CONVERTS: tl.constexpr,
    ALIGNED: tl.constexpr,
    HAS_LIMITS: tl.constexpr,
    BLOCK: tl.constexpr,
    UNROLL: tl.constexpr,
    LANES: tl.constexpr,
):
    """One program per span; sums is float64 [tensors, NUM_SUMS], partials is float64 [NUM_SUMS, spans].

    Most spans are read once. One that holds zeros, very small or non-finite values is read again to count
    them; one whose sample misjudged its range, or that is not finite, is summed again about its own mean.
    `done` and `counted` say who is last to combine what the spans of a tensor left: see `merge_when_last`.
    """
    data, length, owner = place_of(pointers, owners, firsts, lengths, DTYPE, ALIGNED)
    infinity = float("inf")
    scale, shift, has_zeros = _pilot(data, length, READ, BLOCK)
    # 8-bit floats are looked at as float16, which holds them exactly.
    HALF: tl.constexpr = tl.bfloat16 if DTYPE == tl.bfloat16 else tl.float16
    AS_HALVES: tl.constexpr = READ == "e5m2" or (READ == "e4m3fn" and CONVERTS)
    PAIRS: tl.constexpr = ALIGNED and (DTYPE == tl.bfloat16 or DTYPE == tl.float16 or AS_HALVES)
    # Of e4m3 the least normal number is a 28,000th of the largest.
    ALWAYS: tl.constexpr = READ == "e4m3fn"
    # Whether what is subnormal is counted wherever zeros are.
    ALL_COUNTED: tl.constexpr = AS_HALVES and PAIRS and PAIRED
    counted_all = length * 0 == 1
    if has_zeros or ALWAYS:
        total_abs, s1, s2, s3, s4, lo, hi, zeros, tiny, less = _counting_sums(
            data, length, scale, shift, tiny_bits, HALF, READ, PAIRS and PAIRED, BLOCK, UNROLL
        )
        counted_all = counted_all | ALL_COUNTED
        smallest = (less + 1).to(bits_of(lo, READ).dtype, bitcast=True)
    else:
        total_abs, s1, s2, s3, s4, lo, hi, abs_min = _fast_sums(
            data, length, scale, shift, HALF, READ, PAIRS, PAIRED, BLOCK, UNROLL
        )
        zeros = length * 0
        tiny = length * 0
        smallest = bits_of(abs_min, READ)
    sum_abs = (total_abs * scale).to(tl.float64)
    largest = tl.maximum(tl.abs(lo), tl.abs(hi))
    # Twice 2^24 to the fourth, 2^16 times, is still a float32; NaN fails the first comparison.
    odd = (not (total_abs < infinity)) or (largest * scale > 16777216.0)
    limit = infinity
    if HAS_LIMITS:
        limit = tl.load(limits + owner)
    nans = length * 0
    posinfs = length * 0
    neginfs = length * 0
    huge = length * 0
    if odd or (HAS_LIMITS and largest.to(tl.float64) > limit):
        nans, posinfs, neginfs, zeros, tiny, huge, lo, hi, smallest = _counts(
            data, length, tiny_bits, limit, READ, BLOCK
        )
    elif smallest < tl.maximum(tiny_bits, 1) and not counted_all:
        zeros, tiny, smallest = _small_counts(data, length, tiny_bits, READ, BLOCK, UNROLL)
    n = length - nans - posinfs - neginfs
    if odd:
        scale = _scale(tl.maximum(tl.abs(lo), tl.abs(hi)), READ)
        shift, sum_abs, s1, s2, s3, s4 = _careful_sums(data, length, n, scale, READ, BLOCK)
    mean, m2, m3, m4 = moments(s1, s2, s3, s4, shift, n)
    if lo == hi:  # no sum is as exact as saying so
        mean = (lo * scale).to(tl.float64)
        m2 = m2 * 0.0
        m3 = m3 * 0.0
        m4 = m4 * 0.0
    if READ == "double":
        abs_min = smallest.to(tl.float64, bitcast=True)
    else:
        abs_min = smallest.to(tl.float32, bitcast=True)
    begin = tl.load(starts + owner)
    end = tl.load(starts + owner + 1)
    line = sums + owner.to(tl.int64) * NUM_SUMS
    if end - begin == 1:
        _store_line(
            line,
            1,
            n,
            nans,
            posinfs,
            neginfs,
            zeros,
            tiny,
            huge,
            lo,
            hi,
            abs_min.to(tl.float64),
            scale,
            mean,
            sum_abs,
            m2,
            m3,
            m4,
        )
    else:
        apart = tl.num_programs(0).to(tl.int64)
        _store_line(
            partials + tl.program_id(0),
            apart,
            n,
            nans,
            posinfs,
            neginfs,
            zeros,
            tiny,
            huge,
            lo,
            hi,
            abs_min.to(tl.float64),
            scale,
            mean,
            sum_abs,
            m2,
            m3,
            m4,
        )
        merge_when_last(partials, apart, tl.program_id(0), begin, end, line, done + owner, counted, READ, LANES)
