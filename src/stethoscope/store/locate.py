"""Where runs live and what a new one is called. Listing opens no run, imports no torch, no pyarrow."""

from __future__ import annotations

import contextlib
import os
import re
import secrets
import time
from pathlib import Path
from typing import Final

from stethoscope.store.inside import list_folder
from stethoscope.store.runfile import RUN_FILE

FOLDER_NAME: Final = ".stethoscope"
MOST_PARTS: Final = 10**7
"""Journals of one process start; at 512 steps each more than any training has."""
_MOST_STARTS: Final = 10**6
_MOST_RANKS: Final = 10_000
_JOURNAL_NAME: Final = re.compile(r"journal-(\d{4,7})-([0-9a-f]{8})-(\d{6,8})\.stj", re.ASCII)
_PART_NAME: Final = re.compile(r"part-(\d{4,7})-([0-9a-f]{8})-", re.ASCII)
_RANK_NAME: Final = re.compile(r"rank-(0|[1-9]\d{0,6})", re.ASCII)
TABLES: Final = ("rows", "scalars", "events", "vectors", "pyramid", "ladder")
"""The folders of what is sealed."""


def base_folder() -> Path:
    """STETHOSCOPE_DIR, or .stethoscope in the current folder."""
    return Path(os.environ.get("STETHOSCOPE_DIR") or FOLDER_NAME)


def new_run_folder(base: Path | None = None, name: str = "run", *, now: float | None = None) -> Path:
    """An unused path, `<time>-<name>-<id>`; nothing is created. Sorting by name sorts by time."""
    stamp = time.strftime("%Y%m%d-%H%M%S", time.gmtime(now))
    plain = re.sub(r"[^A-Za-z0-9._]+", "-", name).strip("-._")[:48] or "run"
    return (base_folder() if base is None else base) / f"{stamp}-{plain}-{secrets.token_hex(3)}"


def find_runs(base: Path | None = None) -> list[Path]:
    """Every run folder under `base`, oldest first; `base` itself where it is one."""
    root = base_folder() if base is None else Path(base)
    if is_run(root):
        return [root]
    try:
        return [root / entry.name for entry in list_folder(root) if not entry.is_file and is_run(root / entry.name)]
    except OSError:
        return []


def latest_run(base: Path | None = None) -> Path | None:
    """The run that was written to last, or None."""
    runs = find_runs(base)
    return max(runs, key=last_written, default=None)


def is_run(folder: Path) -> bool:
    """Whether the folder holds a run: its description, or at least one rank's files."""
    try:
        names = {entry.name for entry in list_folder(folder)}
        return RUN_FILE in names or any(
            entry.name.endswith(".stj")
            for rank_folder in rank_folders(folder).values()
            for entry in list_folder(folder, rank_folder.name)
        )
    except OSError:
        return False


def last_written(folder: Path) -> tuple[float, str]:
    """When anything of the run was last written; the name decides between equals."""
    newest = 0.0
    with contextlib.suppress(OSError):
        for entry in list_folder(folder):
            if entry.name == RUN_FILE:
                newest = max(newest, entry.mtime)
            elif entry.is_folder and _RANK_NAME.fullmatch(entry.name):
                inner = list_folder(folder, entry.name)
                newest = max(newest, entry.mtime, *(one.mtime for one in inner))
    return newest, folder.name


def rank_folder(run: Path, rank: int) -> Path:
    """Where one rank's journals and manifest lie."""
    return run / f"rank-{rank}"


def rank_folders(run: Path) -> dict[int, Path]:
    """From rank to its folder, for the ranks that have one."""
    found = [
        (int(entry.name[5:]), run / entry.name) for entry in list_folder(run) if entry.is_folder and is_rank(entry.name)
    ]
    return dict(sorted(found)[:_MOST_RANKS])


def is_rank(name: str) -> bool:
    """Whether this is what a rank's folder is called."""
    return _RANK_NAME.fullmatch(name) is not None


def journal_name(ordinal: int, token: str, part: int) -> str:
    """A journal's name: which process start it is of, and its number among that start's files."""
    return f"journal-{ordinal:04d}-{token}-{part:06d}.stj"


def parse_journal_name(name: str) -> tuple[int, str, int] | None:
    """Ordinal, token and part of a journal's name, or None for another file."""
    found = _JOURNAL_NAME.fullmatch(name)
    if found is None or int(found[1]) > _MOST_STARTS or int(found[3]) > MOST_PARTS:
        return None
    return int(found[1]), found[2], int(found[3])


def next_ordinal(run: Path, rank: int) -> int:
    """One more than any earlier process start of this rank; by names alone, so that clocks do not matter."""
    folders = [rank_folder(run, rank).name, *(f"{table}/rank={rank}" for table in TABLES)]
    names = [entry.name for folder in folders for entry in list_folder(run, folder)]
    found = [_JOURNAL_NAME.match(name) or _PART_NAME.match(name) for name in names]
    return max((int(match[1]) for match in found if match and int(match[1]) < _MOST_STARTS), default=0) + 1
