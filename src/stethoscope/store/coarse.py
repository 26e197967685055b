"""One statistic of many sites over many steps, in buckets: from the ladder, from segments' pyramids, from rows.

Each process start's files are taken from the highest rung that is fine enough and stands for them, else from the
rungs below it, else from the segment's own pyramid; what is not sealed yet is folded from its rows.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from stethoscope.kernels.columns import INDEX
from stethoscope.record import IntArray, SiteInfo
from stethoscope.store.grid import lay_out
from stethoscope.store.ladder import INF, LOST, NAN, PARTS, STATS, Folded, Rung, Unit, from_steps
from stethoscope.store.pieces import JournalPiece, Piece, StartKey
from stethoscope.store.pyramid import BASE_LEVEL
from stethoscope.store.scan import Problem
from stethoscope.store.sealed_table import SealedTable
from stethoscope.store.segment import SegmentPiece

if TYPE_CHECKING:
    from stethoscope.store.catalogue import Catalogue

_DERIVED = {"zero_fraction": ("num_zero", "count")}


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class Coarse:
    """`low`, `high`, `mean` [sites, buckets]; `rows` is how many rows are in a bucket, `broken` 1 for Inf, 2 for NaN."""

    level: int
    starts: IntArray
    sites: tuple[SiteInfo, ...]
    low: npt.NDArray[np.float32]
    high: npt.NDArray[np.float32]
    mean: npt.NDArray[np.float32]
    rows: npt.NDArray[np.uint32]
    broken: npt.NDArray[np.uint8]


class RungPiece:
    """A rung open for reading. `numbers` gives the run-wide number of each site of the manifest."""

    def __init__(self, run: Path, rung: Rung, numbers: IntArray) -> None:
        self.rung, self.numbers = rung, numbers[: rung.num_sites]
        self.problems: list[Problem] = []
        self._table = SealedTable(run, rung.file, self.problems, most_rows=rung.count * rung.num_sites)

    def is_in(self, span: tuple[int, int]) -> bool:
        """Whether it holds any of these steps."""
        rung = self.rung
        return rung.first << rung.level <= span[1] and (rung.first + rung.count) << rung.level > span[0]

    def read(self, begin: int, end: int, stats: Sequence[str] = STATS) -> Folded | None:
        """The buckets of the sites begin..end-1 of the manifest; None where they cannot be trusted."""
        rung = self.rung
        end = min(end, rung.num_sites)
        if end <= begin:
            return Folded.empty(rung.level, rung.first, 0, rung.count, len(stats))
        low_group, high_group = begin // rung.group_sites, (end - 1) // rung.group_sites
        names = ["rows", "broken", *(f"{name}_{part}" for part in PARTS for name in stats)]
        found = self._table.read(list(range(low_group, high_group + 1)), names)
        if found is None:
            return None
        offset = begin - low_group * rung.group_sites

        def column(name: str) -> npt.NDArray[Any]:
            out: npt.NDArray[Any] = found.column(name).to_numpy().reshape(-1, rung.count)
            return out[offset : offset + end - begin]

        low, high, mean = (np.stack([column(f"{name}_{part}") for name in stats], axis=2) for part in PARTS)
        return Folded(rung.level, rung.first, low, high, mean, column("rows"), column("broken"))


def segment_buckets(piece: SegmentPiece, begin: int, end: int, stats: Sequence[str] = STATS) -> Folded | None:
    """A segment's own pyramid, of the sites begin..end-1 of the manifest; None where it cannot be trusted."""
    segment = piece.segment
    first_step, last_step = segment.first_step or 0, segment.last_step or 0
    if segment.thinned:  # its buckets may begin before the first row that is left
        size = max(segment.thinned, 1 << BASE_LEVEL)
        first_step = first_step // size * size
    first = first_step >> BASE_LEVEL
    out = Folded.empty(BASE_LEVEL, first, end - begin, (last_step >> BASE_LEVEL) - first + 1, len(stats))
    read = piece.read_pyramid(begin, end, stats, LOST)
    if read is None:
        return None
    sites, place = read["site"].astype(np.int64) - begin, (read["step"] >> BASE_LEVEL) - first
    kept = (sites >= 0) & (sites < end - begin) & (place >= 0) & (place < out.low.shape[1])
    where = sites[kept], place[kept]
    for at, name in enumerate(stats):
        out.low[(*where, at)] = read[f"{name}_min"][kept]
        out.high[(*where, at)] = read[f"{name}_max"][kept]
        out.mean[(*where, at)] = read[f"{name}_mean"][kept]
    out.rows[where] = np.maximum(read["count_count"][kept], 1)
    infinite = (read["num_posinf_max"][kept] > 0) | (read["num_neginf_max"][kept] > 0)
    out.broken[where] = np.where(read["num_nan_max"][kept] > 0, NAN, np.where(infinite, INF, 0))
    return out


def journal_buckets(
    piece: Piece, numbers: IntArray, total: int, span: tuple[int, int], stats: Sequence[str]
) -> Folded | None:
    """Rows folded: of the sites `numbers`, in this order. None where there are none."""
    wanted = np.zeros(total, bool)
    wanted[numbers] = True
    places = tuple(INDEX[name] for name in (*stats, *LOST))
    grid = lay_out(piece.chunks(places, wanted, *span), numbers, total, len(places))
    if not len(grid.steps):
        return None
    table, broken = grid.values[:, :, : len(stats)], grid.values[:, :, len(stats) :]
    infinite = (broken[:, :, 1] > 0) | (broken[:, :, 2] > 0)
    lost = np.where(broken[:, :, 0] > 0, NAN, np.where(infinite, INF, 0)).astype(np.uint8)
    lost[~grid.present] = 255
    return from_steps(grid.steps, table, lost, BASE_LEVEL)


def units_below(segments: Sequence[SegmentPiece], rungs: Sequence[RungPiece]) -> Any:
    """What `climb` is handed: the units of a height, of one process start, in order."""

    def units(key: StartKey, height: int) -> list[Unit]:
        if height:
            mine = sorted(
                (r for r in rungs if r.rung.key == key and r.rung.height == height), key=lambda r: r.rung.parts
            )
            return [
                Unit(
                    r.rung.parts,
                    (r.rung.first << r.rung.level, ((r.rung.first + r.rung.count) << r.rung.level) - 1),
                    r.read,
                )
                for r in mine
            ]
        own = sorted((s for s in segments if s.key == key and "pyramid" in s.segment.files), key=lambda s: s.part)
        return [
            Unit(
                s.segment.parts,
                (s.segment.first_step or 0, s.segment.last_step or 0),
                functools.partial(segment_buckets, s),
            )
            for s in own
        ]

    return units


def read_coarse(
    catalogue: Catalogue, rank: int, stat: str, numbers: IntArray, span: tuple[int, int], level: int
) -> Coarse:
    """One statistic of these sites over the steps of a span, in buckets of 2**level steps."""
    stats = _DERIVED.get(stat, (stat,))
    first, total = span[0] >> level, len(catalogue.sites.infos)
    out = Folded.empty(level, first, len(numbers), (span[1] >> level) - first + 1, len(stats))
    column = np.full(total, -1, np.int64)
    column[numbers] = np.arange(len(numbers))
    pieces = catalogue.pieces(rank)
    rungs = chosen_rungs([rung for rung in catalogue.rungs(rank) if rung.is_in(span)], level)
    for rung in rungs:
        _take(out, rung.read, rung.numbers, column, stats)
    for piece in pieces:
        steps = piece.steps()
        if not len(steps) or steps[0] > span[1] or steps[-1] < span[0]:
            continue
        if any(r.rung.key == piece.key and r.rung.parts[0] <= piece.part <= r.rung.parts[1] for r in rungs):
            continue
        if isinstance(piece, SegmentPiece) and "pyramid" in piece.segment.files:
            _take(out, functools.partial(segment_buckets, piece), piece.numbers, column, stats)
        elif isinstance(piece, JournalPiece):
            found = journal_buckets(piece, numbers, total, span, stats)
            if found is not None:
                out.add(found)
    return _answer(out, stat, catalogue, numbers)


def chosen_rungs(rungs: Sequence[RungPiece], level: int) -> list[RungPiece]:
    """The coarsest rungs that are fine enough, and lower ones for what those do not stand for."""
    out: list[RungPiece] = []
    for rung in sorted(rungs, key=lambda one: (-one.rung.height, one.rung.key, one.rung.parts)):
        inside = any(
            one.rung.key == rung.rung.key and one.rung.parts[0] <= rung.rung.parts[0] <= one.rung.parts[1]
            for one in out
        )
        if rung.rung.level <= level and not inside:
            out.append(rung)
    return sorted(out, key=lambda one: (one.rung.key, one.rung.parts))


def _take(out: Folded, read: Any, local: IntArray, column: IntArray, stats: Sequence[str]) -> None:
    """Adds what a unit holds of the wanted sites; the manifest's neighbors are read together."""
    wanted = np.flatnonzero(column[local] >= 0)
    if not len(wanted):
        return
    breaks = np.flatnonzero(np.diff(wanted) > 512)
    for run in np.split(wanted, breaks + 1):
        begin, end = int(run[0]), int(run[-1]) + 1
        found = read(begin, end, stats)
        if found is None:
            continue
        if len(run) < end - begin:
            rows = run - begin
            found = Folded(
                found.level,
                found.first,
                found.low[rows],
                found.high[rows],
                found.mean[rows],
                found.rows[rows],
                found.broken[rows],
            )
        places = column[local[run]]
        together = len(places) and bool((np.diff(places) == 1).all())
        out.add(found, slice(int(places[0]), int(places[-1]) + 1) if together else places)


def refolded(source: Coarse, first: int, last: int, level: int) -> Coarse:
    """The same in longer buckets, of fewer steps."""
    out = Folded.empty(level, first >> level, len(source.sites), (last >> level) - (first >> level) + 1, 1)
    if len(source.starts):
        begin = int(source.starts[0]) >> source.level
        low, high, mean = (part[:, :, None] for part in (source.low, source.high, source.mean))
        out.add(Folded(source.level, begin, low, high, mean, source.rows, source.broken))
    starts = (np.arange(out.low.shape[1], dtype=np.int64) + out.first) << level
    return Coarse(
        level, starts, source.sites, out.low[:, :, 0], out.high[:, :, 0], out.mean[:, :, 0], out.rows, out.broken
    )


def _answer(out: Folded, stat: str, catalogue: Catalogue, numbers: IntArray) -> Coarse:
    low, high, mean = out.low[:, :, 0], out.high[:, :, 0], out.mean[:, :, 0]
    if stat in _DERIVED:
        with np.errstate(invalid="ignore", divide="ignore"):
            low, high, mean = low / out.high[:, :, 1], high / out.low[:, :, 1], mean / out.mean[:, :, 1]
    starts = (np.arange(out.low.shape[1], dtype=np.int64) + out.first) << out.level
    return Coarse(out.level, starts, catalogue.sites.of(numbers), low, high, mean, out.rows, out.broken)
