"""One statistic of many sites over many steps, in buckets: from rollups, from segments' buckets, from rows.

Each process start's files are taken from the highest rollup that is fine enough and stands for them, else from the
rollups below it, else from the segment's own buckets; what is not sealed yet is folded from its rows.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from stethoscope.kernels.columns import INDEX
from stethoscope.record import IntArray, SiteInfo
from stethoscope.store.downsample.buckets import BASE_LEVEL
from stethoscope.store.downsample.dense import BROKEN_BY, INF, NAN, NO_ROW, DenseBuckets, from_steps
from stethoscope.store.downsample.rollup import RollupPiece
from stethoscope.store.layout import lay_out
from stethoscope.store.pieces import Piece
from stethoscope.store.segment import SegmentPiece

if TYPE_CHECKING:
    from stethoscope.store.catalogue import Catalogue

DERIVED = {"zero_fraction": ("num_zero", "count")}
"""Statistics that follow from the buckets of two others."""
_NEIGHBORS: int = 512
"""Sites of the manifest that lie no farther apart are read together."""


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class BucketMatrix:
    """`low`, `high`, `mean` [sites, buckets]; `rows` is how many rows are in a bucket, `broken` 1 for Inf, 2 for NaN."""

    level: int
    starts: IntArray
    sites: tuple[SiteInfo, ...]
    low: npt.NDArray[np.float32]
    high: npt.NDArray[np.float32]
    mean: npt.NDArray[np.float32]
    rows: npt.NDArray[np.uint32]
    broken: npt.NDArray[np.uint8]

    @classmethod
    def of(cls, found: DenseBuckets, sites: tuple[SiteInfo, ...], stat: str = "") -> BucketMatrix:
        """Dense buckets of one statistic, or of the two that it follows from."""
        low, high, mean = found.low[:, :, 0], found.high[:, :, 0], found.mean[:, :, 0]
        if stat in DERIVED:
            with np.errstate(invalid="ignore", divide="ignore"):
                low, high, mean = low / found.high[:, :, 1], high / found.low[:, :, 1], mean / found.mean[:, :, 1]
        return cls(found.level, found.starts, sites, low, high, mean, found.rows, found.broken)

    def coarsened(self, first: int, last: int, level: int) -> BucketMatrix:
        """The same in longer buckets, of the steps first..last."""
        out = DenseBuckets.empty(level, first >> level, len(self.sites), (last >> level) - (first >> level) + 1, 1)
        if len(self.starts):
            begin = int(self.starts[0]) >> self.level
            low, high, mean = (part[:, :, None] for part in (self.low, self.high, self.mean))
            out.add(DenseBuckets(self.level, begin, low, high, mean, self.rows, self.broken))
        return BucketMatrix.of(out, self.sites)


def read_buckets(
    catalogue: Catalogue, rank: int, stat: str, numbers: IntArray, span: tuple[int, int], level: int
) -> BucketMatrix:
    """One statistic of these sites over the steps of a span, in buckets of 2**level steps."""
    stats = DERIVED.get(stat, (stat,))
    first, total = span[0] >> level, len(catalogue.sites.infos)
    out = DenseBuckets.empty(level, first, len(numbers), (span[1] >> level) - first + 1, len(stats))
    column = np.full(total, -1, np.int64)
    column[numbers] = np.arange(len(numbers))
    pieces = catalogue.pieces(rank)
    near = [one for one in catalogue.rollups(rank) if one.span[0] <= span[1] and one.span[1] >= span[0]]
    rollups = chosen_rollups(near, level)
    for rollup in rollups:
        _add_sites(out, rollup, column, stats)
    for piece in pieces:
        steps = piece.steps()
        if not len(steps) or steps[0] > span[1] or steps[-1] < span[0]:
            continue
        if any(one.rollup.stands_for(piece.key, piece.part) for one in rollups):
            continue
        if not isinstance(piece, SegmentPiece):
            found = _from_rows(piece, numbers, total, span, stats)
            if found is not None:
                out.add(found)
        elif "pyramid" in piece.segment.files:
            _add_sites(out, piece, column, stats)
    return BucketMatrix.of(out, catalogue.sites.of(numbers), stat)


def chosen_rollups(rollups: Sequence[RollupPiece], level: int) -> list[RollupPiece]:
    """The highest rollups that are fine enough, and lower ones for what those do not stand for."""
    out: list[RollupPiece] = []
    for piece in sorted(rollups, key=lambda one: (-one.rollup.height, one.rollup.key, one.parts)):
        is_inside = any(one.rollup.stands_for(piece.rollup.key, piece.parts[0]) for one in out)
        if piece.rollup.level <= level and not is_inside:
            out.append(piece)
    return sorted(out, key=lambda one: (one.rollup.key, one.parts))


def _add_sites(out: DenseBuckets, source: SegmentPiece | RollupPiece, column: IntArray, stats: Sequence[str]) -> None:
    """Adds what a file holds of the wanted sites; neighbors in the manifest are read together."""
    wanted = np.flatnonzero(column[source.numbers] >= 0)
    if not len(wanted):
        return
    breaks = np.flatnonzero(np.diff(wanted) > _NEIGHBORS)
    for sites in np.split(wanted, breaks + 1):
        begin, end = int(sites[0]), int(sites[-1]) + 1
        found = source.buckets(begin, end, stats)
        if found is None:
            continue
        if len(sites) < end - begin:
            found = found.take(sites - begin)
        target = column[source.numbers[sites]]
        is_together = len(target) and bool((np.diff(target) == 1).all())
        out.add(found, slice(int(target[0]), int(target[-1]) + 1) if is_together else target)


def _from_rows(
    piece: Piece, numbers: IntArray, total: int, span: tuple[int, int], stats: Sequence[str]
) -> DenseBuckets | None:
    """Rows folded: of the sites `numbers`, in this order. None where there are none."""
    wanted = np.zeros(total, bool)
    wanted[numbers] = True
    columns = tuple(INDEX[name] for name in (*stats, *BROKEN_BY))
    found = lay_out(piece.chunks(columns, wanted, *span), numbers, total, len(columns))
    if not len(found.steps):
        return None
    values, counts = found.values[:, :, : len(stats)], found.values[:, :, len(stats) :]
    infinite = (counts[:, :, 1] > 0) | (counts[:, :, 2] > 0)
    broken = np.where(counts[:, :, 0] > 0, NAN, np.where(infinite, INF, 0)).astype(np.uint8)
    broken[~found.present] = NO_ROW
    return from_steps(found.steps, values, broken, BASE_LEVEL)
