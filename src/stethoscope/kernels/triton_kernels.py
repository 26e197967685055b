"""The device code: spans of many tensors to partial results, partial results to one line per tensor.

Imported only where triton is at hand; `triton.py` launches it. A tensor is cut into spans. A
span is scaled by a power of two so that fourth powers stay in range, and powers of the distance from a number
near its mean are summed, many in each thread before threads are added up; then spans are combined in float64
about the tensor's mean.
"""

# mypy: ignore-errors
# ruff: noqa: N803
from __future__ import annotations

import triton
import triton.language as tl

NUM_PARTIALS = tl.constexpr(16)
"""What a span leaves: n, NaN, +Inf, -Inf, zeros, tiny, huge, lo, hi, smallest but zero, scale, mean, sum of
magnitudes, m2, m3, m4. The last five are of the scaled values."""

NUM_SUMS = tl.constexpr(16)
"""What a tensor leaves: the same, with every span brought to the tensor's own scale."""


@triton.jit
def _bits(x, WIDE: tl.constexpr):
    """The bits of the magnitude: ordered like it, and blind to the processor's treatment of subnormals."""
    if WIDE:
        bits = x.to(tl.int64, bitcast=True) & 0x7FFFFFFFFFFFFFFF
    else:
        bits = x.to(tl.int32, bitcast=True) & 0x7FFFFFFF
    return bits


@triton.jit
def _scale(largest, WIDE: tl.constexpr):
    """A power of two that brings `largest` near one, as far as its type has it."""
    if WIDE:
        exponent = (largest.to(tl.int64, bitcast=True) >> 52) & 0x7FF
        scale = ((2046 - tl.minimum(tl.maximum(exponent, 3), 2043)) << 52).to(tl.float64, bitcast=True)
    else:
        exponent = (largest.to(tl.int32, bitcast=True) >> 23) & 0xFF
        scale = ((254 - tl.minimum(tl.maximum(exponent, 2), 252)) << 23).to(tl.float32, bitcast=True)
    return scale


@triton.jit
def _place(pointers, counts, owners, numbers, DTYPE: tl.constexpr, ALIGNED: tl.constexpr, SPAN: tl.constexpr):
    """This program's span: where it begins, how long it is, whose it is."""
    program = tl.program_id(0)
    owner = tl.load(owners + program)
    first = tl.load(numbers + program).to(tl.int64) * SPAN
    length = tl.minimum(tl.load(counts + owner) - first, SPAN).to(tl.int32)
    data = tl.load(pointers + owner).to(tl.pointer_type(DTYPE))
    if ALIGNED:
        data = tl.multiple_of(data, 16)
    return data + first, length, owner


@triton.jit
def _wide(raw, WIDE: tl.constexpr):
    """What is calculated with: float32, or float64 for what float32 does not hold."""
    if WIDE:
        x = raw.to(tl.float64)
    else:
        x = raw.to(tl.float32)
    return x


@triton.jit
def _store_line(out, apart, n, nans, posinfs, neginfs, zeros, tiny, huge, lo, hi, smallest, scale, mean, sum_abs, m2, m3,
                m4):  # fmt: skip
    """What one span leaves, its numbers `apart` from each other."""
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
def _pilot(data, length, WIDE: tl.constexpr, BLOCK: tl.constexpr):
    """A scale and a shift near the span's own, from a sparse sample of it.

    The mean of a part that is 1/k of the whole is never further from the mean of the whole than sqrt(k)
    standard deviations, so powers of the distance from it lose little; the true mean is taken out afterwards.
    """
    stride = tl.maximum(length // BLOCK, 1)
    place = tl.arange(0, BLOCK) * stride
    inside = place < length
    x = _wide(tl.load(data + place, mask=inside, other=0), WIDE)
    scale = _scale(tl.max(tl.abs(x), 0), WIDE)
    count = tl.minimum(length, BLOCK)
    return scale, tl.sum(x * scale, 0) / count.to(x.dtype)


@triton.jit
def _add_powers(y, s1, s2, s3, s4):
    """Sums of the first four powers, lane by lane."""
    square = y * y
    return s1 + y, s2 + square, s3 + square * y, s4 + square * square


@triton.jit
def _fast_sums(data, length, scale, shift, WIDE: tl.constexpr, BLOCK: tl.constexpr, UNROLL: tl.constexpr):
    """Over the span once: sum of magnitudes, powers of the distance from the shift, extremes; as if all is finite."""
    lane = tl.arange(0, BLOCK)
    zero = _wide(tl.zeros([BLOCK], dtype=tl.float32), WIDE)
    infinity = float("inf")
    total_abs = zero
    s1 = zero
    s2 = zero
    s3 = zero
    s4 = zero
    lo = zero + infinity
    hi = zero - infinity
    smallest = zero + infinity
    whole = length // (BLOCK * UNROLL) * (BLOCK * UNROLL)
    for first in range(0, whole, BLOCK * UNROLL):
        for turn in tl.static_range(UNROLL):
            x = _wide(tl.load(data + (first + turn * BLOCK) + lane), WIDE)
            total_abs += tl.abs(x)
            lo = tl.minimum(lo, x)
            hi = tl.maximum(hi, x)
            smallest = tl.minimum(smallest, tl.abs(x))
            s1, s2, s3, s4 = _add_powers(x * scale - shift, s1, s2, s3, s4)
    for first in range(whole, length, BLOCK):
        inside = first + lane < length
        x = _wide(tl.load(data + first + lane, mask=inside, other=0), WIDE)
        total_abs += tl.abs(x)
        lo = tl.minimum(lo, tl.where(inside, x, infinity))
        hi = tl.maximum(hi, tl.where(inside, x, -infinity))
        smallest = tl.minimum(smallest, tl.where(inside, tl.abs(x), infinity))
        s1, s2, s3, s4 = _add_powers(tl.where(inside, x * scale - shift, 0.0), s1, s2, s3, s4)
    return (tl.sum(total_abs, 0), tl.sum(s1.to(tl.float64), 0), tl.sum(s2.to(tl.float64), 0),
            tl.sum(s3.to(tl.float64), 0), tl.sum(s4.to(tl.float64), 0), tl.min(lo, 0), tl.max(hi, 0),
            tl.min(smallest, 0))  # fmt: skip


@triton.jit
def _counts(data, length, tiny_bits, limit, WIDE: tl.constexpr, BLOCK: tl.constexpr):
    """Over the span again, where there is something to count: counts, and the extremes of what is finite."""
    lane = tl.arange(0, BLOCK)
    none = tl.zeros([BLOCK], dtype=tl.int32)
    zero = _wide(none, WIDE)
    infinity = float("inf")
    nans = none
    posinfs = none
    neginfs = none
    zeros = none
    tiny = none
    huge = none
    lo = zero + infinity
    hi = zero - infinity
    smallest = _bits(zero + infinity, WIDE)
    for first in range(0, length, BLOCK):
        inside = first + lane < length
        x = _wide(tl.load(data + first + lane, mask=inside, other=0), WIDE)
        bits = _bits(x, WIDE)
        finite = inside & (tl.abs(x) < infinity)
        nans += (inside & (x != x)).to(tl.int32)
        posinfs += (x == infinity).to(tl.int32)
        neginfs += (x == -infinity).to(tl.int32)
        zeros += (inside & (bits == 0)).to(tl.int32)
        tiny += ((bits > 0) & (bits < tiny_bits)).to(tl.int32)
        huge += (finite & (tl.abs(x).to(tl.float64) > limit)).to(tl.int32)
        lo = tl.minimum(lo, tl.where(finite, x, infinity))
        hi = tl.maximum(hi, tl.where(finite, x, -infinity))
        smallest = tl.minimum(smallest, tl.where(finite & (bits != 0), bits, _bits(zero + infinity, WIDE)))
    return (tl.sum(nans, 0), tl.sum(posinfs, 0), tl.sum(neginfs, 0), tl.sum(zeros, 0), tl.sum(tiny, 0),
            tl.sum(huge, 0), tl.min(lo, 0), tl.max(hi, 0), tl.min(smallest, 0))  # fmt: skip


@triton.jit
def _small_counts(data, length, tiny_bits, WIDE: tl.constexpr, BLOCK: tl.constexpr, UNROLL: tl.constexpr):
    """Over a span of finite values again: zeros, what is very small, and the smallest magnitude beside zero."""
    lane = tl.arange(0, BLOCK)
    none = tl.zeros([BLOCK], dtype=tl.int32)
    beyond = _bits(_wide(none, WIDE) + float("inf"), WIDE)
    zeros = none
    tiny = none
    smallest = beyond
    whole = length // (BLOCK * UNROLL) * (BLOCK * UNROLL)
    for first in range(0, whole, BLOCK * UNROLL):
        for turn in tl.static_range(UNROLL):
            bits = _bits(_wide(tl.load(data + (first + turn * BLOCK) + lane), WIDE), WIDE)
            zeros += (bits == 0).to(tl.int32)
            tiny += (bits < tiny_bits).to(tl.int32)
            smallest = tl.minimum(smallest, tl.where(bits == 0, beyond, bits))
    for first in range(whole, length, BLOCK):
        inside = first + lane < length
        bits = _bits(_wide(tl.load(data + first + lane, mask=inside, other=0), WIDE), WIDE)
        zeros += (inside & (bits == 0)).to(tl.int32)
        tiny += (inside & (bits < tiny_bits)).to(tl.int32)
        smallest = tl.minimum(smallest, tl.where(inside & (bits != 0), bits, beyond))
    num_zeros = tl.sum(zeros, 0)
    return num_zeros, tl.maximum(tl.sum(tiny, 0) - num_zeros, 0), tl.min(smallest, 0)


@triton.jit
def _careful_sums(data, length, n, scale, WIDE: tl.constexpr, BLOCK: tl.constexpr):
    """Over the finite values of the span twice, for its own scale: the mean, then powers of the distance from it."""
    lane = tl.arange(0, BLOCK)
    zero = _wide(tl.zeros([BLOCK], dtype=tl.float32), WIDE)
    infinity = float("inf")
    total = zero
    total_abs = zero
    for first in range(0, length, BLOCK):
        x = _wide(tl.load(data + first + lane, mask=first + lane < length, other=0), WIDE)
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
        x = _wide(tl.load(data + first + lane, mask=inside, other=0), WIDE)
        y = tl.where(inside & (tl.abs(x) < infinity), x * scale - shift, 0.0)
        s1, s2, s3, s4 = _add_powers(y, s1, s2, s3, s4)
    return (shift, tl.sum(total_abs.to(tl.float64), 0), tl.sum(s1.to(tl.float64), 0),
            tl.sum(s2.to(tl.float64), 0), tl.sum(s3.to(tl.float64), 0), tl.sum(s4.to(tl.float64), 0))  # fmt: skip


@triton.jit
def span_partials(pointers, counts, owners, numbers, limits, partials, tiny_bits, DTYPE: tl.constexpr,
                  WIDE: tl.constexpr, ALIGNED: tl.constexpr, HAS_LIMITS: tl.constexpr, SPAN: tl.constexpr,
                  BLOCK: tl.constexpr, UNROLL: tl.constexpr):  # fmt: skip
    """One program per span; partials is float64 [NUM_PARTIALS, spans].

    Most spans are read once. One that holds zeros, very small or non-finite values is read again to count
    them; one whose sample misjudged its range, or that is not finite, is summed again about its own mean.
    """
    data, length, owner = _place(pointers, counts, owners, numbers, DTYPE, ALIGNED, SPAN)
    infinity = float("inf")
    scale, shift = _pilot(data, length, WIDE, BLOCK)
    total_abs, s1, s2, s3, s4, lo, hi, abs_min = _fast_sums(data, length, scale, shift, WIDE, BLOCK, UNROLL)
    sum_abs = (total_abs * scale).to(tl.float64)
    smallest = _bits(abs_min, WIDE)
    largest = tl.maximum(tl.abs(lo), tl.abs(hi))
    # Twice 2^24 to the fourth, 2^16 times, is still a float32; NaN fails the first comparison.
    odd = (not (total_abs < infinity)) or (largest * scale > 16777216.0)
    limit = infinity
    if HAS_LIMITS:
        limit = tl.load(limits + owner)
    nans = length * 0
    posinfs = length * 0
    neginfs = length * 0
    zeros = length * 0
    tiny = length * 0
    huge = length * 0
    if odd or (HAS_LIMITS and largest.to(tl.float64) > limit):
        nans, posinfs, neginfs, zeros, tiny, huge, lo, hi, smallest = _counts(
            data, length, tiny_bits, limit, WIDE, BLOCK)  # fmt: skip
    elif smallest < tl.maximum(tiny_bits, 1):
        zeros, tiny, smallest = _small_counts(data, length, tiny_bits, WIDE, BLOCK, UNROLL)
    n = length - nans - posinfs - neginfs
    if odd:
        scale = _scale(tl.maximum(tl.abs(lo), tl.abs(hi)), WIDE)
        shift, sum_abs, s1, s2, s3, s4 = _careful_sums(data, length, n, scale, WIDE, BLOCK)
    mean, m2, m3, m4 = _moments(s1, s2, s3, s4, shift, n)
    if lo == hi:  # no sum is as exact as saying so
        mean = (lo * scale).to(tl.float64)
        m2 = m2 * 0.0
        m3 = m3 * 0.0
        m4 = m4 * 0.0
    if WIDE:
        abs_min = smallest.to(tl.float64, bitcast=True)
    else:
        abs_min = smallest.to(tl.float32, bitcast=True)
    out = partials + tl.program_id(0)
    apart = tl.num_programs(0).to(tl.int64)
    _store_line(out, apart, n, nans, posinfs, neginfs, zeros, tiny, huge, lo, hi, abs_min.to(tl.float64), scale, mean,
                sum_abs, m2, m3, m4)  # fmt: skip


@triton.jit
def _moments(s1, s2, s3, s4, shift, n):
    """Mean and central moments of n values from the sums of powers of their distances from a shift."""
    count = tl.maximum(n, 1).to(tl.float64)
    off = s1 / count
    m2 = s2 - s1 * off
    m3 = s3 - 3.0 * off * s2 + 2.0 * count * off * off * off
    m4 = s4 - 4.0 * off * s3 + 6.0 * off * off * s2 - 3.0 * count * off * off * off * off
    return shift.to(tl.float64) + off, tl.maximum(m2, 0.0), m3, tl.maximum(m4, 0.0)


@triton.jit
def _scaled(partials, apart, place, inside, common):
    """Of some spans: how many values, and the factor that brings each to the common scale."""
    n = tl.load(partials + place, mask=inside, other=0.0)
    ratio = tl.where(n > 0, common / tl.load(partials + 10 * apart + place, mask=inside, other=1.0), 0.0)
    return n, ratio


@triton.jit
def _common_mean(partials, apart, begin, end, common, total, LANES: tl.constexpr):
    """The tensor's mean and its sum of magnitudes, in the common scale."""
    weighted = tl.zeros([LANES], dtype=tl.float64)
    sum_abs = tl.zeros([LANES], dtype=tl.float64)
    for first in range(begin, end, LANES):
        place = first + tl.arange(0, LANES)
        inside = place < end
        n, ratio = _scaled(partials, apart, place, inside, common)
        weighted += n * ratio * tl.load(partials + 11 * apart + place, mask=inside, other=0.0)
        sum_abs += ratio * tl.load(partials + 12 * apart + place, mask=inside, other=0.0)
    return tl.sum(weighted, 0) / tl.maximum(total, 1.0), tl.sum(sum_abs, 0)


@triton.jit
def _common_moments(partials, apart, begin, end, common, mean, LANES: tl.constexpr):
    """The tensor's central moments about its mean, in the common scale."""
    m2 = tl.zeros([LANES], dtype=tl.float64)
    m3 = tl.zeros([LANES], dtype=tl.float64)
    m4 = tl.zeros([LANES], dtype=tl.float64)
    for first in range(begin, end, LANES):
        place = first + tl.arange(0, LANES)
        inside = place < end
        n, ratio = _scaled(partials, apart, place, inside, common)
        own_mean = tl.load(partials + 11 * apart + place, mask=inside, other=0.0)
        delta = tl.where(n > 0, own_mean * ratio - mean, 0.0)
        square = delta * delta
        two = tl.load(partials + 13 * apart + place, mask=inside, other=0.0) * ratio * ratio
        three = tl.load(partials + 14 * apart + place, mask=inside, other=0.0) * ratio * ratio * ratio
        four = tl.load(partials + 15 * apart + place, mask=inside, other=0.0) * ratio * ratio * ratio * ratio
        m2 += two + n * square
        m3 += three + 3.0 * two * delta + n * square * delta
        m4 += four + 4.0 * three * delta + 6.0 * two * square + n * square * square
    return tl.sum(m2, 0), tl.sum(m3, 0), tl.sum(m4, 0)


@triton.jit
def tensor_sums(partials, starts, sums, LANES: tl.constexpr):
    """One program per tensor: its spans starts[i] .. starts[i + 1] combined; sums is float64 [n, NUM_SUMS].

    Over the spans three times: what needs no scale, then the mean, then the moments about it.
    """
    tensor = tl.program_id(0)
    begin = tl.load(starts + tensor)
    end = tl.load(starts + tensor + 1)
    lanes = tl.arange(0, LANES)
    apart = tl.load(starts + tl.num_programs(0)).to(tl.int64)  # the number of all spans
    infinity = float("inf")
    # Numbers of one kind are reduced together: a reduction's price is in its barriers, not in its additions.
    kinds = tl.arange(0, 8)[:, None]
    ends = tl.arange(0, 4)[:, None]
    counts = tl.zeros([8, LANES], dtype=tl.float64)
    extremes = tl.zeros([4, LANES], dtype=tl.float64) + infinity
    for first in range(begin, end, LANES):
        place = first + lanes[None, :]
        inside = place < end
        counts += tl.load(partials + kinds * apart + place, mask=inside & (kinds < 7), other=0.0)
        found = tl.load(partials + (7 + ends) * apart + place, mask=inside, other=infinity)
        here = tl.load(partials + place, mask=inside, other=0.0) > 0
        found = tl.where(ends == 1, tl.where(inside, -found, infinity), found)  # the maximum, as a minimum
        extremes = tl.minimum(extremes, tl.where((ends == 3) & (here == 0), infinity, found))
    totals = tl.sum(counts, 1)
    least = tl.min(extremes, 1)
    kind = tl.arange(0, 8)
    which = tl.arange(0, 4)
    total = tl.sum(tl.where(kind == 0, totals, 0.0), 0)
    # The smallest scale belongs to the largest values: with it nothing overflows.
    common = tl.min(tl.where(which == 3, least, infinity), 0)
    common = tl.where(common < infinity, common, 1.0)
    mean, sum_abs = _common_mean(partials, apart, begin, end, common, total, LANES)
    m2, m3, m4 = _common_moments(partials, apart, begin, end, common, mean, LANES)
    out = sums + tensor.to(tl.int64) * NUM_SUMS
    tl.store(out + kind, totals, mask=kind < 7)
    tl.store(out + 7 + which, tl.where(which == 1, -least, least), mask=which < 3)
    tl.store(out + 10, common)
    tl.store(out + 11, mean)
    tl.store(out + 12, sum_abs)
    tl.store(out + 13, m2)
    tl.store(out + 14, m3)
    tl.store(out + 15, m4)
