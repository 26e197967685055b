"""A fixed random sample of coordinates: what a step changed, without a second copy of the model."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from stethoscope.kernels import portable
from stethoscope.kernels.columns import empty_rows
from stethoscope.kernels.measuring import start
from stethoscope.kernels.pending import Done, Measured, Pending
from stethoscope.kernels.tensors import plain

if TYPE_CHECKING:
    import torch


@dataclasses.dataclass(frozen=True, eq=False, slots=True)
class Snapshot:
    """The sampled values of every tensor at one moment, float64; None where a tensor was unreadable."""

    values: tuple[Any, ...]


class Sample:
    """The same coordinates of the same tensors, read again and again.

    Coordinates are flat indices in logical order, drawn without replacement from the seed and the tensor's
    place and size alone, so two processes sample alike. Complex tensors are sampled in their real view.
    """

    def __init__(self, tensors: Sequence[Any], *, size: int = 1024, seed: int = 0) -> None:
        """`tensors` may be tensors or their shapes."""
        self._counts = [_num_values(item) for item in tensors]
        self._coordinates = [
            coordinates(count, size, seed, place) for place, count in enumerate(self._counts)
        ]
        self.sizes: tuple[int, ...] = tuple(len(chosen) for chosen in self._coordinates)
        self._on_device: dict[tuple[int, Any], Any] = {}

    def read(self, tensors: Sequence[torch.Tensor]) -> Snapshot:
        """The sampled values as they are now, copied; a tensor that changed its size reads as unreadable."""
        return Snapshot(tuple(self._read_one(place, tensor) for place, tensor in enumerate(tensors)))

    def difference(self, before: Snapshot, after: Snapshot) -> Pending:
        """Rows of `after - before`; an exact zero is a coordinate that did not change."""
        torch = sys.modules.get("torch")
        if torch is None or not self.sizes:
            return Pending(Done(Measured(empty_rows(len(self.sizes)))))
        missing = [
            place for place, pair in enumerate(zip(before.values, after.values, strict=True)) if None in pair
        ]
        changes = [
            torch.empty(0) if old is None or new is None else new - old
            for old, new in zip(before.values, after.values, strict=True)
        ]
        pending = start(changes)
        return Pending(
            pending, lambda measured: dataclasses.replace(measured, unsupported=tuple(missing))
        )

    def _read_one(self, place: int, tensor: Any) -> Any:
        found = plain(tensor)
        if found is None or found.implicit_zeros or found.tensor.numel() != self._counts[place]:
            return None
        key = (place, found.tensor.device)
        if key not in self._on_device:
            torch = sys.modules["torch"]
            self._on_device[key] = torch.as_tensor(self._coordinates[place]).to(found.tensor.device)
        return portable.gather(found.tensor, self._on_device[key])


def coordinates(count: int, size: int, seed: int, place: int) -> npt.NDArray[np.int64]:
    """Sorted coordinates of a tensor with `count` values: `size` of them, or all where there are no more."""
    if count <= size:
        return np.arange(count, dtype=np.int64)
    random = np.random.default_rng([seed, place, count])
    return np.sort(random.choice(count, size=size, replace=False, shuffle=False)).astype(np.int64)


def _num_values(item: Any) -> int:
    if hasattr(item, "numel"):
        local = getattr(item, "_local_tensor", item)
        return int(local.numel()) * (2 if hasattr(local, "is_complex") and local.is_complex() else 1)
    return int(np.prod([int(size) for size in item], dtype=np.int64))
