"""Which sites have reported, kept as a run grows: only new steps are read, not all of them again."""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt

from stethoscope.store import Run

MAX_VALUES: Final = 4_000_000
"""Of a longer run, its first and last steps are read, up to this many rows together."""


class Coverage:
    """The sites of a run that have ever had a row."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self._has_rows = np.zeros(0, dtype=bool)
        self._upto: int | None = None

    def has_rows(self) -> npt.NDArray[np.bool_]:
        """For each site whether it has reported, after reading the steps that came since."""
        steps = self._run.steps
        new = steps if self._upto is None else steps[steps >= self._upto]
        num_sites = len(self._run.sites)
        room = max(64, MAX_VALUES // max(1, num_sites) // 2)
        parts = [new] if len(new) <= 2 * room else [new[:room], new[len(new) - room :]]
        self._has_rows = np.pad(self._has_rows, (0, num_sites - len(self._has_rows)))
        if not self._has_rows.all():
            self._has_rows[self._run.reporting()] = True
        for part in parts:
            if len(part) and not self._has_rows.all():
                found = self._run.matrix(None, "count", first=int(part[0]), last=int(part[-1]))
                self._has_rows |= ~np.all(found.missing[:, :num_sites], axis=0)
        if len(steps):
            self._upto = int(steps[-1])
        return self._has_rows
