"""The device code: chunks of many tensors to partial results, partial results to one line per tensor.

Imported only where triton is at hand; `triton.py` launches it. The mathematics is that of `cpu_blocks.h`: a
chunk is read once into registers, scaled by a power of two so that fourth powers stay in range, and powers of
the distance from its own mean are summed; then chunks are combined in float64 about the tensor's mean.
"""

# mypy: ignore-errors
# ruff: noqa: N803
from __future__ import annotations

import triton
import triton.language as tl

NUM_PARTIALS = tl.constexpr(16)
"""What a chunk leaves: n, NaN, +Inf, -Inf, zeros, tiny, huge, lo, hi, smallest but zero, scale, mean, sum of
magnitudes, m2, m3, m4. The last five are of the scaled values."""

NUM_SUMS = tl.constexpr(16)
"""What a tensor leaves: the same, with every chunk brought to the tensor's own scale."""


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
def _load_chunk(pointers, counts, owners, numbers, DTYPE: tl.constexpr, WIDE: tl.constexpr,
                ALIGNED: tl.constexpr, CHUNK: tl.constexpr):  # fmt: skip
    """The chunk of this program as float32 or float64; past the end of the tensor it is NaN."""
    chunk = tl.program_id(0)
    owner = tl.load(owners + chunk)
    first = tl.load(numbers + chunk).to(tl.int64) * CHUNK
    count = tl.load(counts + owner)
    data = tl.load(pointers + owner).to(tl.pointer_type(DTYPE))
    if ALIGNED:
        data = tl.multiple_of(data, 16)
    offsets = tl.arange(0, CHUNK)
    length = tl.minimum(count - first, CHUNK).to(tl.int32)
    if length == CHUNK:
        raw = tl.load(data + first + offsets)
    else:
        raw = tl.load(data + first + offsets, mask=offsets < length, other=0)
    if WIDE:
        x = raw.to(tl.float64)
    else:
        x = raw.to(tl.float32)
    if length < CHUNK:
        x = tl.where(offsets < length, x, float("nan"))
    return x, length, owner, first


@triton.jit
def _store_line(out, n, nans, posinfs, neginfs, zeros, tiny, huge, lo, hi, smallest, scale, mean, sum_abs, m2, m3,
                m4):  # fmt: skip
    """One line of partials or of sums."""
    tl.store(out + 0, n.to(tl.float64))
    tl.store(out + 1, nans.to(tl.float64))
    tl.store(out + 2, posinfs.to(tl.float64))
    tl.store(out + 3, neginfs.to(tl.float64))
    tl.store(out + 4, zeros.to(tl.float64))
    tl.store(out + 5, tiny.to(tl.float64))
    tl.store(out + 6, huge.to(tl.float64))
    tl.store(out + 7, lo.to(tl.float64))
    tl.store(out + 8, hi.to(tl.float64))
    tl.store(out + 9, smallest)
    tl.store(out + 10, scale.to(tl.float64))
    tl.store(out + 11, mean)
    tl.store(out + 12, sum_abs)
    tl.store(out + 13, m2)
    tl.store(out + 14, m3)
    tl.store(out + 15, m4)


@triton.jit
def _moments(d, mean, n):
    """Mean and central moments of n values from their distances from a number near the mean."""
    square = d * d
    s1 = tl.sum(d, 0).to(tl.float64)
    s2 = tl.sum(square, 0).to(tl.float64)
    s3 = tl.sum(square * d, 0).to(tl.float64)
    s4 = tl.sum(square * square, 0).to(tl.float64)
    count = tl.maximum(n, 1).to(tl.float64)
    shift = s1 / count
    m2 = s2 - s1 * shift
    m3 = s3 - 3.0 * shift * s2 + 2.0 * count * shift * shift * shift
    m4 = s4 - 4.0 * shift * s3 + 6.0 * shift * shift * s2 - 3.0 * count * shift * shift * shift * shift
    return mean.to(tl.float64) + shift, m2, m3, m4


@triton.jit
def _count_zeros(x, WIDE: tl.constexpr):
    """How many zeros, and the bits of the smallest magnitude beside them."""
    bits = _bits(x, WIDE)
    if WIDE:
        smallest = tl.min(tl.where(bits == 0, 0x7FF0000000000000, bits), 0)
    else:
        smallest = tl.min(tl.where(bits == 0, 0x7F800000, bits), 0)
    return tl.sum((bits == 0).to(tl.int32), 0), smallest


@triton.jit
def chunk_partials(pointers, counts, owners, numbers, limits, partials, tiny_bits, DTYPE: tl.constexpr,
                   WIDE: tl.constexpr, ALIGNED: tl.constexpr, HAS_LIMITS: tl.constexpr,
                   CHUNK: tl.constexpr):  # fmt: skip
    """One program per chunk; partials is float64 [chunks, NUM_PARTIALS]."""
    x, length, owner, _ = _load_chunk(pointers, counts, owners, numbers, DTYPE, WIDE, ALIGNED, CHUNK)
    # Only x itself lives from here to the moments: whatever else were kept would cost registers, and with
    # them the number of chunks under way at once.
    infinity = float("inf")
    num_nan = length * 0
    num_posinf = length * 0
    num_neginf = length * 0
    num_zero = length * 0
    num_tiny = length * 0
    num_huge = length * 0
    total_abs = tl.sum(tl.abs(x), 0)
    # NaN (also past the end), Inf, or an overflow of the sum: take out what is not finite.
    careful = not (total_abs < infinity)
    if careful:
        finite = tl.abs(x) < infinity
        num_nan = tl.sum((x != x).to(tl.int32), 0) - (CHUNK - length)
        num_posinf = tl.sum((x == infinity).to(tl.int32), 0)
        num_neginf = tl.sum((x == -infinity).to(tl.int32), 0)
        lo = tl.min(tl.where(finite, x, infinity), 0)
        hi = tl.max(tl.where(finite, x, -infinity), 0)
    else:
        lo = tl.min(x, 0)
        hi = tl.max(x, 0)
    n = length - num_nan - num_posinf - num_neginf
    # Non-finite values have larger bits than all others, so they are never the smallest.
    smallest = tl.min(_bits(x, WIDE), 0)
    if smallest == 0:
        num_zero, smallest = _count_zeros(x, WIDE)
    if smallest < tiny_bits:
        bits = _bits(x, WIDE)
        num_tiny = tl.sum(((bits > 0) & (bits < tiny_bits)).to(tl.int32), 0)
    largest = tl.maximum(tl.abs(lo), tl.abs(hi))
    if HAS_LIMITS:
        limit = tl.load(limits + owner)
        if largest.to(tl.float64) > limit:
            over = (tl.abs(x).to(tl.float64) > limit) & (tl.abs(x) < infinity)
            num_huge = tl.sum(over.to(tl.int32), 0)
    scale = _scale(largest, WIDE)
    if careful:
        kept = tl.where(tl.abs(x) < infinity, x * scale, 0.0)
        total = tl.sum(kept, 0)
        sum_abs = tl.sum(tl.abs(kept), 0).to(tl.float64)
    else:
        total = tl.sum(x, 0) * scale
        sum_abs = (total_abs * scale).to(tl.float64)
    mean = total / tl.maximum(n, 1).to(total.dtype)
    d = x * scale - mean
    if careful:
        d = tl.where(tl.abs(x) < infinity, d, 0.0)
    exact_mean, m2, m3, m4 = _moments(d, mean, n)
    if lo == hi:  # no sum is as exact as saying so
        exact_mean = (lo * scale).to(tl.float64)
        m2 = m2 * 0.0
        m3 = m3 * 0.0
        m4 = m4 * 0.0
    if WIDE:
        abs_min = smallest.to(tl.float64, bitcast=True)
    else:
        abs_min = smallest.to(tl.float32, bitcast=True).to(tl.float64)
    out = partials + tl.program_id(0).to(tl.int64) * NUM_PARTIALS
    _store_line(out, n, num_nan, num_posinf, num_neginf, num_zero, num_tiny, num_huge, lo, hi, abs_min, scale,
                exact_mean, sum_abs, m2, m3, m4)  # fmt: skip


@triton.jit
def _scaled_line(partials, first, end, common, LANES: tl.constexpr):
    """LANES lines from `first` on: where they are, n, and the factor that brings each to the common scale."""
    place = first + tl.arange(0, LANES)
    inside = place < end
    line = partials + place.to(tl.int64) * NUM_PARTIALS
    n = tl.load(line, mask=inside, other=0.0)
    ratio = tl.where(n > 0, common / tl.load(line + 10, mask=inside, other=1.0), 0.0)
    return line, inside, n, ratio


@triton.jit
def _common_mean(partials, begin, end, common, total, LANES: tl.constexpr):
    """The tensor's mean and its sum of magnitudes, in the common scale."""
    weighted = tl.zeros([LANES], dtype=tl.float64)
    sum_abs = tl.zeros([LANES], dtype=tl.float64)
    for first in range(begin, end, LANES):
        line, inside, n, ratio = _scaled_line(partials, first, end, common, LANES)
        weighted += n * ratio * tl.load(line + 11, mask=inside, other=0.0)
        sum_abs += ratio * tl.load(line + 12, mask=inside, other=0.0)
    return tl.sum(weighted, 0) / tl.maximum(total, 1.0), tl.sum(sum_abs, 0)


@triton.jit
def _common_moments(partials, begin, end, common, mean, LANES: tl.constexpr):
    """The tensor's central moments about its mean, in the common scale."""
    m2 = tl.zeros([LANES], dtype=tl.float64)
    m3 = tl.zeros([LANES], dtype=tl.float64)
    m4 = tl.zeros([LANES], dtype=tl.float64)
    for first in range(begin, end, LANES):
        line, inside, n, ratio = _scaled_line(partials, first, end, common, LANES)
        delta = tl.where(n > 0, tl.load(line + 11, mask=inside, other=0.0) * ratio - mean, 0.0)
        square = delta * delta
        two = tl.load(line + 13, mask=inside, other=0.0) * ratio * ratio
        three = tl.load(line + 14, mask=inside, other=0.0) * ratio * ratio * ratio
        four = tl.load(line + 15, mask=inside, other=0.0) * ratio * ratio * ratio * ratio
        m2 += two + n * square
        m3 += three + 3.0 * two * delta + n * square * delta
        m4 += four + 4.0 * three * delta + 6.0 * two * square + n * square * square
    return tl.sum(m2, 0), tl.sum(m3, 0), tl.sum(m4, 0)


@triton.jit
def tensor_sums(partials, starts, sums, LANES: tl.constexpr):
    """One program per tensor: its chunks starts[i] .. starts[i + 1] combined; sums is float64 [n, NUM_SUMS].

    Over the chunks three times: what needs no scale, then the mean, then the moments about it.
    """
    tensor = tl.program_id(0)
    begin = tl.load(starts + tensor)
    end = tl.load(starts + tensor + 1)
    lanes = tl.arange(0, LANES)
    infinity = float("inf")
    zero = tl.zeros([LANES], dtype=tl.float64)
    n = zero
    num_nan = zero
    num_posinf = zero
    num_neginf = zero
    num_zero = zero
    num_tiny = zero
    num_huge = zero
    lo = zero + infinity
    hi = zero - infinity
    smallest = zero + infinity
    scale = zero + infinity
    for first in range(begin, end, LANES):
        inside = first + lanes < end
        line = partials + (first + lanes).to(tl.int64) * NUM_PARTIALS
        here = tl.load(line, mask=inside, other=0.0)
        n += here
        num_nan += tl.load(line + 1, mask=inside, other=0.0)
        num_posinf += tl.load(line + 2, mask=inside, other=0.0)
        num_neginf += tl.load(line + 3, mask=inside, other=0.0)
        num_zero += tl.load(line + 4, mask=inside, other=0.0)
        num_tiny += tl.load(line + 5, mask=inside, other=0.0)
        num_huge += tl.load(line + 6, mask=inside, other=0.0)
        lo = tl.minimum(lo, tl.load(line + 7, mask=inside, other=infinity))
        hi = tl.maximum(hi, tl.load(line + 8, mask=inside, other=-infinity))
        smallest = tl.minimum(smallest, tl.load(line + 9, mask=inside, other=infinity))
        own = tl.load(line + 10, mask=inside, other=infinity)
        scale = tl.minimum(scale, tl.where(here > 0, own, infinity))
    # The smallest scale belongs to the largest values: with it nothing overflows.
    common = tl.min(scale, 0)
    common = tl.where(common < infinity, common, 1.0)
    total = tl.sum(n, 0)
    mean, sum_abs = _common_mean(partials, begin, end, common, total, LANES)
    m2, m3, m4 = _common_moments(partials, begin, end, common, mean, LANES)
    out = sums + tensor.to(tl.int64) * NUM_SUMS
    _store_line(out, total, tl.sum(num_nan, 0), tl.sum(num_posinf, 0), tl.sum(num_neginf, 0),
                tl.sum(num_zero, 0), tl.sum(num_tiny, 0), tl.sum(num_huge, 0), tl.min(lo, 0), tl.max(hi, 0),
                tl.min(smallest, 0), common, mean, sum_abs, m2, m3, m4)  # fmt: skip


@triton.jit
def chunk_histograms(pointers, counts, owners, numbers, histograms, DTYPE: tl.constexpr, WIDE: tl.constexpr,
                     ALIGNED: tl.constexpr, CHUNK: tl.constexpr, LOWEST: tl.constexpr,
                     HIGHEST: tl.constexpr):  # fmt: skip
    """Adds each chunk's exponents to its tensor's line of int64 [n, 512]; the last place is for no bin."""
    x, _, owner, _ = _load_chunk(pointers, counts, owners, numbers, DTYPE, WIDE, ALIGNED, CHUNK)
    bits = _bits(x, WIDE)
    if WIDE:
        exponent = (bits >> 52).to(tl.int32) - 1023
        odd = exponent == 1024
        negative = x.to(tl.int64, bitcast=True) < 0
    else:
        exponent = (bits >> 23) - 127
        odd = exponent == 128
        negative = x.to(tl.int32, bitcast=True) < 0
    place = tl.minimum(tl.maximum(exponent, LOWEST), HIGHEST) - LOWEST
    middle = HIGHEST - LOWEST + 1
    index = tl.where(negative, middle - 1 - place, middle + 1 + place)
    index = tl.where(bits == 0, middle, index)
    index = tl.where(odd, 511, index)
    found = tl.histogram(index, 512)
    lane = tl.arange(0, 512)
    tl.atomic_add(histograms + owner.to(tl.int64) * 512 + lane, found.to(tl.int64), mask=found > 0)


@triton.jit
def _mix(word):
    """The finaliser of SplitMix64, as in sketch.py."""
    word = (word ^ (word >> 30)) * tl.full([], 0xBF58476D1CE4E5B9, tl.uint64)
    word = (word ^ (word >> 27)) * tl.full([], 0x94D049BB133111EB, tl.uint64)
    return word ^ (word >> 31)


@triton.jit
def chunk_sketches(pointers, counts, owners, numbers, seeds, sketches, DTYPE: tl.constexpr,
                   TILES: tl.constexpr, ROWS: tl.constexpr, WIDTH: tl.constexpr):  # fmt: skip
    """One program per TILES * ROWS * WIDTH elements; sketches is float64 [chunks, WIDTH].

    Instead of scattering element j to sum (j + r) mod WIDTH, each sum fetches the element that belongs to it.
    """
    chunk = tl.program_id(0)
    owner = tl.load(owners + chunk)
    number = tl.load(numbers + chunk).to(tl.int64)
    count = tl.load(counts + owner)
    data = tl.load(pointers + owner).to(tl.pointer_type(DTYPE))
    seed = tl.load(seeds).to(tl.uint64, bitcast=True)
    golden = tl.full([], 0x9E3779B97F4A7C15, tl.uint64)
    lane = tl.arange(0, WIDTH)
    total = tl.zeros([WIDTH], dtype=tl.float64)
    for tile in range(TILES):
        block = (number * TILES + tile) * ROWS + tl.arange(0, ROWS)
        signs = _mix(seed + block.to(tl.uint64) * golden)
        rotation = (_mix(signs + golden) >> 58).to(tl.int32)
        source = (lane[None, :] - rotation[:, None]) & (WIDTH - 1)
        offset = block[:, None] * WIDTH + source
        x = tl.load(data + offset, mask=offset < count, other=0).to(tl.float64)
        x = tl.where(tl.abs(x) < float("inf"), x, 0.0)
        minus = (signs[:, None] >> source.to(tl.uint64)) & 1
        total += tl.sum(tl.where(minus == 1, -x, x), 0)
    tl.store(sketches + chunk.to(tl.int64) * WIDTH + lane, total)


@triton.jit
def tensor_sketches(parts, starts, sketches, WIDTH: tl.constexpr):
    """One program per tensor: the sums of its chunks, in order."""
    tensor = tl.program_id(0)
    lane = tl.arange(0, WIDTH)
    total = tl.zeros([WIDTH], dtype=tl.float64)
    begin = tl.load(starts + tensor)
    line = parts + begin.to(tl.int64) * WIDTH + lane
    for _ in range(begin, tl.load(starts + tensor + 1)):
        total += tl.load(line)
        line += WIDTH
    tl.store(sketches + tensor.to(tl.int64) * WIDTH + lane, total)


@triton.jit
def gather_values(pointers, owners, begins, ends, offsets, out, DTYPE: tl.constexpr, LANES: tl.constexpr):
    """One program per LANES coordinates of one tensor: out[i] = its element offsets[i], from begin to end."""
    program = tl.program_id(0)
    lane = tl.load(begins + program) + tl.arange(0, LANES)
    inside = lane < tl.load(ends + program)
    data = tl.load(pointers + tl.load(owners + program)).to(tl.pointer_type(DTYPE))
    values = tl.load(data + tl.load(offsets + lane, mask=inside, other=0), mask=inside, other=0)
    tl.store(out + lane, values.to(tl.float64), mask=inside)
