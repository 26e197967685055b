"""The command line: one command a file, each loaded only when it is asked for.

Exit codes: 0 clean, 1 findings, 2 usage or a path that cannot be used, 3 no data. Reading a run never
imports torch. A reader that goes away (`| head`) is no error.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from importlib import import_module
from types import ModuleType

from stethoscope import __version__

COMMANDS = {
    "demo": ("demo", "a short tour: trains a small model with a hidden fault, finds it, shows it"),
    "run": ("run", "watch an unchanged script: stethoscope run train.py [args]"),
    "checkup": ("checkup", "experiments before training: checkup train.py:build; exit 1 where something is wrong"),
    "list": ("listing", "the runs here"),
    "show": ("show", "one run: verdict, metrics, layers, layers by steps"),
    "diagnose": ("diagnose", "what is wrong, where, since when; exit 1 where something is"),
    "explain": ("explaining", "what a finding's code means, why it happens, how to fix it, how we know"),
    "ui": ("ui", "the live page over the runs here, in the browser"),
    "tui": ("tui", "the same in the terminal: runs, verdict, layers by steps, live"),
    "report": ("report", "one run as one file: HTML that needs no server, Markdown or JSON"),
    "get": ("get", "the recorded numbers of some sites"),
    "query": ("query", "SQL over one run"),
    "export": ("export", "a run for other programs: CSV, JSON lines, Parquet, Arrow, TensorBoard"),
    "animate": ("animate", "every layer's gradient over the steps, played here or as a file"),
    "resume": ("resume", "training that a hook has paused goes on"),
    "doctor": ("doctor", "how this installation, or a run's recording, is doing"),
    "rm": ("rm", "remove runs"),
    "prune": ("prune", "remove old runs"),
}
"""From a command's name to its module in this package and what it does."""

EXIT_USAGE = 2
_TRAINS = frozenset({"demo", "checkup"})
"""Commands that run a user's own code, whose exceptions are the user's to see."""


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one command and returns its exit code."""
    words = list(sys.argv[1:] if argv is None else argv)
    if words[:1] == ["run"]:
        # The script's words are its own, and so is what it raises.
        return int(_command_module("run").main(words[1:]))
    unknown = next((word for word in words[:1] if not word.startswith("-") and word not in COMMANDS), None)
    if unknown is not None:
        return _report_unknown(unknown)
    parser = build_parser(words)
    try:
        args = parser.parse_args(words)
    except SystemExit as stop:
        return int(stop.code or 0)
    if args.command is None:
        parser.print_help()
        return EXIT_USAGE
    from stethoscope.cli.errors import report_error, report_unexpected
    from stethoscope.record import StethoscopeError

    try:
        code = int(_command_module(args.command).run(args) or 0)
        sys.stdout.flush()
    except StethoscopeError as error:
        return report_error(error)
    except BrokenPipeError:
        return _reader_gone()
    except KeyboardInterrupt:
        return 130
    except Exception as error:
        if args.command in _TRAINS or os.environ.get("STETHOSCOPE_TRACEBACK"):
            raise
        return report_unexpected(args.command, error)
    return code


def build_parser(words: Sequence[str]) -> argparse.ArgumentParser:
    """The parser; only the command that `words` names has its arguments filled in."""
    parser = argparse.ArgumentParser(
        prog="stethoscope",
        description="Listens to a training run, says what is wrong, where and since when.",
        epilog="RUN is a path, an id, or the beginning of an id or name; without it, the latest run.",
    )
    parser.add_argument("--version", action="version", version=f"stethoscope {__version__}")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", title="commands")
    chosen = next((word for word in words if not word.startswith("-")), None)
    for name, (_, help_text) in COMMANDS.items():
        child = commands.add_parser(name, help=help_text, description=f"{help_text[:1].upper()}{help_text[1:]}.")
        if name == chosen:
            add = getattr(_command_module(name), "add_arguments", None)
            if add is not None:
                add(child)
    return parser


def _report_unknown(word: str) -> int:
    from stethoscope.cli.errors import UsageError, report_error
    from stethoscope.record import did_you_mean

    near = did_you_mean(word, COMMANDS)
    return report_error(
        UsageError("There is no such command", where=word, do=near or "stethoscope --help lists the commands")
    )


def _command_module(name: str) -> ModuleType:
    return import_module(f"stethoscope.cli.{COMMANDS[name][0]}")


def _reader_gone() -> int:
    """The other end of the pipe is closed: nothing more can be said, and that is fine."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stdout.fileno())
    os.close(nowhere)
    return 0
