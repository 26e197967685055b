"""Rows by plain torch operations: for devices without a kernel of ours, and where there is no C library.

Correct first. The work stays on the tensor's device, in float64 where the device has it, in pieces so that
the copy to float64 stays small; nothing is synchronised until `result`.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from stethoscope.kernels import histogram as bins
from stethoscope.kernels import sketch as sketch_hash
from stethoscope.kernels.columns import COUNTS, NUM_COLUMNS, empty_rows, merge
from stethoscope.kernels.pending import Extras, Histograms, Measured, Sketches
from stethoscope.kernels.reference import SMALLEST_NORMAL
from stethoscope.kernels.tensors import dtype_name

if TYPE_CHECKING:
    import torch

PIECE: Final = 1 << 20
"""Elements taken at a time; a multiple of the sketch's width, so that no block of it is cut."""


class Launched:
    """Rows of pieces, on their device or already on their way to the host."""

    def __init__(self, pieces: torch.Tensor, owners: Sequence[int], num_rows: int, widths: list[int]) -> None:
        self._owners, self._num_rows, self._widths = owners, num_rows, widths
        self._event: Any = None
        self._values = pieces
        if pieces.is_cuda:
            torch = sys.modules["torch"]
            self._values = torch.empty(pieces.shape, dtype=pieces.dtype, device="cpu", pin_memory=True)
            self._values.copy_(pieces, non_blocking=True)
            self._event = torch.cuda.Event()
            self._event.record(torch.cuda.current_stream(pieces.device))

    def ready(self) -> bool:
        """Whether the device has finished and the copy has arrived."""
        return self._event is None or bool(self._event.query())

    def result(self) -> Measured:
        """The pieces of each tensor merged into one row."""
        if self._event is not None:
            self._event.synchronize()
        values = self._values.cpu().numpy().astype(np.float64)
        rows = empty_rows(self._num_rows)
        sums = np.zeros((self._num_rows, values.shape[1] - NUM_COLUMNS))
        for position, piece in zip(self._owners, values, strict=True):
            rows[position] = merge(rows[position], piece[:NUM_COLUMNS])
            sums[position] += piece[NUM_COLUMNS:]
        histograms: Histograms | None = None
        sketches: Sketches | None = None
        if bins.NUM_BINS in self._widths:
            limit = float(np.iinfo(np.uint32).max)
            histograms = np.minimum(sums[:, : bins.NUM_BINS], limit).astype(np.uint32)
        if sketch_hash.SKETCH_WIDTH in self._widths:
            with np.errstate(over="ignore"):
                sketches = sums[:, -sketch_hash.SKETCH_WIDTH :].astype(np.float32)
        return Measured(rows, histograms, sketches)


def launch(tensors: Sequence[torch.Tensor], limits: Sequence[float | None] | None, extras: Extras | None) -> Launched:
    """Measures plain strided real tensors of one device."""
    torch = sys.modules["torch"]
    extras = extras or Extras()
    widths = [bins.NUM_BINS] * extras.histogram + [sketch_hash.SKETCH_WIDTH] * extras.sketch
    owners: list[int] = []
    pieces: list[Any] = []
    for position, tensor in enumerate(tensors):
        limit = None if limits is None else limits[position]
        tiny = SMALLEST_NORMAL.get(dtype_name(tensor), 0.0)
        flat = tensor.reshape(-1)
        for first in range(0, flat.numel(), PIECE):
            piece = _widened(torch, flat[first : first + PIECE])
            parts = [_row(torch, piece, tiny, limit)]
            if extras.histogram:
                parts.append(_histogram(torch, piece))
            if extras.sketch:
                parts.append(_sketch(torch, piece, first // sketch_hash.SKETCH_WIDTH, extras.seed))
            owners.append(position)
            pieces.append(torch.cat(parts))
    width = NUM_COLUMNS + sum(widths)
    stacked = torch.stack(pieces) if pieces else torch.empty((0, width), dtype=torch.float64, device="cpu")
    return Launched(stacked, owners, len(tensors), widths)


def gather(tensor: torch.Tensor, coordinates: torch.Tensor) -> torch.Tensor:
    """The values at flat logical coordinates, in float64 where the device has it."""
    values: torch.Tensor = _widened(sys.modules["torch"], tensor.reshape(-1)[coordinates])
    return values


def _widened(torch: Any, flat: Any) -> Any:
    return flat.to(torch.float32 if flat.device.type == "mps" else torch.float64)


def _row(torch: Any, x: Any, tiny: float, limit: float | None) -> Any:
    finite = torch.isfinite(x)
    n = finite.sum()
    kept = torch.where(finite, x, 0)
    size = kept.abs()
    infinity = torch.full((), math.inf, dtype=x.dtype, device=x.device)
    no_limit = limit is None or math.isnan(limit)
    counts = [
        torch.full((), x.numel(), dtype=x.dtype, device=x.device),
        torch.isnan(x).sum(),
        (x == math.inf).sum(),
        (x == -math.inf).sum(),
        (x == 0).sum(),
        ((size > 0) & (size < tiny)).sum(),
        (size > (math.inf if no_limit else limit)).sum(),
    ]
    assert len(counts) == len(COUNTS)
    largest = size.max()
    lowest = torch.where(finite, x, infinity).min()
    highest = torch.where(finite, x, -infinity).max()
    smallest = torch.where(size > 0, size, infinity).min()
    smallest = torch.where(torch.isinf(smallest), math.nan, smallest)
    moments = _moments(torch, kept, finite, n, largest, lowest == highest)
    extremes = [torch.where(n > 0, number, math.nan) for number in (lowest, highest, largest, smallest)]
    return torch.stack([number.to(x.dtype) for number in (*counts, *extremes, *moments)])


def _moments(torch: Any, kept: Any, finite: Any, n: Any, largest: Any, flat: Any) -> list[Any]:
    """As in the reference: scaled by a power of two so that fourth powers stay in range, then two passes."""
    info = torch.finfo(kept.dtype)
    low, high = math.frexp(info.tiny)[1], math.frexp(info.max)[1] - 1
    exponent = torch.clamp(torch.floor(torch.log2(largest)), low, high)
    exponent = torch.where(largest > 0, exponent, 0)
    scale = torch.pow(2.0, exponent)
    scaled = kept / scale
    mean = scaled.sum() / n
    centred = torch.where(finite, scaled - mean, 0)
    rest = centred.sum() / n
    centred = torch.where(finite, centred - rest, 0)
    square = centred * centred
    var = torch.where(flat, 0.0, square.sum() / n)
    std = torch.sqrt(var)
    mean_abs, norm = scaled.abs().sum() / n, torch.sqrt((scaled * scaled).sum())
    skewness = (square * centred).sum() / n / (std * var)
    kurtosis = (square * square).sum() / n / (var * var) - 3.0
    null = torch.full_like(std, math.nan)
    shape = [torch.where(var > 0, number, null) for number in (skewness, kurtosis)]
    out = [(mean + rest) * scale, mean_abs * scale, norm * scale, std * scale, *shape]
    return [torch.where(n > 0, number, null) for number in out]


def _histogram(torch: Any, x: Any) -> Any:
    exponent = torch.frexp(x).exponent.to(torch.int64) - 1
    position = torch.clamp(exponent, bins.MIN_EXPONENT, bins.MAX_EXPONENT) - bins.MIN_EXPONENT
    index = torch.where(x > 0, bins.ZERO_BIN + 1 + position, bins.ZERO_BIN - 1 - position)
    index = torch.where(x == 0, bins.ZERO_BIN, index)
    index = torch.where(torch.isfinite(x), index, bins.NUM_BINS)
    # Sorting instead of bincount, which synchronises and is refused in deterministic mode on some devices.
    edges = torch.arange(bins.NUM_BINS + 1, device=x.device)
    upto = torch.searchsorted(index.sort().values, edges)
    return (upto[1:] - upto[:-1]).to(x.dtype)


def _sketch(torch: Any, x: Any, first_block: int, seed: int) -> Any:
    width = sketch_hash.SKETCH_WIDTH
    count = -(-x.numel() // width)
    padded = torch.zeros(count * width, dtype=x.dtype, device=x.device)
    padded[: x.numel()] = torch.where(torch.isfinite(x), x, 0)
    rotation, signs = sketch_hash.blocks(first_block, count, seed)
    lane = np.arange(width)
    bit = ((signs[:, None] >> lane.astype(np.uint64)) & np.uint64(1)).astype(np.float64)
    source = (lane - rotation[:, None]) % width
    signed = padded.view(count, width) * torch.as_tensor(1.0 - 2.0 * bit, device="cpu").to(x.device, x.dtype)
    return signed.gather(1, torch.as_tensor(source, device="cpu").to(x.device)).sum(0)
