"""Where a run goes: a new folder, the one that was named, that of rank 0, or another where that cannot be written."""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import os
import stat
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stethoscope.capture.guard import warn
from stethoscope.config import DebugConfig
from stethoscope.session import joining

if TYPE_CHECKING:
    from stethoscope.store import RunWriter


@dataclasses.dataclass(frozen=True, slots=True)
class RunLocation:
    """Where this process writes, and which of how many ranks it is."""

    folder: Path
    rank: int
    world_size: int
    launch_id: str


def locate_run(config: DebugConfig, run: Path | None) -> RunLocation:
    """Where the run goes, from wherever the script changes to; ranks after the first join the folder that rank 0 made."""
    found = _choose_location(config, run)
    try:
        return dataclasses.replace(found, folder=found.folder.absolute())
    except OSError:  # the working folder was deleted
        return found


def _choose_location(config: DebugConfig, run: Path | None) -> RunLocation:
    from stethoscope.store import new_run_folder

    rank, world_size = joining.this_rank()
    launch_id = joining.launch_id()
    if run is not None:
        bare = len(run.parts) == 1 and not run.exists()
        return RunLocation(Path(config.dir) / run if bare else run, rank, world_size, launch_id)
    base = Path(config.dir)
    if rank > 0:
        found = joining.find_folder_of_rank_0(base, rank, launch_id)
        if found is not None:
            return RunLocation(found, rank, world_size, launch_id)
        warn(
            f"rank {rank} found no run of rank 0 in {base} within {joining.JOIN_SECONDS:.0f} s and writes a run of its own. Watch "
            "rank 0 too, and where ranks are on several machines set STETHOSCOPE_DIR to a folder that all of them share"
        )
    return RunLocation(new_run_folder(base, run_name(config)), rank, world_size, launch_id)


def write_elsewhere(
    writer: RunWriter, location: RunLocation, info: dict[str, Any], config: DebugConfig
) -> tuple[RunLocation, RunWriter]:
    """The folder cannot be written: the machine's folder for temporary files can, mostly; else memory must do."""
    from stethoscope.store import RunWriter, new_run_folder

    trouble = writer.trouble
    # A full disk may have room again; ranks must meet in one folder.
    base = private_temporary_folder() if location.world_size == 1 and os.strerror(errno.ENOSPC) not in trouble else None
    if base is not None:
        other = dataclasses.replace(location, folder=new_run_folder(base, run_name(config)))
        found = RunWriter.create(other.folder, info, disk_bytes=config.disk)
        if found.state != "memory":
            warn(
                f"the run cannot be written ({trouble}), so it goes to {other.folder}. Set STETHOSCOPE_DIR to a folder "
                "that can be written"
            )
            writer.close(timeout=0.1)
            return other, found
    warn(
        f"the run cannot be written ({trouble}), so it is kept in memory only, and nothing can be said about it. Training "
        "goes on; set STETHOSCOPE_DIR to a folder that can be written"
    )
    return location, writer


def private_temporary_folder() -> Path | None:
    """A folder for this user alone among the machine's temporary ones, None where none can be made.

    Anybody may have planted a link or a folder under the name that we would take: then it gets a name that nobody knows before.
    """
    user = os.getuid() if hasattr(os, "getuid") else 0
    folder = Path(tempfile.gettempdir()) / f"stethoscope-{user}"
    try:
        with contextlib.suppress(FileExistsError):
            folder.mkdir(mode=0o700)
        found = folder.lstat()
        is_private = stat.S_ISDIR(found.st_mode) and found.st_uid == user and not found.st_mode & 0o077
        return folder if is_private or os.name == "nt" else Path(tempfile.mkdtemp(prefix="stethoscope-"))
    except OSError:
        return None


def run_name(config: DebugConfig) -> str:
    """What the run is called: as the user says, else after the script."""
    if config.name:
        return config.name
    main = sys.modules.get("__main__")
    file = getattr(main, "__file__", None)
    return Path(file).stem if file else "run"
