"""Frames: the unit of every file that is written as it goes (journals, findings).

A frame is an 80-byte header and a payload. The header carries a checksum of itself and one of the payload,
both 64 bits, so a single flipped bit anywhere is seen. It names the file it belongs to (a random
id) and its position in it (a sequence without gaps), so that after damage the next true frame can be found and
the number of lost ones is known; a stray copy of another file's bytes is never taken for a frame. `serial`
counts frames over all files of a process start: one written twice (after a failed fsync) is read once.
"""

from __future__ import annotations

import dataclasses
import hashlib
import struct
import threading
from enum import IntEnum
from typing import Final

import zstandard

FORMAT_VERSION: Final = 2
"""2: the scalars of many steps in one frame."""
MAGIC: Final = b"\x93StF"
MAX_PAYLOAD: Final = 64 << 20
"""No payload is larger, stored or unpacked: a length beyond it is refused before anything is allocated."""
MAX_FILE: Final = 96 << 20
"""No file of frames is larger: one is closed at 4 MB, and a last frame may still be added."""

_per_thread: Final = threading.local()
COMPRESSION_LEVEL: Final = -1
"""zstd's: on byte planes -1 is 2.5 times as fast as 1 and 2% larger; segments are compressed again anyway."""

_FIELDS: Final = struct.Struct("<4sBBH8sQQqdQQ8s")
_CHECKSUM_BYTES: Final = 8
HEADER_BYTES: Final = _FIELDS.size + _CHECKSUM_BYTES
_MOST_SECONDS: Final = 2.0**36
"""Since 1970: what a calendar can still show."""
_ZSTD: Final = 1
_SMALLEST_COMPRESSED: Final = 96


class FrameKind(IntEnum):
    """What a frame holds. Numbers are never reused."""

    FILE = 1
    SITES = 2
    ROWS = 3
    SCALARS_OF_STEP = 4
    """As format 1 wrote them."""
    VECTORS = 5
    EVENT = 6
    HEALTH = 7
    NEXT = 8
    END = 9
    FINDINGS = 10
    SCALARS = 11


def name_of(kind: int) -> str:
    """A kind's name, also of one that this version does not know."""
    return FrameKind(kind).name.lower() if kind in set(FrameKind) else f"kind {kind}"


class FrameError(ValueError):
    """Bytes that are not a frame, or a payload that does not match its header."""


class Allowance:
    """What the frames of one run may cost a reader: a fixed amount, and many times what they take on disk.

    A kilobyte of frames can unpack to a gigabyte, or hold thousands of empty ones: what a run costs has to follow from its size.
    """

    _FIRST_BYTES: Final = 256 << 20
    _TIMES: Final = 64
    _FRAME_BYTES: Final = 8 << 10
    """What a frame costs beyond its payload, as so many bytes unpacked."""

    def __init__(self) -> None:
        self._left = self._FIRST_BYTES

    def earn(self, stored_bytes: int) -> None:
        """So many more bytes were read from disk."""
        self._left += self._TIMES * stored_bytes

    def spend(self, header: Header) -> bool:
        """Whether this frame may still be unpacked."""
        cost = header.raw_bytes + self._FRAME_BYTES
        if cost > self._left:
            return False
        self._left -= cost
        return True


@dataclasses.dataclass(frozen=True, slots=True)
class Frame:
    """A frame that is not yet in a file: its payload is packed, its offset not known."""

    kind: int
    step: int
    time: float
    serial: int
    payload: bytes
    raw_bytes: int
    is_compressed: bool
    num_rows: int = 0
    """How many rows it holds; not written, for the account of what could not be."""

    def pack(self, file_id: bytes, sequence: int) -> bytes:
        """The frame's bytes at an offset in a file."""
        fields = _FIELDS.pack(
            MAGIC,
            self.kind,
            _ZSTD if self.is_compressed else 0,
            0,
            file_id,
            sequence,
            self.serial,
            self.step,
            self.time,
            len(self.payload),
            self.raw_bytes,
            checksum(self.payload),
        )
        return fields + checksum(fields) + self.payload


@dataclasses.dataclass(frozen=True, slots=True)
class Header:
    """A frame's header as read, its checksum found good."""

    kind: int
    is_compressed: bool
    file_id: bytes
    sequence: int
    serial: int
    step: int
    time: float
    stored_bytes: int
    raw_bytes: int
    payload_checksum: bytes

    @property
    def frame_bytes(self) -> int:
        """Header and payload together."""
        return HEADER_BYTES + self.stored_bytes


def checksum(data: bytes | memoryview) -> bytes:
    """64 bits of SHA-256, which processors have instructions for: 870 MB/s, blake2b 320."""
    return hashlib.sha256(data).digest()[:_CHECKSUM_BYTES]


def build(
    kind: FrameKind,
    step: int,
    time: float,
    raw: bytes,
    *,
    serial: int = 0,
    compressor: zstandard.ZstdCompressor | None = None,
    num_rows: int = 0,
) -> Frame:
    """A frame of these payload bytes, compressed where that makes it smaller."""
    if len(raw) > MAX_PAYLOAD:
        raise FrameError(f"a payload of {len(raw)} bytes is over the limit of {MAX_PAYLOAD}")
    packed = raw
    if compressor is not None and len(raw) >= _SMALLEST_COMPRESSED:
        packed = compressor.compress(raw)
    is_compressed = len(packed) < len(raw)
    payload = packed if is_compressed else raw
    return Frame(int(kind), step, time, serial, payload, len(raw), is_compressed, num_rows)


def read_header(data: bytes | memoryview, offset: int = 0) -> Header:
    """The header at `offset`; FrameError where there is none that can be trusted."""
    raw = bytes(data[offset : offset + HEADER_BYTES])
    if len(raw) < HEADER_BYTES:
        raise FrameError("too short for a header")
    if raw[:4] != MAGIC:
        raise FrameError("no frame begins here")
    if checksum(raw[: _FIELDS.size]) != raw[_FIELDS.size :]:
        raise FrameError("the header does not match its checksum")
    _, kind, flags, _, file_id, sequence, serial, step, time, stored, raw_bytes, payload = _FIELDS.unpack_from(raw)
    if max(sequence, serial) >= 2**63:
        raise FrameError(f"no file has {max(sequence, serial)} frames")
    if not abs(time) <= _MOST_SECONDS:
        raise FrameError(f"a time of {time} is that of no clock")
    if stored > MAX_PAYLOAD or raw_bytes > MAX_PAYLOAD:
        raise FrameError(f"a payload of {max(stored, raw_bytes)} bytes is over the limit of {MAX_PAYLOAD}")
    return Header(kind, bool(flags & _ZSTD), file_id, sequence, serial, step, time, stored, raw_bytes, payload)


def _thread_decompressor() -> zstandard.ZstdDecompressor:
    """One for each thread: making one costs more than using it on a small frame."""
    found = getattr(_per_thread, "decompressor", None)
    if found is None:
        found = _per_thread.decompressor = zstandard.ZstdDecompressor()
    return found


def unpack(header: Header, stored: bytes | memoryview) -> bytes:
    """The payload of a frame, its checksum tested first; FrameError where it does not match."""
    if len(stored) != header.stored_bytes or checksum(stored) != header.payload_checksum:
        raise FrameError("the payload does not match its checksum")
    if not header.is_compressed:
        if header.raw_bytes != header.stored_bytes:
            raise FrameError("the payload's size does not match its header")
        return bytes(stored)
    try:
        if zstandard.frame_content_size(stored) != header.raw_bytes:
            raise FrameError("the payload's size does not match its header")
        return _thread_decompressor().decompress(stored, max_output_size=header.raw_bytes, allow_extra_data=False)
    except zstandard.ZstdError as error:
        raise FrameError(f"the payload cannot be decompressed: {error}") from error
