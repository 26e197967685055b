"""What was read from a run's files, the latest used of it, up to a number of bytes."""

from __future__ import annotations

from collections import OrderedDict
from typing import Any, Final, Generic, TypeVar

import numpy as np
import numpy.typing as npt

MEMORY_BYTES: Final = 192 << 20
"""What a reader may keep of payloads, and as much again of columns."""
_V = TypeVar("_V", bytes, npt.NDArray[Any])


class ByteCache(Generic[_V]):
    """Values by the label of a file and what of it they are; the least used are forgotten first."""

    def __init__(self, limit_bytes: int = MEMORY_BYTES) -> None:
        self._limit_bytes = limit_bytes
        self.is_small = limit_bytes < MEMORY_BYTES
        """Whether the reader prefers little memory to quick answers."""
        self._num_bytes = 0
        self._items: OrderedDict[tuple[str, int | str], _V] = OrderedDict()

    def get(self, label: str, part: int | str) -> _V | None:
        """The value, if it is here."""
        found = self._items.get((label, part))
        if found is not None:
            self._items.move_to_end((label, part))
        return found

    def put(self, label: str, part: int | str, value: _V) -> None:
        """Keeps a value, forgetting the least used ones where there are too many."""
        if (label, part) in self._items:
            return
        self._items[label, part] = value
        self._num_bytes += _size(value)
        while self._num_bytes > self._limit_bytes and self._items:
            self._num_bytes -= _size(self._items.popitem(last=False)[1])

    def forget(self, label: str) -> None:
        """Forgets what was read from one file."""
        for key in [key for key in self._items if key[0] == label]:
            self._num_bytes -= _size(self._items.pop(key))

    def clear(self) -> None:
        """Forgets everything."""
        self._items.clear()
        self._num_bytes = 0


def _size(value: bytes | npt.NDArray[Any]) -> int:
    return value.nbytes if isinstance(value, np.ndarray) else len(value)
