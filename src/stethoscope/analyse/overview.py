"""Long runs at a glance: the history of any node of the tree from stored buckets, and what is usual there.

Promises: the answer comes from a few files whatever the length of the run; no NaN, Inf or extreme of a bucket is lost.
A group's value is put together from its sites' means, lowest and highest values in a bucket, which is exact for one
site and close for several; the rows themselves are read where few enough steps are looked at.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from stethoscope.analyse.bins import Bins, Mark, MarkArray
from stethoscope.analyse.grouping import Row, row_name
from stethoscope.analyse.history import log_ratios, usual_of
from stethoscope.kernels.statistics import Across, statistic
from stethoscope.record import FloatArray, IntArray, Kind
from stethoscope.store import BucketMatrix

if TYPE_CHECKING:
    from stethoscope.analyse.tree import Node
    from stethoscope.store import Run

BASE_LEVEL: Final = 6
LARGE_VALUES: Final = 4_000_000
"""Values of one statistic (sites times steps) from which on a run is looked at through its buckets."""
AT_ONCE_VALUES: Final = 600_000
"""Values that are read from the rows without a second thought."""
_WHOLE_BUCKETS: Final = 1024
_MIN_PAST: Final = 8


@dataclasses.dataclass(frozen=True, eq=False, slots=True)
class Nodes:
    """Rows in buckets: `low`, `high`, `mean`, `marks` [rows, buckets]."""

    bins: Bins
    rows: tuple[Row, ...]
    low: FloatArray
    high: FloatArray
    mean: FloatArray
    marks: MarkArray


def fitting_level(span: tuple[int, int], width: int) -> int:
    """The finest stored level at which a span has at most `width` buckets."""
    level = BASE_LEVEL
    while (span[1] >> level) - (span[0] >> level) + 1 > width:
        level += 1
    return level


class Overview:
    """A run through its buckets; the whole of it is kept for what is usual, and read again when it has grown."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self._whole: dict[tuple[Kind, str], tuple[int, int, BucketMatrix]] = {}
        self._amounts: tuple[int, dict[Kind, int]] = 0, {}

    def is_large(self, kind: Kind, span: tuple[int, int]) -> bool:
        """Whether the steps of a span are too many to read all rows of a kind."""
        return self.num_values(kind, span) > LARGE_VALUES

    def num_values(self, kind: Kind, span: tuple[int, int]) -> int:
        """Sites of a kind times the steps of a span: at most so many rows are there."""
        sites = self._run.sites
        if self._amounts[0] != len(sites):
            self._amounts = len(sites), dict(Counter(info.site.kind for info in sites))
        return self._amounts[1].get(kind, 0) * max(0, span[1] - span[0] + 1)

    def whole(self, kind: Kind, stat: str, span: tuple[int, int]) -> BucketMatrix | None:
        """The whole run in about a thousand buckets; None where it has no buckets."""
        kept = self._whole.get((kind, stat))
        num_sites = len(self._run.sites)
        if kept is not None and kept[0] == num_sites and span[1] - kept[1] < max(64, (span[1] - span[0]) // 256):
            return kept[2]
        found = self._run.buckets(kind, stat, *span, fitting_level(span, _WHOLE_BUCKETS))
        if found is None:
            return None
        while len(self._whole) > 3:
            self._whole.pop(next(iter(self._whole)))
        self._whole[kind, stat] = (num_sites, span[1], found)
        return found

    def nodes(self, kind: Kind, stat: str, nodes: Sequence[Node], view: tuple[int, int, int]) -> Nodes | None:
        """These rows over first..last in at most `width` buckets; None where only the rows can tell."""
        first, last, width = view
        level = fitting_level((first, last), width)
        whole = self._whole.get((kind, stat))
        if whole is not None and whole[0] == len(self._run.sites) and last <= whole[1] and level >= whole[2].level:
            found: BucketMatrix | None = whole[2].coarsened(first, last, level)
        else:
            found = self._run.buckets(kind, stat, first, last, level)
        return None if found is None else grouped(found, stat, nodes)

    def usual(
        self, kind: Kind, stat: str, nodes: Sequence[Node], span: tuple[int, int], before: int | None
    ) -> FloatArray | None:
        """What is usual for each row: the median of its buckets' means, until `before`."""
        whole = self.whole(kind, stat, span)
        if whole is None:
            return None
        rows = grouped(whole, stat, nodes)
        num_past = len(rows.bins) if before is None else int(np.searchsorted(rows.bins.starts, before))
        num_past = num_past if num_past >= _MIN_PAST else len(rows.bins)
        return usual_of(np.where(rows.marks >= Mark.INF, np.nan, rows.mean)[:, :num_past].T)


def grouped(source: BucketMatrix, stat: str, nodes: Sequence[Node]) -> Nodes:
    """The sites' buckets put together for each node."""
    bins = Bins(source.starts, 1 << source.level)
    shape = len(nodes), len(bins)
    low, high, mean = (np.full(shape, np.nan) for _ in range(3))
    marks = np.full(shape, Mark.MISSING, dtype=np.uint8)
    members = _members(source, nodes)
    for at, part in enumerate(members):
        if not len(part):
            continue
        low[at], high[at], mean[at] = (_together(table[part], stat) for table in (source.low, source.high, source.mean))
        marks[at, source.rows[part].any(axis=0)] = Mark.PLAIN
        if statistic(stat).is_size:
            marks[at, (high[at] == 0) & (marks[at] == Mark.PLAIN)] = Mark.DEAD
        worst = source.broken[part].max(axis=0)
        marks[at, worst == 1], marks[at, worst == 2] = Mark.INF, Mark.NAN
    for at, node in enumerate(nodes):
        if node.frozen:
            marks[at] = Mark.FROZEN
    rows = tuple(Row(node.path, (), node.frozen) for node in nodes)
    return Nodes(bins, rows, low, high, mean, marks)


def _members(source: BucketMatrix, nodes: Sequence[Node]) -> list[IntArray]:
    """The places of each node's sites."""
    found: dict[tuple[int, str], list[int]] = {}
    depths = sorted({node.depth for node in nodes})
    for place, info in enumerate(source.sites):
        for depth in depths:
            found.setdefault((depth, row_name(info.site, depth)), []).append(place)
    return [np.array(found.get((node.depth, node.path), ()), dtype=np.int64) for node in nodes]


def _together(values: Any, stat: str) -> FloatArray:
    """One statistic of several sites, [sites, buckets], as if they were one tensor."""
    table = values.astype(np.float64)
    if len(table) == 1:
        return np.asarray(table[0])
    empty = np.isnan(table).all(axis=0)
    across = statistic(stat).across
    if across is Across.ROOT_SUM_SQUARES:
        out = np.sqrt(np.square(np.nan_to_num(table)).sum(axis=0))
    elif across is Across.SUM:
        out = np.nansum(table, axis=0)
    elif across is not Across.MERGED:
        return np.asarray((np.fmax if across is Across.LARGEST else np.fmin).reduce(table, axis=0))
    else:  # buckets do not hold whole rows, so the mean stands for what only rows could tell
        there = (~np.isnan(table)).sum(axis=0)
        out = np.nansum(table, axis=0) / np.maximum(there, 1)
    return np.asarray(np.where(empty, np.nan, out))


def levels(rows: Nodes, usual: FloatArray, *, raw: bool) -> FloatArray:
    """One number a cell: the mean, or the lowest or highest value where that is far from usual; as a ratio or `raw`.

    Far is a factor of three, and twice what the row's buckets usually stray to either side of their mean.
    """
    low, high, mean = (log_ratios(part.T, usual).T for part in (rows.low, rows.high, rows.mean))
    with np.errstate(invalid="ignore"):
        spread = np.where(np.isfinite(high - low), high - low, np.nan)
    known = ~np.isnan(spread).all(axis=1)
    limits = np.full(len(spread), np.log2(3.0))
    if known.any():
        limits[known] = np.fmax(limits[known], np.nanmedian(spread[known], axis=1))
    values = (rows.low, rows.high, rows.mean) if raw else (low, high, mean)
    out = np.array(values[2], dtype=np.float64)
    far_low, far_high = (np.nan_to_num(np.abs(part), nan=0.0, posinf=64.0) for part in (low, high))
    is_low = (far_low > limits[:, None]) & (far_low > far_high)
    is_high = (far_high > limits[:, None]) & ~is_low
    out[is_low], out[is_high] = values[0][is_low], values[1][is_high]
    return out
