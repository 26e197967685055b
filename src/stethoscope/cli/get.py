"""`stethoscope get`: the recorded numbers of some sites or metrics."""

from __future__ import annotations

import argparse
import csv
import sys
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any, NamedTuple

from stethoscope.cli.choose import choose_run
from stethoscope.cli.errors import NoDataError
from stethoscope.cli.options import add_output, emit, emit_json, parse_steps, screen_of
from stethoscope.cli.show import KINDS, check_stat, kind_word

if TYPE_CHECKING:
    from stethoscope.record import Series
    from stethoscope.store import Run
    from stethoscope.views.common.glyphs import Screen
    from stethoscope.views.common.styled_text import Line


class Found(NamedTuple):
    """One series and what it is of; metrics have the kind "metric" and no statistic."""

    path: str
    kind: str
    stat: str
    series: Series


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Which numbers."""
    parser.add_argument("run", metavar="RUN", help="a path, id, beginning of one, or: latest")
    parser.add_argument("pattern", metavar="PATTERN", help="sites such as 'layers.3.*', or a metric such as loss")
    parser.add_argument("kind", metavar="KIND", nargs="?", type=_parse_kind, help="default: every kind")
    parser.add_argument("stat", metavar="STAT", nargs="?", default="norm", help="default: norm")
    parser.add_argument("--steps", metavar="A:B", help="only these steps, both inclusive")
    parser.add_argument("--rank", type=int, metavar="N", help="one rank; default: all, merged")
    parser.add_argument("--csv", action="store_true", help="every value, as CSV")
    add_output(parser)


def _parse_kind(word: str) -> str:
    return kind_word(word, (*KINDS, "metric"))


def run(args: argparse.Namespace) -> int:
    """Prints the numbers."""
    check_stat(args.stat)
    with choose_run(args.run) as found:
        series = collect(found, args)
    if not series:
        raise NoDataError("Nothing recorded matches", where=args.pattern, do="stethoscope show RUN lists the layers")
    if args.json:
        emit_json({"series": [_series_json(item) for item in series]})
    elif args.csv:
        _write_csv(series)
    else:
        screen = screen_of(args)
        emit(screen, _one_lines(series[0], screen) if len(series) == 1 else _many_lines(series, screen))
    return 0


def collect(run: Run, args: argparse.Namespace) -> list[Found]:
    """The series that pattern and kind name, metrics after sites."""
    first, last = parse_steps(args.steps)
    out = []
    if args.kind != "metric":
        for site, series in run.series(args.pattern, args.kind, args.stat, rank=args.rank).items():
            out.append(Found(site.path, str(site.kind), args.stat, series.between(first, last)))
    if args.kind in (None, "metric"):
        names = [name for name in run.metrics() if fnmatchcase(name, args.pattern)]
        if args.pattern == "*" and args.kind is None:
            names = []
        out += [Found(n, "metric", "", run.metric(n, rank=args.rank).between(first, last)) for n in names]
    return [item for item in out if len(item.series)]


def _series_json(item: Found) -> dict[str, Any]:
    return {
        "site": item.path,
        "kind": item.kind,
        "stat": item.stat,
        "steps": item.series.steps,
        "values": item.series.values,
    }


def _write_csv(series: list[Found]) -> None:
    from stethoscope.record import spreadsheet_text

    writer = csv.writer(sys.stdout, lineterminator="\n")
    writer.writerow(("step", "site", "kind", "stat", "value"))
    for item in series:
        for step, value in zip(item.series.steps.tolist(), item.series.values.tolist(), strict=True):
            writer.writerow((step, spreadsheet_text(item.path, 20_000), item.kind, item.stat, repr(value)))


def _one_lines(item: Found, screen: Screen) -> list[Line]:
    """Every value of one series."""
    from stethoscope.views.common import numbers
    from stethoscope.views.common.styled_text import NOTE

    label = " ".join(part for part in (screen.name(item.path, screen.width - 40), item.kind, item.stat) if part)
    lines: list[Line] = [[(f"{'step':>10}  {label}", NOTE)]]
    for step, value in zip(item.series.steps.tolist(), item.series.values.tolist(), strict=True):
        lines.append([(f"{numbers.count(step):>10}  ", NOTE), (numbers.number(value, ascii=screen.ascii), "")])
    return lines


def _many_lines(series: list[Found], screen: Screen) -> list[Line]:
    """One line a series: its trend, smallest, largest and last value."""
    import numpy as np

    from stethoscope.views.common import numbers
    from stethoscope.views.common.styled_text import NOTE, line_width, pad
    from stethoscope.views.lines.heatmap import name_width
    from stethoscope.views.lines.sparkline import sparkline

    several = len({item.kind for item in series}) > 1
    labels = [screen.text(f"{item.path} {item.kind}" if several else item.path) for item in series]
    gutter = name_width(labels, screen.width)
    trend = max(0, min(24, screen.width - gutter - 2 - 3 * 13))
    head = "".join(pad(word, 13, right=True) for word in ("min", "max", "last"))
    lines: list[Line] = [[(f"{pad('', gutter + 2)}{pad('', trend)}{head}", NOTE)]]
    for label, item in zip(labels, series, strict=True):
        finite = item.series.values[np.isfinite(item.series.values)]
        ends = (finite.min(), finite.max()) if len(finite) else (np.nan, np.nan)
        spark = sparkline(item.series, trend, screen.glyphs) if trend else []
        texts = [numbers.number(float(v), ascii=screen.ascii) for v in (*ends, item.series.values[-1])]
        cells = "".join(pad(text, 13, right=True) for text in texts)
        fill = " " * (trend - line_width(spark))
        lines.append([(pad(screen.name(label, gutter), gutter + 2), ""), *spark, (fill + cells, "")])
    return lines
