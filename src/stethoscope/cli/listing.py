"""`stethoscope list`: the runs here, newest last."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from stethoscope.cli.errors import EXIT_NO_DATA, NoDataError
from stethoscope.cli.options import add_output, emit, emit_json, screen_of
from stethoscope.record import plural

if TYPE_CHECKING:
    from stethoscope.views.common.row_reader import RowReader
    from stethoscope.views.lines.runs import RunRow


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """A folder, and the output options."""
    parser.add_argument("folder", nargs="?", help="where to look; default: STETHOSCOPE_DIR or ./.stethoscope")
    parser.add_argument("--limit", type=int, default=50, metavar="N", help="the newest N; default: 50")
    add_output(parser)


def run(args: argparse.Namespace) -> int:
    """Lists the runs."""
    from stethoscope.store import find_runs
    from stethoscope.store.locate import base_folder
    from stethoscope.views.common.row_reader import RowReader
    from stethoscope.views.common.styled_text import NOTE
    from stethoscope.views.lines.runs import runs_lines

    base = Path(args.folder) if args.folder else base_folder()
    folders = find_runs(base)
    shown = folders[-max(args.limit, 1) :]
    reader = RowReader()
    rows = [(folder, row_of(folder, reader)) for folder in shown]
    if args.json:
        emit_json({"folder": str(base), "num_runs": len(folders), "runs": [_row_json(f, r) for f, r in rows]})
        return 0 if rows else EXIT_NO_DATA
    if not rows:
        raise NoDataError("No runs here yet", where=base, do="Watch a training script, or try: stethoscope demo")
    screen = screen_of(args)
    lines = runs_lines([row for _, row in rows], screen)
    hidden = len(folders) - len(shown)
    if hidden:
        lines.append([(f"  and {plural(hidden, 'older run')}", NOTE)])
    emit(screen, lines)
    return 0


def row_of(folder: Path, reader: RowReader) -> RunRow:
    """The run's row; one that cannot be read says why, and the others are listed all the same."""
    from stethoscope.store import open_run
    from stethoscope.views.common.row_reader import row_trouble
    from stethoscope.views.lines.runs import RunRow, run_row

    def read() -> RunRow:
        with open_run(folder) as run:
            return run_row(run)

    try:
        row: RunRow = reader.read(folder, read)
    except Exception as error:
        return RunRow("", folder.name, "damaged", trouble=row_trouble(error))
    return row


def _row_json(folder: Path, row: RunRow) -> dict[str, object]:
    return {
        "path": str(folder),
        "id": row.id,
        "name": row.name,
        "state": row.state,
        "started_at": row.started_at,
        "last_step": row.last_step,
        "loss": float(row.loss.values[-1]) if row.loss else None,
        "verdict": str(row.verdict.state) if row.verdict else None,
        "finding": row.finding.to_json() if row.finding else None,
        "trouble": row.trouble,
    }
