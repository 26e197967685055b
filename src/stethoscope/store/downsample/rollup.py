"""A rollup: the buckets of several segments, or of several lower rollups, as one sealed file of longer buckets.

Sites lie one after the other, each with `count` buckets, so that what is asked for is found by counting.
"""

from __future__ import annotations

import dataclasses
import io
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from stethoscope.record import IntArray
from stethoscope.store.checked import Fields
from stethoscope.store.downsample.buckets import BASE_LEVEL
from stethoscope.store.downsample.dense import PARTS, STATS, DenseBuckets
from stethoscope.store.frame_file import Problem
from stethoscope.store.json_payload import EncodingError
from stethoscope.store.pieces import StartKey, checked_key, checked_parts
from stethoscope.store.sealed_file import Sealed
from stethoscope.store.sealed_table import SealedTable

LEVELS_PER_HEIGHT: Final = 2
_MOST_HEIGHT: Final = 16
_MOST_ROWS: Final = 1 << 26
"""Buckets of all sites of one rollup; they are read a few sites at a time."""


@dataclasses.dataclass(slots=True)
class Rollup:
    """What the manifest says of one rollup."""

    key: StartKey
    height: int
    """1 of segments, 2 of rollups of height 1, and so on."""
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

    @property
    def span(self) -> tuple[int, int]:
        """The first and last step that its buckets could hold."""
        return self.first << self.level, ((self.first + self.count) << self.level) - 1

    def stands_for(self, key: StartKey, part: int) -> bool:
        """Whether a journal file, or the segment that begins with it, is in here."""
        return self.key == key and self.parts[0] <= part <= self.parts[1]

    def to_json(self) -> dict[str, Any]:
        """As plain JSON values."""
        return dataclasses.asdict(self) | {"key": self.key.to_json(), "file": self.file.to_json()}

    @classmethod
    def from_json(cls, body: Any, rank: int, most_sites: int) -> Rollup:
        """The inverse of `to_json`; EncodingError where a field is not so, or reaches outside of this rank's files."""
        fields = Fields(body, "a rollup")
        height = fields.whole("height", 1, _MOST_HEIGHT)
        found = cls(
            checked_key(fields.items("key"), rank),
            height,
            fields.whole("level", 0, BASE_LEVEL + LEVELS_PER_HEIGHT * height),
            checked_parts(fields.items("parts", int)),
            fields.whole("first", -(2**56), 2**56),
            fields.whole("count", 1, _MOST_ROWS),
            fields.whole("num_sites", 0, most_sites),
            fields.whole("group_sites", 1),
            Sealed.from_json(fields.object("file")),
        )
        if found.count * found.num_sites > _MOST_ROWS or len(found.parts) != 2:
            raise EncodingError("a rollup has more buckets than one can have, or not two parts")
        if not re.fullmatch(
            rf"ladder/rank={rank}/rung-\d{{4,9}}-[0-9a-f]{{8}}-[\d-]{{1,40}}\.parquet", found.file.path, re.ASCII
        ):
            raise EncodingError(f"path of a rollup is not one of this rank: {found.file.path!r:.100}")
        return found


class RollupPiece:
    """A rollup open for reading. `numbers` gives the run-wide number of each site of the manifest."""

    def __init__(self, run: Path, rollup: Rollup, numbers: IntArray) -> None:
        self.rollup, self.numbers = rollup, numbers[: rollup.num_sites]
        self.parts, self.span = rollup.parts, rollup.span
        self.problems: list[Problem] = []
        self._table = SealedTable(run, rollup.file, self.problems, most_rows=rollup.count * rollup.num_sites)

    def buckets(self, begin: int, end: int, stats: Sequence[str] = STATS) -> DenseBuckets | None:
        """The buckets of the sites begin..end-1 of the manifest; None where they cannot be trusted."""
        rollup = self.rollup
        end = min(end, rollup.num_sites)
        if end <= begin:
            return DenseBuckets.empty(rollup.level, rollup.first, 0, rollup.count, len(stats))
        low_group, high_group = begin // rollup.group_sites, (end - 1) // rollup.group_sites
        names = ["rows", "broken", *(f"{name}_{part}" for part in PARTS for name in stats)]
        found = self._table.read(list(range(low_group, high_group + 1)), names)
        if found is None:
            return None
        offset = begin - low_group * rollup.group_sites

        def column(name: str) -> npt.NDArray[Any]:
            out: npt.NDArray[Any] = found.column(name).to_numpy().reshape(-1, rollup.count)
            return out[offset : offset + end - begin]

        low, high, mean = (np.stack([column(f"{name}_{part}") for name in stats], axis=2) for part in PARTS)
        return DenseBuckets(rollup.level, rollup.first, low, high, mean, column("rows"), column("broken"))


class RollupWriter:
    """A rollup's file, some sites at a time."""

    def __init__(self, count: int) -> None:
        self._sink, self._count = io.BytesIO(), count
        self._writer: Any = None

    def write(self, buckets: DenseBuckets, group_sites: int) -> None:
        """Appends these sites."""
        import pyarrow as pa
        import pyarrow.parquet as pq

        columns: dict[str, Any] = {"rows": pa.array(buckets.rows.ravel()), "broken": pa.array(buckets.broken.ravel())}
        for index, name in enumerate(STATS):
            for part, table in zip(PARTS, (buckets.low, buckets.high, buckets.mean), strict=True):
                columns[f"{name}_{part}"] = pa.array(np.ascontiguousarray(table[:, :, index]).ravel())
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
