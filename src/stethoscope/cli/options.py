"""The options every command shares, and what they say about where we draw."""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from stethoscope.cli.errors import UsageError
from stethoscope.views.common.glyphs import Screen
from stethoscope.views.common.numbers import json_number
from stethoscope.views.common.styled_text import Line

SCHEMA_VERSION = 1
MIN_WIDTH, MAX_WIDTH = 40, 400


def add_output(parser: argparse.ArgumentParser) -> None:
    """--json, --ascii, --color, --width."""
    group = parser.add_argument_group("output")
    group.add_argument("--json", action="store_true", help="as JSON, with a schema_version")
    group.add_argument("--ascii", action="store_true", help="ASCII signs only")
    group.add_argument("--color", choices=("auto", "always", "never"), default="auto", help="default: auto")
    group.add_argument("--width", type=int, metavar="N", help="columns; default: the terminal's")


def add_run(parser: argparse.ArgumentParser) -> None:
    """The RUN argument, which may be left out."""
    parser.add_argument("run", nargs="?", metavar="RUN", help="a path, id, or beginning of one; default: the latest")


def screen_of(args: argparse.Namespace) -> Screen:
    """Where we draw, from the options, the environment and what stdout is."""
    width = args.width or shutil.get_terminal_size((80, 24)).columns
    return Screen(
        width=max(MIN_WIDTH, min(width, MAX_WIDTH)),
        ascii=bool(args.ascii) or not speaks_unicode(),
        color=_may_color(args.color),
    )


def speaks_unicode() -> bool:
    """Whether stdout can carry our signs."""
    try:
        "·░▒▓█╳①→".encode(sys.stdout.encoding or "ascii")
    except (UnicodeEncodeError, LookupError):
        return False
    return True


def _may_color(choice: str) -> bool:
    """Color only to a terminal, never against NO_COLOR, unless it is asked for by name."""
    if choice != "auto":
        return choice == "always"
    if os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb":
        return False
    return sys.stdout.isatty()


def emit(screen: Screen, lines: list[Line]) -> None:
    """Writes the lines to stdout."""
    sys.stdout.write(screen.write(lines))


def emit_json(body: Mapping[str, Any]) -> None:
    """Writes one JSON object to stdout: strict JSON, schema_version first."""
    whole = {"schema_version": SCHEMA_VERSION, **body}
    sys.stdout.write(json.dumps(jsonable(whole), indent=2, allow_nan=False) + "\n")


def jsonable(value: Any) -> Any:
    """Plain JSON values; a number that is not finite is the string "NaN", "Infinity" or "-Infinity"."""
    if isinstance(value, Mapping):
        return {str(key): jsonable(item) for key, item in value.items()}
    if isinstance(value, str | bool | int | None):
        return value
    if isinstance(value, float):
        return json_number(value)
    if hasattr(value, "tolist"):
        return jsonable(value.tolist())
    if isinstance(value, Sequence) or hasattr(value, "__iter__"):
        return [jsonable(item) for item in value]
    return str(value)


def parse_steps(text: str | None) -> tuple[int | None, int | None]:
    """ "A:B", "A:", ":B" or "A" as first and last step, both inclusive."""
    if not text:
        return None, None
    first, colon, last = text.partition(":")
    try:
        begin = int(first.replace(",", "")) if first else None
        end = int(last.replace(",", "")) if last else None if colon else begin
    except ValueError:
        raise UsageError("Steps cannot be read", where=text, do="Write them as --steps 100:200") from None
    if begin is not None and end is not None and end < begin:
        raise UsageError("The last step lies before the first", where=text)
    return begin, end
