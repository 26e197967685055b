"""What the training thread hands over and the writer thread takes: bounded in bytes, never blocking.

Over the bound the oldest rows and vectors go first, and each one lost is counted; sites, scalars and
events are small and are kept longer, up to twice the bound, so that what happened outlives how much it was.
"""

from __future__ import annotations

import dataclasses
import threading
from collections import deque
from typing import Any

from stethoscope.store.frames import FrameKind


@dataclasses.dataclass(slots=True)
class Item:
    """One thing to write. `content` is None once it was dropped."""

    kind: FrameKind
    step: int
    time: float
    content: tuple[Any, ...] | None
    num_bytes: int
    num_rows: int = 0


class ByteQueue:
    """First in, first out; the lock is re-entrant because a signal handler may come in between."""

    def __init__(self, limit_bytes: int, counters: dict[str, int]) -> None:
        self._limit_bytes = limit_bytes
        self._counters = counters
        self._lock = threading.RLock()
        self._items: deque[Item] = deque()
        self._droppable: deque[Item] = deque()
        self._num_bytes = 0
        self.num_put = 0
        self.num_taken = 0

    @property
    def num_bytes(self) -> int:
        """Bytes now waiting."""
        return self._num_bytes

    def put(self, item: Item) -> None:
        """Adds an item, dropping older ones where the bound asks for it."""
        with self._lock:
            self._items.append(item)
            self._num_bytes += item.num_bytes
            self.num_put += 1
            if item.kind in (FrameKind.ROWS, FrameKind.VECTORS):
                self._droppable.append(item)
            while self._num_bytes > self._limit_bytes and self._droppable:
                self._drop(self._droppable.popleft())
            while self._num_bytes > 2 * self._limit_bytes and len(self._items) > 1:
                self._drop(self._items.popleft())
                self.num_taken += 1

    def _drop(self, item: Item) -> None:
        if item.content is None:
            return
        item.content = None
        self._num_bytes -= item.num_bytes
        self._counters["dropped_bytes"] += item.num_bytes
        self._counters["dropped_rows" if item.kind == FrameKind.ROWS else "dropped_other"] += max(
            item.num_rows, 1
        )

    def take(self, about_bytes: int) -> list[Item]:
        """The oldest items, about that many bytes of them."""
        taken: list[Item] = []
        with self._lock:
            size = 0
            while self._items and size < about_bytes:
                item = self._items.popleft()
                self.num_taken += 1
                if item.content is None:
                    continue
                if self._droppable and self._droppable[0] is item:
                    self._droppable.popleft()
                self._num_bytes -= item.num_bytes
                size += item.num_bytes
                taken.append(item)
        return taken
