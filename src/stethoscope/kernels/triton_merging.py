"""The device code that makes one line per tensor of what its spans left, in float64; called by `triton_kernels.py`."""

# mypy: ignore-errors
# ruff: noqa: N803
from __future__ import annotations

import triton
import triton.language as tl

NUM_SUMS = tl.constexpr(16)
"""What a span leaves, and a tensor: n, NaN, +Inf, -Inf, zeros, tiny, huge, lo, hi, smallest but zero, scale, mean, sum of
magnitudes, m2, m3, m4."""
FRESH = tl.constexpr(".cg")
"""Other processors wrote what is read here: not from this one's own cache."""


@triton.jit
def _common_scale(partials, apart, begin, end, stride, READ: tl.constexpr, LANES: tl.constexpr):
    """A scale in which no span's fourth powers overflow: the smallest one, which belongs to the largest values.

    What fits into float32 has fourth powers that fit into float64 as they are.
    """
    least = tl.zeros([LANES], dtype=tl.float64) + float("inf")
    if READ == "double":
        for first in range(begin, end, LANES * stride):
            position = first + tl.arange(0, LANES) * stride
            inside = position < end
            here = tl.load(partials + position, mask=inside, other=0.0, cache_modifier=FRESH) > 0
            scale = tl.load(partials + 10 * apart + position, mask=inside, other=1.0, cache_modifier=FRESH)
            least = tl.minimum(least, tl.where(here, scale, float("inf")))
    common = tl.min(least, 0)
    return tl.where(common < float("inf"), common, 1.0)


@triton.jit
def moments(s1, s2, s3, s4, shift, n):
    """Mean and central moments of n values from the sums of powers of their distances from a shift."""
    count = tl.maximum(n, 1).to(tl.float64)
    off = s1 / count
    m2 = s2 - s1 * off
    m3 = s3 - 3.0 * off * s2 + 2.0 * count * off * off * off
    m4 = s4 - 4.0 * off * s3 + 6.0 * off * off * s2 - 3.0 * count * off * off * off * off
    return shift.to(tl.float64) + off, tl.maximum(m2, 0.0), m3, tl.maximum(m4, 0.0)


@triton.jit
def _mean_of_means(partials, apart, begin, end, stride, common, LANES: tl.constexpr):
    """Of all spans that hold a finite value, in the common scale."""
    total = tl.zeros([LANES], dtype=tl.float64)
    count = total
    for first in range(begin, end, LANES * stride):
        position = first + tl.arange(0, LANES) * stride
        inside = position < end
        here = tl.load(partials + position, mask=inside, other=0.0, cache_modifier=FRESH) > 0
        scale = tl.load(partials + 10 * apart + position, mask=inside, other=1.0, cache_modifier=FRESH)
        mean = tl.load(partials + 11 * apart + position, mask=inside, other=0.0, cache_modifier=FRESH)
        total += tl.where(here, mean * (common / scale), 0.0)
        count += here.to(tl.float64)
    return tl.sum(total, 0) / tl.maximum(tl.sum(count, 0), 1.0)


@triton.jit
def merge_spans(partials, apart, begin, end, stride, out, out_apart, READ: tl.constexpr, LANES: tl.constexpr):
    """The lines of every `stride`th span from `begin` to `end` combined to one, all brought to a common scale.

    Moments are added up about the mean of the first span, which is never many standard deviations away, and
    moved to the tensor's mean at the end: so the spans are read once, but where the first one holds nothing finite.
    """
    lanes = tl.arange(0, LANES)
    infinity = float("inf")
    # Numbers of one kind are reduced together: a reduction's price is in its barriers, not in its additions.
    kinds = tl.arange(0, 8)
    ends = tl.arange(0, 4)
    counts = tl.zeros([8, LANES], dtype=tl.float64)
    extremes = tl.zeros([4, LANES], dtype=tl.float64) + infinity
    powers = tl.zeros([8, LANES], dtype=tl.float64)
    common = _common_scale(partials, apart, begin, end, stride, READ, LANES)
    if tl.load(partials + begin, cache_modifier=FRESH) > 0:
        shift = tl.load(partials + 11 * apart + begin, cache_modifier=FRESH)
        shift = shift * common / tl.load(partials + 10 * apart + begin, cache_modifier=FRESH)
    else:
        shift = _mean_of_means(partials, apart, begin, end, stride, common, LANES)
    for first in range(begin, end, LANES * stride):
        position = first + lanes * stride
        inside = position < end
        each = position[None, :]
        counts += tl.load(
            partials + kinds[:, None] * apart + each,
            mask=inside[None, :] & (kinds[:, None] < 7),
            other=0.0,
            cache_modifier=FRESH,
        )
        found = tl.load(
            partials + (7 + ends[:, None]) * apart + each,
            mask=inside[None, :] & (ends[:, None] < 3),
            other=infinity,
            cache_modifier=FRESH,
        )
        # The maximum, as a minimum.
        found = tl.where(ends[:, None] == 1, tl.where(inside[None, :], -found, infinity), found)
        extremes = tl.minimum(extremes, found)
        powers += _span_powers(partials, apart, position, inside, common, shift, kinds)
    totals = tl.sum(counts, 1)
    least = tl.min(extremes, 1)
    added = tl.sum(powers, 1)
    total = tl.sum(tl.where(kinds == 0, totals, 0.0), 0)
    mean, m2, m3, m4 = moments(
        _pick(added, kinds, 0), _pick(added, kinds, 1), _pick(added, kinds, 2), _pick(added, kinds, 3), shift, total
    )
    tl.store(out + kinds * out_apart, totals, mask=kinds < 7)
    tl.store(out + (7 + ends) * out_apart, tl.where(ends == 1, -least, least), mask=ends < 3)
    tl.store(out + 10 * out_apart, common)
    tl.store(out + 11 * out_apart, mean)
    tl.store(out + 12 * out_apart, _pick(added, kinds, 4))
    tl.store(out + 13 * out_apart, m2)
    tl.store(out + 14 * out_apart, m3)
    tl.store(out + 15 * out_apart, m4)


@triton.jit
def merge_when_last(partials, apart, program, begin, end, line, done, counted, READ: tl.constexpr, LANES: tl.constexpr):
    """Called by every program when its span's line is written: whoever is last combines.

    In two levels where a tensor has more spans than one look of LANES takes: of each LANES neighbours the last one combines
    these, in the place of the first, and of all such groups the last one combines the groups. So what is left to do when the
    last span was read takes as long for five thousand spans as for a few hundred. `counted` counts the spans of each group, by
    its first span, and `done` the groups of the tensor; both are zero again at the end.
    """
    group = begin + (program - begin) // LANES * LANES
    first = group
    last = tl.minimum(group + LANES, end)
    stride = begin * 0 + 1
    counter = counted + group
    needed = last - group
    levels = tl.where(end - begin <= LANES, 1, 2)
    level = levels * 0
    # A loop, not two calls: a second copy of the code takes registers from the reading.
    while level < levels:
        tl.debug_barrier()
        if tl.atomic_add(counter, 1, sem="acq_rel") == needed - 1:
            tl.store(counter, 0)
            level += 1
            is_top = level == levels
            place = tl.where(is_top, line.to(tl.int64), (partials + group).to(tl.int64))
            out = place.to(tl.pointer_type(tl.float64))
            merge_spans(partials, apart, first, last, stride, out, tl.where(is_top, 1, apart), READ, LANES)
            first = begin
            last = end
            stride = stride * 0 + LANES
            counter = done
            needed = (end - begin + LANES - 1) // LANES
        else:
            level = levels


@triton.jit
def _pick(values, kinds, which: tl.constexpr):
    """One of a few numbers."""
    return tl.sum(tl.where(kinds == which, values, 0.0), 0)


@triton.jit
def _span_powers(partials, apart, position, inside, common, shift, kinds):
    """Of each span, in the common scale: sums of the first four powers of the distance from the shift, and of
    magnitudes; as lines of a table."""
    n = tl.load(partials + position, mask=inside, other=0.0, cache_modifier=FRESH)
    ratio = tl.where(
        n > 0, common / tl.load(partials + 10 * apart + position, mask=inside, other=1.0, cache_modifier=FRESH), 0.0
    )
    own_mean = tl.load(partials + 11 * apart + position, mask=inside, other=0.0, cache_modifier=FRESH)
    total_abs = tl.load(partials + 12 * apart + position, mask=inside, other=0.0, cache_modifier=FRESH) * ratio
    two = tl.load(partials + 13 * apart + position, mask=inside, other=0.0, cache_modifier=FRESH) * ratio * ratio
    three = (
        tl.load(partials + 14 * apart + position, mask=inside, other=0.0, cache_modifier=FRESH) * ratio * ratio * ratio
    )
    four = (
        tl.load(partials + 15 * apart + position, mask=inside, other=0.0, cache_modifier=FRESH)
        * ratio
        * ratio
        * ratio
        * ratio
    )
    off = tl.where(n > 0, own_mean * ratio - shift, 0.0)
    square = off * off
    s1 = n * off
    s2 = two + n * square
    s3 = three + 3.0 * two * off + n * square * off
    s4 = four + 4.0 * three * off + 6.0 * two * square + n * square * square
    line = kinds[:, None]
    table = tl.where(line == 0, s1[None, :], tl.where(line == 1, s2[None, :], 0.0))
    table = tl.where(line == 2, s3[None, :], tl.where(line == 3, s4[None, :], table))
    return tl.where(line == 4, total_abs[None, :], table)
