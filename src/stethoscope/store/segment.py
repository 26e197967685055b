"""A sealed segment as a piece of a run: only columns and row groups asked for are read, all tested."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from stethoscope.kernels.columns import COLUMNS, INDEX
from stethoscope.record import FloatArray, IntArray
from stethoscope.store.cache import ByteCache
from stethoscope.store.downsample.buckets import BASE_LEVEL, SiteBuckets
from stethoscope.store.downsample.dense import BROKEN_BY, INF, NAN, STATS, DenseBuckets
from stethoscope.store.frame_file import Problem
from stethoscope.store.json_payload import EncodingError
from stethoscope.store.manifest import MOST_ROWS as SEGMENT_ROWS
from stethoscope.store.manifest import Segment, unpack_runs
from stethoscope.store.pieces import ALL_COLUMNS, FIRST_STEP, Chunk, Event, decode_event
from stethoscope.store.scalars import SegmentScalars
from stethoscope.store.sealed_table import MOST_ROWS, Groups, SealedTable, UnfitTableError
from stethoscope.store.tables import ROW_GROUP_ROWS, texts_of

_MOST_EVENT_BYTES: Final = 128 << 20
"""Of the events of one segment, written out."""


class SegmentPiece:
    """One segment. `numbers` gives the run-wide number of each site of the manifest."""

    def __init__(self, run: Path, segment: Segment, numbers: IntArray, cache: ByteCache[npt.NDArray[Any]]) -> None:
        self.key, self.part, self.segment = segment.key, segment.parts[0], segment
        self.parts, self.span = segment.parts, (segment.first_step or 0, segment.last_step or 0)
        self.problems: list[Problem] = []
        self.numbers, self._cache = numbers, cache
        self._tables = {
            name: SealedTable(
                run, file, self.problems, keeps_footer=not cache.is_small, most_rows=_most_rows(segment, name)
            )
            for name, file in segment.files.items()
        }
        self._steps = unpack_runs(segment.steps)
        self._sites = unpack_runs(segment.sites)
        self._events: list[tuple[int, Event]] | None = None
        self._scalars = SegmentScalars(self._tables.get("scalars"), cache)

    def steps(self) -> IntArray:
        """The steps that have rows, rising."""
        return self._steps

    @property
    def site_numbers(self) -> IntArray:
        """The run-wide numbers of the sites that have rows here."""
        return self.numbers[self._sites]

    def verify(self) -> None:
        """Tests every block of every file."""
        for table in self._tables.values():
            table.verify()

    def chunks(self, columns: tuple[int, ...], wanted: npt.NDArray[np.bool_], first: int, last: int) -> Iterator[Chunk]:
        """The rows of the wanted sites and steps, with these columns."""
        if "rows" not in self._tables or not len(self._steps) or self._steps[0] > last or self._steps[-1] < first:
            return
        here = wanted[self.numbers[self._sites]]
        if not here.any() or not ((self._steps >= first) & (self._steps <= last)).any():
            return
        names = [COLUMNS[column] for column in columns] + (["calls"] if columns == ALL_COLUMNS else [])
        if not self.segment.is_dense:
            names += ["step", "site"]
        groups = self._row_groups(np.flatnonzero(here))
        read = self._read_columns(groups, names)
        if read is not None:
            yield from self._sparse_chunks(groups, read, columns, wanted, first, last)
            return
        for group in groups:  # something is damaged: save what is not
            read = self._read_columns([group], names)
            if read is not None:
                yield from self._sparse_chunks([group], read, columns, wanted, first, last)

    def _row_groups(self, sites: IntArray) -> Groups:
        """The row groups that hold these of the segment's sites."""
        if not self.segment.is_dense:
            low, high = int(self._sites[sites[0]]), int(self._sites[sites[-1]])
            return self._tables["rows"].groups_of_site(low, high)
        size = len(self._steps)
        first, last = sites * size // ROW_GROUP_ROWS, ((sites + 1) * size - 1) // ROW_GROUP_ROWS
        return sorted({g for a, b in zip(first.tolist(), last.tolist(), strict=True) for g in range(a, b + 1)})

    def _read_columns(self, groups: Groups, names: list[str]) -> dict[str, npt.NDArray[Any]] | None:
        """Columns of row groups; whole ones are kept for the next question."""
        table = self._tables["rows"]
        is_whole = len(groups) == -(-self.segment.num_rows // ROW_GROUP_ROWS)
        found: dict[str, npt.NDArray[Any]] = {}
        for name in names:
            known = self._cache.get(table.sealed.path, name)
            if known is not None:
                found[name] = known if is_whole else known[_row_numbers(groups, self.segment.num_rows)]
        missing = [name for name in names if name not in found]
        if missing:
            read = table.read(groups, missing)
            if read is None:
                return None
            if self._is_unfit(read, groups):
                return None
            for name in missing:
                found[name] = read.column(name).to_numpy()
                if is_whole:
                    self._cache.put(table.sealed.path, name, found[name])
        return found

    def _is_unfit(self, read: Any, groups: Groups) -> bool:
        """Whether a table is not what the manifest says of it; that is noted."""
        table = self._tables["rows"]
        is_whole = len(groups) == self._tables["rows"].num_groups()
        expected = len(_row_numbers(groups, self.segment.num_rows)) if self.segment.is_dense else self.segment.num_rows
        if (is_whole or self.segment.is_dense) and read.num_rows != expected:
            table.refuse(UnfitTableError("it has other rows than its manifest says"))
            return True
        if "site" in read.column_names and read.num_rows and max(read.column("site").to_numpy()) >= len(self.numbers):
            table.refuse(UnfitTableError("it names sites that its manifest does not"))
            return True
        return False

    def _sparse_chunks(
        self,
        groups: Groups,
        read: dict[str, npt.NDArray[Any]],
        columns: tuple[int, ...],
        wanted: npt.NDArray[np.bool_],
        first: int,
        last: int,
    ) -> Iterator[Chunk]:
        if self.segment.is_dense:
            rows = _row_numbers(groups, self.segment.num_rows)
            if len(rows) == self.segment.num_rows:
                yield self._dense_chunk(read, columns, wanted, first, last)
                return
            sites, steps = self._sites[rows // len(self._steps)], self._steps[rows % len(self._steps)]
        else:
            sites, steps = read["site"].astype(np.int64), read["step"]
        numbers = self.numbers[sites]
        kept = np.flatnonzero(wanted[numbers] & (steps >= first) & (steps <= last))
        values = np.empty((len(kept), len(columns)))
        for k, column in enumerate(columns):
            values[:, k] = read[COLUMNS[column]][kept]
        calls = read["calls"][kept].astype(np.int64) if "calls" in read else np.ones(len(kept), np.int64)
        yield Chunk(steps[kept], numbers[kept], values, calls)

    def _dense_chunk(
        self,
        read: dict[str, npt.NDArray[Any]],
        columns: tuple[int, ...],
        wanted: npt.NDArray[np.bool_],
        first: int,
        last: int,
    ) -> Chunk:
        shape = len(self._sites), len(self._steps)
        numbers = self.numbers[self._sites]
        rows = slice(*np.searchsorted(self._steps, [first, last + 1 if last < 2**63 - 1 else last]).tolist())
        if last == 2**63 - 1:
            rows = slice(rows.start, len(self._steps))
        kept = wanted[numbers]
        kept_rows = slice(None) if kept.all() else kept
        steps = self._steps[rows]
        values = np.empty((int(kept.sum()), len(steps), len(columns)))
        for k, column in enumerate(columns):
            values[:, :, k] = read[COLUMNS[column]].reshape(shape)[kept_rows, rows]
        calls = np.ones(values.shape[:2], np.int64)
        if "calls" in read:
            calls = read["calls"].reshape(shape)[kept_rows, rows].astype(np.int64)
        return Chunk(steps, numbers[kept], values, calls, is_dense=True)

    def metric_names(self) -> set[str]:
        """The names of the scalars."""
        return self._scalars.names()

    def metric(self, name: str, first: int = FIRST_STEP) -> tuple[IntArray, FloatArray]:
        """Steps and values of one scalar in order of writing; row groups before `first` may be left out."""
        return self._scalars.metric(name, first)

    def events(self, first: int = FIRST_STEP, kind: str | None = None) -> Iterator[tuple[int, Event]]:
        """Serials and events in order, none where all are before `first`; of one kind no others are taken apart."""
        if self._events is not None:
            yield from (entry for entry in self._events if kind in (None, entry[1].kind))
            return
        table = self._tables.get("events")
        groups = table.groups_since(first) if table else []
        read = table.read(groups, ["step", "serial", "time", "kind", "json"]) if table and groups else None
        if table is None or read is None:
            return
        try:
            found = list(self._unpack_events(read, kind))
        except (EncodingError, UnfitTableError) as error:
            table.refuse(error)
            return
        if first == FIRST_STEP and kind is None:
            self._events = found
        yield from found

    def _unpack_events(self, read: Any, kind: str | None) -> Iterator[tuple[int, Event]]:
        steps, serials, times = (read.column(name).to_pylist() for name in ("step", "serial", "time"))
        kinds, bodies = texts_of(read.column("kind")), texts_of(read.column("json"))
        total = 0
        for number, name in enumerate(kinds):
            if kind in (None, name):
                total += len(bodies[number])
                if total > _MOST_EVENT_BYTES or not abs(times[number]) < 2.0**36:
                    raise UnfitTableError("its events are larger than a run's can be, or of no time")
                yield (
                    serials[number],
                    decode_event(bodies[number].encode(), steps[number], self.key.rank, times[number]),
                )

    def vectors(self, name: str, site: int) -> Iterator[tuple[int, npt.NDArray[Any]]]:
        """Steps and vectors of one site, in order."""
        mine = np.flatnonzero(self.numbers == site)
        for label, table in self._tables.items():
            if label.split(":", 2)[0] != "vectors" or label.split(":", 2)[2] != name or not len(mine):
                continue
            read = table.read(table.groups_of_site(int(mine[0]), int(mine[0])), ["step", "site", "values"])
            if read is None:
                continue
            steps, sites = read.column("step").to_numpy(), read.column("site").to_numpy()
            for row in np.flatnonzero(sites == mine[0]):
                yield (
                    int(steps[row]),
                    read.column("values")[int(row)].values.to_numpy(zero_copy_only=False),
                )

    def vectors_from(self, name: str, first: int) -> Iterator[tuple[int, IntArray, Sequence[npt.NDArray[Any]]]]:
        """Step, site and values of each vector from a step on, by step."""
        found: list[tuple[int, int, npt.NDArray[Any]]] = []
        for label, table in self._tables.items():
            if label.split(":", 2)[0] != "vectors" or label.split(":", 2)[2] != name:
                continue
            groups = table.groups_since(first)
            read = table.read(groups, ["step", "site", "values"]) if groups else None
            if read is None:
                continue
            steps, sites, values = read.column("step").to_numpy(), read.column("site").to_numpy(), read.column("values")
            for row in np.flatnonzero((steps >= first) & (sites < len(self.numbers))):
                vector = values[int(row)].values.to_numpy(zero_copy_only=False)
                found.append((int(steps[row]), int(self.numbers[sites[row]]), vector))
        for step, site, vector in sorted(found, key=lambda one: one[0]):
            yield step, np.array([site]), [vector]

    def buckets(self, begin: int, end: int, stats: Sequence[str] = STATS) -> DenseBuckets | None:
        """The stored buckets of the sites begin..end-1 of the manifest; None where they cannot be trusted."""
        first_step, last_step = self.span
        if self.segment.thinned:  # its buckets may begin before the first row that is left
            size = max(self.segment.thinned, 1 << BASE_LEVEL)
            first_step = first_step // size * size
        first = first_step >> BASE_LEVEL
        out = DenseBuckets.empty(BASE_LEVEL, first, end - begin, (last_step >> BASE_LEVEL) - first + 1, len(stats))
        table = self._tables["pyramid"]
        names = ["step", "site", "count_count", *(f"{name}_max" for name in BROKEN_BY)]
        names += [f"{stat}_{part}" for stat in stats for part in ("min", "max", "mean")]
        found = table.read(table.groups_of_site(begin, end - 1), dict.fromkeys(names))
        if found is None:
            return None
        read = {name: found.column(name).to_numpy() for name in dict.fromkeys(names)}
        sites, target = read["site"].astype(np.int64) - begin, (read["step"] >> BASE_LEVEL) - first
        kept = (sites >= 0) & (sites < end - begin) & (target >= 0) & (target < out.low.shape[1])
        where = sites[kept], target[kept]
        for index, name in enumerate(stats):
            out.low[(*where, index)] = read[f"{name}_min"][kept]
            out.high[(*where, index)] = read[f"{name}_max"][kept]
            out.mean[(*where, index)] = read[f"{name}_mean"][kept]
        out.rows[where] = np.maximum(read["count_count"][kept], 1)
        infinite = (read["num_posinf_max"][kept] > 0) | (read["num_neginf_max"][kept] > 0)
        out.broken[where] = np.where(read["num_nan_max"][kept] > 0, NAN, np.where(infinite, INF, 0))
        return out

    def site_buckets(self, site: int, stat: str) -> SiteBuckets | None:
        """One statistic of one site in buckets of the stored level; None where there are none."""
        table, mine = self._tables.get("pyramid"), np.flatnonzero(self.numbers == site)
        if table is None or stat not in INDEX or not len(mine):
            return None
        names = ["step", "site", *(f"{stat}_{part}" for part in ("min", "max", "mean", "last", "count"))]
        read = table.read(table.groups_of_site(int(mine[0]), int(mine[0])), names)
        if read is None:
            return None
        kept = read.column("site").to_numpy() == mine[0]
        columns = [read.column(name).to_numpy()[kept] for name in names]
        low, high, mean, last = (column.astype(np.float64) for column in columns[2:6])
        level = max(BASE_LEVEL, self.segment.thinned.bit_length() - 1)
        return SiteBuckets(level, columns[0], low, high, mean, last, np.nan_to_num(columns[6]).astype(np.int64))


def _most_rows(segment: Segment, name: str) -> int:
    return {"rows": segment.num_rows, "pyramid": SEGMENT_ROWS}.get(name, MOST_ROWS)


def _row_numbers(groups: Groups, num_rows: int) -> IntArray:
    """The indices in the file of the rows of these groups."""
    return np.concatenate(
        [np.arange(g * ROW_GROUP_ROWS, min((g + 1) * ROW_GROUP_ROWS, num_rows), dtype=np.int64) for g in groups]
    )
