"""Tables as files: one writer a format, each a part at a time."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import numpy as np

from stethoscope.record import spreadsheet_text
from stethoscope.store import Run
from stethoscope.views.common.numbers import json_number

_BATCH: Final = 32 << 10


def write_parquet(run: Run, table: str, path: Path) -> int:
    """Parquet, zstd; numbers to the bit."""
    import pyarrow.parquet as pq

    return _stream_parts(run, table, lambda schema: pq.ParquetWriter(str(path), schema, compression="zstd"))


def write_arrow(run: Run, table: str, path: Path) -> int:
    """An Arrow IPC file (Feather version 2); numbers to the bit."""
    import pyarrow as pa

    with pa.OSFile(str(path), "wb") as file:
        return _stream_parts(run, table, lambda schema: pa.ipc.new_file(file, schema))


def write_csv(run: Run, table: str, path: Path) -> int:
    """CSV with a head; text that a spreadsheet would take for a formula is quoted, lists are JSON."""
    import pyarrow.csv as pc

    return _stream_parts(run, table, lambda schema: pc.CSVWriter(str(path), schema), _as_cells)


def write_jsonl(run: Run, table: str, path: Path) -> int:
    """A JSON object a line; NaN and infinities by name; bodies of events and findings as objects."""
    count = 0
    with path.open("w", encoding="utf-8", newline="\n") as file:
        for body in _json_rows(run, table):
            file.write(json.dumps(body, allow_nan=False, ensure_ascii=False) + "\n")
            count += 1
    return count


WRITERS: Final[dict[str, Callable[[Run, str, Path], int]]] = {
    "csv": write_csv,
    "jsonl": write_jsonl,
    "parquet": write_parquet,
    "arrow": write_arrow,
}


def _stream_parts(
    run: Run, table: str, open_writer: Callable[[Any], Any], change: Callable[[Any], Any] = lambda part: part
) -> int:
    """Every part through one writer; the number of rows."""
    count, writer = 0, None
    try:
        for part in run.arrow_parts(table):
            changed = change(part)
            if writer is None:
                writer = open_writer(changed.schema)
            writer.write_table(changed)
            count += int(part.num_rows)
        if writer is None:
            writer = open_writer(change(run.to_arrow(table)).schema)
    finally:
        if writer is not None:
            writer.close()
    return count


def _as_cells(part: Any) -> Any:
    """Columns that CSV can hold: text made safe, lists as JSON. Each distinct text is checked once."""
    import pyarrow as pa

    columns = {}
    for name, column in zip(part.column_names, part.columns, strict=True):
        if pa.types.is_string(column.type):
            coded = column.combine_chunks().dictionary_encode()
            safe = pa.array([_safe_cell(value) for value in coded.dictionary.to_pylist()], pa.string())
            column = safe.take(coded.indices)
        elif pa.types.is_list(column.type):
            column = pa.array(
                [None if value is None else json.dumps(value) for value in column.to_pylist()], pa.string()
            )
        elif pa.types.is_null(column.type):
            column = pa.nulls(part.num_rows, pa.string())
        columns[name] = column
    return pa.table(columns)


def _safe_cell(value: str | None) -> str | None:
    if value is None:
        return None
    return spreadsheet_text(value, 1 << 20)


def _json_rows(run: Run, table: str) -> Iterator[Mapping[str, Any]]:
    """The table's rows as strict JSON values."""
    if table == "findings":
        yield from (_plain(finding.to_json()) for finding in run.findings())
        return
    if table == "events":
        for e in run.events():
            yield _plain({"step": e.step, "rank": e.rank, "time": e.time, "kind": e.kind, "body": e.body})
        return
    for part in run.arrow_parts(table):
        for begin in range(0, part.num_rows, _BATCH):
            piece = part.slice(begin, _BATCH)
            columns = [_values(column) for column in piece.columns]
            yield from (dict(zip(piece.column_names, row, strict=True)) for row in zip(*columns, strict=True))


def _values(column: Any) -> list[Any]:
    """A column as strict JSON values: looked through once, not value by value."""
    import pyarrow as pa

    values: list[Any] = column.to_pylist()
    if pa.types.is_floating(column.type):
        for index in np.flatnonzero(~np.isfinite(np.asarray(column, dtype=np.float64))):
            values[index] = _plain(values[index])
    elif pa.types.is_string(column.type):
        return [None if value is None else _utf8_text(value) for value in values]
    return values


def _plain(value: Any) -> Any:
    """Strict JSON values."""
    if isinstance(value, float):
        return json_number(value)
    if isinstance(value, Mapping):
        return {_utf8_text(str(key)): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, str):
        return _utf8_text(value)
    return value if isinstance(value, int | bool | None) else _utf8_text(str(value))


def _utf8_text(value: str) -> str:
    """What UTF-8 can hold: half a surrogate pair cannot be written."""
    return value.encode("utf-8", "backslashreplace").decode("utf-8")
