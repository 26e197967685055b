"""Histories from the rows of every step: read in parts that fit in memory, kept, and extended as a live run grows.

Promises: a history that was extended equals one that is read at once; what is kept stays under a number of bytes.
"""

from __future__ import annotations

import dataclasses
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from stethoscope.analyse.bins import Mark, MarkArray
from stethoscope.analyse.grouping import Row, frozen_sites, group_rows
from stethoscope.analyse.history.sites import (
    SiteValues,
    marks_together,
    rows_together,
    sites_by_step,
    values_together,
)
from stethoscope.analyse.history.values import History, usual_before
from stethoscope.analyse.recorded import Recorded, model_modules
from stethoscope.kernels.statistics import Across, statistic
from stethoscope.record import FloatArray, IntArray, Kind
from stethoscope.record.events import SkippedStep
from stethoscope.store import Start

PART_VALUES: Final = 8_000_000
"""Values of one statistic read at a time."""
_REREAD_STEPS: Final = 4
"""The last steps of each writer are read again: rows of one step come in several frames."""


class Groups(NamedTuple):
    """What is asked for: one statistic of the sites of a kind, taken together by the first `depth` parts of their names."""

    kind: Kind
    stat: str
    depth: int | None = None
    """None: as deep as gives at most `max_rows`."""
    pattern: str = "*"
    max_rows: int = 24


@dataclasses.dataclass(eq=False, slots=True)
class KeptHistory:
    """A history as far as it was read, and how the run stood then."""

    history: History
    """Of every group; what is usual is worked out for those that are asked for."""
    generation: int
    num_sites: int
    starts: Mapping[tuple[int, int, str], Start]
    _usual: dict[int | None, tuple[FloatArray, npt.NDArray[np.bool_]]] = dataclasses.field(default_factory=dict)

    @property
    def num_bytes(self) -> int:
        """The size of its tables."""
        return self.history.values.nbytes + self.history.marks.nbytes

    def of(self, names: Sequence[str] | None, before: int | None) -> History:
        """With what is usual before a step for the groups of these names, or for all."""
        wanted = np.ones(len(self.history.rows), bool)
        if names is not None:
            known = set(names)
            wanted[:] = [row.name in known for row in self.history.rows]
        usual, is_known = self._usual.setdefault(before, (np.full(len(wanted), np.nan), np.zeros(len(wanted), bool)))
        new = np.flatnonzero(wanted & ~is_known)
        usual[new] = usual_before(self.history.steps, self.history.values[:, new], self.history.marks[:, new], before)
        is_known[new] = True
        return dataclasses.replace(self.history, usual=usual)


class RowHistories:
    """The histories of groups of sites; the latest asked ones are kept."""

    def __init__(self, run: Recorded, limit_bytes: int) -> None:
        self._run, self._limit_bytes = run, limit_bytes
        self._kept: OrderedDict[Groups, KeptHistory] = OrderedDict()
        self._members: tuple[int, dict[Groups, tuple[tuple[Row, ...], list[IntArray]]]] = -1, {}
        self._latest: tuple[tuple[object, ...], SiteValues] | None = None

    def __len__(self) -> int:
        return len(self._kept)

    def whole(self, groups: Groups) -> KeptHistory:
        """All steps of every group."""
        kept = self._kept.pop(groups, None)
        if kept is None or kept.generation != self._run.generation:
            kept = self._brought_up(groups, kept)
        self._kept[groups] = kept
        while len(self._kept) > 1 and sum(one.num_bytes for one in self._kept.values()) > self._limit_bytes:
            self._kept.popitem(last=False)
        return kept

    def _brought_up(self, groups: Groups, kept: KeptHistory | None) -> KeptHistory:
        run = self._run
        starts = {(start.rank, start.ordinal, start.token): start for start in run.starts}
        steps, now = run.steps, (run.generation, len(run.sites), starts)
        if kept is not None and kept.num_sites == len(run.sites) and _are_among(kept.history.steps, steps):
            old = kept.history
            added = self.read(groups, steps[steps >= _first_open_step(old.steps, kept.starts, starts)])
            if added.rows == old.rows and len(added.steps):
                settled = old.window(last=int(added.steps[0]) - 1)
                if _are_equal(old, len(settled.steps), added):
                    kept.generation, kept.starts = run.generation, starts
                    return kept
                return KeptHistory(_joined([settled, added]), *now)
        return KeptHistory(self.read(groups, steps), *now)

    def read(self, groups: Groups, steps: IntArray) -> History:
        """These steps of every group."""
        size = max(64, PART_VALUES // max(1, sum(info.site.kind is groups.kind for info in self._run.sites)))
        parts = [self._read_part(groups, steps[i : i + size]) for i in range(0, max(1, len(steps)), size)]
        if any(part.rows != parts[-1].rows for part in parts):
            return self.read(groups, steps)  # a file went away meanwhile, and the look for another found new sites
        return _joined(parts)

    def _read_part(self, groups: Groups, steps: IntArray) -> History:
        kind, stat = groups.kind, groups.stat
        first, last = (int(steps[0]), int(steps[-1])) if len(steps) else (0, -1)
        key = (kind, stat, groups.pattern, first, last, self._run.generation)
        if self._latest is None or self._latest[0] != key:
            self._latest = None  # before the next is read, so that memory holds one of them
            self._latest = key, sites_by_step(self._run, kind, stat, groups.pattern, first, last)
        source = self._latest[1]
        rows, members = self._members_of(groups, source)
        across = statistic(stat).across
        if across is Across.MERGED and any(len(part) > 1 for part in members):
            values = rows_together(self._run, source, stat, members)
        else:
            values = values_together(source.values, members, across)
        marks = marks_together(source, members, stat, values)
        values[marks == Mark.MISSING] = np.nan
        marks[:, [row.frozen for row in rows]] = Mark.FROZEN
        _mark_skipped(self._run, source.steps, marks)
        return History(kind, stat, source.steps, rows, values, marks, np.full(len(rows), np.nan))

    def _members_of(self, groups: Groups, source: SiteValues) -> tuple[tuple[Row, ...], list[IntArray]]:
        """The rows, and for each the columns of its sites; known until a site is added."""
        num_sites = len(self._run.sites)
        if self._members[0] != num_sites:
            self._members = num_sites, {}
        known, key = self._members[1], groups._replace(stat="")
        if key not in known:
            known[key] = _group_rows(self._run, groups, source)
        return known[key]


def _group_rows(run: Recorded, groups: Groups, source: SiteValues) -> tuple[tuple[Row, ...], list[IntArray]]:
    frozen = frozen_sites(run.sites, groups.kind, groups.pattern) if source.sites else []
    rows, members = group_rows([info.site for info in source.sites], frozen, groups.depth, groups.max_rows)
    is_frozen = np.array([info.measured == "frozen" for info in source.sites], dtype=bool)
    types = {str(module.get("path")): str(module.get("type", "")) for module in model_modules(run)}
    return tuple(
        dataclasses.replace(
            row, frozen=bool(is_frozen[part].all()), type=types.get(row.name, "") if row.name.isdecimal() else ""
        )
        for row, part in zip(rows, members, strict=True)
    ), members


def _mark_skipped(run: Recorded, steps: IntArray, marks: MarkArray) -> None:
    """Steps that the optimizer skipped, where nothing else is known of them."""
    if not len(steps):
        return
    skipped = [event.step for event in run.events(SkippedStep.KIND, first=int(steps[0]), last=int(steps[-1]))]
    if skipped:
        marks[np.isin(steps, skipped)[:, None] & (marks == Mark.MISSING)] = Mark.SKIPPED


def _first_open_step(
    steps: IntArray, before: Mapping[tuple[int, int, str], Start], now: Mapping[tuple[int, int, str], Start]
) -> int:
    """The first step that may have changed: of a process that still wrote, has written since, or began."""
    changed = [int(steps[-1])]
    for key, start in now.items():
        old = before.get(key)
        if start.first_step is None:
            continue
        if old is None or old.first_step is None or old.last_step is None or start.first_step < old.first_step:
            changed.append(start.first_step)
        elif old.how == "live" or start.last_step != old.last_step:
            changed.append(old.last_step)
    index = int(np.searchsorted(steps, min(changed), side="right"))
    return int(min(*changed, steps[max(0, index - _REREAD_STEPS)]))


def _are_among(some: IntArray, steps: IntArray) -> bool:
    """Whether there are some, and all of them are there yet: old steps may have been thinned out."""
    return bool(len(some)) and bool(np.isin(some, steps, assume_unique=True).all())


def _are_equal(whole: History, begin: int, end: History) -> bool:
    """Whether a history ends in another from row `begin` on."""
    return (
        np.array_equal(whole.steps[begin:], end.steps)
        and np.array_equal(whole.marks[begin:], end.marks)
        and np.array_equal(whole.values[begin:], end.values, equal_nan=True)
    )


def _joined(parts: Sequence[History]) -> History:
    """Parts of one history, one after the other."""
    if len(parts) == 1:
        return parts[0]
    tables: dict[str, Any] = {
        name: np.concatenate([getattr(part, name) for part in parts]) for name in ("steps", "values", "marks")
    }
    return dataclasses.replace(parts[0], **tables)
