"""Files whose every block is hashed: bytes reach a Parquet reader only after their hash was found good.

Engines read bit-flipped Parquet without noticing, so none of them is handed a file that was not tested: here
block by block as it is read, for SQL the whole of it first. The hashes of a file's
blocks lie beside it (`.sums`), themselves hashed in the manifest; reading one site's history tests a few
blocks, not the whole file.
"""

from __future__ import annotations

import dataclasses
import hashlib
import io
import os
from pathlib import Path
from typing import Any, Final

from stethoscope.store.checked import Fields
from stethoscope.store.inside import open_file, read_file, read_fully, refuse_links
from stethoscope.store.runfile import make_durable_folder, write_durably

BLOCK_BYTES: Final = 32 << 10
_DIGEST_BYTES: Final = 32
SUFFIX: Final = ".sums"
MAX_FILE: Final = 256 << 20
"""No sealed file is larger: one is made of some 16 MB of journals, a rollup of a few such."""


class BlockDamagedError(OSError):
    """A block that does not match its hash."""

    def __init__(self, path: Path, offset: int, what: str) -> None:
        super().__init__(what)
        self.path, self.offset, self.what = path, offset, what


@dataclasses.dataclass(frozen=True, slots=True)
class Sealed:
    """A file that will not change any more: where it is, relative to the run, and its hashes."""

    path: str
    num_bytes: int
    sha256: str
    sums_sha256: str

    def to_json(self) -> dict[str, Any]:
        """As plain JSON values."""
        return dataclasses.asdict(self)

    @classmethod
    def from_json(cls, body: Any) -> Sealed:
        """The inverse of `to_json`; EncodingError where it is not so."""
        fields = Fields(body, "a sealed file")
        hashes = [fields.text(name, most=64) for name in ("sha256", "sums_sha256")]
        return cls(fields.text("path", most=400), fields.whole("num_bytes", 0, MAX_FILE), *hashes)


def block_sums(data: bytes) -> bytes:
    """The hashes of all blocks, one after the other."""
    view = memoryview(data)
    return b"".join(
        hashlib.sha256(view[offset : offset + BLOCK_BYTES]).digest() for offset in range(0, len(data), BLOCK_BYTES)
    )


def write_sealed(run: Path, path: str, data: bytes) -> Sealed:
    """Writes a file and its hashes durably. They are of what was meant, not of what the disk made of it."""
    offset = run / path
    refuse_links(run, path.rpartition("/")[0])
    make_durable_folder(offset.parent)
    sums = block_sums(data)
    write_durably(offset, data)
    write_durably(offset.with_name(offset.name + SUFFIX), sums)
    return Sealed(path, len(data), hashlib.sha256(data).hexdigest(), hashlib.sha256(sums).hexdigest())


class VerifiedFile(io.RawIOBase):
    """A sealed file open for reading; every read tests the blocks it touches."""

    def __init__(self, run: Path, sealed: Sealed) -> None:
        super().__init__()
        self.path = run / sealed.path
        self.damage: list[BlockDamagedError] = []
        self._run, self._size = run, sealed.num_bytes
        self._position = 0
        self._file = open_file(run, sealed.path, MAX_FILE)
        try:
            self._sums = self._load_sums(sealed)
        except BaseException:
            self._file.close()
            raise

    def _load_sums(self, sealed: Sealed) -> bytes:
        """The hashes beside the file; where those are damaged, from the whole file if that is good."""
        beside = self.path.with_name(self.path.name + SUFFIX)
        try:
            sums = read_file(self._run, sealed.path + SUFFIX, MAX_FILE // BLOCK_BYTES * _DIGEST_BYTES)
        except OSError:
            sums = b""
        if hashlib.sha256(sums).hexdigest() == sealed.sums_sha256:
            return sums
        whole, found = hashlib.sha256(), []
        while block := read_fully(self._file, BLOCK_BYTES):
            whole.update(block)
            found.append(hashlib.sha256(block).digest())
        if whole.hexdigest() != sealed.sha256:
            raise BlockDamagedError(self.path, 0, "neither the file nor its hashes can be trusted")
        self.damage.append(BlockDamagedError(beside, 0, "the hashes are damaged; the file itself is good"))
        return b"".join(found)

    def native_path(self) -> str:
        """A path under which the system opens this very file again, whatever lies at its name by then."""
        again = f"/dev/fd/{self._file.fileno()}"
        return again if os.path.exists(again) else str(self.path)  # noqa: PTH110 - no path of ours

    def readable(self) -> bool:
        """Yes."""
        return True

    def seekable(self) -> bool:
        """Yes."""
        return True

    def tell(self) -> int:
        """Where the next read begins."""
        return self._position

    def size(self) -> int:
        """The file's size as it was sealed."""
        return self._size

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """Moves to an offset."""
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: self._size}[whence]
        self._position = max(base + offset, 0)
        return self._position

    def read(self, size: int = -1) -> bytes:
        """Bytes from here on, all tested; BlockDamagedError where one block is not what was sealed."""
        end = self._size if size is None or size < 0 else min(self._position + size, self._size)
        if end <= self._position:
            return b""
        first = self._position // BLOCK_BYTES
        start = first * BLOCK_BYTES
        stop = min(-(-end // BLOCK_BYTES) * BLOCK_BYTES, self._size)
        self._file.seek(start)
        data = memoryview(read_fully(self._file, stop - start))
        for number in range(first, -(-stop // BLOCK_BYTES)):
            offset = number * BLOCK_BYTES - start
            self._check_block(number, data[offset : min(offset + BLOCK_BYTES, stop - start)])
        found = bytes(data[self._position - start : end - start])
        self._position = end
        return found

    def _check_block(self, number: int, block: memoryview) -> None:
        known = self._sums[number * _DIGEST_BYTES : (number + 1) * _DIGEST_BYTES]
        if hashlib.sha256(block).digest() != known:
            error = BlockDamagedError(self.path, number * BLOCK_BYTES, "a block does not match its hash")
            self.damage.append(error)
            raise error

    def verify(self) -> None:
        """Tests every block, noting the bad ones in `damage`."""
        for offset in range(0, self._size, BLOCK_BYTES):
            self.seek(offset)
            try:
                self.read(BLOCK_BYTES)
            except BlockDamagedError:
                continue

    def close(self) -> None:
        """Closes the file."""
        if not self.closed:
            self._file.close()
        super().close()
