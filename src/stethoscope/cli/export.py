"""`stethoscope export`: a run for other programs."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from stethoscope.cli.choose import choose_run
from stethoscope.cli.errors import UsageError
from stethoscope.cli.options import add_run, emit_json
from stethoscope.record import printable

FORMATS = ("csv", "jsonl", "parquet", "arrow", "tensorboard")
_BY_SUFFIX = {".csv": "csv", ".jsonl": "jsonl", ".parquet": "parquet", ".arrow": "arrow"}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Which run, in which form, where to."""
    add_run(parser)
    parser.add_argument("--format", metavar="FORMAT", help=f"{', '.join(FORMATS)}; default: by the ending of PATH")
    parser.add_argument(
        "-o",
        "--output",
        type=Path,
        metavar="PATH",
        required=True,
        help="a folder with a file for each table; with the format's ending (x.csv), one file with one table",
    )
    parser.add_argument(
        "--table",
        action="append",
        default=[],
        metavar="NAME",
        help="rows, scalars, events, sites or findings, may be said again; default: all, in one file rows",
    )
    parser.add_argument(
        "--stat", action="append", metavar="NAME", help="for tensorboard: statistics of the sites; default: norm"
    )
    parser.add_argument("--json", action="store_true", help="what was written, as JSON")


def run(args: argparse.Namespace) -> int:
    """Writes the files and says which."""
    form = args.format or _BY_SUFFIX.get(args.output.suffix.lower())
    if form is None:
        raise UsageError("No format is named", where=args.output, do=f"Say --format, one of {', '.join(FORMATS)}")
    from stethoscope.cli.show import require_data
    from stethoscope.views.export import check, export_run

    check(form, args.output, args.table)
    with choose_run(args.run) as found:
        require_data(found)
        written = export_run(found, form, args.output, tables=args.table, stats=args.stat or ("norm",))
    if args.json:
        emit_json({"format": form, "files": [file._asdict() | {"path": str(file.path)} for file in written]})
        return 0
    for file in written:
        what = "events" if form == "tensorboard" else f"{file.table} rows" if file.table != "rows" else "rows"
        sys.stdout.write(f"{printable(str(file.path), limit=4096)}  {file.num_rows:,} {what}\n")
    return 0
