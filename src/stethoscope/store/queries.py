"""Queries to a catalogue, answered from whatever pieces it holds at the moment.

A file that goes away while it is read was sealed or thinned by another process: the catalogue looks again and
the query is run again, so an answer is always of one consistent state.
"""

from __future__ import annotations

import itertools
from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Callable, Iterator
from operator import attrgetter
from typing import Any, Final, TypeVar

import numpy as np
import numpy.typing as npt

from stethoscope.kernels.columns import COLUMNS
from stethoscope.record import FloatArray, IntArray, RunDamagedError, Series
from stethoscope.store.catalogue import Catalogue
from stethoscope.store.downsample.buckets import BASE_LEVEL, SiteBuckets, fold_series, join
from stethoscope.store.downsample.dense import STATS
from stethoscope.store.downsample.reading import DERIVED, BucketMatrix, read_buckets
from stethoscope.store.layout import Grid, columns_of, derive_statistic, lay_out, merge_ranks
from stethoscope.store.pieces import ALL_COLUMNS, FIRST_STEP, LAST_STEP, Chunk, Event

_MOST_LOOKS: Final = 5
_WINDOW_VALUES: Final = 8 << 20
_T = TypeVar("_T")
_step: Final = attrgetter("step")


class Queries:
    """What can be asked about the rows, scalars, events and vectors of a run."""

    def __init__(self, catalogue: Catalogue) -> None:
        self._catalogue = catalogue
        self._events: tuple[int, dict[str | None, list[Event]]] = -1, {}

    def ask(self, read: Callable[[], _T]) -> _T:
        """Reads; where a file went away meanwhile looks again and reads again."""
        gone: FileNotFoundError | None = None
        for _ in range(_MOST_LOOKS):
            try:
                with self._catalogue.lock:
                    return read()
            except FileNotFoundError as error:
                gone = error
                self._catalogue.update()
        where = gone.filename if gone is not None else None
        raise RunDamagedError("A file that the run's manifest names is missing", where=where) from gone

    def grid(
        self, stat: str | None, numbers: IntArray, first: int, last: int, rank: int | None
    ) -> tuple[Grid, FloatArray]:
        """Rows of these sites and, of them, one statistic (all columns where `stat` is None)."""
        columns = ALL_COLUMNS if stat is None else columns_of(stat)
        ranks = self._catalogue.ranks() if rank is None else (rank,)
        if len(ranks) > 1:
            return self._merged_grid(stat, numbers, first, last, ranks)
        return self._plain(stat, columns, numbers, first, last, ranks)

    def _merged_grid(
        self, stat: str | None, numbers: IntArray, first: int, last: int, ranks: tuple[int, ...]
    ) -> tuple[Grid, FloatArray]:
        """Several ranks: merging two rows needs all their columns, so a few steps at a time."""
        found = [piece.steps() for piece in self._catalogue.pieces() if piece.key.rank in ranks]
        steps = np.unique(np.concatenate([np.empty(0, np.int64), *found]))
        steps = steps[(steps >= first) & (steps <= last)]
        window = max(1, _WINDOW_VALUES // max(1, len(numbers) * len(ALL_COLUMNS)))
        parts = []
        for start in range(0, max(len(steps), 1), window):
            some = steps[start : start + window]
            span = (int(some[0]), int(some[-1])) if len(some) else (first, last)
            grid, values = self._plain(stat, ALL_COLUMNS, numbers, *span, ranks)
            if stat is not None:
                grid.values = grid.values[..., :0]
            parts.append((grid, values))
        whole = Grid(
            np.concatenate([grid.steps for grid, _ in parts]),
            np.concatenate([grid.values for grid, _ in parts]),
            np.concatenate([grid.present for grid, _ in parts]),
            np.concatenate([grid.calls for grid, _ in parts]),
        )
        return whole, np.concatenate([values for _, values in parts])

    def _plain(
        self,
        stat: str | None,
        columns: tuple[int, ...],
        numbers: IntArray,
        first: int,
        last: int,
        ranks: tuple[int, ...],
    ) -> tuple[Grid, FloatArray]:
        total = len(self._catalogue.sites.infos)
        wanted = np.zeros(total, bool)
        wanted[numbers] = True
        grids = self.ask(
            lambda: [
                lay_out(self._read_chunks(columns, wanted, first, last, one), numbers, total, len(columns))
                for one in ranks
            ]
        )
        if not grids:
            grids = [lay_out((), numbers, total, len(columns))]
        if len(grids) > 1:
            infos = self._catalogue.sites.infos
            grids = [merge_ranks(grids, np.array([infos[n].measured == "shard" for n in numbers], bool))]
        grid = grids[0]
        return grid, grid.values if stat is None else derive_statistic(grid.values, stat, columns)

    def _read_chunks(
        self, columns: tuple[int, ...], wanted: npt.NDArray[np.bool_], first: int, last: int, rank: int
    ) -> Iterator[Chunk]:
        for piece in self._catalogue.pieces(rank):
            yield from piece.chunks(columns, wanted, first, last)

    def metric_names(self, rank: int | None = None) -> set[str]:
        """The names of all scalars, or of one rank's."""
        names = self.ask(lambda: [piece.metric_names() for piece in self._catalogue.pieces(rank)])
        return set().union(*names)

    def metric(self, name: str, rank: int, first: int = FIRST_STEP) -> Series:
        """One scalar of one rank over steps from `first` on; of a step written twice the later value."""
        found = self.ask(lambda: [piece.metric(name, first) for piece in self._catalogue.pieces(rank)])
        found = [part for part in found if len(part[0])]
        steps = (
            found[0][0] if len(found) == 1 else np.concatenate([np.empty(0, np.int64), *(part[0] for part in found)])
        )
        values = found[0][1] if len(found) == 1 else np.concatenate([np.empty(0), *(part[1] for part in found)])
        if first == FIRST_STEP and bool((np.diff(steps) > 0).all()):
            return Series(steps, values)  # as nearly every run is
        order = np.argsort(steps, kind="stable")
        last = steps[order] >= first
        last[:-1] &= np.diff(steps[order]) != 0
        return Series(steps[order][last], values[order][last])

    def events(self, kind: str | None, first: int, last: int) -> list[Event]:
        """Events of one kind or all, of these steps, in order of step, then of writing."""
        if first > FIRST_STEP and self._events[0] != self._catalogue.generation:
            self._events = -1, {}
            return [event for event in self._read_events(first) if event.step <= last and kind in (None, event.kind)]
        found = self._events_of(kind)
        if (first, last) == (FIRST_STEP, LAST_STEP):
            return list(found)
        return found[bisect_left(found, first, key=_step) : bisect_right(found, last, key=_step)]

    def _events_of(self, kind: str | None) -> list[Event]:
        """All events of a kind, or all; good until anything is new.

        Of a long run most of the time goes into taking events apart: for the first kind that is asked for, only those of that kind
        are. Who asks for a second will ask for a third, so then all are read.
        """
        generation = self._catalogue.generation
        if self._events[0] != generation:
            self._events = generation, {}
        known = self._events[1]
        if kind in known or None in known:
            return known.get(kind, [])
        if not known and kind is not None:
            known[kind] = self._read_events(FIRST_STEP, kind)
            return known[kind]
        by_kind: dict[str | None, list[Event]] = {None: self._read_events(FIRST_STEP)}
        for event in by_kind[None]:
            by_kind.setdefault(event.kind, []).append(event)
        self._events = generation, by_kind
        return by_kind.get(kind, [])

    def _read_events(self, first: int, kind: str | None = None) -> list[Event]:
        read = self.ask(
            lambda: [(piece.key, *entry) for piece in self._catalogue.pieces() for entry in piece.events(first, kind)]
        )
        once: dict[tuple[object, int], Event] = {}
        for key, serial, event in read:
            if event.step < first:
                continue
            once.setdefault((key, serial), event)  # written twice after a failed fsync: the same serial
        return sorted(once.values(), key=_step)

    def vectors(self, name: str, number: int, rank: int) -> dict[int, npt.NDArray[Any]]:
        """From step to the vector of one site."""

        def read() -> dict[int, npt.NDArray[Any]]:
            found: dict[int, npt.NDArray[Any]] = {}
            for piece in self._catalogue.pieces(rank):
                found.update(piece.vectors(name, number))
            return found

        return self.ask(read)

    def latest_vectors(self, name: str, most: int, first: int, rank: int) -> list[tuple[int, int, npt.NDArray[Any]]]:
        """Step, site and vector of the last ones of a rank from step `first` on, in order of writing."""

        def read() -> list[tuple[int, int, npt.NDArray[Any]]]:
            found: deque[tuple[int, int, npt.NDArray[Any]]] = deque(maxlen=most)
            for piece in self._catalogue.pieces(rank):
                for step, sites, values in piece.vectors_from(name, first):
                    found.extend((step, int(site), vector) for site, vector in zip(sites, values, strict=True))
            return list(found)

        return self.ask(read)

    def site_buckets(self, number: int, stat: str, level: int, rank: int | None) -> SiteBuckets:
        """One statistic of one site in buckets: from stored ones where they are and no two starts overlap."""
        ranks = self._catalogue.ranks() if rank is None else (rank,)
        if level >= BASE_LEVEL and stat in COLUMNS and len(ranks) == 1 and not self._starts_overlap(ranks[0]):
            return join(self.ask(lambda: self._pieces_buckets(number, stat, ranks[0])), level)
        grid, values = self.grid(stat, np.array([number]), FIRST_STEP, LAST_STEP, rank)
        there = grid.present[:, 0]
        return fold_series(grid.steps[there], values[there, 0], level)

    def buckets(self, stat: str, numbers: IntArray, span: tuple[int, int], level: int) -> BucketMatrix | None:
        """One statistic of many sites in buckets; None where rows of several ranks or starts would have to be merged."""
        ranks = self._catalogue.ranks()
        if len(ranks) != 1 or level < BASE_LEVEL or self._starts_overlap(ranks[0]):
            return None
        if stat not in STATS and stat not in DERIVED:
            return None
        return self.ask(lambda: read_buckets(self._catalogue, ranks[0], stat, numbers, span, level))

    def _pieces_buckets(self, number: int, stat: str, rank: int) -> list[SiteBuckets]:
        total = len(self._catalogue.sites.infos)
        wanted = np.zeros(total, bool)
        wanted[number] = True
        parts = []
        for piece in self._catalogue.pieces(rank):
            stored = piece.site_buckets(number, stat)
            if stored is None:
                chunks = piece.chunks(columns_of(stat), wanted, FIRST_STEP, LAST_STEP)
                grid = lay_out(chunks, np.array([number]), total, 1)
                stored = fold_series(grid.steps, grid.values[:, 0, 0], BASE_LEVEL)
            parts.append(stored)
        return parts

    def _starts_overlap(self, rank: int) -> bool:
        spans = sorted(
            (start.first_step, start.last_step)
            for start in self._catalogue.starts
            if start.rank == rank and start.first_step is not None and start.last_step is not None
        )
        return any(before[1] >= after[0] for before, after in itertools.pairwise(spans))
