"""A run's tables as Arrow, and questions to them in SQL.

DuckDB is never given a path: sealed tables reach it through `VerifiedFile`, so a flipped bit is an error
and not a number, and a query can reach no other file. Columns that a query does not need are not read.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from stethoscope.kernels.columns import COLUMNS, COUNTS
from stethoscope.record import MissingExtraError, RunDamagedError, StethoscopeError
from stethoscope.store.seal import gather_rows
from stethoscope.store.sealed_file import BlockDamagedError, VerifiedFile
from stethoscope.store.sealed_table import SealedTable, UnfitTableError, check_texts
from stethoscope.store.segment import SegmentPiece
from stethoscope.store.tables import rows_table, scalars_table, text

if TYPE_CHECKING:
    from stethoscope.store.catalogue import Catalogue
    from stethoscope.store.reader import Run

TABLES: Final = ("rows", "scalars", "events", "sites", "findings")
_TEXTS: Final = {"rows": ("module", "kind", "name"), "scalars": ("name",)}


def arrow_table(run: Run, name: str) -> Any:
    """One whole table. RunDamagedError where a block of it does not match its hash."""
    import pyarrow as pa

    _check_name(name)
    if name == "sites":
        return _site_table(run)
    if name == "findings":
        bodies = [finding.to_json() for finding in run.findings()]
        kinds = {"first_step": pa.int64(), "last_step": pa.int64(), "confidence": pa.float64(), "rank": pa.int32()}
        found = {}
        for column in ("code", "severity", "message", "first_step", "last_step", "remedy", "confidence", "rank"):
            values = [text(body[column]) if isinstance(body[column], str) else body[column] for body in bodies]
            found[column] = pa.array(values, kinds.get(column, pa.string()))
        return pa.table({**found, "json": pa.array([json.dumps(body) for body in bodies], pa.string())})
    if name == "events":
        events = run.events()
        return pa.table(
            {
                "step": pa.array([e.step for e in events], pa.int64()),
                "rank": pa.array([e.rank for e in events], pa.int32()),
                "time": pa.array([e.time for e in events], pa.float64()),
                "kind": pa.array([text(e.kind) for e in events], pa.string()),
                "body": pa.array([json.dumps(e.body) for e in events], pa.string()),
            }
        )
    with _damage_named(), _table_parts(run, name) as parts:
        tables = [_with_rank(part.to_table() if hasattr(part, "to_table") else part, rank) for rank, part in parts]
        return pa.concat_tables([table.cast(_arrow_schema(name, rank=True)) for table in tables])


def arrow_batches(run: Run, name: str) -> Iterator[Any]:
    """The same table a part at a time, each an Arrow table of the same schema: a run need not fit in memory."""
    _check_name(name)
    if name not in ("rows", "scalars"):
        yield arrow_table(run, name)
        return
    import pyarrow as pa

    schema = _arrow_schema(name, rank=True)
    with _damage_named(), _table_parts(run, name) as parts:
        for rank, part in parts:
            for batch in part.to_batches():
                yield _with_rank(pa.Table.from_batches([batch]), rank).cast(schema)


def _check_name(name: str) -> None:
    if name not in TABLES:
        raise StethoscopeError(f"There is no table {name!r}", do=f"The tables are: {', '.join(TABLES)}")


def answer(run: Run, query: str) -> Any:
    """The answer to a query, as an Arrow table; an empty one for statements that answer nothing."""
    import pyarrow as pa

    try:
        import duckdb
    except ImportError as error:
        raise MissingExtraError("duckdb", "sql", "SQL over a run") from error
    with _damage_named(), duckdb.connect(":memory:") as connection, contextlib.ExitStack() as opened:
        for name in ("sites", "findings", "events"):
            connection.register(name, arrow_table(run, name))
        for name in ("rows", "scalars"):
            parts = opened.enter_context(_table_parts(run, name))
            for index, (_, part) in enumerate(parts):
                connection.register(f"{name}_{index}", part)
            union = " UNION ALL BY NAME ".join(
                f"SELECT *, {rank}::INTEGER AS rank FROM {name}_{index}"  # noqa: S608 - our own names
                for index, (rank, _) in enumerate(parts)
            )
            connection.execute(f"CREATE VIEW {name} AS {union}")
        connection.execute("SET enable_external_access = false")
        connection.execute("SET lock_configuration = true")
        try:
            found = connection.sql(query)
            return found.to_arrow_table() if found is not None else pa.table({})
        except duckdb.Error as error:
            raise StethoscopeError(f"The query failed: {error}") from error


_DO: Final = "`stethoscope doctor` says where; the rest of the run can be read"


@contextlib.contextmanager
def _damage_named() -> Iterator[None]:
    import pyarrow as pa

    try:
        yield
    except BlockDamagedError as error:
        raise RunDamagedError(f"A sealed table is damaged ({error.what})", where=error.path, do=_DO) from error
    except FileNotFoundError:
        raise
    except (UnfitTableError, OSError, pa.ArrowException) as error:
        raise RunDamagedError(f"A sealed table cannot be read ({error!s:.300})", do=_DO) from error


@contextlib.contextmanager
def _table_parts(run: Run, name: str) -> Iterator[list[tuple[int, Any]]]:
    """A table's parts with their ranks: a dataset for what is sealed, a table for what is not."""
    import pyarrow as pa
    import pyarrow.dataset as ds

    catalogue = run.catalogue
    with contextlib.ExitStack() as opened:
        sealed: dict[int, list[Any]] = {}
        layout = ds.ParquetFileFormat()
        for piece in catalogue.segments():
            file = piece.segment.files.get(name)
            if file is not None:
                # All of it is tested first and then read by Arrow alone: its threads may outlive the interpreter,
                # and one that held a Python file then would abort the process (apache/arrow#34314).
                source = opened.enter_context(VerifiedFile(run.path, file))
                source.verify()
                if source.damage:
                    raise source.damage[0]
                check_texts(SealedTable(run.path, file, []), _TEXTS[name])
                native = opened.enter_context(pa.OSFile(source.native_path()))
                fragment = layout.make_fragment(native)
                sealed.setdefault(piece.key.rank, []).append(fragment)
        parts: list[tuple[int, Any]] = [
            (rank, ds.FileSystemDataset(fragments, _arrow_schema(name), layout)) for rank, fragments in sealed.items()
        ]
        parts += [(piece_rank, table) for piece_rank, table in _open_tables(catalogue, name)]
        yield parts or [(0, _arrow_schema(name).empty_table())]


def _open_tables(catalogue: Catalogue, name: str) -> Iterator[tuple[int, Any]]:
    """The rows or scalars of the journals that are not sealed yet."""
    schema = _arrow_schema(name)
    for piece in catalogue.journals():
        if isinstance(piece, SegmentPiece):
            continue
        if name == "rows":
            infos = catalogue.sites.infos
            found = rows_table(gather_rows([piece], np.arange(len(infos))), infos, piece.key.ordinal)
        else:
            found = scalars_table(piece.scalars(), piece.key.ordinal)
        if found.num_rows:
            yield piece.key.rank, found.select(schema.names).cast(schema)


def _arrow_schema(name: str, *, rank: bool = False) -> Any:
    import pyarrow as pa

    fields = [("step", pa.int64())]
    if name == "rows":
        fields += [(part, pa.string()) for part in ("module", "kind", "name")]
        fields += [("start", pa.int32()), ("calls", pa.uint32())]
        fields += [(column, pa.int64() if column in COUNTS else pa.float64()) for column in COLUMNS]
    else:
        fields += [("name", pa.string()), ("start", pa.int32()), ("value", pa.float64())]
    return pa.schema([*fields, ("rank", pa.int32())] if rank else fields)


def _with_rank(table: Any, rank: int) -> Any:
    import pyarrow as pa

    return table.append_column("rank", pa.array(np.full(table.num_rows, rank, np.int32)))


def _site_table(run: Run) -> Any:
    import pyarrow as pa

    infos = run.sites
    return pa.table(
        {
            "module": pa.array([text(info.site.module) for info in infos], pa.string()),
            "kind": pa.array([str(info.site.kind) for info in infos], pa.string()),
            "name": pa.array([text(info.site.name) for info in infos], pa.string()),
            "path": pa.array([text(info.site.path) for info in infos], pa.string()),
            "shape": pa.array([list(info.shape) for info in infos], pa.list_(pa.int64())),
            "dtype": pa.array([info.dtype for info in infos], pa.string()),
            "num_elements": pa.array([info.num_elements for info in infos], pa.int64()),
            "measured": pa.array([info.measured for info in infos], pa.string()),
        }
    )
