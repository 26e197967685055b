"""`stethoscope animate`: every layer's gradient over the steps, as a moving picture or played in the terminal."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from stethoscope.cli.choose import choose_run
from stethoscope.cli.errors import NoDataError, UsageError
from stethoscope.cli.options import add_output, add_run, emit_json, parse_steps, screen_of
from stethoscope.record import printable

if TYPE_CHECKING:
    from stethoscope.instruments.animator import GradientFlowAnimator

FORMATS: Final = ("html", "gif", "mp4", "svg", "png", "txt", "json", "csv")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Which run, which steps, where to."""
    add_run(parser)
    parser.add_argument(
        "-o", "--output", type=Path, metavar="FILE", help=f"{', '.join(FORMATS)}; default: play it here"
    )
    parser.add_argument("--steps", metavar="A:B", help="only these steps")
    parser.add_argument("--fps", type=float, default=8.0, metavar="N", help="frames per second; default: 8")
    parser.add_argument("--dark", action="store_true", help="on a dark ground")
    add_output(parser)


def run(args: argparse.Namespace) -> int:
    """Draws the run's gradients."""
    from stethoscope.instruments.animator import GradientFlowAnimator

    kind = args.output.suffix.lstrip(".").lower() if args.output is not None else ""
    if args.output is not None and kind not in FORMATS:
        raise UsageError("Unknown kind of file", where=args.output, do=f"End it in one of {', '.join(FORMATS)}")
    if not 0 < args.fps <= 60:
        raise UsageError("Not a number of frames per second", where=args.fps, do="Use 1 to 60")
    first, last = parse_steps(args.steps)
    with choose_run(args.run) as found:
        animator = GradientFlowAnimator.from_run(found, first=first, last=last)
        if not len(animator.frames):
            raise NoDataError("No gradients were recorded", where=found.path)
        if args.output is None:
            _play_or_print(animator, args)
            return 0
        path = _export_functions(animator, args, f"Gradient flow of {found.name} {found.id}")[kind](args.output)
    num_steps, num_layers = len(animator.frames), animator.grid().num_layers
    if args.json:
        emit_json({"path": str(path), "num_steps": num_steps, "num_layers": num_layers})
    else:
        sys.stdout.write(f"{num_layers:,} layers by {num_steps:,} steps: {printable(str(path), limit=4096)}\n")
    return 0


def _export_functions(
    animator: GradientFlowAnimator, args: argparse.Namespace, title: str
) -> dict[str, Callable[[Path], Path]]:
    return {
        "html": lambda path: animator.export_html(path, title=printable(title, limit=120), frames_per_second=args.fps),
        "mp4": lambda path: animator.export_mp4(path, frames_per_second=args.fps, dark=args.dark),
        "gif": lambda path: animator.export_gif(path, frames_per_second=args.fps, dark=args.dark),
        "svg": lambda path: animator.export_svg(path, dark=args.dark),
        "png": lambda path: animator.export_png(path, dark=args.dark),
        "txt": animator.export_text,
        "json": animator.export_json,
        "csv": animator.export_csv,
    }


def _play_or_print(animator: GradientFlowAnimator, args: argparse.Namespace) -> None:
    """Plays it where there is a terminal; elsewhere the whole heatmap as text, or the summary as JSON."""
    if args.json:
        report = animator.summary_report()
        emit_json(_summary_json(report))
        return
    from rich.console import Console

    screen = screen_of(args)
    console = Console(width=screen.width, no_color=not screen.color, highlight=False)
    animator.play(console, frames_per_second=args.fps)


def _summary_json(report: Any) -> dict[str, Any]:
    return {
        "total_steps": report.total_steps,
        "overall_health": str(report.overall_health),
        "layers_with_vanishing_grads": report.layers_with_vanishing_grads,
        "layers_with_exploding_grads": report.layers_with_exploding_grads,
        "non_finite": [str(where) for where in report.non_finite],
        "recommendations": report.recommendations,
    }
