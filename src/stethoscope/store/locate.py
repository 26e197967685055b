"""Where runs live and what a new one is called. Listing opens no run, imports no torch, no pyarrow."""

from __future__ import annotations

import os
import re
import secrets
import time
from pathlib import Path
from typing import Final

from stethoscope.store.runfile import RUN_FILE

FOLDER_NAME: Final = ".stethoscope"
_JOURNAL_NAME: Final = re.compile(r"journal-(\d{4,9})-([0-9a-f]{8})-(\d{6,})\.stj")
_PART_NAME: Final = re.compile(r"part-(\d{4,9})-([0-9a-f]{8})-")


def base_folder() -> Path:
    """STETHOSCOPE_DIR, or .stethoscope in the current folder."""
    return Path(os.environ.get("STETHOSCOPE_DIR") or FOLDER_NAME)


def new_run_folder(base: Path | None = None, name: str = "run", *, now: float | None = None) -> Path:
    """A path nobody has used, `<time>-<name>-<id>`; nothing is created. Sorting by name sorts by time."""
    stamp = time.strftime("%Y%m%d-%H%M%S", time.gmtime(now))
    plain = re.sub(r"[^A-Za-z0-9._]+", "-", name).strip("-._")[:48] or "run"
    return (base_folder() if base is None else base) / f"{stamp}-{plain}-{secrets.token_hex(3)}"


def find_runs(base: Path | None = None) -> list[Path]:
    """Every run folder under `base`, oldest first; `base` itself where it is one."""
    root = base_folder() if base is None else Path(base)
    if is_run(root):
        return [root]
    try:
        folders = sorted(path for path in root.iterdir() if is_run(path))
    except OSError:
        return []
    return folders


def latest_run(base: Path | None = None) -> Path | None:
    """The run that was written to last, or None."""
    runs = find_runs(base)
    return max(runs, key=last_written, default=None)


def is_run(folder: Path) -> bool:
    """Whether the folder holds a run: its description, or at least one rank's files."""
    try:
        return (folder / RUN_FILE).is_file() or any(folder.glob("rank-*/*.stj"))
    except OSError:
        return False


def last_written(folder: Path) -> tuple[float, str]:
    """When anything of the run was last written; the name decides between equals."""
    newest = 0.0
    for pattern in (RUN_FILE, "rank-*", "rank-*/*"):
        for path in folder.glob(pattern):
            try:
                newest = max(newest, path.stat().st_mtime)
            except OSError:
                continue
    return newest, folder.name


def rank_folder(run: Path, rank: int) -> Path:
    """Where one rank's journals and manifest lie."""
    return run / f"rank-{rank}"


def rank_folders(run: Path) -> dict[int, Path]:
    """From rank to its folder, for the ranks that have one."""
    found: dict[int, Path] = {}
    for path in run.glob("rank-*"):
        number = path.name.removeprefix("rank-")
        if number.isdecimal() and path.is_dir():
            found[int(number)] = path
    return dict(sorted(found.items()))


def journal_name(ordinal: int, token: str, part: int) -> str:
    """A journal's name: which process start it is of, and its place among that start's files."""
    return f"journal-{ordinal:04d}-{token}-{part:06d}.stj"


def parse_journal_name(name: str) -> tuple[int, str, int] | None:
    """Ordinal, token and part of a journal's name, or None for another file."""
    found = _JOURNAL_NAME.fullmatch(name)
    return (int(found[1]), found[2], int(found[3])) if found else None


def next_ordinal(run: Path, rank: int) -> int:
    """One more than any earlier process start of this rank; by names alone, so that clocks do not matter."""
    names = [path.name for path in rank_folder(run, rank).glob("journal-*")]
    names += [path.name for path in run.glob(f"*/rank={rank}/part-*")]
    found = [_JOURNAL_NAME.match(name) or _PART_NAME.match(name) for name in names]
    return max((int(match[1]) for match in found if match), default=0) + 1
