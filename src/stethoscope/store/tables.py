"""Sealed tables: what a segment holds, as Parquet bytes.

Plain, hive-partitioned Parquet that any engine reads: rows sorted by site, then step, in small row groups;
floats split into byte streams and zstd-compressed; the site's names readable beside its number. A float
column is float32 where that holds every value exactly (journals keep 24 bits), else float64; counts int64.
"""

from __future__ import annotations

import dataclasses
import io
import json
import sys
from array import array
from collections.abc import Iterable, Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from stethoscope.kernels.columns import COLUMNS, COUNTS, Table
from stethoscope.record import IntArray, SiteInfo
from stethoscope.store.json_payload import decode_json
from stethoscope.store.pieces import Event
from stethoscope.store.scalars_payload import Scalars

ROW_GROUP_ROWS: Final = 32 << 10
_ESCAPED: Final = "\0json:"
_NAMED: Final = ("module", "kind", "name")


@dataclasses.dataclass(slots=True)
class SortedRows:
    """Rows sorted by site, then step, one for each pair."""

    steps: IntArray
    sites: IntArray
    table: Table
    calls: IntArray

    def __len__(self) -> int:
        return len(self.steps)

    def keep(self, mask: npt.NDArray[np.bool_]) -> SortedRows:
        """Some of the rows."""
        return SortedRows(self.steps[mask], self.sites[mask], self.table[mask], self.calls[mask])


def sort_rows(steps: IntArray, sites: IntArray, table: Table, calls: IntArray) -> SortedRows:
    """Sorts rows given in order of writing; of a step and site that came twice the later row stays."""
    order = np.lexsort((steps, sites))
    ordered_steps, ordered_sites = steps[order], sites[order]
    last = np.ones(len(order), bool)
    last[:-1] = (ordered_steps[1:] != ordered_steps[:-1]) | (ordered_sites[1:] != ordered_sites[:-1])
    kept = order[last]
    return SortedRows(steps[kept], sites[kept], table[kept], calls[kept])


def text(value: str) -> str:
    """A string that UTF-8 can hold; what it cannot hold is escaped."""
    try:
        value.encode("utf-8")
    except UnicodeEncodeError:
        return _ESCAPED + json.dumps(value)
    return value


def untext(value: str) -> str:
    """The inverse of `text`."""
    return str(decode_json(value[len(_ESCAPED) :].encode())) if value.startswith(_ESCAPED) else value


def texts_of(column: Any) -> list[str]:
    """A column of texts that was read as numbers into a list of texts; equal ones are one object."""
    found: list[str] = []
    for chunk in column.chunks:
        words = [untext(word) for word in chunk.dictionary.to_pylist()]
        found += [words[code] for code in chunk.indices.to_pylist()]
    return found


def float_column(values: npt.NDArray[np.float64]) -> npt.NDArray[Any]:
    """float32 where that is exact, else float64."""
    with np.errstate(over="ignore", under="ignore", invalid="ignore"):
        single = values.astype(np.float32)
        exact = bool(((single.astype(np.float64) == values) | np.isnan(values)).all())
    return single if exact else values


def count_column(values: npt.NDArray[np.float64]) -> npt.NDArray[Any]:
    """int64 where that is exact, else float64."""
    with np.errstate(invalid="ignore"):
        whole = bool(((values == np.floor(values)) & (np.abs(values) < 2.0**53)).all())
    return values.astype(np.int64) if whole and not bool(np.signbit(values).any()) else values


def site_strings(sites: IntArray, infos: Sequence[SiteInfo]) -> dict[str, Any]:
    """The readable columns of a site, dictionary-encoded."""
    import pyarrow as pa

    present, inverse = np.unique(sites, return_inverse=True)
    found = {}
    for part in _NAMED:
        words = [text(str(getattr(infos[int(number)].site, part))) for number in present]
        unique = sorted(set(words))
        where = {word: index for index, word in enumerate(unique)}
        codes = np.array([where[word] for word in words], np.int32)
        indices = codes[inverse] if len(codes) else np.empty(0, np.int32)
        found[part] = pa.DictionaryArray.from_arrays(pa.array(indices), pa.array(unique, pa.string()))
    return found


def rows_table(rows: SortedRows, infos: Sequence[SiteInfo], ordinal: int) -> Any:
    """The Arrow table of rows."""
    import pyarrow as pa

    columns: dict[str, Any] = {
        "step": pa.array(rows.steps, pa.int64()),
        "site": pa.array(rows.sites.astype(np.uint32)),
        **site_strings(rows.sites, infos),
        "start": pa.array(np.full(len(rows), ordinal, np.int32)),
        "calls": pa.array(rows.calls.astype(np.uint32)),
    }
    for index, name in enumerate(COLUMNS):
        values = np.ascontiguousarray(rows.table[:, index])
        columns[name] = pa.array(count_column(values) if name in COUNTS else float_column(values))
    return pa.table(columns)


def to_parquet(table: Any, *, row_group_rows: int = ROW_GROUP_ROWS) -> bytes:
    """Parquet bytes, each column encoded by what it is."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    encodings, dictionary = {}, []
    for field in table.schema:
        if pa.types.is_floating(field.type):
            encodings[field.name] = "BYTE_STREAM_SPLIT"
        elif field.name == "step" or field.name.startswith("num_"):
            encodings[field.name] = "DELTA_BINARY_PACKED" if pa.types.is_integer(field.type) else "PLAIN"
        else:
            dictionary.append(field.name)
    sink = io.BytesIO()
    pq.write_table(
        table,
        sink,
        row_group_size=row_group_rows,
        compression="zstd",
        compression_level=3,
        use_dictionary=dictionary or False,
        column_encoding=encodings or None,
        data_page_size=1 << 20,
        write_statistics=["step", "site"] if "site" in table.schema.names else True,
    )
    return sink.getvalue()


def scalars_table(blocks: Iterable[Scalars], ordinal: int) -> Any:
    """The Arrow table of scalars, one number a row, in order of writing."""
    import pyarrow as pa

    names: dict[str, int] = {}
    steps, codes, values = [np.empty(0, np.int64)], [np.empty(0, np.int64)], [np.empty(0)]
    for block in blocks:
        own = np.array([names.setdefault(name, len(names)) for name in block.names], np.int64)
        steps.append(block.steps)
        codes.append(own[block.codes])
        values.append(block.values)
    words = pa.array([text(name) for name in names], pa.string())
    every = np.concatenate(steps)
    columns = {
        "step": pa.array(every),
        "name": pa.DictionaryArray.from_arrays(pa.array(np.concatenate(codes).astype(np.int32)), words),
        "start": pa.array(np.full(len(every), ordinal, np.int32)),
        "value": pa.array(np.concatenate(values)),
    }
    return pa.table(columns)


def events_table(events: Iterable[tuple[int, Event]], ordinal: int) -> Any:
    """The Arrow table of events; `json` holds kind and body exactly."""
    import pyarrow as pa

    steps, serials, times = array("q"), array("q"), array("d")
    kinds: list[str] = []
    bodies: list[str] = []
    for serial, event in events:
        steps.append(event.step)
        serials.append(serial)
        times.append(event.time)
        kinds.append(sys.intern(text(event.kind)))
        bodies.append(json.dumps({"kind": event.kind, "body": event.body}, ensure_ascii=True))
    columns = {
        "step": pa.array(np.array(steps, np.int64)),
        "serial": pa.array(np.array(serials, np.int64)),
        "start": pa.array(np.full(len(steps), ordinal, np.int32)),
        "time": pa.array(np.array(times, np.float64)),
        "kind": pa.array(kinds, pa.string()),
        "json": pa.array(bodies, pa.string()),
    }
    return pa.table(columns)


def vectors_table(entries: Sequence[tuple[int, int, npt.NDArray[Any]]], infos: Sequence[SiteInfo], ordinal: int) -> Any:
    """The Arrow table of vectors of one name and dtype, from (step, site, values), sorted by site."""
    import pyarrow as pa

    sites = np.array([site for _, site, _ in entries], np.int64)
    offsets = np.concatenate([[0], np.cumsum([len(values) for _, _, values in entries])]).astype(np.int32)
    flat = np.concatenate([values for _, _, values in entries])
    columns = {
        "step": pa.array([step for step, _, _ in entries], pa.int64()),
        "site": pa.array(sites.astype(np.uint32)),
        **site_strings(sites, infos),
        "start": pa.array(np.full(len(entries), ordinal, np.int32)),
        "values": pa.ListArray.from_arrays(pa.array(offsets), pa.array(flat)),
    }
    return pa.table(columns)
