"""A fixed random sample of coordinates: what a step changed, without a second copy of the model."""

from __future__ import annotations

import dataclasses
import itertools
import sys
from array import array
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from stethoscope.kernels import cpu, portable, triton, triton_gather
from stethoscope.kernels.measuring import measure_async
from stethoscope.kernels.pending import Assembled, Done, Measured, Part, Pending
from stethoscope.kernels.pointers import collect, collect_pieces
from stethoscope.kernels.tensors import plain

if TYPE_CHECKING:
    import torch

_numbers = itertools.count()
_NOTHING = np.zeros(0)

Coordinates = npt.NDArray[np.int64]


@dataclasses.dataclass(frozen=True, eq=False, slots=True)
class Snapshot:
    """The sampled values of every tensor at one moment, as float64."""

    host: npt.NDArray[np.float64]
    """Of the tensors on the CPU, one after the other, zero in the places of all others."""
    elsewhere: Mapping[int, Any]
    """By the tensor's place, the values of tensors on other devices, still there."""
    missing: tuple[int, ...] = ()
    """Places that could not be read: another size than at first, sparse, without storage."""
    device: Any = None
    """Where all tensors are on one CUDA device, all their values one after the other, instead of the above."""


class Sample:
    """The same coordinates of the same tensors, read again and again.

    Coordinates are flat indices in logical order, drawn without replacement from the seed and the tensor's
    place and size alone, so two processes sample alike. Complex tensors are sampled in their real view.
    """

    def __init__(self, tensors: Sequence[Any], *, size: int = 1024, seed: int = 0) -> None:
        """`tensors` may be tensors or their shapes."""
        counts = [_num_values(item) for item in tensors]
        self._coordinates = [coordinates(count, size, seed, position) for position, count in enumerate(counts)]
        self._counts = array("q", counts)
        self.sizes: tuple[int, ...] = tuple(len(chosen) for chosen in self._coordinates)
        self._starts = np.concatenate([[0], np.cumsum(self.sizes, dtype=np.int64)]).astype(np.int64)
        self._offsets: dict[tuple[tuple[int, tuple[int, ...]], ...], Coordinates] = {}
        self._number = next(_numbers)
        self._on_device: dict[tuple[int, Any], Any] = {}

    def read(self, tensors: Sequence[torch.Tensor]) -> Snapshot:
        """The sampled values as they are now, copied; without waiting for any device."""
        table = collect(tensors) if tensors else None
        if table is not None and table.counts == self._counts:
            layout = tuple((position, tuple(tensors[position].stride())) for position in table.noncontiguous)
            offsets = self._offsets.get(layout)
            if offsets is None:
                offsets = self._offsets[layout] = self._lay_out(tensors, table.noncontiguous)
            loaded = cpu.library()
            if table.device < 0 and loaded is not None:
                return Snapshot(cpu.gather(loaded, table, self._starts, offsets), {})
            if table.device >= 0 and triton.serves(table):
                values = triton_gather.gather(table, self._starts, offsets, (self._number, layout))
                if values is not None:
                    return Snapshot(_NOTHING, {}, (), values)
        return self._read_mixed(tensors)

    def any_of(self, flags: npt.NDArray[np.bool_]) -> npt.NDArray[np.bool_]:
        """Of a flag for every sampled value, whether any is set, tensor by tensor."""
        found = np.zeros(len(self.sizes), dtype=bool)
        sized = np.flatnonzero(np.diff(self._starts))
        if len(sized):
            found[sized] = np.logical_or.reduceat(flags, self._starts[sized])
        return found

    def at_ends(self, values: npt.NDArray[np.float64]) -> npt.NDArray[np.bool_]:
        """Of every sampled value, whether it is the largest or the smallest of its tensor's."""
        counts = np.diff(self._starts)
        sized = np.flatnonzero(counts)
        starts = self._starts[sized]
        high = np.repeat(np.maximum.reduceat(values, starts), counts[sized])
        low = np.repeat(np.minimum.reduceat(values, starts), counts[sized])
        at_ends: npt.NDArray[np.bool_] = (values == high) | (values == low)
        return at_ends

    def difference(self, before: Snapshot, after: Snapshot) -> Pending:
        """Rows of `after - before`; an exact zero is a coordinate that did not change."""
        if before.device is not None and after.device is not None:
            table = collect_pieces(after.device - before.device, self._starts)
            launched = triton.launch(table, None, None)
            if launched is not None:
                return Pending(launched)
        before, after = self._apart(before), self._apart(after)
        moved = before.elsewhere.keys() ^ after.elsewhere.keys()
        missing = sorted({*before.missing, *after.missing, *moved})
        elsewhere = [position for position in after.elsewhere if position not in missing]
        kept = [position for position in range(len(self.sizes)) if position not in {*missing, *elsewhere}]
        parts: list[tuple[Sequence[int], Part]] = []
        if kept:
            with np.errstate(invalid="ignore", over="ignore"):
                host = self._host_part(after.host - before.host)
            if len(kept) == len(self.sizes):
                return Pending(host)
            parts.append((kept, Done(Measured(host.result().rows[kept]))))
        if elsewhere:
            changes = [after.elsewhere[position] - before.elsewhere[position] for position in elsewhere]
            parts.append((elsewhere, measure_async(changes)))
        return Pending(Assembled(len(self.sizes), parts, {}, missing))

    def _apart(self, snapshot: Snapshot) -> Snapshot:
        """The values of one device tensor by tensor, to be compared with a snapshot that mixes devices."""
        if snapshot.device is None:
            return snapshot
        pairs = itertools.pairwise(self._starts.tolist())
        pieces = {position: snapshot.device[begin:end] for position, (begin, end) in enumerate(pairs)}
        return Snapshot(np.zeros(int(self._starts[-1])), pieces)

    def _host_part(self, change: npt.NDArray[np.float64]) -> Part:
        loaded = cpu.library()
        if loaded is not None:
            return Done(Measured(cpu.rows(loaded, collect_pieces(change, self._starts))))
        torch = sys.modules["torch"]
        pieces = [torch.from_numpy(piece) for piece in np.split(change, self._starts[1:-1])]
        return Done(portable.launch(pieces[: len(self.sizes)], None, None).result())

    def _lay_out(self, tensors: Sequence[Any], noncontiguous: Sequence[int]) -> Coordinates:
        """Where the coordinates lie in memory, in elements from each tensor's pointer."""
        chosen = list(self._coordinates)
        for position in noncontiguous:
            index = np.unravel_index(chosen[position], tuple(tensors[position].shape))
            strides = tensors[position].stride()
            chosen[position] = sum(
                (axis * stride for axis, stride in zip(index, strides, strict=True)),
                start=np.zeros(len(chosen[position]), dtype=np.int64),
            )
        return np.ascontiguousarray(np.concatenate([np.zeros(0, dtype=np.int64), *chosen]), dtype=np.int64)

    def _read_mixed(self, tensors: Sequence[Any]) -> Snapshot:
        host = np.zeros(int(self._starts[-1]))
        elsewhere: dict[int, Any] = {}
        missing: list[int] = []
        for position, tensor in enumerate(tensors):
            found = plain(tensor)
            if found is None or found.implicit_zeros or found.tensor.numel() != self._counts[position]:
                missing.append(position)
                continue
            values = portable.gather(found.tensor, self._coordinates_on(position, found.tensor.device))
            if found.tensor.device.type == "cpu":
                host[self._starts[position] : self._starts[position + 1]] = values.numpy()
            else:
                elsewhere[position] = values
        return Snapshot(host, elsewhere, tuple(missing))

    def _coordinates_on(self, position: int, device: Any) -> Any:
        key = (position, device)
        if key not in self._on_device:
            self._on_device[key] = sys.modules["torch"].as_tensor(self._coordinates[position], device="cpu").to(device)
        return self._on_device[key]


def coordinates(count: int, size: int, seed: int, position: int) -> Coordinates:
    """Sorted coordinates of a tensor with `count` values: `size` of them, or all where there are no more."""
    if count <= size:
        return np.arange(count, dtype=np.int64)
    random = np.random.default_rng([seed, position, count])
    return np.sort(random.choice(count, size=size, replace=False, shuffle=False)).astype(np.int64)


def _num_values(item: Any) -> int:
    if hasattr(item, "numel"):
        local = getattr(item, "_local_tensor", item)
        return int(local.numel()) * (2 if hasattr(local, "is_complex") and local.is_complex() else 1)
    return int(np.prod([int(size) for size in item], dtype=np.int64))
