"""The runs of a folder under opaque ids; the ones in use are kept open, a bounded number of them.

An id says nothing about the place: it is looked up, never joined to a path. Folders reached by a symbolic link are
not listed.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import threading
import time
from collections import OrderedDict
from pathlib import Path
from typing import Final

from stethoscope.record import RunDamagedError, RunNotFoundError, StethoscopeError
from stethoscope.store import find_runs
from stethoscope.store.locate import last_written
from stethoscope.views.common.open_run import OpenRun
from stethoscope.views.common.row_reader import RowReader, SlowRunError, row_trouble
from stethoscope.views.pagedata.packing import text
from stethoscope.views.pagedata.runlist import RunRow, run_row

MAX_OPEN: Final = 6
MAX_LISTED: Final = 500
MAX_KEPT_ROWS: Final = 2000
MAX_ROW_BYTES: Final = 256 << 10
LIST_S: Final = 15.0
"""After this long the list is answered with the rows read so far; the others are read when it is asked for again."""


class RunCache:
    """Where runs are taken from."""

    def __init__(self, base: Path) -> None:
        self.base = base
        self._lock = threading.Lock()
        self._open: OrderedDict[str, OpenRun] = OrderedDict()
        self._reader = RowReader()
        self._rows: OrderedDict[str, tuple[tuple[float, str, str], RunRow]] = OrderedDict()

    def folders(self) -> dict[str, Path]:
        """From id to folder, newest first."""
        found = [path for path in find_runs(self.base) if not path.is_symlink()]
        return {opaque_id(path): path for path in reversed(found[-MAX_LISTED * 4 :])}

    def open(self, run_id: str) -> OpenRun:
        """The run of this id, open and up to date; RunNotFoundError where there is none."""
        path = self.folders().get(run_id)
        if path is None:
            with self._lock:
                was_here = run_id in self._open
            if was_here:
                raise RunNotFoundError(
                    "The run's folder is gone", do="Showing the last data received. Go back to the list of runs"
                )
            raise RunNotFoundError("There is no such run", do="It may have been removed: go back to the list of runs")
        with self._lock:
            viewed = self._open.pop(run_id, None)
            if viewed is None:
                viewed = OpenRun(path)
            self._open[run_id] = viewed
            while len(self._open) > MAX_OPEN:
                self._open.popitem(last=False)
        try:
            viewed.refresh()
        except RunNotFoundError:
            with self._lock:
                self._open.pop(run_id, None)
            raise
        return viewed

    def warm_up(self) -> None:
        """Opens the newest run beside whatever else goes on: it is what is shown first, while the browser starts."""
        newest = next(iter(self.folders()), None)
        if newest is not None:
            with contextlib.suppress(Exception):  # whatever is wrong with it is said where it is asked for
                viewed = self.open(newest)
                with viewed.lock:
                    run_row(viewed, newest)

    def rows(self) -> list[RunRow]:
        """Every run as the list shows it; one that cannot be read, or not soon enough, says why."""
        until = time.monotonic() + LIST_S
        return [self._row_of(run_id, path, until) for run_id, path in list(self.folders().items())[:MAX_LISTED]]

    def _row_of(self, run_id: str, path: Path, until: float) -> RunRow:
        written = last_written(path)
        with self._lock:
            kept = self._rows.get(run_id)
        # A run that is not live stays as it is until something is written; a live one may turn stale by itself.
        if kept is not None and kept[0][:2] == written and kept[0][2] not in ("live", "stale"):
            return kept[1]
        try:
            if time.monotonic() > until:
                raise SlowRunError("Not read yet: there are many runs here", do="Wait a moment")
            row: RunRow = self._reader.read(run_id, lambda: self._read_row(run_id, path))
        except SlowRunError as error:
            return broken_row(path, error, run_id)
        except Exception as error:  # whatever a run folder holds, the other rows are shown
            row = broken_row(path, error, run_id)
        with self._lock:
            self._rows[run_id] = ((*written, row["state"]), row)
            while len(self._rows) > MAX_KEPT_ROWS:
                self._rows.popitem(last=False)
        return row

    def _read_row(self, run_id: str, path: Path) -> RunRow:
        with self._lock:
            viewed = self._open.get(run_id)
        if viewed is None:
            viewed = OpenRun(path)
            with viewed.lock:
                row = run_row(viewed, run_id)
            if viewed.run.state in ("live", "stale"):
                with self._lock:
                    self._open.setdefault(run_id, viewed)
        else:
            viewed.refresh()
            with viewed.lock:
                row = run_row(viewed, run_id)
        # What is not strict JSON, or very long, would else spoil the answer for all.
        if len(json.dumps(row, allow_nan=False)) > MAX_ROW_BYTES:
            raise RunDamagedError("The run's description is too long to be shown")
        return row


def opaque_id(path: Path) -> str:
    """An id that says nothing and stays the same for a folder's name."""
    return hashlib.sha256(b"stethoscope run " + path.name.encode("utf-8", "surrogateescape")).hexdigest()[:16]


def broken_row(path: Path, error: Exception, key: str) -> RunRow:
    """A run that cannot be opened: its folder's name, and why."""
    what = row_trouble(error)
    do = error.do if isinstance(error, StethoscopeError) else ""
    return {
        "key": key,
        "id": text(path.name.rpartition("-")[2], 64),
        "name": text(path.name, 120),
        "state": "damaged",
        "stateText": "Unreadable",
        "lastStep": None,
        "numSteps": 0,
        "endedBy": "",
        "startedAt": None,
        "endedAt": None,
        "trouble": text(what, 300),
        "do": text(do, 300),
        "verdict": {
            "state": "",
            "label": "",
            "severity": "Info",
            "message": text(what, 300),
            "code": "",
            "firstStep": None,
            "looked": False,
        },
        "loss": None,
        "heat": None,
        "lastLoss": None,
        "throughput": None,
    }
