"""`stethoscope query`: SQL over one run, with the views rows, scalars, events, sites and findings."""

from __future__ import annotations

import argparse
import csv
import sys
from typing import Any

from stethoscope.cli.choose import choose_run
from stethoscope.cli.errors import UsageError
from stethoscope.cli.options import add_output, emit, emit_json, screen_of
from stethoscope.record import plural

VIEWS = """views:
  rows      step, module, kind, name, rank, start, calls, and the statistics: count, num_nan, min, max, norm, mean, std, ...
  scalars   step, name, value, rank, start: loss, lr, step_ms and what was logged
  events    step, kind, body (JSON), rank, time
  sites     module, kind, name, path, shape, dtype, num_elements, measured
  findings  code, severity, message, first_step, last_step, remedy, confidence, rank, json
"describe rows" lists the columns of one; SQL is DuckDB's."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """A run, which may be left out, and a statement."""
    parser.add_argument("words", nargs="+", metavar="[RUN] SQL", help='such as: query latest "select * from sites"')
    parser.add_argument("--csv", action="store_true", help="every row, as CSV")
    parser.add_argument("--limit", type=int, default=50, metavar="N", help="rows on the screen; default: 50")
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.epilog = VIEWS
    add_output(parser)


def run(args: argparse.Namespace) -> int:
    """Runs the statement and prints its rows."""
    if len(args.words) > 2:
        raise UsageError("Expected a run and one statement", do='Quote the SQL: stethoscope query RUN "select ..."')
    word = args.words[0] if len(args.words) == 2 else None
    with choose_run(word) as found:
        table = found.sql(args.words[-1])
        names = list(table.column_names)
        if args.json:
            emit_json({"columns": names, "rows": table.to_pylist()})
        elif args.csv:
            writer = csv.writer(sys.stdout, lineterminator="\n")
            writer.writerow(names)
            writer.writerows([_printable_cell(value) for value in row.values()] for row in table.to_pylist())
        else:
            _print_table(table.slice(0, max(args.limit, 0)), table.num_rows, args)
    return 0


def _printable_cell(value: Any) -> Any:
    from stethoscope.record import printable

    return printable(value, limit=20_000) if isinstance(value, str) else value


def _print_table(table: Any, num_rows: int, args: argparse.Namespace) -> None:
    from stethoscope.views.common.styled_text import NOTE, PLAIN, Line, cell_width, cut_middle, pad

    screen = screen_of(args)
    names = [screen.text(name) for name in table.column_names]
    columns = [[_cell_text(value, screen) for value in column.to_pylist()] for column in table.columns]
    numeric = [all(isinstance(v, int | float | None) for v in column.to_pylist()) for column in table.columns]
    most = max(8, (screen.width - 2 * len(names)) // max(len(names), 1))
    widths = [
        min(max([cell_width(name), *map(cell_width, column)]), max(most, 24))
        for name, column in zip(names, columns, strict=True)
    ]

    def line(cells: list[str], style: str) -> Line:
        parts = [
            pad(cut_middle(cell, width, ascii=screen.ascii), width, right=right)
            for cell, width, right in zip(cells, widths, numeric, strict=True)
        ]
        return [("  ".join(parts), style)]

    lines = [line(names, NOTE)]
    lines += [line([column[index] for column in columns], PLAIN) for index in range(table.num_rows)]
    hidden = num_rows - table.num_rows
    if hidden:
        lines.append([(f"and {plural(hidden, 'row')} more; --limit, --csv and --json show them", NOTE)])
    emit(screen, lines)


def _cell_text(value: Any, screen: Any) -> str:
    from stethoscope.views.common import numbers

    if isinstance(value, float):
        return numbers.number(value, ascii=screen.ascii)
    if isinstance(value, int) and not isinstance(value, bool):
        return numbers.count(value)
    return "" if value is None else screen.text(str(value))
