"""The journal files of one process start: which one is written, what to do when that fails.

Promises: a frame leaves memory only after an fsync that succeeded. A full disk: the file is cut back to its
last good frame and frames wait here. A broken file, a failed fsync, a deleted journal: the next file, and
everything since the last good fsync is written again (readers know frames by their serial, so none counts
twice). No method raises OSError; what went wrong is in `trouble`, and the next call tries again. A little room is
held in reserve, so that a full disk still takes the word that it is full, and how the run ended.
"""

from __future__ import annotations

import errno
import logging
import time
from collections import deque
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

from stethoscope.record import RunError
from stethoscope.store.frames import Frame, FrameKind, build
from stethoscope.store.journal import Journal
from stethoscope.store.json_payload import encode_json
from stethoscope.store.locate import journal_name
from stethoscope.store.private import create_folder
from stethoscope.store.reserve import Reserve, reserve_path

_log: Final = logging.getLogger("stethoscope.store")
ROTATE_BYTES: Final = 4 << 20
ROTATE_STEPS: Final = 512
_FILES_A_SHARE: Final = 32
_LEAST_BYTES: Final = 64 << 10
_WAITS_FOR_ROOM: Final = frozenset({errno.ENOSPC, errno.EDQUOT})
"""Errors after which the same file can go on; after any other one a new file is begun."""


class Spool:
    """Frames in order, on their way to disk. Used by one thread."""

    def __init__(
        self,
        folder: Path,
        token: str,
        head: Mapping[str, Any],
        counters: dict[str, int],
        prepare: Callable[[], int],
        *,
        share_bytes: int | None = None,
    ) -> None:
        """`prepare` makes the folder and returns which start of the run this is; it is tried until it succeeds.

        `share_bytes` is what the rank may have of the disk: only closed files can be sealed and thinned, so of little room a
        file gets a small part.
        """
        self.folder, self.token = folder, token
        self._most_bytes = ROTATE_BYTES if share_bytes is None else max(share_bytes // _FILES_A_SHARE, _LEAST_BYTES)
        self.ordinal = 0
        self._prepare: Callable[[], int] | None = prepare
        self.trouble = ""
        self._is_disk_full = False
        """Whether the last failure was for want of room."""
        self._reserve = Reserve(reserve_path(folder, token))
        self._head = dict(head)
        self._counters = counters
        self._journal: Journal | None = None
        self._part = 0
        self._waiting: deque[Frame] = deque()
        self._unsynced: list[Frame] = []
        self._unsynced_bytes = 0
        self._sites: list[Frame] = []
        self._steps: set[int] = set()

    @property
    def waiting(self) -> list[Frame]:
        """Frames not yet written to a file."""
        return list(self._waiting)

    @property
    def unsynced(self) -> list[Frame]:
        """Frames written and not yet known to be durable."""
        return list(self._unsynced)

    @property
    def unsynced_bytes(self) -> int:
        """Memory held by frames that are written and not yet durable."""
        return self._unsynced_bytes

    def open(self) -> bool:
        """Begins the first file now, so that a folder that cannot be written is known at once."""
        return self._journal is not None or self._begin_file()

    def say_that_it_is_full(self, frame: Frame) -> None:
        """Writes a frame into the reserve where the disk is full, and takes as much of the room again as it left."""
        if not self._is_disk_full:
            return
        self._reserve.free()
        if (self._journal is not None or self._begin_file()) and self._write(frame):
            try:
                self._journal.sync()  # type: ignore[union-attr]
            except OSError as error:
                self._counters["fsync_errors"] += 1
                self._abandon_file(error)
            else:
                self._forget_unsynced()
        self._reserve.take()

    def push(self, frame: Frame) -> None:
        """Takes a frame; `drain` writes it."""
        self._waiting.append(frame)

    def drain(self) -> bool:
        """Writes every waiting frame; False where some still wait, with `trouble` saying why."""
        attempts = 0
        while self._waiting:
            if self._journal is None and not self._begin_file():
                return False
            if self._write(self._waiting[0]):
                self._note_written(self._waiting.popleft())
                attempts = 0
                if self._is_full() and not self._rotate_file():
                    return False
                continue
            attempts += 1
            if self._journal is not None or attempts > 1:
                return False
        self.trouble = ""
        return True

    def sync(self) -> bool:
        """Makes what was written durable; after a failure everything unsynced goes to a new file, once."""
        for _ in range(2):
            if not self.drain():
                return False
            if self._journal is None:
                return not self._unsynced
            try:
                self._journal.sync()
            except OSError as error:
                self._counters["fsync_errors"] += 1
                self._abandon_file(error)
                continue
            self._forget_unsynced()
            if self._is_disk_full:  # there is room again
                self._is_disk_full = False
                self._reserve.take()
            return True
        return False

    def finish(self, frame: Frame) -> bool:
        """Writes the last frame in place of all that still waits, makes it durable and closes the file."""
        self._waiting.clear()
        self._reserve.free()
        self._is_disk_full = False
        if self._journal is None:
            self._sites.clear()  # no row follows, and the reserve has no room for thousands of them
        self.push(frame)
        done = self.sync()
        self.close()
        self._reserve.free()
        return done

    def close(self) -> None:
        """Closes the file as it is."""
        if self._journal is not None:
            self._journal.close()
            self._journal = None

    def _begin_file(self) -> bool:
        """The next file, opened with its head and the sites so far: each file can be read alone."""
        journal = None
        try:
            if self._prepare is not None:
                self.ordinal = self._prepare()
                self._prepare = None
            if self.folder.parent.is_dir():  # a run folder that someone deleted is not made again
                create_folder(self.folder)
            journal = Journal(self.folder / journal_name(self.ordinal, self.token, self._part))
            body = encode_json({**self._head, "ordinal": self.ordinal, "part": self._part})
            journal.append(build(FrameKind.FILE, 0, time.time(), body))
            for frame in self._sites:
                journal.append(frame)
        except RunError as error:
            self.trouble = str(error)
            return False
        except OSError as error:
            self._report_failure(error)
            if journal is not None:
                journal.discard()
            if isinstance(error, FileExistsError) and str(error.filename).endswith(".stj"):
                self._part += 1  # left by an earlier attempt that could not remove it
            return False
        except Exception as error:
            _log.exception("a run could not be begun")
            self.trouble = f"{type(error).__name__}: {error}"
            return False
        self._journal = journal
        if self._part == 0:
            self._reserve.take()
        self._part += 1
        self._steps.clear()
        return True

    def _write(self, frame: Frame) -> bool:
        journal = self._journal
        if journal is None:
            return False
        try:
            journal.append(frame)
        except OSError as error:
            self._report_failure(error)
            if error.errno == errno.EFBIG and not journal.is_broken:
                self._leave_file()  # nothing is wrong with the file, it just may not grow
            elif journal.is_broken or error.errno not in _WAITS_FOR_ROOM:
                self._abandon_file(error)
            return False
        self._counters["bytes_written"] += len(frame.payload)
        return True

    def _note_written(self, frame: Frame) -> None:
        self._unsynced.append(frame)
        self._unsynced_bytes += len(frame.payload)
        if frame.kind == FrameKind.SITES:
            self._sites.append(frame)
        if frame.kind == FrameKind.ROWS:
            self._steps.add(frame.step)

    def _is_full(self) -> bool:
        journal = self._journal
        most = min(ROTATE_BYTES, self._most_bytes)
        return journal is not None and (journal.num_bytes >= most or len(self._steps) >= ROTATE_STEPS)

    def _rotate_file(self) -> bool:
        """Closes a full file with a frame that says so."""
        if self._write(build(FrameKind.NEXT, 0, time.time(), b"{}")):
            self._leave_file()
        return self._journal is None

    def _leave_file(self) -> None:
        """Makes a file durable and goes on to the next."""
        if self._journal is None:
            return
        try:
            self._journal.sync()
        except OSError as error:
            self._counters["fsync_errors"] += 1
            self._abandon_file(error)
        else:
            self._forget_unsynced()
            self.close()

    def _abandon_file(self, error: OSError) -> None:
        """Leaves a file that can no longer be trusted; what it was not known to hold is written again."""
        self._set_trouble(error)
        self.close()
        again = [frame for frame in self._unsynced if frame.kind != FrameKind.SITES]
        self._waiting.extendleft(reversed(again))
        self._forget_unsynced()

    def _forget_unsynced(self) -> None:
        self._unsynced.clear()
        self._unsynced_bytes = 0

    def _report_failure(self, error: OSError) -> None:
        self._counters["write_errors"] += 1
        self._set_trouble(error)

    def _set_trouble(self, error: OSError) -> None:
        self._is_disk_full = error.errno in _WAITS_FOR_ROOM
        run = self.folder.parent
        if isinstance(error, FileNotFoundError) and not run.exists():
            self.trouble = f"the run folder was deleted: {run}"
        else:
            self.trouble = f"{error.strerror or error}: {error.filename or self.folder}"
