"""The device code beside the row: histograms, sketches, and values at chosen coordinates; see `triton_kernels`."""

# mypy: ignore-errors
# ruff: noqa: N803
from __future__ import annotations

import triton
import triton.language as tl

from stethoscope.kernels.triton_elements import bits_of, place_of, read, wide


@triton.jit
def chunk_histograms(
    pointers,
    owners,
    firsts,
    lengths,
    histograms,
    DTYPE: tl.constexpr,
    READ: tl.constexpr,
    ALIGNED: tl.constexpr,
    SPAN: tl.constexpr,
    LOWEST: tl.constexpr,
    HIGHEST: tl.constexpr,
):
    """Adds each chunk's exponents to its tensor's line of int64 [n, 512]; the last place is for no bin."""
    data, length, owner = place_of(pointers, owners, firsts, lengths, DTYPE, ALIGNED)
    offsets = tl.arange(0, SPAN)
    x = read(data + offsets, offsets < length, READ)
    x = tl.where(offsets < length, x, float("nan"))
    bits = bits_of(x, READ)
    if READ == "double":
        # The sign is masked out after the shift: one compiler took the mask before it away for some elements of a thread.
        exponent = ((bits >> 52) & 0x7FF).to(tl.int32) - 1023
        odd = exponent == 1024
        negative = x.to(tl.int64, bitcast=True) < 0
    else:
        exponent = (bits >> 23) - 127
        odd = exponent == 128
        negative = x.to(tl.int32, bitcast=True) < 0
    position = tl.minimum(tl.maximum(exponent, LOWEST), HIGHEST) - LOWEST
    middle = HIGHEST - LOWEST + 1
    index = tl.where(negative, middle - 1 - position, middle + 1 + position)
    index = tl.where(bits == 0, middle, index)
    index = tl.where(odd, 511, index)
    found = tl.histogram(index, 512)
    lane = tl.arange(0, 512)
    tl.atomic_add(histograms + owner.to(tl.int64) * 512 + lane, found.to(tl.int64), mask=found > 0)


@triton.jit
def _double(raw, READ: tl.constexpr):
    """As float64; float32 and what it holds pass through it unchanged."""
    if READ == "single" or READ == "double":
        x = raw.to(tl.float64)
    else:
        x = wide(raw, READ).to(tl.float64)
    return x


@triton.jit
def _mix(word):
    """The finaliser of SplitMix64, as in sketch.py."""
    word = (word ^ (word >> 30)) * tl.full([], 0xBF58476D1CE4E5B9, tl.uint64)
    word = (word ^ (word >> 27)) * tl.full([], 0x94D049BB133111EB, tl.uint64)
    return word ^ (word >> 31)


@triton.jit
def chunk_sketches(
    pointers,
    owners,
    firsts,
    lengths,
    seeds,
    sketches,
    DTYPE: tl.constexpr,
    READ: tl.constexpr,
    TILES: tl.constexpr,
    ROWS: tl.constexpr,
    WIDTH: tl.constexpr,
):
    """One program per TILES * ROWS * WIDTH elements; sketches is float64 [chunks, WIDTH].

    Instead of scattering element j to sum (j + r) mod WIDTH, each sum fetches the element that belongs to it.
    """
    chunk = tl.program_id(0)
    owner = tl.load(owners + chunk)
    first = tl.load(firsts + chunk)
    end = first + tl.load(lengths + chunk)
    data = tl.load(pointers + owner).to(tl.pointer_type(DTYPE))
    seed = tl.load(seeds).to(tl.uint64, bitcast=True)
    golden = tl.full([], 0x9E3779B97F4A7C15, tl.uint64)
    lane = tl.arange(0, WIDTH)
    total = tl.zeros([WIDTH], dtype=tl.float64)
    for tile in range(TILES):
        block = first // WIDTH + tile * ROWS + tl.arange(0, ROWS)
        signs = _mix(seed + block.to(tl.uint64) * golden)
        rotation = (_mix(signs + golden) >> 58).to(tl.int32)
        source = (lane[None, :] - rotation[:, None]) & (WIDTH - 1)
        offset = block[:, None] * WIDTH + source
        x = tl.where(offset < end, _double(tl.load(data + offset, mask=offset < end, other=0), READ), 0.0)
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
def gather_values(
    pointers, owners, begins, ends, offsets, out, DTYPE: tl.constexpr, READ: tl.constexpr, LANES: tl.constexpr
):
    """One program per LANES coordinates of one tensor: out[i] = its element offsets[i], from begin to end."""
    program = tl.program_id(0)
    lane = tl.load(begins + program) + tl.arange(0, LANES)
    inside = lane < tl.load(ends + program)
    data = tl.load(pointers + tl.load(owners + program)).to(tl.pointer_type(DTYPE))
    values = tl.load(data + tl.load(offsets + lane, mask=inside, other=0), mask=inside, other=0)
    tl.store(out + lane, _double(values, READ), mask=inside)


@triton.jit(do_not_specialize=["data", "count", "spans", "span_length"])
def write_plan(data, count, spans, span_length, wide, narrow, LANES: tl.constexpr):
    """For one tensor what is uploaded for many: where it lies, and which span is which.

    Of `wide`: its pointer, where each span begins. Of `narrow`: how long each is, whose it is, that none was read
    yet, the first span of this tensor and of none, and that nothing was combined yet.
    """
    span = tl.program_id(0) * LANES + tl.arange(0, LANES)
    first = span.to(tl.int64) * span_length
    inside = span < spans
    tl.store(wide + 1 + span, first, mask=inside)
    tl.store(narrow + span, tl.minimum(count - first, span_length).to(tl.int32), mask=inside)
    tl.store(narrow + spans + span, span * 0, mask=inside)
    tl.store(narrow + 2 * spans + span, span * 0, mask=inside)
    if tl.program_id(0) == 0:
        tl.store(wide, data)
        tl.store(narrow + 3 * spans, 0)
        tl.store(narrow + 3 * spans + 1, spans.to(tl.int32))
        tl.store(narrow + 3 * spans + 2, 0)
