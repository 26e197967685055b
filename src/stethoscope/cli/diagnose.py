"""`stethoscope diagnose`: the verdict, causes ranked. Exit 0 no trouble, 1 trouble, 2 usage, 3 no data."""

from __future__ import annotations

import argparse
import shlex
import sys
from typing import TYPE_CHECKING

from stethoscope.cli.choose import choose_run
from stethoscope.cli.errors import EXIT_NO_DATA
from stethoscope.cli.options import add_output, add_run, emit, emit_json, screen_of
from stethoscope.cli.show import require_data, run_json

if TYPE_CHECKING:
    from stethoscope.explain import Diagnosis
    from stethoscope.store import Run
    from stethoscope.views.common.glyphs import Screen
    from stethoscope.views.common.styled_text import Line

LEVELS = ("info", "warning", "critical")
EXIT_FINDINGS = 1


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """What to print, and what counts as a failure."""
    add_run(parser)
    parser.add_argument("--all", action="store_true", help="every cause in full")
    parser.add_argument("--no-heatmap", action="store_true", help="without the picture")
    parser.add_argument(
        "--fail-on", choices=LEVELS, default="warning", help="exit 1 from this severity on; default: warning"
    )
    parser.add_argument(
        "--detector", action="append", default=[], metavar="MODULE:CLASS", help="one more detector; may be given again"
    )
    form = parser.add_mutually_exclusive_group()
    form.add_argument("--why", metavar="CODE", help="why this code was told, or was not")
    form.add_argument("--markdown", action="store_true", help="as Markdown")
    form.add_argument("--github", action="store_true", help="as annotations for GitHub Actions")
    add_output(parser)


def run(args: argparse.Namespace) -> int:
    """Diagnoses the run and says so with the exit code."""
    from stethoscope.detect import registry
    from stethoscope.explain import diagnose

    registry.use(args.detector)
    with choose_run(args.run) as found:
        require_data(found)
        if args.why is not None:
            return answer_why(found, args)
        diagnosis = diagnose(found)
        if args.json:
            emit_json({**diagnosis.to_json(), "headline": headline_json(diagnosis), "run": run_json(found)})
        elif args.markdown or args.github:
            from stethoscope.cli.markup import github, markdown

            write = markdown if args.markdown else github
            sys.stdout.write(write(diagnosis, found))
        else:
            screen = screen_of(args)
            emit(screen, diagnose_lines(found, diagnosis, screen, full=args.all, heatmap=not args.no_heatmap))
        if is_failure(diagnosis, args.fail_on):
            return EXIT_FINDINGS
        # A run of which nothing can be read is not clean.
        return EXIT_NO_DATA if found.state == "damaged" and not diagnosis.looked_at.num_steps else 0


def answer_why(run: Run, args: argparse.Namespace) -> int:
    """Says why a code was told or not; exit 1 where it is told as severely as `--fail-on` asks."""
    from stethoscope.explain import why
    from stethoscope.views.lines.status import title_line
    from stethoscope.views.terminal.reasons import reason_lines

    answer = why(run, args.why.strip().lower())
    if args.json:
        emit_json({**answer.to_json(), "run": run_json(run)})
    else:
        screen = screen_of(args)
        emit(screen, [title_line(run, screen), [], *reason_lines(answer, screen)])
    told = answer.outcome in ("cause", "followed", "noted")
    return EXIT_FINDINGS if told and max(f.severity.rank for f in answer.findings) >= LEVELS.index(args.fail_on) else 0


def is_failure(diagnosis: Diagnosis, level: str) -> bool:
    """Whether anything found, with a cause or without, is at least as severe as `level`."""
    verdict, worst = diagnosis.verdict, diagnosis.worst
    ranks = [severity.rank for severity in (worst, verdict.severity if verdict.state.is_trouble else None) if severity]
    return max(ranks, default=-1) >= LEVELS.index(level)


def headline_json(diagnosis: Diagnosis) -> dict[str, str]:
    """The verdict in the words of before there were four states."""
    from stethoscope.explain import State

    verdict = diagnosis.verdict
    kinds = {State.LEARNS: "clear", State.TROUBLE: "cause", State.UNEXPLAINED: "symptom", State.CANNOT_TELL: "notes"}
    is_crash = any(symptom.name == "crashed" for symptom in verdict.symptoms)
    kind = "crashed" if is_crash and verdict.state is State.UNEXPLAINED else kinds[verdict.state]
    return {"kind": kind, "text": verdict.text}


def diagnose_lines(run: Run, diagnosis: Diagnosis, screen: Screen, *, full: bool, heatmap: bool) -> list[Line]:
    """The run's name, the verdict with its picture, and where to look next."""
    from stethoscope.views.common.styled_text import NOTE, PLAIN
    from stethoscope.views.lines.status import title_line
    from stethoscope.views.terminal.report import diagnosis_lines

    lines: list[Line] = [title_line(run, screen), []]
    lines += diagnosis_lines(diagnosis, run, screen, full=full, heatmap=heatmap)
    if diagnosis.causes:
        command = next_command(run, diagnosis)
        meaning = f"stethoscope explain {shlex.quote(diagnosis.causes[0].code)}"
        lines += [[], [("more  ", NOTE), (screen.name(meaning, screen.width - 6), PLAIN)]]
        lines += [[("next  ", NOTE), (screen.name(command, screen.width - 6), PLAIN)]]
    return lines


def next_command(run: Run, diagnosis: Diagnosis) -> str:
    """The command that shows the layer where it began, quoted for a shell: names come from outside."""
    from stethoscope.record import printable

    sites = diagnosis.causes[0].layers
    command = f"stethoscope show {shlex.quote(run.id)}"
    if not sites or sites[0] != printable(sites[0], limit=60):
        return command
    module = sites[0].rpartition(".")[0] or sites[0]
    return f"{command} --layers {shlex.quote(module + '*')} --depth {module.count('.') + 2}"
