"""Reading a file of frames, as far as it goes, with an account of what is wrong with it.

Promises: bytes are trusted only where their checksums match; damage in the middle is stepped over to the next
true frame and reported with its offset and the number of frames lost; whatever cannot be read at the end is
the tail. A file that still grows is read on from where the last reading stopped.
"""

from __future__ import annotations

import dataclasses
from array import array
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from stethoscope.record import RunFormatError
from stethoscope.store.checked import Fields, checked_head
from stethoscope.store.frames import (
    FORMAT_VERSION,
    HEADER_BYTES,
    MAGIC,
    MAX_FILE,
    Allowance,
    FrameError,
    FrameKind,
    Header,
    name_of,
    read_header,
    unpack,
)
from stethoscope.store.inside import Entry, open_file, read_fully
from stethoscope.store.json_payload import EncodingError, decode_json

_MOST_TRIES: Final = 100_000
"""Offsets in one file at which a frame after damage is looked for."""
_MOST_DAMAGE: Final = 1000
"""Problems told of one file."""
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


class FrameIndex:
    """Steps and offsets of some frames of a file, sixteen bytes each: their headers as objects would be a kilobyte."""

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

    def __init__(self, run: Path, label: str, allowance: Allowance | None = None) -> None:
        self.label, self.path = label, run / label
        self._run, self._allowance = run, allowance or Allowance()
        self.num_bytes = 0
        """The file's size when it was last read."""
        self._tries_left = _MOST_TRIES
        self.is_given_up = False
        """Whether the rest is not read: it costs more than a file of its size can."""
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
        if self.is_given_up:
            return
        with open_file(self._run, self.label, MAX_FILE) as file:
            file.seek(self._position)
            raw = read_fully(file, MAX_FILE - self._position)
        self.num_bytes = self._position + len(raw)
        data = memoryview(raw)
        self._allowance.earn(len(raw))
        start, offset = self._position, 0
        self.tail = None
        while offset < len(data):
            taken = self._frame_at(data, offset, start)
            if self.is_given_up:
                break
            if taken is None:
                after = self._next_frame(raw, offset + 1)
                if after is None:
                    self.tail = None if self.is_given_up else self._describe_tail(data, offset, start)
                    break
                lost = max(after[1].sequence - self._last_sequence - 1, 0)
                self._report_damage(start + offset, f"{after[0] - offset} bytes are damaged", lost)
                offset = after[0]
                self._last_sequence = after[1].sequence - 1
                continue
            offset += taken[0]
            self._position = start + offset
            if taken[1] is not None:
                yield taken[1]
        self._position = start + offset

    def is_read_to(self, entry: Entry) -> bool:
        """Whether nothing came since the last reading, by the file's size: files of frames only grow."""
        return entry.is_file and entry.num_bytes == self.num_bytes and self.tail is None

    def payload(self, offset: int) -> bytes:
        """The payload that lies there read again, its header's and its own checksum tested again."""
        with open_file(self._run, self.label, MAX_FILE) as file:
            file.seek(offset - HEADER_BYTES)
            header = read_header(read_fully(file, HEADER_BYTES))
            return unpack(header, read_fully(file, header.stored_bytes))

    def _frame_at(self, data: memoryview, offset: int, start: int) -> tuple[int, tuple[FrameAt, bytes] | None] | None:
        """Bytes used and the frame, if its payload is good; None where no trusted header begins here."""
        header = self._trusted_header(data, offset)
        if header is None or offset + header.frame_bytes > len(data):
            return None
        end = offset + header.frame_bytes
        if not self._allowance.spend(header):
            self._give_up(
                start + offset, "the rest is not read: more is packed into it than a run of this size can hold"
            )
            return None
        try:
            payload = unpack(header, data[offset + HEADER_BYTES : end])
            self._note_header(header, payload)
        except (FrameError, EncodingError) as error:
            if end == len(data):
                return None
            self._report_damage(
                start + offset,
                f"{name_of(header.kind)} frame: {error}",
                1,
            )
            self._last_sequence = header.sequence
            return header.frame_bytes, None
        self._last_sequence = header.sequence
        frame = FrameAt(header, start + offset + HEADER_BYTES)
        return header.frame_bytes, (frame, payload)

    def _note_header(self, header: Header, payload: bytes) -> None:
        self._file_id = header.file_id
        if header.kind == FrameKind.FILE:
            head = checked_head(decode_json(payload))
            if Fields(head, "the file's head").whole("format_version", default=0) > FORMAT_VERSION:
                raise RunFormatError(
                    f"The file has format {head['format_version']}, readable are up to {FORMAT_VERSION}",
                    where=self.path,
                    do="Read it with a newer version: pip install -U stethoscope",
                )
            self.head = head
        if header.kind in _LAST_KINDS:
            self.is_closed = True

    def _trusted_header(self, data: bytes | memoryview, offset: int) -> Header | None:
        try:
            header = read_header(data, offset)
        except FrameError:
            return None
        if self._file_id is not None and header.file_id != self._file_id:
            return None
        return header if header.sequence > self._last_sequence else None

    def _next_frame(self, raw: bytes, offset: int) -> tuple[int, Header] | None:
        while (offset := raw.find(MAGIC, offset)) >= 0:
            self._tries_left -= 1
            if self._tries_left < 0:
                self._give_up(self._position, "the rest is not read: it is damaged in too many places")
                return None
            header = self._trusted_header(raw, offset)
            if header is not None and offset + header.frame_bytes <= len(raw):
                return offset, header
            offset += 1
        return None

    def _give_up(self, offset: int, why: str) -> None:
        self.is_given_up = True
        self.damage.append(Problem(self.label, offset, why))

    def _describe_tail(self, data: memoryview, offset: int, start: int) -> Problem:
        left = len(data) - offset
        rest = bytes(data[offset:])
        if self.is_closed:
            return Problem(self.label, start + offset, f"{left} bytes after the end of the file", 0)
        what = f"the last {left} bytes are not a whole frame" if rest.strip(b"\0") else f"the file ends in {left} zeros"
        return Problem(self.label, start + offset, what, None, is_torn_tail=True)

    def _report_damage(self, offset: int, what: str, lost: int) -> None:
        if len(self.damage) >= _MOST_DAMAGE:
            self._give_up(offset, "the rest is not read: it is damaged in too many places")
        else:
            self.damage.append(Problem(self.label, offset, what, lost))
