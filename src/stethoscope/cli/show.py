"""`stethoscope show`: one run on one screen: verdict, metrics, layers, layers by steps."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from stethoscope.cli.choose import choose_run
from stethoscope.cli.errors import NoDataError, UsageError
from stethoscope.cli.options import add_output, add_run, emit, emit_json, parse_steps, screen_of

if TYPE_CHECKING:
    from stethoscope.analyse.history import History
    from stethoscope.explain import Diagnosis
    from stethoscope.store import Run
    from stethoscope.views.common.glyphs import Screen
    from stethoscope.views.common.styled_text import Line

KINDS = (
    "gradient",
    "weight",
    "update",
    "activation",
    "activation_gradient",
    "optimizer_state",
    "buffer",
    "input",
    "target",
    "output",
    "loss",
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """What to show of the run."""
    add_run(parser)
    parser.add_argument("--kind", type=kind_word, metavar="KIND", help="default: gradient, or what was recorded")
    parser.add_argument("--stat", default="norm", help="a statistic, such as norm, abs_max or mean; default: norm")
    parser.add_argument("--value", action="store_true", help="values instead of ratios to the site's own median")
    parser.add_argument("--steps", metavar="A:B", help="only these steps, both inclusive")
    parser.add_argument("--layers", default="*", metavar="PATTERN", help="only these, such as 'layers.3.*'")
    parser.add_argument(
        "--rows",
        type=int,
        default=40,
        metavar="N",
        help="the N that have most to show, 0 for all; default: 40",
    )
    parser.add_argument("--depth", type=int, metavar="N", help="group by the first N parts of the name")
    parser.add_argument("--all-metrics", action="store_true", help="also what only the detectors read")
    add_output(parser)


def run(args: argparse.Namespace) -> int:
    """Shows the run."""
    from stethoscope.analyse.history import history
    from stethoscope.explain import diagnose
    from stethoscope.views.terminal.report import heat_kind

    with choose_run(args.run) as found:
        require_data(found)
        check_stat(args.stat)
        first, last = parse_steps(args.steps)
        kind = args.kind or heat_kind(found, ())
        whole = history(found, kind, args.stat, pattern=args.layers, depth=args.depth)
        shown = whole.window(first, last)
        limit = args.rows if args.rows > 0 else None
        diagnosis = diagnose(found)
        if args.json:
            emit_json(show_json(found, shown, diagnosis))
            return 0
        screen = screen_of(args)
        emit(
            screen,
            show_lines(
                found,
                shown,
                diagnosis,
                screen,
                raw=args.value,
                steps=(first, last),
                limit=limit,
                inner=args.all_metrics,
            ),
        )
    return 0


def show_lines(
    run: Run,
    shown: History,
    diagnosis: Diagnosis,
    screen: Screen,
    *,
    raw: bool = False,
    steps: tuple[int | None, int | None] = (None, None),
    limit: int | None = None,
    inner: bool = False,
) -> list[Line]:
    """The whole screen, top to bottom; names share one column."""
    from stethoscope.views.common.styled_text import NOTE
    from stethoscope.views.lines.heatmap import Picture, heatmap_lines, hidden_line, name_width, shortened
    from stethoscope.views.lines.status import status_lines, title_line
    from stethoscope.views.terminal.layers import heading, layers_lines
    from stethoscope.views.terminal.metrics import is_inner, metrics_lines
    from stethoscope.views.terminal.report import troubled_rows

    causes = diagnosis.causes
    troubled = troubled_rows(shown, causes)
    shown, num_hidden = shortened(shown, Picture(troubled, limit=limit))
    metrics_shown = [name for name in run.metrics() if inner or not is_inner(name)]
    names = [screen.text(name) for name in [*(row.label for row in shown.rows), *metrics_shown]]
    gutter = name_width(names, screen.width, heading(shown))
    lines = [title_line(run, screen), *_verdict_lines(diagnosis, run, screen)]
    metrics = metrics_lines(run, screen, first=steps[0], last=steps[1], gutter=gutter, inner=inner)
    lines += [[], *metrics] if metrics else []
    if len(shown.steps) and shown.rows:
        events = [cause.first_step for cause in causes]
        lines += [[], *layers_lines(shown, screen, troubled, gutter=gutter)]
        lines += [hidden_line(num_hidden, "--rows 0 shows all")] if num_hidden else []
        lines += [[], *heatmap_lines(shown, screen, Picture(troubled, events, raw), gutter=gutter)]
    else:
        words = f"Nothing recorded here of kind {shown.kind.replace('_', ' ')}."
        lines += [[], [("  ", ""), (words, NOTE)]]
    return [*lines, [], *status_lines(run, screen, diagnosis.looked_at)]


def _verdict_lines(diagnosis: Diagnosis, run: Run, screen: Screen) -> list[Line]:
    """The causes as rows: the full verdict belongs to `diagnose`."""
    from stethoscope.views.lines.verdict import rows_lines, verdict_lines

    if not diagnosis.causes:
        return verdict_lines(diagnosis, run, screen)
    return rows_lines(diagnosis.causes, diagnosis, screen, numbered=True)


def require_data(run: Run) -> None:
    """NoDataError where the run has neither rows nor metrics."""
    if not len(run.steps) and not run.metrics():
        raise NoDataError(
            "The run holds no data yet" if run.state == "live" else "The run holds no data",
            where=run.path,
            do="stethoscope doctor RUN says how it ended",
        )


def kind_word(word: str, known: Sequence[str] = KINDS) -> str:
    """A kind as argparse takes it; for an unknown one the error names the nearest."""
    from stethoscope.record import did_you_mean

    if word in known:
        return word
    near = did_you_mean(word, known)
    raise argparse.ArgumentTypeError(f"unknown kind {word!r}. {near or 'Known: ' + ', '.join(known)}")


def check_stat(stat: str) -> None:
    """UsageError for an unknown statistic."""
    from stethoscope.kernels.statistics import STATISTICS
    from stethoscope.record import did_you_mean

    if stat not in STATISTICS:
        near = did_you_mean(stat, STATISTICS)
        known = f"Known: {', '.join(STATISTICS)}"
        raise UsageError("Unknown statistic", where=stat, do=f"{near} {known}".strip())


def show_json(run: Run, shown: History, diagnosis: Diagnosis) -> dict[str, Any]:
    """The same, as data."""
    from stethoscope.views.terminal.metrics import metric_order

    metrics = {}
    for name in metric_order(tuple(run.metrics())):
        series = run.metric(name)
        metrics[name] = {
            "num_steps": len(series),
            "first": series.values[0],
            "last": series.values[-1],
            "last_step": series.steps[-1],
        }
    layers = []
    for index, row in enumerate(shown.rows):
        latest = shown.last(index)
        layers.append(
            {
                "name": row.name,
                "sites": [site.path for site in row.sites],
                "frozen": row.frozen,
                "usual": shown.usual[index],
                "last_step": latest[0] if latest else None,
                "last": latest[1] if latest else None,
            }
        )
    return {
        "run": run_json(run),
        "kind": str(shown.kind),
        "stat": shown.stat,
        "metrics": metrics,
        "layers": layers,
        "diagnosis": diagnosis.to_json(),
    }


def run_json(run: Run) -> dict[str, Any]:
    """What identifies a run and how it stands."""
    return {
        "path": str(run.path),
        "id": run.id,
        "name": run.name,
        "state": run.state,
        "last_step": run.last_step,
        "num_steps": len(run.steps),
        "num_sites": len(run.sites),
        "ended": run.ended,
    }
