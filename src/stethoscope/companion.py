"""The process beside the training: follows the journals, detects, seals, keeps the disk in its budget.

It reads what the training process wrote and nothing else, so it may die, or never start, without training noticing;
a finished run read later says the same. It ends by itself when the run has ended or its parent is gone.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from stethoscope.analyse.span import spans
from stethoscope.detect import Detection
from stethoscope.record import Finding
from stethoscope.store import FindingsWriter, Run, open_run

POLL_SECONDS: Final = 0.5
SEAL_SECONDS: Final = 10.0


class Companion:
    """Follows one run."""

    def __init__(self, folder: Path, *, disk_bytes: int) -> None:
        self.folder, self._disk_bytes = folder, disk_bytes
        self._run: Run = open_run(folder)
        self._detection = Detection()
        self._seen: int | None = None
        self._writer = FindingsWriter(folder)
        self._written: list[Finding] = []

    def look(self, *, final: bool = False) -> list[Finding]:
        """Take in what came since and write what changed; the last step is left alone while it may still grow."""
        self._run.refresh()
        last = self._run.last_step
        upto = None if final or last is None else last - 1
        if upto is not None and self._seen is not None and upto <= self._seen:
            return self._written
        self._detection.observe(spans(self._run, after=self._seen, upto=upto))
        self._seen = last if upto is None else upto
        found = self._detection.findings()
        if found != self._written:
            self._writer.write(found, replace=True)
            self._written = found
        return found

    def tidy(self, *, final: bool = False) -> None:
        """Seal what is closed, and thin old steps where the disk's budget asks for it."""
        from stethoscope.store import seal, thin  # pyarrow, which a short run never needs

        seal(self.folder, final=final)
        around = [(f.first_step - 64, f.first_step + 64) for f in self._written]
        thin(self.folder, self._disk_bytes, around)

    def finish(self) -> None:
        """The last look: every step, then say so."""
        self.look(final=True)
        self._writer.close()

    @property
    def has_ended(self) -> bool:
        """Whether the run says that nothing follows."""
        return self._run.state in ("finished", "crashed")


def follow(folder: Path, parent: int, disk_bytes: int) -> None:
    """The loop of the process."""
    companion = Companion(folder, disk_bytes=disk_bytes)
    sealed = time.monotonic()
    while True:
        companion.look()
        if companion.has_ended or not _is_alive(parent):
            break
        if time.monotonic() - sealed > SEAL_SECONDS:
            companion.tidy()
            sealed = time.monotonic()
        time.sleep(POLL_SECONDS)
    companion.finish()
    companion.tidy(final=True)


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def main(argv: Sequence[str] | None = None) -> int:
    """Entry of `python -m stethoscope.companion`."""
    parser = argparse.ArgumentParser(prog="stethoscope.companion")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--parent", type=int, required=True)
    parser.add_argument("--disk", type=int, default=2 << 30)
    given = parser.parse_args(argv)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with contextlib.suppress(OSError):
        os.nice(10)
    follow(given.folder, given.parent, given.disk)
    return 0


if __name__ == "__main__":
    sys.exit(main())
