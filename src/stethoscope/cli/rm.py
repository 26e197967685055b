"""`stethoscope rm`: removes runs, after asking."""

from __future__ import annotations

import argparse

from stethoscope.cli.choose import choose_path
from stethoscope.cli.options import add_output, emit, emit_json, screen_of
from stethoscope.cli.removal import check_removable, confirmed, folder_lines, remove, size_of
from stethoscope.record import plural


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Which runs."""
    parser.add_argument("runs", nargs="+", metavar="RUN", help="a path, id, or beginning of one")
    parser.add_argument("--yes", action="store_true", help="without asking")
    add_output(parser)


def run(args: argparse.Namespace) -> int:
    """Removes them all, or none where one of them must not be removed."""
    from stethoscope.views.common import numbers
    from stethoscope.views.common.styled_text import NOTE

    folders = list(dict.fromkeys(choose_path(word) for word in args.runs))
    for folder in folders:
        check_removable(folder)
    sizes = {folder: size_of(folder) for folder in folders}
    screen = screen_of(args)
    if not args.json:
        emit(screen, folder_lines(sizes, screen))
    if not confirmed(folders, sum(sizes.values()), yes=args.yes):
        return 0
    for folder in folders:
        remove(folder)
    if args.json:
        emit_json({"removed": [str(folder) for folder in folders], "num_bytes": sum(sizes.values())})
    else:
        text = f"Removed {plural(len(folders), 'run')}, {numbers.size(sum(sizes.values()))}."
        emit(screen, [[(text, NOTE)]])
    return 0
