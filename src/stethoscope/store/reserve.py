"""A little room on the disk that is taken at the start, so that a run on a full disk can still say how it ended.

The bytes are really written, not only asked for: a sparse file holds no room, and some file systems grant what they do not have.
Whoever fills the disk in the moment between `free` and the write that it is for can still take it.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import Final

from stethoscope.store.private import create_file

RESERVE_BYTES: Final = 16 << 10
_BLOCK_BYTES: Final = 4 << 10


class Reserve:
    """The file that holds the room. No method raises OSError: without a reserve a run is written as well."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def take(self) -> None:
        """Takes the room, or as much of it as there is."""
        self.free()
        with contextlib.suppress(OSError):
            descriptor = create_file(self.path)
            try:
                for _ in range(RESERVE_BYTES // _BLOCK_BYTES):
                    os.write(descriptor, os.urandom(_BLOCK_BYTES))
            finally:
                os.close(descriptor)

    def free(self) -> None:
        """Gives the room back."""
        with contextlib.suppress(OSError):
            self.path.unlink(missing_ok=True)


def reserve_path(rank_folder: Path, token: str) -> Path:
    """Where the process start with this token keeps its reserve."""
    return rank_folder / f"reserve-{token}"
