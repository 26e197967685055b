"""One journal file, written by one process and never by another.

Promises: after a failed append the file ends with its last good frame (or is marked broken and gets no more);
a failed fsync breaks the file for good, since what the system still holds of it can no longer be known.
"""

from __future__ import annotations

import contextlib
import os
import secrets
from pathlib import Path

from stethoscope.store.frames import Frame
from stethoscope.store.private import create_file
from stethoscope.store.runfile import sync_folder, write_all


class Journal:
    """An open journal file."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.file_id = secrets.token_bytes(8)
        self.num_bytes = 0
        self.num_frames = 0
        self.is_broken = False
        self._descriptor = create_file(path)
        self._name_is_durable = False

    def append(self, frame: Frame) -> None:
        """Adds a frame, or raises OSError and leaves the file as it was."""
        data = frame.pack(self.file_id, self.num_frames)
        try:
            write_all(self._descriptor, data)
        except OSError:
            self._cut_back()
            raise
        self.num_bytes += len(data)
        self.num_frames += 1

    def _cut_back(self) -> None:
        try:
            os.ftruncate(self._descriptor, self.num_bytes)
            os.lseek(self._descriptor, self.num_bytes, os.SEEK_SET)
        except OSError:
            self.is_broken = True

    def sync(self) -> None:
        """Makes every frame durable, or raises OSError, after which this file must not be used."""
        try:
            os.fsync(self._descriptor)
            if not self._name_is_durable:
                sync_folder(self.path.parent)
                self._name_is_durable = True
            if os.fstat(self._descriptor).st_nlink == 0:
                raise FileNotFoundError(2, "the journal was deleted while it was written", str(self.path))
        except OSError:
            self.is_broken = True
            raise

    def close(self) -> None:
        """Closes the descriptor; never raises."""
        if self._descriptor >= 0:
            with contextlib.suppress(OSError):
                os.close(self._descriptor)
        self._descriptor = -1

    def discard(self) -> None:
        """Closes and removes a file that no frame was acknowledged from."""
        self.close()
        with contextlib.suppress(OSError):
            self.path.unlink()
