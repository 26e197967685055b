"""Histories of long runs from their stored buckets.

Promises: the answer comes from a few files whatever the length of the run; no NaN, Inf or extreme of a bucket is lost.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Final

import numpy as np

from stethoscope.analyse.bins import Mark
from stethoscope.analyse.history.sites import marks_together, members_of, sites_by_bucket, values_together
from stethoscope.analyse.history.values import History, usual_before
from stethoscope.analyse.recorded import Recorded
from stethoscope.analyse.tree import Node
from stethoscope.kernels.statistics import statistic
from stethoscope.record import FloatArray, Kind
from stethoscope.store import BucketMatrix

BASE_LEVEL: Final = 6
MAX_BUCKETS: Final = 1024
"""The default number of buckets of a whole run."""
_MOST_KEPT: Final = 4


def fitting_level(first: int, last: int, width: int) -> int:
    """The finest stored level at which first..last has at most `width` buckets."""
    level = BASE_LEVEL
    while (last >> level) - (first >> level) + 1 > width:
        level += 1
    return level


@dataclasses.dataclass(frozen=True, eq=False, slots=True)
class _Whole:
    """A whole run in buckets, and the number of its sites and its last step when it was read."""

    found: BucketMatrix
    num_sites: int
    last: int
    usual: dict[tuple[int | None, int, str], float] = dataclasses.field(default_factory=dict)
    """By the step that ends the past, depth and path."""


class BucketHistories:
    """The histories of nodes; the whole run is kept for what is usual, and read again when it has grown."""

    def __init__(self, run: Recorded) -> None:
        self._run = run
        self._whole: dict[tuple[Kind, str], _Whole] = {}

    def usual(
        self, kind: Kind, stat: str, nodes: Sequence[Node], span: tuple[int, int], before: int | None
    ) -> FloatArray | None:
        """What is usual for each node: the median of its buckets' means until a step; None where there are no buckets."""
        whole = self._brought_up(kind, stat, span)
        if whole is None:
            return None
        keys = [(before, node.depth, node.path) for node in nodes]
        new = [node for node, key in zip(nodes, keys, strict=True) if key not in whole.usual]
        if new:
            seen = _bucket_history(whole.found, kind, stat, new)
            found = usual_before(seen.steps, seen.values, seen.marks, before).tolist()
            whole.usual.update(zip([(before, node.depth, node.path) for node in new], found, strict=True))
        return np.array([whole.usual[key] for key in keys])

    def nodes(self, kind: Kind, stat: str, nodes: Sequence[Node], view: tuple[int, int, int]) -> History | None:
        """These nodes over first..last in at most `width` buckets; None where only the rows can tell."""
        first, last, width = view
        level = fitting_level(first, last, width)
        whole = self._whole.get((kind, stat))
        if whole is not None and self._is_current(whole) and last <= whole.last and level >= whole.found.level:
            found: BucketMatrix | None = whole.found.coarsened(first, last, level)
        else:
            found = self._run.buckets(kind, stat, first, last, level)
        return None if found is None else _bucket_history(found, kind, stat, nodes)

    def _brought_up(self, kind: Kind, stat: str, span: tuple[int, int]) -> _Whole | None:
        first, last = span
        whole = self._whole.get((kind, stat))
        if whole is not None and self._is_current(whole) and last - whole.last < max(64, (last - first) // 256):
            return whole
        found = self._run.buckets(kind, stat, first, last, fitting_level(first, last, MAX_BUCKETS))
        if found is None:
            return None
        while len(self._whole) >= _MOST_KEPT:
            self._whole.pop(next(iter(self._whole)))
        self._whole[kind, stat] = _Whole(found, len(self._run.sites), last)
        return self._whole[kind, stat]

    def _is_current(self, whole: _Whole) -> bool:
        return whole.num_sites == len(self._run.sites)


def _bucket_history(source: BucketMatrix, kind: Kind, stat: str, nodes: Sequence[Node]) -> History:
    """The sites' buckets put together for each node; what is usual is not known."""
    sites, across = sites_by_bucket(source), statistic(stat).across
    members = members_of(nodes, [info.site for info in source.sites])
    low, high, mean = (values_together(table.T, members, across) for table in (source.low, source.high, source.mean))
    marks = marks_together(sites, members, stat, high)
    marks[:, [node.frozen for node in nodes]] = Mark.FROZEN
    usual = np.full(len(nodes), np.nan)
    return History(
        kind, stat, sites.steps, tuple(node.row for node in nodes), mean, marks, usual, low, high, 1 << source.level
    )
