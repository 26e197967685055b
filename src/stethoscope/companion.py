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
from stethoscope.store import FindingsWriter, Run, Start, open_run

POLL_SECONDS: Final = 0.5
SEAL_SECONDS: Final = 10.0
EVERYTHING: Final = 2**62
"""A step after all others."""
MEMORY_BYTES: Final = 16 << 20
"""Every row is read once, soon after it came: there is little to keep."""


class Companion:
    """Follows one run."""

    def __init__(self, folder: Path, *, disk_bytes: int) -> None:
        self.folder, self._disk_bytes = folder, disk_bytes
        self._run: Run = open_run(folder, memory_bytes=MEMORY_BYTES)
        self._detection = Detection()
        self._seen: int | None = None
        self._writer = FindingsWriter(folder)
        self._written: list[Finding] = []
        self._text = repr(self._written)

    def look(self, *, final: bool = False) -> list[Finding]:
        """Take in what came since and write what changed; steps that may still grow are left for the next look."""
        self._run.refresh()
        upto = None if final else settled_step(self._run)
        if not final:
            if upto is None:
                return self._look_at_beginnings()
            if self._seen is not None and upto <= self._seen:
                return self._written
        self._detection.observe(spans(self._run, after=self._seen, upto=upto))
        # Events may stand beyond the last step that has rows; after the final look none of them is to be taken again.
        self._seen = EVERYTHING if upto is None else upto
        return self._tell(self._detection.findings())

    def _look_at_beginnings(self) -> list[Finding]:
        """Before the first step is complete there are only events, and more of the same step may come: nothing is kept."""
        if self._run.last_step is not None:
            return self._written
        early = Detection()
        early.observe(spans(self._run))
        return self._tell(early.findings())

    def _tell(self, found: list[Finding]) -> list[Finding]:
        # As text: a NaN in the evidence is not equal to itself, and the same finding would be written at every look.
        text = repr([finding.to_json() for finding in found])
        if text != self._text:
            self._writer.write(found, replace=True)
            self._written, self._text = found, text
        return found

    def tidy(self, *, final: bool = False) -> None:
        """Seal what is closed, and thin old steps where the disk's budget asks for it."""
        from stethoscope.store import seal, thin  # pyarrow, which a short run never needs

        seal(self.folder, final=final)
        around = [(f.first_step - 64, f.first_step + 64) for f in self._written]
        thin(self.folder, self._disk_bytes, around)

    def finish(self) -> None:
        """The last look: every step, then say so."""
        if not self.look(final=True):
            self._writer.write([], replace=True)  # looked at, and nothing found: not the same as not looked at
        self._writer.close()

    @property
    def has_ended(self) -> bool:
        """Whether the run says that nothing follows."""
        return self._run.state in ("finished", "crashed")


def settled_step(run: Run) -> int | None:
    """The last step to which nothing can be added: before the newest of the rank that is farthest behind.

    A process that continues a run may write steps again that an earlier one had; until its first row is there, none are
    settled. Ranks that have ended hold nobody back.
    """
    latest: dict[int, Start] = {}
    for start in run.starts:
        known = latest.get(start.rank)
        if known is None or start.ordinal >= known.ordinal:
            latest[start.rank] = start
    writing = [start for start in latest.values() if start.how == "live"] or list(latest.values())
    if run.last_step is None or any(start.last_step is None for start in writing):
        return None
    return min((start.last_step - 1 for start in writing if start.last_step is not None), default=run.last_step - 1)


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
