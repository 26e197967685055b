"""The ranks of one launch meet in one run folder: rank 0 makes it and the others find it, without a collective.

A folder is this launch's when rank 0 wrote the same launch id into it, after this process was started, and this rank has
not written to it yet. So neither another launch at the same moment, nor an earlier one on the same port, nor an
earlier attempt of an elastic one is joined.
"""

from __future__ import annotations

import os
import socket
import sys
import time
from pathlib import Path
from typing import Final

JOIN_SECONDS: Final = 10.0
"""How long a rank waits for rank 0's folder."""
AHEAD_SECONDS: Final = 5.0
"""How much earlier rank 0's process may have been started, and how far two machines' clocks may differ."""
UNKNOWN_SECONDS: Final = 600.0
"""Where a process cannot tell when it was started, an older folder is not its launch's."""
KEYS: Final = ("TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT", "MASTER_ADDR", "MASTER_PORT")
LOOPBACK: Final = ("localhost", "127.0.0.1", "::1")


def this_rank() -> tuple[int, int]:
    """This process's rank and how many there are, as the launcher says, or the process group where there is no launcher."""
    distributed = sys.modules.get("torch.distributed")
    if (
        "RANK" not in os.environ
        and distributed is not None
        and distributed.is_available()
        and distributed.is_initialized()
    ):
        return distributed.get_rank(), distributed.get_world_size()
    try:
        return int(os.environ.get("RANK", "0")), max(int(os.environ.get("WORLD_SIZE", "1")), 1)
    except ValueError:
        return 0, 1


def launch_id() -> str:
    """The same in every process of a launch, and in no launch beside it."""
    parts = [os.environ.get(key, "") for key in KEYS]
    if os.environ.get("MASTER_ADDR") in LOOPBACK:
        # Another machine may run a launch of the same address and port into the same shared folder.
        parts.append(socket.gethostname())
    if not any(parts):  # torch.multiprocessing.spawn
        parts += [socket.gethostname(), str(os.getppid())]
    return "-".join(parts)


def find_folder_of_rank_0(base: Path, rank: int, launch: str) -> Path | None:
    """The folder that rank 0 of this launch made; None where it does not come in time."""
    began, until = _process_began(), time.monotonic() + JOIN_SECONDS
    while True:
        found = _look(base, rank, launch, began - AHEAD_SECONDS)
        if found is not None or time.monotonic() > until:
            return found
        time.sleep(0.1)


def _look(base: Path, rank: int, launch: str, not_before: float) -> Path | None:
    from stethoscope.record import RunError
    from stethoscope.store import find_runs
    from stethoscope.store.locate import rank_folder
    from stethoscope.store.runfile import RUN_FILE, load

    for folder in find_runs(base):
        try:
            if (folder / RUN_FILE).stat().st_mtime < not_before or rank_folder(folder, rank).exists():
                continue
            info = load(folder).get("info", {})
        except (RunError, OSError):
            continue
        if info.get("launch_id") == launch and float(info.get("created", 0)) >= not_before:
            return folder
    return None


def _process_began() -> float:
    """When this process was started, in seconds since the epoch."""
    try:
        # The process's name stands in parentheses and may hold spaces; the start time is the 20th word after it.
        words = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
        since_boot = int(words[19]) / os.sysconf("SC_CLK_TCK")
        return time.time() - (time.clock_gettime(time.CLOCK_BOOTTIME) - since_boot)
    except (OSError, ValueError, IndexError, AttributeError):
        return time.time() - UNKNOWN_SECONDS
