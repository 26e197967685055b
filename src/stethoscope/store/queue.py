"""What the training thread hands over and the writer thread takes: bounded in bytes, never blocking.

Rows and vectors have one bound, everything else (sites, scalars, events) has another of the same size, so
that a flood of rows never costs an event, nor the other way round. Over a bound the oldest go, each counted.
"""

from __future__ import annotations

import dataclasses
import threading
from collections import deque
from collections.abc import Iterable, Sequence
from typing import Any, Final

from stethoscope.store.encoding import encode_rows, encode_vectors
from stethoscope.store.frames import FrameKind
from stethoscope.store.json_payload import encode_json
from stethoscope.store.losses import Losses
from stethoscope.store.scalars_payload import encode_scalars


@dataclasses.dataclass(slots=True)
class Item:
    """One thing to write. `content` is None once it was dropped."""

    kind: FrameKind
    step: int
    time: float
    content: Sequence[Any] | None
    num_bytes: int
    num_rows: int = 0

    @property
    def is_bulk(self) -> bool:
        """Whether it is one of many alike, and so the first to go."""
        return self.kind in (FrameKind.ROWS, FrameKind.VECTORS)


def payload(kind: FrameKind, content: Sequence[Any]) -> bytes:
    """The content of an item of that kind as the bytes of its frame."""
    if kind == FrameKind.ROWS:
        return encode_rows(*content)
    if kind == FrameKind.SCALARS:
        return encode_scalars(content)
    if kind == FrameKind.VECTORS:
        return encode_vectors(*content)
    if kind == FrameKind.SITES:
        first, infos = content
        return encode_json({"first": first, "sites": [info.to_json() for info in infos]})
    return bytes(content[0])


MOST_STEPS: Final = 64
"""Whose scalars share a frame: that is what one damaged byte may cost."""


def joined(items: Iterable[Item]) -> list[Item]:
    """The items as few frames: what many small ones say is written, read and sealed in one.

    Scalars stand where the first of them stood, so that none comes later than it did. Descriptions of sites are joined where they
    follow each other: they come one by one, in thousands.
    """
    out: list[Item] = []
    scalars: list[Any] | None = None
    sites: list[Any] | None = None
    for item in items:
        content = item.content
        if content is None:
            continue
        if item.kind == FrameKind.SCALARS and scalars is not None and len(scalars) < MOST_STEPS:
            scalars += content
            continue
        if item.kind == FrameKind.SITES and sites is not None and content[0] == sites[0] + len(sites[1]):
            sites[1] += content[1]
            continue
        if item.kind == FrameKind.SCALARS:
            content = scalars = list(content)
        elif item.kind == FrameKind.SITES:
            content = sites = [content[0], list(content[1])]
        else:
            sites = None
        out.append(dataclasses.replace(item, content=content))
    return out


class _Lane:
    """The waiting items under one bound, oldest first."""

    def __init__(self) -> None:
        self.items: deque[Item] = deque()
        self.num_bytes = 0


class ByteQueue:
    """First in, first out; the lock is re-entrant because a signal handler may come in between."""

    def __init__(self, limit_bytes: int, losses: Losses) -> None:
        self._limit_bytes = limit_bytes
        self._losses = losses
        self._lock = threading.RLock()
        self._items: deque[Item] = deque()
        self._lanes = {True: _Lane(), False: _Lane()}
        self.num_put = 0
        self.num_taken = 0

    @property
    def num_bytes(self) -> int:
        """Bytes now waiting."""
        return self._lanes[True].num_bytes + self._lanes[False].num_bytes

    def put(self, item: Item) -> None:
        """Adds an item, dropping older ones where the bound asks for it."""
        with self._lock:
            lane = self._lanes[item.is_bulk]
            self._items.append(item)
            lane.items.append(item)
            lane.num_bytes += item.num_bytes
            self.num_put += 1
            while lane.num_bytes > self._limit_bytes and len(lane.items) > 1:
                self._drop_item(lane, lane.items.popleft())

    def _drop_item(self, lane: _Lane, item: Item) -> None:
        item.content = None
        lane.num_bytes -= item.num_bytes
        self.count_dropped(item)

    def count_dropped(self, item: Item) -> None:
        """Counts an item that will not be written."""
        self._losses.add(item.step, item.num_rows, item.num_bytes, is_rows=item.kind == FrameKind.ROWS)

    def waiting_rows(self) -> list[tuple[int, int]]:
        """Step and number of the rows that wait, in order of coming."""
        with self._lock:
            items = [item for item in self._items if item.kind == FrameKind.ROWS and item.content is not None]
        return [(item.step, item.num_rows) for item in items]

    def drop_all(self) -> None:
        """Nothing of what waits will be written: counts all of it."""
        while taken := self.take(1 << 62):
            for item in taken:
                self.count_dropped(item)

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
                lane = self._lanes[item.is_bulk]
                lane.items.popleft()  # both keep their order, so what is first here is first there
                lane.num_bytes -= item.num_bytes
                size += item.num_bytes
                taken.append(item)
        return taken
