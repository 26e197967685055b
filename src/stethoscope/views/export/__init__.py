"""A run for other programs: its tables as CSV, JSON lines, Parquet or Arrow, its curves for TensorBoard.

Promises: what is written is whole or not there; nothing that exists is written over; tables are read and written a part
at a time, so a run need not fit in memory; the run itself is only read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final, NamedTuple

from stethoscope.record import StethoscopeError
from stethoscope.store import Run
from stethoscope.views.common.placing import placed_beside

TABLES: Final = ("rows", "scalars", "events", "sites", "findings")
SUFFIXES: Final = {"csv": ".csv", "jsonl": ".jsonl", "parquet": ".parquet", "arrow": ".arrow"}
FORMATS: Final = (*SUFFIXES, "tensorboard")


class ExportError(StethoscopeError):
    """The export cannot be written as it was asked for."""


class Written(NamedTuple):
    """One file: where it is, which table it holds, how many rows."""

    path: Path
    table: str
    num_rows: int


def export_run(
    run: Run, form: str, path: Path, *, tables: Sequence[str] = (), stats: Sequence[str] = ("norm",)
) -> list[Written]:
    """Writes the run. A path with the format's own ending is one file with one table, any other a folder of them."""
    check(form, path, tables)
    if form == "tensorboard":
        from stethoscope.views.export.tensorboard import write_events

        with _placed(path) as temporary:
            temporary.mkdir()
            num_events, name = write_events(run, temporary, stats)
        return [Written(path / name, "scalars, histograms, findings", num_events)]
    from stethoscope.views.export.tables import WRITERS

    write = WRITERS[form]
    if path.suffix.lower() == SUFFIXES[form]:
        table = tables[0] if tables else "rows"
        return [_write_file(run, table, path, write)]
    chosen = tables or TABLES
    with _placed(path) as temporary:
        temporary.mkdir()
        counts = [write(run, table, temporary / f"{table}{SUFFIXES[form]}") for table in chosen]
    return [Written(path / f"{t}{SUFFIXES[form]}", t, n) for t, n in zip(chosen, counts, strict=True)]


def check(form: str, path: Path, tables: Sequence[str]) -> None:
    """ExportError for what cannot be done, before anything is read."""
    if form not in FORMATS:
        raise ExportError("Unknown format", where=form, do=f"Known: {', '.join(FORMATS)}")
    for table in tables:
        if table not in TABLES:
            raise ExportError("There is no such table", where=table, do=f"The tables are: {', '.join(TABLES)}")
    _refuse_taken(path)
    if form == "tensorboard":
        if tables:
            raise ExportError(
                "TensorBoard takes no tables", where=", ".join(tables), do="Leave --table out; --stat chooses curves"
            )
    elif path.suffix.lower() == SUFFIXES[form] and len(tables) > 1:
        raise ExportError("One file holds one table", where=path, do="Name a folder instead, or one --table")


def _write_file(run: Run, table: str, path: Path, write: Callable[[Run, str, Path], int]) -> Written:
    with _placed(path) as temporary:
        count = write(run, table, temporary)
    return Written(path, table, count)


@contextmanager
def _placed(path: Path) -> Iterator[Path]:
    """A name beside the path, moved there at the end where nothing came to stand there meanwhile."""
    try:
        with placed_beside(path) as temporary:
            yield temporary
            _refuse_taken(path)
    except OSError as error:
        if isinstance(error, StethoscopeError):
            raise
        raise ExportError(f"It cannot be written there ({error.strerror or error})", where=path) from error


def _refuse_taken(path: Path) -> None:
    if path.exists() or path.is_symlink():
        raise ExportError(
            "There is something at this path already", where=path, do="Choose another, or remove it first"
        )
