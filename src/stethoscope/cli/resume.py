"""`stethoscope resume`: training that a hook has paused goes on."""

from __future__ import annotations

import argparse
import sys

from stethoscope.cli.choose import choose_path
from stethoscope.cli.errors import UsageError
from stethoscope.cli.options import add_output, add_run, emit_json
from stethoscope.record import printable


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Which run."""
    add_run(parser)
    add_output(parser)


def run(args: argparse.Namespace) -> int:
    """Leaves the file that the paused training waits for; refuses where none waits."""
    from stethoscope.hooks.pause import PAUSED_FILE, go_on, paused_reason

    folder = choose_path(args.run)
    reason = paused_reason(folder)
    if reason is None:
        raise UsageError("This run is not paused", where=folder, do=f"A paused run holds a file named {PAUSED_FILE}")
    try:
        go_on(folder)
    except OSError as error:
        raise UsageError(f"This run cannot be resumed from here ({error.strerror or error})", where=folder) from error
    if args.json:
        emit_json({"run": str(folder), "resumed": True, "reason": reason})
    else:
        sys.stdout.write(f"{printable(folder.name)} goes on; it was paused by {printable(reason)}\n")
    return 0
