"""Which tensors hold memory: each one, by layer, over time. Counted on real objects, not on paper.

A `MemoryBook` keeps weak references only: an array that the program lets go is gone from the book at the next
look. Arrays that share storage count once.
"""

from __future__ import annotations

import weakref
from collections import OrderedDict, deque
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

import numpy as np
import numpy.typing as npt

MAX_POINTS: Final = 10_000


def num_bytes(value: Any, array: npt.NDArray[Any] | None = None) -> int:
    """The bytes an array's elements take where they are; a list is counted as the array it becomes."""
    try:
        size = getattr(value, "nbytes", None)
    except RuntimeError:  # torch says so of sparse tensors
        return num_bytes(value._indices()) + num_bytes(value._values())
    if isinstance(size, int):
        return size
    count, width = getattr(value, "numel", None), getattr(value, "element_size", None)
    if callable(count) and callable(width):
        return int(count()) * int(width())
    return int((np.asarray(value) if array is None else array).nbytes)


@dataclass(frozen=True, slots=True)
class TensorMemory:
    """One tensor that was seen, and whether it still lives."""

    name: str
    layer: str | None
    num_bytes: int
    step: int | None
    alive: bool | None
    """None where only its size was recorded, and it goes with its step."""
    kind: str = ""
    """What a session measured it as: "weight", "gradient", "activation", ..."""


@dataclass(frozen=True, slots=True)
class MemoryPoint:
    """The bytes of all living tensors in the book at one look."""

    look: int
    step: int | None
    live_bytes: int
    used_bytes: int | None = None
    """What the device, or the process where there is none, had in use then; known inside a session."""


class MemoryBook:
    """Memory of the tensors that were shown to it."""

    def __init__(self, max_tensors: int = 1000) -> None:
        self._max_tensors = max_tensors
        self._entries: OrderedDict[int, tuple[str, str | None, int, int | None, Any, int]] = OrderedDict()
        self._owners: dict[int, int] = {}
        """Storage -> how many living entries are in it."""
        self._sizes: dict[int, int] = {}
        self._gone: deque[int] = deque()
        """Entries whose object died; written from weak-reference callbacks, which may come at any moment."""
        self._live_bytes = self._noted_bytes = 0
        self._looks = 0
        self._points: deque[MemoryPoint] = deque(maxlen=MAX_POINTS)
        self._sizes_known: dict[tuple[str, str, str], tuple[int, bool]] = {}
        """Tensors of which a session recorded the size: (layer, name, kind) -> bytes, whether it outlives its step."""

    def add(self, value: Any, name: str, layer: str | None, size: int, step: int | None = None) -> None:
        """Notes a tensor; objects that cannot be weakly referenced (lists, numbers) are not counted as
        alive."""
        self._take_out_freed()
        self._looks += 1
        index = self._looks
        try:
            reference: Any = weakref.ref(value, partial(_append_index, self._gone, index))
        except TypeError:
            reference = None
        storage = _storage_of(value) if reference is not None else 0
        self._entries[index] = (name, layer, size, step, reference, storage)
        if reference is not None:
            self._add_storage(storage, size)
        while len(self._entries) > self._max_tensors:
            _, entry = self._entries.popitem(last=False)
            if entry[4] is not None and entry[4]() is not None:
                self._drop_storage(entry[5])
        self._points.append(MemoryPoint(index, step, self._live_bytes + self._noted_bytes))

    def note(self, name: str, layer: str, kind: str, size: int, *, held: bool) -> None:
        """Notes the size of a tensor that is not shown: what a session measures."""
        before, _ = self._sizes_known.get((layer, name, kind), (0, held))
        self._sizes_known[(layer, name, kind)] = size, held
        self._noted_bytes += (size - before) if held else 0

    def note_use(self, step: int, used_bytes: int) -> None:
        """Notes how much memory was in use at a step."""
        self._looks += 1
        self._points.append(MemoryPoint(self._looks, step, self.live_bytes, used_bytes))

    def by_tensor(self) -> list[TensorMemory]:
        """Every tensor in the book, oldest first."""
        self._take_out_freed()
        shown = [
            TensorMemory(name, layer, size, step, reference is not None and reference() is not None)
            for name, layer, size, step, reference, _ in self._entries.values()
        ]
        noted = [
            TensorMemory(name, layer, size, None, True if held else None, kind)
            for (layer, name, kind), (size, held) in self._sizes_known.items()
        ]
        return [*noted, *shown]

    def by_layer(self) -> dict[str, int]:
        """Bytes of the latest tensor of each name, added up by layer; largest first. No layer: ""."""
        latest = {(entry[1] or "", entry[0]): entry[2] for entry in self._entries.values()}
        totals: dict[str, int] = {}
        for (layer, _), size in latest.items():
            totals[layer] = totals.get(layer, 0) + size
        for (layer, _, _), (size, _) in self._sizes_known.items():
            totals[layer] = totals.get(layer, 0) + size
        return dict(sorted(totals.items(), key=lambda item: -item[1]))

    def over_time(self) -> list[MemoryPoint]:
        """Living bytes at each inspection."""
        return list(self._points)

    @property
    def live_bytes(self) -> int:
        """Bytes of the tensors in the book that still live; shared storage counts once."""
        self._take_out_freed()
        return self._live_bytes + self._noted_bytes

    def clear(self) -> None:
        """Forgets every tensor."""
        self._entries.clear()
        self._owners.clear()
        self._sizes.clear()
        self._gone.clear()
        self._points.clear()
        self._sizes_known.clear()
        self._live_bytes = self._noted_bytes = 0

    def _take_out_freed(self) -> None:
        while self._gone:
            entry = self._entries.get(self._gone.popleft())
            if entry is not None:
                self._drop_storage(entry[5])

    def _add_storage(self, storage: int, size: int) -> None:
        self._owners[storage] = self._owners.get(storage, 0) + 1
        known = self._sizes.get(storage, 0)
        self._sizes[storage] = max(known, size)
        self._live_bytes += max(0, size - known)

    def _drop_storage(self, storage: int) -> None:
        left = self._owners.get(storage, 0) - 1
        if left > 0:
            self._owners[storage] = left
        elif left == 0:
            del self._owners[storage]
            self._live_bytes -= self._sizes.pop(storage)


def _append_index(gone: deque[int], index: int, _: object) -> None:
    """What a weak reference calls; holds the queue, not the book."""
    gone.append(index)


def _storage_of(value: Any) -> int:
    """A number that two arrays share when, and only when, they share their memory."""
    storage = getattr(value, "untyped_storage", None)
    if callable(storage):
        try:
            return int(storage()._cdata)
        except (RuntimeError, NotImplementedError):  # sparse and other tensors without one storage
            return id(value)
    while isinstance(getattr(value, "base", None), np.ndarray):
        value = value.base
    return id(value)
