"""Reading a file of frames, as far as it goes, with an account of what is wrong with it.

Promises: bytes are trusted only where their checksums match; damage in the middle is stepped over to the next
true frame and reported with its place and the number of frames lost; whatever cannot be read at the end is
the tail. A file that still grows is read on from where the last reading stopped.
"""

from __future__ import annotations

import dataclasses
from array import array
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from stethoscope.record import RunFormatError
from stethoscope.store.encoding import EncodingError, decode_json
from stethoscope.store.frames import (
    FORMAT_VERSION,
    HEADER_BYTES,
    MAGIC,
    FrameError,
    FrameKind,
    Header,
    name_of,
    read_header,
    unpack,
)

_LAST_KINDS: Final = frozenset({int(FrameKind.NEXT), int(FrameKind.END)})


@dataclasses.dataclass(frozen=True, slots=True)
class Problem:
    """Something of a run that cannot be trusted or is not there."""

    file: str
    offset: int
    what: str
    frames_lost: int | None = None
    is_torn_tail: bool = False
    """Whether it is the end of a file that was never closed: what a crash leaves, not damage."""

    def to_json(self) -> dict[str, Any]:
        """As plain JSON values."""
        return dataclasses.asdict(self)


@dataclasses.dataclass(frozen=True, slots=True)
class FrameAt:
    """A frame found good, and where its payload lies."""

    header: Header
    offset: int


class Places:
    """Steps and places of some frames of a file, sixteen bytes each: their headers as objects would be a kilobyte."""

    def __init__(self) -> None:
        self.steps, self.offsets = array("q"), array("q")

    def __len__(self) -> int:
        return len(self.offsets)

    def __iter__(self) -> Iterator[tuple[int, int]]:
        return zip(self.steps, self.offsets, strict=True)

    def add(self, frame: FrameAt) -> None:
        """One more frame."""
        self.steps.append(frame.header.step)
        self.offsets.append(frame.offset)


class FrameFile:
    """The frames of one file."""

    def __init__(self, path: Path, label: str) -> None:
        self.path, self.label = path, label
        self.head: dict[str, Any] | None = None
        self.damage: list[Problem] = []
        self.tail: Problem | None = None
        self.is_closed = False
        self._file_id: bytes | None = None
        self._position = 0
        self._last_sequence = -1

    def advance(self) -> list[tuple[FrameAt, bytes]]:
        """The frames that came since the last call, each with its payload. OSError if it cannot be read."""
        return list(self.stream())

    def stream(self) -> Iterator[tuple[FrameAt, bytes]]:
        """As `advance`, one at a time: the payloads of a whole file, unpacked, are many times the file."""
        with self.path.open("rb") as file:
            file.seek(self._position)
            data = memoryview(file.read())
        start, place = self._position, 0
        self.tail = None
        while place < len(data):
            taken = self._frame_at(data, place, start)
            if taken is None:
                after = self._next_frame(data, place + 1)
                if after is None:
                    self.tail = self._describe_tail(data, place, start)
                    break
                lost = max(after[1].sequence - self._last_sequence - 1, 0)
                self._report(start + place, f"{after[0] - place} bytes are damaged", lost)
                place = after[0]
                self._last_sequence = after[1].sequence - 1
                continue
            place += taken[0]
            self._position = start + place
            if taken[1] is not None:
                yield taken[1]
        self._position = start + place

    def payload(self, offset: int) -> bytes:
        """The payload that lies there read again, its header's and its own checksum tested again."""
        with self.path.open("rb") as file:
            file.seek(offset - HEADER_BYTES)
            header = read_header(file.read(HEADER_BYTES))
            return unpack(header, file.read(header.stored_bytes))

    def _frame_at(
        self, data: memoryview, place: int, start: int
    ) -> tuple[int, tuple[FrameAt, bytes] | None] | None:
        """Bytes used and the frame, if its payload is good; None where no trusted header begins here."""
        header = self._trusted_header(data, place)
        if header is None or place + header.frame_bytes > len(data):
            return None
        end = place + header.frame_bytes
        try:
            payload = unpack(header, data[place + HEADER_BYTES : end])
            self._begin(header, payload)
        except (FrameError, EncodingError) as error:
            if end == len(data):
                return None
            self._report(
                start + place,
                f"{name_of(header.kind)} frame: {error}",
                1,
            )
            self._last_sequence = header.sequence
            return header.frame_bytes, None
        self._last_sequence = header.sequence
        frame = FrameAt(header, start + place + HEADER_BYTES)
        return header.frame_bytes, (frame, payload)

    def _begin(self, header: Header, payload: bytes) -> None:
        self._file_id = header.file_id
        if header.kind == FrameKind.FILE:
            head = decode_json(payload)
            if not isinstance(head, dict):
                raise EncodingError("the file's head is not an object")
            if int(head.get("format_version", 0)) > FORMAT_VERSION:
                raise RunFormatError(
                    f"The file has format {head['format_version']}, readable are up to {FORMAT_VERSION}",
                    where=self.path,
                    do="Read it with a newer version: pip install -U stethoscope",
                )
            self.head = head
        if header.kind in _LAST_KINDS:
            self.is_closed = True

    def _trusted_header(self, data: memoryview, place: int) -> Header | None:
        try:
            header = read_header(data, place)
        except FrameError:
            return None
        if self._file_id is not None and header.file_id != self._file_id:
            return None
        return header if header.sequence > self._last_sequence else None

    def _next_frame(self, data: memoryview, place: int) -> tuple[int, Header] | None:
        raw = bytes(data)
        while (place := raw.find(MAGIC, place)) >= 0:
            header = self._trusted_header(data, place)
            if header is not None and place + header.frame_bytes <= len(data):
                return place, header
            place += 1
        return None

    def _describe_tail(self, data: memoryview, place: int, start: int) -> Problem:
        left = len(data) - place
        rest = bytes(data[place:])
        if self.is_closed:
            return Problem(self.label, start + place, f"{left} bytes after the end of the file", 0)
        what = (
            f"the last {left} bytes are not a whole frame" if any(rest) else f"the file ends in {left} zeros"
        )
        return Problem(self.label, start + place, what, None, is_torn_tail=True)

    def _report(self, offset: int, what: str, lost: int) -> None:
        self.damage.append(Problem(self.label, offset, what, lost))
