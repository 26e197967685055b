"""Reads the rows of a list of runs so that a broken or hostile run folder costs its own row, never the list.

Each row is read on a thread of its own with a time limit. Python cannot end a thread, so one that takes longer is left
to finish: its row says so meanwhile, and shows what was read when the list is asked for again.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Hashable
from typing import Any, Final

from stethoscope.record import RunError, StethoscopeError, printable

ROW_S: Final = 2.0
"""How long the list waits for one row."""
MAX_SLOW: Final = 4
"""Reads past their time that may go on at once; further ones are not begun until one of them has ended."""


class SlowRunError(RunError):
    """The run could not be read within the time that a list has for it."""


class RowReader:
    """Reads rows, each within its time."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._under_way: dict[Hashable, _Reading] = {}

    def read(self, key: Hashable, work: Callable[[], Any]) -> Any:
        """What `work` returns or raises; SlowRunError where it takes too long. One `key` is read once at a time."""
        now = time.monotonic()
        with self._lock:
            reading = self._under_way.get(key)
            if reading is None:
                if sum(one.is_slow(now) for one in self._under_way.values()) >= MAX_SLOW:
                    raise SlowRunError(
                        "Not read yet: other runs here take too long to read", do="Remove or repair those runs"
                    )
                reading = self._under_way[key] = _Reading(work)
        if not reading.ended.wait(max(0.0, reading.began + ROW_S - now)):
            raise SlowRunError(f"Not read within {ROW_S:g} s", do="See what is wrong with it: stethoscope doctor RUN")
        with self._lock:
            self._under_way.pop(key, None)
        if reading.error is not None:
            raise reading.error
        return reading.result


class _Reading:
    """One row being read."""

    def __init__(self, work: Callable[[], Any]) -> None:
        self.began = time.monotonic()
        self.ended = threading.Event()
        self.result: Any = None
        self.error: Exception | None = None
        self._work = work
        threading.Thread(target=self._run, name="stethoscope-row", daemon=True).start()

    def is_slow(self, now: float) -> bool:
        """Whether the list no longer waits for it."""
        return now - self.began > ROW_S and not self.ended.is_set()

    def _run(self) -> None:
        try:
            self.result = self._work()
        except Exception as error:
            self.error = error
        finally:
            self.ended.set()


def row_trouble(error: Exception) -> str:
    """Why a row cannot be shown, in a few words and without the place of any file."""
    if isinstance(error, StethoscopeError):
        return error.what
    if isinstance(error, OSError):
        return error.strerror or "The run's files cannot be read"
    return f"The run cannot be read ({printable(type(error).__name__, limit=80)})"
