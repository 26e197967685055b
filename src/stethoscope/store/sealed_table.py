"""One sealed Parquet file: what its footer says is tested before anything is read, and every byte before Arrow sees it."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np

from stethoscope.kernels.columns import COLUMNS
from stethoscope.store.frame_file import Problem
from stethoscope.store.sealed_file import BlockDamagedError, Sealed, VerifiedFile

Groups = list[int]
TEXTS: Final = frozenset({"name", "kind", "json", "module"})
"""Columns of text. They are read as numbers into a list of texts: a text that a million rows share is held once."""
MOST_READ_BYTES: Final = 256 << 20
"""What one reading may unpack to."""
MOST_ROWS: Final = 8 << 20
"""Of tables whose number of rows no manifest says: scalars, events, vectors."""
_MOST_FOOTER: Final = 16 << 20
_MOST_GROUPS: Final = 1 << 16
_MOST_COLUMNS: Final = 1024
_EVERY_STEP: Final = 2**63 - 1
"""The last step of a row group that does not say it: any may be there."""


class UnfitTableError(ValueError):
    """A Parquet file that is not the table it should be, or unpacks to more than a reader can hold."""


class SealedTable:
    """One sealed Parquet file. Its footer is kept unless memory is short, its descriptor is not."""

    def __init__(
        self,
        run: Path,
        sealed: Sealed,
        problems: list[Problem],
        *,
        keeps_footer: bool = True,
        most_rows: int = MOST_ROWS,
    ) -> None:
        """`most_rows` is what its manifest leaves room for: equal rows take no bytes, so the file's size bounds none."""
        self.sealed = sealed
        self.problems = problems
        self._run, self._keeps_footer = run, keeps_footer
        self._most_rows = most_rows
        self._metadata: Any = None
        self._last_step: int | None = None

    def num_groups(self) -> int:
        """How many row groups there are; 0 where the file cannot be trusted at all."""
        self._open_metadata()
        return int(self._metadata.num_row_groups) if self._metadata is not None else 0

    def groups_of_site(self, low: int, high: int) -> Groups:
        """The row groups that may hold sites low..high."""
        found = []
        for group in range(self.num_groups()):
            span = self._value_range(group, "site")
            if span is None or (span[0] <= high and span[1] >= low):
                found.append(group)
        return found

    def groups_since(self, first: int) -> Groups:
        """The row groups that may hold steps from `first` on."""
        if self._last_step is not None and self._last_step < first:
            return []  # as a reader that follows a run is told by nearly every segment each time
        latest = []
        for group in range(self.num_groups()):
            span = self._value_range(group, "step")
            latest.append(span[1] if span is not None else _EVERY_STEP)
        self._last_step = max(latest, default=None)
        self._let_go()
        return [group for group, last in enumerate(latest) if last >= first]

    def _let_go(self) -> None:
        """A footer is tens of kilobytes, and a long run has hundreds of files."""
        if not self._keeps_footer:
            self._metadata = None

    def _value_range(self, group: int, name: str) -> tuple[int, int] | None:
        """The lowest and highest value of a column in a group, None where the footer does not say."""
        names = list(self._metadata.schema.names)
        if name not in names:
            return None
        statistics = self._metadata.row_group(group).column(names.index(name)).statistics
        if statistics is None or not statistics.has_min_max or not isinstance(statistics.min, int):
            return None
        return statistics.min, statistics.max

    def read(self, groups: Groups, columns: Iterable[str]) -> Any | None:
        """These columns of these groups as an Arrow table; None where a block of them is damaged.

        A statistic that the file lacks is NaN: it was written before that was measured.
        """
        import pyarrow as pa
        import pyarrow.parquet as pq

        self._open_metadata()
        if self._metadata is None:
            return None
        wanted = list(columns)
        present = {self._metadata.schema.column(n).path.partition(".")[0] for n in range(self._metadata.num_columns)}
        unmeasured = [name for name in wanted if name not in present and _is_of_statistic(name)]
        names = [name for name in wanted if name not in unmeasured]
        try:
            _check_request(self._metadata, groups, names)
            with VerifiedFile(self._run, self.sealed) as file:
                try:
                    # No thread of Arrow may hold a Python file: one that still does when the interpreter ends aborts the
                    # process (apache/arrow#34314), and that process may be the training.
                    handle = pa.PythonFile(file, mode="r")
                    texts = [name for name in names if name in TEXTS]
                    source = pq.ParquetFile(handle, metadata=self._metadata, pre_buffer=False, read_dictionary=texts)
                    found = source.read_row_groups(groups, columns=names, use_threads=False)
                    _check_types(found, names)
                    for name in unmeasured:
                        found = found.append_column(name, pa.array(np.full(found.num_rows, np.nan)))
                    return found
                finally:
                    self._note_damage(file.damage)
                    self._let_go()
        except FileNotFoundError:
            raise
        except (OSError, pa.ArrowException, UnfitTableError) as error:
            self.refuse(error)
            return None

    def _open_metadata(self) -> None:
        import pyarrow as pa
        import pyarrow.parquet as pq

        if self._metadata is not None:
            return
        try:
            with VerifiedFile(self._run, self.sealed) as file:
                try:
                    metadata = pq.read_metadata(pa.BufferReader(_open_footer(file)))
                    _check_metadata(metadata, self._most_rows)
                    self._metadata = metadata
                finally:
                    self._note_damage(file.damage)
        except FileNotFoundError:
            raise
        except (OSError, pa.ArrowException, UnfitTableError) as error:
            self.refuse(error)

    def verify(self) -> None:
        """Tests every block."""
        try:
            with VerifiedFile(self._run, self.sealed) as file:
                file.verify()
                self._note_damage(file.damage)
        except FileNotFoundError:
            raise
        except OSError as error:
            self.refuse(error)

    def refuse(self, error: Exception) -> None:
        """Notes why this file is not read."""
        if isinstance(error, BlockDamagedError):
            self._note_damage([error])
            return
        why = getattr(error, "strerror", None) or str(error)
        problem = Problem(self.sealed.path, 0, f"cannot be read: {why:.300}")
        if problem not in self.problems:
            self.problems.append(problem)

    def _note_damage(self, damage: Sequence[BlockDamagedError]) -> None:
        for error in damage:
            label = error.path.relative_to(self._run).as_posix()
            problem = Problem(label, error.offset, error.what)
            if problem not in self.problems:
                self.problems.append(problem)


def _open_footer(file: VerifiedFile) -> bytes:
    """The footer alone, as a file of its own: Arrow would read 64 kB before it too, damaged or not."""
    file.seek(-8, os.SEEK_END)
    tail = file.read(8)
    size = int.from_bytes(tail[:4], "little")
    if tail[4:] != b"PAR1" or size > min(file.size() - 8, _MOST_FOOTER):
        raise UnfitTableError("it does not end as Parquet does")
    file.seek(-8 - size, os.SEEK_END)
    return b"PAR1" + file.read(size) + tail


def _check_metadata(metadata: Any, most_rows: int) -> None:
    """UnfitTableError where a footer speaks of more than any sealed table has."""
    if metadata.num_columns > _MOST_COLUMNS or metadata.num_row_groups > _MOST_GROUPS:
        raise UnfitTableError(f"{metadata.num_columns} columns in {metadata.num_row_groups} groups")
    rows = sum(metadata.row_group(group).num_rows for group in range(metadata.num_row_groups))
    if rows != metadata.num_rows or rows > most_rows:
        raise UnfitTableError(
            f"its groups have {rows} rows, its footer says {metadata.num_rows}, its manifest at most {most_rows}"
        )


def _check_request(metadata: Any, groups: Groups, names: Sequence[str]) -> None:
    """UnfitTableError where the columns are not there, or are more than can be held."""
    if any(not 0 <= group < metadata.num_row_groups for group in groups):
        raise UnfitTableError("it has fewer row groups than its manifest says")
    indices = {metadata.schema.column(n).path.partition(".")[0]: n for n in range(metadata.num_columns)}
    missing = [name for name in names if name not in indices]
    if missing:
        raise UnfitTableError(f"it lacks the column {missing[0]}")
    total = 0
    for group in groups:
        table = metadata.row_group(group)
        for name in names:
            chunk = table.column(indices[name])
            # Equal values are stored once and unpacked to many: it is their number that counts, not their bytes.
            total += max(chunk.total_uncompressed_size, 8 * chunk.num_values, 8 * table.num_rows)
    if total > MOST_READ_BYTES:
        raise UnfitTableError(f"reading it would take {total:,} bytes, more than {MOST_READ_BYTES:,}")


def _is_of_statistic(name: str) -> bool:
    """Whether a column holds a measured statistic, or its part in a bucket."""
    return name in COLUMNS or name.rpartition("_")[0] in COLUMNS


def _check_types(table: Any, names: Sequence[str]) -> None:
    import pyarrow as pa

    for name in names:
        column = table.column(name)
        kind = column.type
        if name in TEXTS:
            is_fit = pa.types.is_dictionary(kind) and pa.types.is_string(kind.value_type)
        elif name == "values":
            is_fit = pa.types.is_list(kind) and _is_number(kind.value_type)
        else:
            is_fit = _is_number(kind)
        if not is_fit or column.null_count:
            raise UnfitTableError(f"the column {name} holds {kind}, or nulls")
        if not _is_number(kind):
            # Arrow does not test what points into something else when it reads a file: an index beyond the words, an offset.
            column.validate(full=True)


def _is_number(kind: Any) -> bool:
    import pyarrow as pa

    return bool(pa.types.is_integer(kind) or pa.types.is_floating(kind))


def check_texts(table: SealedTable, names: Sequence[str]) -> None:
    """UnfitTableError where the texts of a table, each written out as often as it occurs, are more than can be held."""
    import pyarrow.compute as pc

    total = 0
    for group in range(table.num_groups()):
        read = table.read([group], names)
        for chunk in (chunk for name in names for chunk in read.column(name).chunks) if read is not None else ():
            lengths = pc.binary_length(chunk.dictionary).to_numpy(zero_copy_only=False)
            total += int(lengths[chunk.indices.to_numpy()].sum()) if len(chunk) else 0
    if table.problems or total > MOST_READ_BYTES:
        raise UnfitTableError(table.problems[0].what if table.problems else f"its texts are {total:,} bytes")
