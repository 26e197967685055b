"""The ladder: pyramids of many segments taken together, coarser and coarser, so that a long run is seen at once.

A segment holds a minute of a large run; its own buckets are level `BASE_LEVEL`. Every `STEPS_UP` of them are taken
together as one rung, every `STEPS_UP` rungs as one of the next height with buckets four times as long, and so on: a
million steps are a few files. Lower rungs stay, for zooming in. A rung is dense: `count` buckets of each site, one
after the other, so that what is asked for is found by counting. As in sealing, a rung is durable before the
manifest names it. Values that are no number are left out of lowest, highest and mean; `broken` says where they were.
"""

from __future__ import annotations

import dataclasses
import io
import itertools
import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from stethoscope.kernels.columns import COLUMNS
from stethoscope.record import IntArray
from stethoscope.store.checked import Fields
from stethoscope.store.encoding import EncodingError
from stethoscope.store.locate import MOST_PARTS
from stethoscope.store.pieces import StartKey
from stethoscope.store.pyramid import BASE_LEVEL
from stethoscope.store.sums import Sealed, write_sealed

STEPS_UP: Final = 16
LEVELS_UP: Final = 2
LOST: Final = ("num_nan", "num_posinf", "num_neginf")
STATS: Final = tuple(name for name in COLUMNS if name not in LOST)
"""What rungs hold, each as `_min`, `_max` and `_mean`."""
PARTS: Final = ("min", "max", "mean")
INF, NAN = 1, 2
_GROUP_ROWS: Final = 32 << 10
_CHUNK_VALUES: Final = 4 << 20
"""Numbers worked on at a time: what a climb takes of memory is a few times this."""

_MOST_HEIGHT: Final = 16
_MOST_ROWS: Final = 1 << 26
"""Buckets of all sites of one rung; they are read a few sites at a time."""

Single = npt.NDArray[np.float32]


def checked_key(parts: list[Any], rank: int) -> StartKey:
    """The key of a process start of this rank; EncodingError where it is another's or none."""
    if (
        len(parts) != 3
        or parts[0] != rank
        or not isinstance(parts[1], int)
        or not re.fullmatch("[0-9a-f]{8}", str(parts[2]))
    ):
        raise EncodingError(f"the key of a process start is not one of rank {rank}: {parts!r:.100}")
    return StartKey(rank, parts[1], parts[2])


def checked_parts(parts: list[int]) -> list[int]:
    """The numbers of journal files, rising or equal."""
    if not parts or parts[0] < 0 or parts[-1] > MOST_PARTS or any(a > b for a, b in itertools.pairwise(parts)):
        raise EncodingError(f"parts are not rising numbers of journals up to {MOST_PARTS}")
    return parts


@dataclasses.dataclass(slots=True)
class Rung:
    """What the manifest says of one rung."""

    key: StartKey
    height: int
    level: int
    parts: list[int]
    """The first and last journal file that it stands for."""
    first: int
    """The number of its first bucket: the step divided by 2**level."""
    count: int
    num_sites: int
    group_sites: int
    """Sites in a row group."""
    file: Sealed

    def to_json(self) -> dict[str, Any]:
        """As plain JSON values."""
        body = dataclasses.asdict(self)
        return body | {"key": [self.key.rank, self.key.ordinal, self.key.token], "file": self.file.to_json()}

    @classmethod
    def from_json(cls, body: Any, rank: int, most_sites: int) -> Rung:
        """The inverse of `to_json`; EncodingError where a field is not so, or reaches outside of this rank's files."""
        fields = Fields(body, "a rung")
        height = fields.whole("height", 1, _MOST_HEIGHT)
        found = cls(
            checked_key(fields.items("key"), rank),
            height,
            fields.whole("level", 0, BASE_LEVEL + LEVELS_UP * height),
            checked_parts(fields.items("parts", int)),
            fields.whole("first", -(2**56), 2**56),
            fields.whole("count", 1, _MOST_ROWS),
            fields.whole("num_sites", 0, most_sites),
            fields.whole("group_sites", 1),
            Sealed.from_json(fields.object("file")),
        )
        if found.count * found.num_sites > _MOST_ROWS or len(found.parts) != 2:
            raise EncodingError("a rung has more buckets than a ladder's can, or not two parts")
        if not re.fullmatch(
            rf"ladder/rank={rank}/rung-\d{{4,9}}-[0-9a-f]{{8}}-[\d-]{{1,40}}\.parquet", found.file.path, re.ASCII
        ):
            raise EncodingError(f"path of a rung is not one of this rank: {found.file.path!r:.100}")
        return found


@dataclasses.dataclass(slots=True, eq=False)
class Folded:
    """Buckets of some sites: `low`, `high`, `mean` [sites, buckets, stats], `rows` and `broken` [sites, buckets]."""

    level: int
    first: int
    low: Single
    high: Single
    mean: Single
    rows: npt.NDArray[np.uint32]
    broken: npt.NDArray[np.uint8]

    @classmethod
    def empty(cls, level: int, first: int, num_sites: int, count: int, num_stats: int) -> Folded:
        """Buckets in which nothing is."""
        shape = (num_sites, count, num_stats)
        low, high, mean = (np.full(shape, np.nan, np.float32) for _ in range(3))
        flat = shape[:2]
        return cls(level, first, low, high, mean, np.zeros(flat, np.uint32), np.zeros(flat, np.uint8))

    def add(self, other: Folded, sites: IntArray | slice = slice(None)) -> None:
        """Takes up finer or equal buckets; of `other`'s sites the n-th is `sites[n]` here."""
        shift = self.level - other.level
        place = ((np.arange(other.low.shape[1]) + other.first) >> shift) - self.first
        inside = np.flatnonzero((place >= 0) & (place < self.low.shape[1]))
        if not len(inside):
            return
        place = place[inside]
        edges = np.flatnonzero(np.diff(place, prepend=place[0] - 1))
        cut, at = slice(int(inside[0]), int(inside[-1]) + 1), slice(int(place[0]), int(place[-1]) + 1)
        sums, weights = _weighted(other.mean[:, cut], other.rows[:, cut], edges)
        low = np.fmin.reduceat(other.low[:, cut], edges, axis=1)
        high = np.fmax.reduceat(other.high[:, cut], edges, axis=1)
        broken = np.maximum.reduceat(other.broken[:, cut], edges, axis=1)
        self.low[sites, at] = np.fmin(self.low[sites, at], low)
        self.high[sites, at] = np.fmax(self.high[sites, at], high)
        self.broken[sites, at] = np.maximum(self.broken[sites, at], broken)
        old = self.rows[sites, at].astype(np.float64)[..., None]
        known = np.nan_to_num(self.mean[sites, at].astype(np.float64)) * np.where(
            np.isnan(self.mean[sites, at]), 0, old
        )
        old = np.where(np.isnan(self.mean[sites, at]), 0.0, old)
        with np.errstate(invalid="ignore", divide="ignore", over="ignore"):
            self.mean[sites, at] = ((known + sums) / (old + weights)).astype(np.float32)
        self.rows[sites, at] += np.add.reduceat(other.rows[:, cut], edges, axis=1)


def _weighted(mean: Single, rows: npt.NDArray[np.uint32], edges: IntArray) -> tuple[Any, Any]:
    """Sums and weights of means over buckets that are taken together; what is no number has no weight."""
    there = ~np.isnan(mean)
    weights = np.where(there, rows[..., None], 0).astype(np.float64)
    sums = np.where(there, mean, 0.0) * weights
    return np.add.reduceat(sums, edges, axis=1), np.add.reduceat(weights, edges, axis=1)


def from_steps(steps: IntArray, values: Any, lost: Any, level: int) -> Folded:
    """Rows [steps, sites, stats] as buckets; `lost` [steps, sites] is INF or NAN where not every element is finite,
    255 where there is no row."""
    first = int(steps[0]) >> level
    count = (int(steps[-1]) >> level) - first + 1
    out = Folded.empty(level, first, values.shape[1], count, values.shape[2])
    place = (steps >> level) - first
    edges = np.flatnonzero(np.diff(place, prepend=-1))
    at = place[edges]
    with np.errstate(over="ignore", invalid="ignore"):
        single = values.astype(np.float32)
    out.low[:, at] = np.fmin.reduceat(single, edges, axis=0).transpose(1, 0, 2)
    out.high[:, at] = np.fmax.reduceat(single, edges, axis=0).transpose(1, 0, 2)
    there = ~np.isnan(values)
    with np.errstate(invalid="ignore", divide="ignore", over="ignore"):
        total = np.add.reduceat(np.where(there, values, 0.0), edges, axis=0)
        mean = total / np.add.reduceat(there.astype(np.float64), edges, axis=0)
        out.mean[:, at] = mean.astype(np.float32).transpose(1, 0, 2)
    out.rows[:, at] = np.add.reduceat((lost != 255).astype(np.uint32), edges, axis=0).T
    out.broken[:, at] = np.maximum.reduceat(np.where(lost == 255, 0, lost).astype(np.uint8), edges, axis=0).T
    return out


class Unit:
    """Something that a rung is made of: a segment's pyramid, or a rung of the height below."""

    def __init__(self, parts: list[int], span: tuple[int, int], read: Callable[[int, int], Folded | None]) -> None:
        self.parts, self.span, self.read = parts, span, read
        """`read` takes the first site and the one after the last; `span` is the first and last step."""


def climb(
    run: Path,
    rank: int,
    num_sites: int,
    ladder: list[Rung],
    units: Callable[[StartKey, int], Sequence[Unit]],
    keys: Sequence[StartKey],
) -> Iterator[Rung]:
    """Makes every rung that is due, lowest first; each is appended to `ladder` by whoever asked, once it is durable."""
    for key in keys:
        for height in itertools.count(1):
            done = {rung.parts[1] for rung in ladder if rung.key == key and rung.height == height}
            waiting = [unit for unit in units(key, height - 1) if unit.parts[0] > max(done, default=-1)]
            for begin in range(0, len(waiting) - STEPS_UP + 1, STEPS_UP):
                rung = _build(run, rank, key, height, num_sites, waiting[begin : begin + STEPS_UP])
                if rung is None:
                    return
                yield rung
            if len(waiting) < STEPS_UP and not done:
                break


def _build(run: Path, rank: int, key: StartKey, height: int, num_sites: int, units: Sequence[Unit]) -> Rung | None:
    """One rung, written; None where a unit cannot be trusted."""
    level = BASE_LEVEL + LEVELS_UP * (height - 1)
    first = min(unit.span[0] for unit in units) >> level
    count = (max(unit.span[1] for unit in units) >> level) - first + 1
    group = max(1, _GROUP_ROWS // count)
    chunk = max(1, _CHUNK_VALUES // (count * len(STATS) * len(PARTS)) // group) * group
    writer = RungWriter(count)
    for begin in range(0, num_sites, chunk):
        end = min(num_sites, begin + chunk)
        folded = Folded.empty(level, first, end - begin, count, len(STATS))
        for unit in units:
            part = unit.read(begin, end)
            if part is None:
                return None
            folded.add(part, slice(0, len(part.low)))
        writer.write(folded, group)
    parts = [units[0].parts[0], units[-1].parts[-1]]
    path = f"ladder/rank={rank}/rung-{key.ordinal:04d}-{key.token}-{height}-{parts[0]:06d}-{parts[1]:06d}.parquet"
    sealed = write_sealed(run, path, writer.close())
    return Rung(key, height, level, parts, first, count, num_sites, group, sealed)


class RungWriter:
    """A rung's file, some sites at a time."""

    def __init__(self, count: int) -> None:
        self._sink, self._count = io.BytesIO(), count
        self._writer: Any = None

    def write(self, folded: Folded, group_sites: int) -> None:
        """Appends these sites."""
        import pyarrow as pa
        import pyarrow.parquet as pq

        columns: dict[str, Any] = {"rows": pa.array(folded.rows.ravel()), "broken": pa.array(folded.broken.ravel())}
        for place, name in enumerate(STATS):
            for part, table in zip(PARTS, (folded.low, folded.high, folded.mean), strict=True):
                columns[f"{name}_{part}"] = pa.array(np.ascontiguousarray(table[:, :, place]).ravel())
        table = pa.table(columns)
        if self._writer is None:
            floating = {name: "BYTE_STREAM_SPLIT" for name in columns if name not in ("rows", "broken")}
            self._writer = pq.ParquetWriter(
                self._sink,
                table.schema,
                compression="zstd",
                compression_level=3,
                write_statistics=False,
                use_dictionary=["rows", "broken"],
                column_encoding=floating,
            )
        self._writer.write_table(table, row_group_size=group_sites * self._count)

    def close(self) -> bytes:
        """The file's bytes."""
        self._writer.close()
        return self._sink.getvalue()
