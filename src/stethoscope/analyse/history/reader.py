"""The reader of history: of any rows of a run, live or stored, from what tells it soonest.

Where the rows can be read at once they are, and kept, and extended as the run grows. Of a long run the stored buckets
are read, and the rows of a part of it that is short enough.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Final

import numpy as np

from stethoscope.analyse.bins import Mark
from stethoscope.analyse.history.buckets import BASE_LEVEL, MAX_BUCKETS, BucketHistories
from stethoscope.analyse.history.rows import Groups, RowHistories
from stethoscope.analyse.history.values import History
from stethoscope.analyse.recorded import Recorded, recorded_span
from stethoscope.analyse.tree import Node
from stethoscope.record import ROOT_NAME, Kind

LARGE_VALUES: Final = 4_000_000
"""Values of one statistic (sites times steps) from which on a run is read through its buckets."""
MAX_EXACT_VALUES: Final = 2_500_000
"""Values read from the rows of a long run for one answer that may take its time."""
AT_ONCE_VALUES: Final = 600_000
"""The same for one that may not."""


class HistoryReader:
    """Answers with the history of rows of one run."""

    def __init__(self, run: Recorded, limit_bytes: int = 128 << 20) -> None:
        self._run = run
        self._rows = RowHistories(run, limit_bytes)
        self._buckets = BucketHistories(run)
        self._span: tuple[int, tuple[int, int]] = -1, (0, 0)
        self._num_sites: tuple[int, Counter[Kind]] = -1, Counter()

    @property
    def span(self) -> tuple[int, int]:
        """First and last step with rows or a loss."""
        if self._span[0] != self._run.generation:
            self._span = self._run.generation, recorded_span(self._run)
        return self._span[1]

    def nodes(
        self,
        kind: Kind,
        stat: str,
        nodes: Sequence[Node],
        window: tuple[int, int] | None = None,
        width: int = MAX_BUCKETS,
        *,
        before: int | None = None,
        has_time: bool = True,
    ) -> History:
        """These nodes of the module tree over the steps of a window: each step, or of a long run at most `width` buckets.

        What is usual is taken before a step. `has_time` is whether rows may be read although buckets would come sooner.
        """
        first, last = window or self.span
        if self._num_values(kind, *self.span) > LARGE_VALUES:
            found = self._of_a_long_run(kind, stat, nodes, (first, last, width), before, has_time)
            if found is not None:
                return found

        shown = self._from_rows(kind, stat, nodes, lambda groups, names: self._rows.whole(groups).of(names, before))
        return shown if window is None else shown.window(first, last)

    def groups(self, groups: Groups, *, before: int | None = None) -> History:
        """Every step of groups of sites, whatever the length of the run."""
        return self._rows.whole(groups).of(None, before)

    def together(self, kind: Kind, stat: str) -> History:
        """All sites of a kind as if they were one tensor, over the whole run."""
        return self.nodes(kind, stat, [Node(ROOT_NAME, ROOT_NAME, -1, 0, 0, 0, False, depth=0)])

    def _of_a_long_run(
        self,
        kind: Kind,
        stat: str,
        nodes: Sequence[Node],
        view: tuple[int, int, int],
        before: int | None,
        has_time: bool,
    ) -> History | None:
        """From the rows where they are few enough, else in buckets; None where the run has no buckets."""
        first, last, width = view
        usual = self._buckets.usual(kind, stat, nodes, self.span, before)
        if usual is None:
            return None
        steps = self._run.steps
        steps = steps[np.searchsorted(steps, first) : np.searchsorted(steps, last, side="right")]
        amount = self._num_values(kind, first, last)
        is_short = amount <= MAX_EXACT_VALUES and last - first + 1 <= width << BASE_LEVEL and len(steps) > 0
        if is_short and (has_time or amount <= AT_ONCE_VALUES):
            found = self._from_rows(kind, stat, nodes, lambda groups, _: self._rows.read(groups, steps))
            return dataclasses.replace(found, usual=usual)
        coarse = self._buckets.nodes(kind, stat, nodes, view)
        return None if coarse is None else dataclasses.replace(coarse, usual=usual, can_be_refined=is_short)

    def _from_rows(
        self, kind: Kind, stat: str, nodes: Sequence[Node], read: Callable[[Groups, list[str]], History]
    ) -> History:
        """The nodes of each depth picked from all groups at that depth."""
        wanted: dict[int, list[int]] = {}
        for at, node in enumerate(nodes):
            wanted.setdefault(node.depth, []).append(at)
        parts = [
            (read(Groups(kind, stat, depth), [nodes[at].path for at in inside]), inside)
            for depth, inside in (wanted or {1: []}).items()
        ]
        steps = min((part.steps for part, _ in parts), key=len)
        values, marks = (
            np.full((len(steps), len(nodes)), np.nan),
            np.full((len(steps), len(nodes)), np.uint8(Mark.MISSING)),
        )
        usual = np.full(len(nodes), np.nan)
        for part, inside in parts:
            index = {row.name: column for column, row in enumerate(part.rows)}
            known = [at for at in inside if nodes[at].path in index]
            columns = [index[nodes[at].path] for at in known]
            values[:, known], marks[:, known] = part.values[: len(steps), columns], part.marks[: len(steps), columns]
            usual[known] = part.usual[columns]
        marks[:, [node.frozen for node in nodes]] = Mark.FROZEN
        return History(kind, stat, steps, tuple(node.row for node in nodes), values, marks, usual)

    def _num_values(self, kind: Kind, first: int, last: int) -> int:
        """Sites of a kind times steps: at most so many rows are there."""
        sites = self._run.sites
        if self._num_sites[0] != len(sites):
            self._num_sites = len(sites), Counter(info.site.kind for info in sites)
        return self._num_sites[1][kind] * max(0, last - first + 1)
