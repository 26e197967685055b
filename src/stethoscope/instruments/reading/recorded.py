"""The run as an instrument reads it: its newest rows, step by step."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Iterator
from typing import TYPE_CHECKING, Final

import numpy as np

from stethoscope.record import FloatArray, IntArray, Kind, SiteInfo

if TYPE_CHECKING:
    from stethoscope.store import Run

PART_ROWS: Final = 1 << 17
"""Rows that are read at a time, some 20 numbers each."""


@dataclasses.dataclass(frozen=True, slots=True)
class RecordedRun:
    """A run that is being written, as far as this process writes it."""

    read: Callable[[], Run | None]
    """Gives the run with everything that was measured so far; None where it cannot be read."""
    rank: int = 0
    first_step: int = 0
    """The first that this process recorded: what an earlier one left in the folder is not this session's."""


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class StepTable:
    """The rows of one step."""

    step: int
    sites: tuple[SiteInfo, ...]
    rows: FloatArray
    """[sites, columns]"""

    @property
    def paths(self) -> list[str]:
        """What each row is of."""
        return [info.site.path for info in self.sites]

    def of_kind(self, kind: Kind) -> IntArray:
        """The rows of one kind, by their numbers here."""
        return np.array([row for row, info in enumerate(self.sites) if info.site.kind is kind], np.int64)


def backwards(
    run: Run, rank: int, first: int, kinds: Collection[Kind] | None = None, *, steps_at_a_time: int = 128
) -> Iterator[StepTable]:
    """The rows of every step from `first` on that has any of these kinds, the newest step first."""
    steps = run.steps
    steps = steps[np.searchsorted(steps, first) :]
    size = max(1, min(steps_at_a_time, PART_ROWS // max(len(run.sites), 1)))
    for end in range(len(steps), 0, -size):
        part = steps[max(end - size, 0) : end]
        block = run.block(int(part[0]), int(part[-1]), kinds=kinds, rank=rank)
        for row in range(len(block.steps) - 1, -1, -1):
            there = np.flatnonzero(block.present[row])
            if len(there):
                sites = tuple(block.sites[site] for site in there)
                yield StepTable(int(block.steps[row]), sites, block.rows[row, there])
