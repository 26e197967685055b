"""`stethoscope prune`: removes old runs by number or age; live ones never."""

from __future__ import annotations

import argparse
import re
import time
from pathlib import Path

from stethoscope.cli.errors import UsageError
from stethoscope.cli.options import add_output, emit, emit_json, screen_of
from stethoscope.cli.removal import check_removable, confirmed, folder_lines, remove, size_of
from stethoscope.record import plural

_UNITS = {"m": 60, "h": 3600, "d": 86400, "w": 7 * 86400}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Which runs go."""
    parser.add_argument("--keep", type=int, metavar="N", help="keep the N that were written to last")
    parser.add_argument("--older-than", metavar="AGE", help="only those not written to for 30d, 12h, 2w")
    parser.add_argument("--dry-run", action="store_true", help="only say which")
    parser.add_argument("--yes", action="store_true", help="without asking")
    add_output(parser)


def run(args: argparse.Namespace) -> int:
    """Removes what is old; what must not be removed is left and named."""
    from stethoscope.views.common import numbers
    from stethoscope.views.common.styled_text import NOTE

    going, left = select(args.keep, parse_age(args.older_than))
    sizes = {folder: size_of(folder) for folder in going}
    screen = screen_of(args)
    if not args.json:
        lines = folder_lines(sizes, screen)
        lines += [[(screen.text(f"left alone: {folder.name}, {why}"), NOTE)] for folder, why in left]
        emit(screen, lines or [[("Nothing to remove.", NOTE)]])
    is_done = bool(going) and not args.dry_run and confirmed(going, sum(sizes.values()), yes=args.yes)
    for folder in going if is_done else ():
        remove(folder)
    if args.json:
        emit_json(
            {
                "removed": [str(f) for f in going] if is_done else [],
                "selected": [str(f) for f in going],
                "left": [{"path": str(f), "why": why} for f, why in left],
                "num_bytes": sum(sizes.values()),
            }
        )
    elif is_done:
        text = f"Removed {plural(len(going), 'run')}, {numbers.size(sum(sizes.values()))}."
        emit(screen, [[(text, NOTE)]])
    return 0


def select(keep: int | None, age_s: float | None) -> tuple[list[Path], list[tuple[Path, str]]]:
    """The folders to remove, and those that would be but must not be, with the reason."""
    from stethoscope.record import StethoscopeError
    from stethoscope.store import find_runs
    from stethoscope.store.locate import base_folder, last_written

    if keep is None and age_s is None:
        raise UsageError("Say what is old", do="stethoscope prune --keep 20, or --older-than 30d")
    if keep is not None and keep < 0:
        raise UsageError("--keep takes a number from 0 on", where=keep)
    folders = sorted(find_runs(base_folder()), key=last_written)
    if keep:
        folders = folders[:-keep]
    if age_s is not None:
        limit = time.time() - age_s
        folders = [folder for folder in folders if last_written(folder)[0] < limit]
    going, left = [], []
    for folder in folders:
        try:
            check_removable(folder)
            going.append(folder)
        except StethoscopeError as error:
            left.append((folder, error.what[:1].lower() + error.what[1:]))
    return going, left


def parse_age(text: str | None) -> float | None:
    """ "30d" as seconds."""
    if text is None:
        return None
    found = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([mhdw])", text.strip().lower())
    if not found:
        raise UsageError("The age cannot be read", where=text, do="Write it as 30d, 12h or 2w")
    return float(found[1]) * _UNITS[found[2]]
