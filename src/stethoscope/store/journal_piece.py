"""A journal file as a piece of a run: what is in it is known as it grows, rows are decoded when they are asked for."""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence, Sized
from typing import Any

import numpy as np
import numpy.typing as npt

from stethoscope.kernels.columns import COLUMNS, Table, merge
from stethoscope.record import FloatArray, IntArray
from stethoscope.store.cache import ByteCache
from stethoscope.store.checked import Fields, checked_end, checked_losses
from stethoscope.store.encoding import Rows, decode_rows, decode_vectors, vectors_name
from stethoscope.store.frame_file import FrameAt, FrameFile, FrameIndex, Problem
from stethoscope.store.frames import FrameError, FrameKind
from stethoscope.store.json_payload import EncodingError, decode_json
from stethoscope.store.pieces import (
    ALL_COLUMNS,
    FIRST_STEP,
    MOST_PROBLEMS,
    MOST_SITES,
    Chunk,
    Event,
    StartKey,
    decode_event,
)
from stethoscope.store.scalars_payload import Scalars, decode_scalars, decode_scalars_of_step
from stethoscope.store.sitetable import SiteTable


class JournalPiece:
    """One journal file."""

    def __init__(self, file: FrameFile, key: StartKey, part: int, table: SiteTable, cache: ByteCache[bytes]) -> None:
        self.key, self.part, self.file = key, part, file
        self.num_rows = 0
        self.ended: dict[str, Any] | None = None
        self.losses: dict[str, int] = {}
        self.last_time = 0.0
        self.problems: list[Problem] = []
        self._table, self._cache = table, cache
        self._numbers = np.empty(0, np.int64)
        self._last_sites: tuple[bytes, IntArray] = b"", self._numbers
        self._room = self._numbers
        self._met: set[int] = set()
        self._has_twins = False
        self._rows = FrameIndex()
        self._known_steps = 0, np.empty(0, np.int64)
        self._scalars, self._scalars_of_steps = FrameIndex(), FrameIndex()
        self._by_name: dict[str, tuple[array[int], array[float]]] = {}
        self._last_told = FIRST_STEP
        """The latest step of any scalar or event: a reader of later ones need not open the piece."""
        self._told = FrameIndex()
        self._told_serials, self._told_times = array("Q"), array("d")
        self._events: list[Event] = []
        """The events at the offsets of `_told`; none where memory is short, and they are read again."""
        self._vectors: dict[str, FrameIndex] = {}

    @property
    def is_closed(self) -> bool:
        """Whether its last frame says that nothing follows."""
        return self.file.is_closed

    @property
    def is_empty(self) -> bool:
        """Whether it holds no row, scalar, event or vector."""
        indexes: list[Sized] = [self._rows, self._scalars, self._scalars_of_steps, self._told, self._vectors]
        return not any(len(index) for index in indexes)

    def advance(self) -> bool:
        """Reads what came since; True where that is anything."""
        has_new = False
        for frame, payload in self.file.stream():
            has_new = True
            self.last_time = max(self.last_time, frame.header.time)
            try:
                self._take_frame(frame, payload)
            except EncodingError as error:
                if len(self.problems) < MOST_PROBLEMS:
                    self.problems.append(
                        Problem(self.file.label, frame.offset, f"a frame cannot be understood: {error}", 1)
                    )
        return has_new

    def all_problems(self, *, is_live: bool) -> list[Problem]:
        """Damage, and the torn tail where the file is not being written right now."""
        tail = self.file.tail
        found = self.file.damage + self.problems
        return found if tail is None or (is_live and tail.is_torn_tail) else [*found, tail]

    def _take_frame(self, frame: FrameAt, payload: bytes) -> None:
        kind, step = frame.header.kind, frame.header.step
        if kind == FrameKind.ROWS:
            rows = decode_rows(payload)
            if rows.num_columns != len((self.file.head or {}).get("columns") or COLUMNS):
                raise EncodingError(f"rows of {rows.num_columns} columns, other than the file's head says")
            self._check_sites(rows, frame)
            if len(rows):
                self._cache.put(self.file.label, frame.offset, payload)
                self._rows.add(frame)
                self.num_rows += len(rows)
        elif kind == FrameKind.SCALARS:
            self._take_scalars(decode_scalars(payload))
            self._scalars.add(frame)
        elif kind == FrameKind.SCALARS_OF_STEP:
            self._take_scalars(decode_scalars_of_step(payload, step))
            self._scalars_of_steps.add(frame)
        elif kind == FrameKind.EVENT:
            event = self._decode_event(step, frame.header.time, payload)
            if not self._cache.is_small:
                self._events.append(event)
            self._told.add(frame)
            self._told_serials.append(frame.header.serial)
            self._told_times.append(frame.header.time)
            self._last_told = max(self._last_told, step)
        elif kind == FrameKind.VECTORS:
            self._vectors.setdefault(vectors_name(payload), FrameIndex()).add(frame)
        elif kind == FrameKind.SITES:
            self._learn_sites(payload, frame.header.payload_checksum)
        elif kind == FrameKind.HEALTH:
            self.losses = checked_losses(decode_json(payload))
        elif kind == FrameKind.END:
            self.ended, self.losses = checked_end(decode_json(payload))

    def _decode_event(self, step: int, time: float, payload: bytes) -> Event:
        return decode_event(payload, step, self.key.rank, time)

    def _take_scalars(self, scalars: Scalars) -> None:
        if len(scalars.steps):
            self._last_told = max(self._last_told, int(scalars.steps.max()))
        for name, steps, values in scalars.by_name():
            known = self._by_name.setdefault(name, (array("q"), array("d")))
            known[0].frombytes(steps.tobytes())
            known[1].frombytes(values.tobytes())

    def _learn_sites(self, payload: bytes, checksum: bytes) -> None:
        # Each file of a start repeats the description, which is large where there are 10,000 layers: it is decoded once.
        known = self._table.described(checksum)
        if known is None:
            fields = Fields(decode_json(payload), "the description of the sites")
            first, infos = fields.whole("first", 0, MOST_SITES), fields.items("sites", dict)
            if first + len(infos) > MOST_SITES:
                raise EncodingError(f"more than {MOST_SITES} sites")
            known = self._table.describe(checksum, first, infos)
        first, found = known
        end = first + len(found)
        if end > len(self._room):
            # Sites come one by one, ten thousand of them: the room for their numbers grows by doubling.
            room = np.full(max(end, 2 * len(self._room)), -1, np.int64)
            room[: len(self._room)] = self._room
            self._room = room
        self._room[first:end] = found
        self._numbers = self._room[: max(len(self._numbers), end)]
        self._last_sites = b"", self._numbers[:0]
        for number in found:
            self._has_twins |= number in self._met
            self._met.add(number)

    def _check_sites(self, rows: Rows, frame: FrameAt) -> None:
        unknown = int((self._sites_of(rows) < 0).sum())
        if unknown:
            what = f"{unknown} rows of step {frame.header.step} are of sites whose description was lost"
            self.problems.append(Problem(self.file.label, frame.offset, what, 0))

    def _sites_of(self, rows: Rows) -> IntArray:
        """The run-wide numbers of a frame's sites; most frames name the same ones, so the last is kept."""
        key = rows.index_bytes
        if self._last_sites[0] != key:
            self._last_sites = key, self._site_numbers(rows.index)
        return self._last_sites[1]

    def _site_numbers(self, index: npt.NDArray[np.uint32]) -> IntArray:
        if not len(self._numbers):
            return np.full(len(index), -1, np.int64)
        inside = np.minimum(index, len(self._numbers) - 1)
        return np.where(index < len(self._numbers), self._numbers[inside], -1)

    def _read_payload(self, offset: int) -> bytes:
        """The payload that lies there, from memory or from the file."""
        found = self._cache.get(self.file.label, offset)
        if found is None:
            found = self.file.payload(offset)
            self._cache.put(self.file.label, offset, found)
        return found

    def steps(self) -> IntArray:
        """The steps that have rows, rising."""
        if len(self._known_steps[1]) == 0 or self._known_steps[0] != len(self._rows):
            found = np.unique(np.array(self._rows.steps, np.int64))
            self._known_steps = len(self._rows), found
        return self._known_steps[1]

    def chunks(self, columns: tuple[int, ...], wanted: npt.NDArray[np.bool_], first: int, last: int) -> Iterator[Chunk]:
        """The rows of the wanted sites and steps, with these columns."""
        if not len(wanted):
            return
        before, kept, sites = None, np.empty(0, np.int64), np.empty(0, np.int64)
        for step, offset in self._rows:
            if not first <= step <= last:
                continue
            try:
                rows = decode_rows(self._read_payload(offset))
            except (FrameError, EncodingError) as error:
                problem = Problem(self.file.label, offset, f"{error}, since it was first read", 1)
                if problem not in self.problems:
                    self.problems.append(problem)
                continue
            numbers = self._sites_of(rows)
            if numbers is not before:
                before, kept = numbers, np.flatnonzero((numbers >= 0) & wanted[np.maximum(numbers, 0)])
                sites = numbers[kept]
            if len(kept):
                yield self._make_chunk(step, rows, sites, kept, columns)

    def _make_chunk(self, step: int, rows: Rows, sites: IntArray, kept: IntArray, columns: tuple[int, ...]) -> Chunk:
        calls = rows.calls[kept].astype(np.int64)
        if self._has_twins and len(np.unique(sites)) < len(sites):
            table = self._select_columns(rows, ALL_COLUMNS)[kept]
            sites, table, calls = merge_twins(sites, table, calls)
            return Chunk(step, sites, table[:, list(columns)], calls)
        return Chunk(step, sites, self._select_columns(rows, columns)[kept], calls)

    def _select_columns(self, rows: Rows, columns: tuple[int, ...]) -> Table:
        """The asked columns by name: a file written with other columns still gives those it has."""
        names = (self.file.head or {}).get("columns") or list(COLUMNS)
        out = np.empty((len(rows), len(columns)))
        for k, column in enumerate(columns):
            if names == list(COLUMNS):
                out[:, k] = rows.column(column)
            elif COLUMNS[column] in names:
                out[:, k] = rows.column(names.index(COLUMNS[column]))
            else:
                out[:, k] = np.nan
        return out

    def scalars(self) -> Iterator[Scalars]:
        """The named numbers, in order of writing."""
        for step, offset in self._scalars_of_steps:
            yield decode_scalars_of_step(self._read_payload(offset), step)
        for _, offset in self._scalars:
            yield decode_scalars(self._read_payload(offset))

    def metric_names(self) -> set[str]:
        """The names of the scalars."""
        return set(self._by_name)

    def metric(self, name: str, first: int = FIRST_STEP) -> tuple[IntArray, FloatArray]:
        """Steps and values of one scalar in order of writing, none where all are before `first`."""
        found = self._by_name.get(name) if self._last_told >= first else None
        if found is None:
            return np.empty(0, np.int64), np.empty(0)
        return np.array(found[0], np.int64), np.array(found[1], np.float64)

    def events(self, first: int = FIRST_STEP, kind: str | None = None) -> Iterator[tuple[int, Event]]:
        """Serials and events in order, from `first` on, of one kind or all."""
        for number, (step, offset) in enumerate(self._told if self._last_told >= first else ()):
            if step < first:
                continue
            if self._cache.is_small:
                event = self._decode_event(step, self._told_times[number], self._read_payload(offset))
            else:
                event = self._events[number]
            if kind in (None, event.kind):
                yield self._told_serials[number], event

    def vectors(self, name: str, site: int) -> Iterator[tuple[int, npt.NDArray[Any]]]:
        """Steps and vectors of one site, in order."""
        for step, offset in self._vectors.get(name, ()):
            _, index, values = decode_vectors(self._read_payload(offset))
            for row in np.flatnonzero(self._site_numbers(index) == site):
                yield step, values[row]

    def vectors_from(self, name: str, first: int) -> Iterator[tuple[int, IntArray, Sequence[npt.NDArray[Any]]]]:
        """Step, sites and values of the vectors from a step on, in order of writing."""
        for step, offset in self._vectors.get(name, ()):
            if step >= first:
                _, index, values = decode_vectors(self._read_payload(offset))
                numbers = self._site_numbers(index)
                yield step, numbers[numbers >= 0], list(values[numbers >= 0])

    def all_vectors(self) -> Iterator[tuple[str, int, IntArray, npt.NDArray[Any]]]:
        """Name, step, sites and values of every vectors frame, in order of writing."""
        frames = sorted((offset, step) for found in self._vectors.values() for step, offset in found)
        for offset, step in frames:
            name, index, values = decode_vectors(self._read_payload(offset))
            numbers = self._site_numbers(index)
            yield name, step, numbers[numbers >= 0], values[numbers >= 0]

    def site_buckets(self, site: int, stat: str) -> None:  # noqa: ARG002 - a journal stores none
        """None: a journal holds no buckets, its rows are folded by the caller."""
        return


def merge_twins(sites: IntArray, table: Table, calls: IntArray) -> tuple[IntArray, Table, IntArray]:
    """Rows of sites that bear the same name, taken together as one tensor's."""
    order = np.argsort(sites, kind="stable")
    kept_sites: list[int] = []
    kept_rows: list[npt.NDArray[np.float64]] = []
    kept_calls: list[int] = []
    for row in order:
        if kept_sites and kept_sites[-1] == sites[row]:
            kept_rows[-1] = merge(kept_rows[-1], table[row])
            kept_calls[-1] += int(calls[row])
        else:
            kept_sites.append(int(sites[row]))
            kept_rows.append(table[row])
            kept_calls.append(int(calls[row]))
    return np.array(kept_sites, np.int64), np.array(kept_rows), np.array(kept_calls, np.int64)
