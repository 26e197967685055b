"""Making a run folder: OSError where it cannot be made, RunError where what is there cannot be continued."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from stethoscope.store.inside import refuse_links
from stethoscope.store.locate import rank_folder
from stethoscope.store.private import create_file
from stethoscope.store.runfile import RUN_FILE, dump, load, make_durable_folder, write_durably


def make_folder(folder: Path, rank: int) -> None:
    """The run's folder, hidden from git, and one rank's folder in it."""
    refuse_links(folder, rank_folder(folder, rank).name)
    make_durable_folder(rank_folder(folder, rank))
    ignore = folder / ".gitignore"
    if not ignore.exists():
        with contextlib.suppress(FileExistsError), os.fdopen(create_file(ignore), "w", encoding="ascii") as file:
            file.write("*\n")


def describe_run(folder: Path, info: Mapping[str, Any], world_size: int, disk_bytes: int) -> None:
    """Writes run.json once; that of an earlier process start stays as it is, and must be readable."""
    path = folder / RUN_FILE
    if os.path.lexists(path):
        load(folder)
        return
    given = dict(info)
    body = {
        "id": str(given.pop("id", folder.name.rpartition("-")[2])),
        "name": str(given.pop("name", folder.name)),
        "created_at": time.time(),
        "world_size": world_size,
        "disk_bytes": disk_bytes,
        "info": given,
    }
    write_durably(path, dump(body))
