"""The writer's own guard over the disk budget, for when no companion seals and thins the run.

Sealing and thinning keep a run well inside its budget while a companion process lives. Where none does, the writer stops
recording rows and vectors at the rank's share, counts them as dropped, and goes on when there is room again; scalars and
events are always written.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from stethoscope.store.inside import list_folder
from stethoscope.store.locate import TABLES

_LOOKS_PER_BUDGET: Final = 64


class DiskBudget:
    """Looks at the size of a rank's files now and then."""

    def __init__(self, run: Path, rank: int, share_bytes: int) -> None:
        self._run, self._rank, self._share_bytes = run, rank, share_bytes
        self._next_look = 0
        self.is_over = False

    def note(self, bytes_written: int) -> None:
        """Tells how much was written so far; looks at the folder when that is a good deal more than last time."""
        if bytes_written < self._next_look and not self.is_over:
            return
        try:
            self.is_over = self._used_bytes() > self._share_bytes
        except OSError:
            return  # the folder cannot be read now, for want of a descriptor perhaps
        self._next_look = bytes_written + self._share_bytes // _LOOKS_PER_BUDGET

    def _used_bytes(self) -> int:
        folders = [f"rank-{self._rank}", *(f"{table}/rank={self._rank}" for table in TABLES)]
        return sum(entry.num_bytes for folder in folders for entry in list_folder(self._run, folder))
