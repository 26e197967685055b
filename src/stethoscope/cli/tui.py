"""`stethoscope tui`: runs, one run and its layers in the terminal, kept up to date."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

from stethoscope.cli.choose import choose_path
from stethoscope.cli.errors import UsageError
from stethoscope.cli.options import speaks_unicode
from stethoscope.record import MissingExtraError


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Which run, and what to draw with."""
    parser.add_argument(
        "run", nargs="?", metavar="RUN", help="a run, or a folder of runs; default: the only run here, else the list"
    )
    parser.add_argument("--ascii", action="store_true", help="ASCII signs only")
    parser.add_argument(
        "--color", choices=("auto", "never"), default="auto", help="default: auto, and NO_COLOR is heeded"
    )


def run(args: argparse.Namespace) -> int:
    """Shows the screens until `q`."""
    try:
        import textual  # noqa: F401 - only whether it is there
    except ImportError as error:
        raise MissingExtraError("textual", "tui", "The terminal screens") from error
    base, folder = base_and_run(args.run)
    if not (sys.stdin.isatty() and sys.stdout.isatty() and sys.stderr.isatty()):
        raise UsageError(
            "The screens need a terminal", do="stethoscope show and stethoscope diagnose print to anything"
        )
    from stethoscope.views.tui.app import TuiApp

    color = args.color != "never" and not os.environ.get("NO_COLOR")
    app = TuiApp(base, folder, ascii_only=args.ascii or not speaks_unicode(), color=color)
    app.run()
    return int(app.return_code or 0)


def base_and_run(word: str | None) -> tuple[Path, Path | None]:
    """The folder of runs, and the run to begin with: the one that is named, or the only one there is."""
    from stethoscope.store import find_runs
    from stethoscope.store.locate import base_folder, is_run

    if word is None:
        found = find_runs(base_folder())
        return base_folder(), found[0] if len(found) == 1 else None
    path = Path(word)
    if path.is_dir() and not is_run(path):
        return path, None
    chosen = choose_path(word)
    return chosen.parent, chosen
