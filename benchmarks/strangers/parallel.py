"""Many starts at once, each a process and a folder of its own, until there is no more time."""

from __future__ import annotations

import dataclasses
import os
import shutil
import signal
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Final

from benchmarks.strangers.reading import Ran, load, save
from benchmarks.strangers.running import GRACE_SECONDS, LIMIT_SECONDS

TOO_LATE_SECONDS: Final = 15
"""Nothing is started that has less."""


@dataclasses.dataclass
class Task:
    """One start to be made, given its folder and the seconds that it has."""

    name: str
    start: Callable[[Path, float], Ran]


def run_all(tasks: Sequence[Task], jobs: int, minutes: float) -> Iterator[Ran]:
    """Rows as they come. What the end of the time cut off gives none."""
    until = time.monotonic() + 60.0 * minutes
    waiting, children = list(reversed(tasks)), dict[int, Path]()
    # No TemporaryDirectory: a fork that runs its exit functions would remove it.
    scratch = Path(tempfile.mkdtemp(prefix="strangers-"))
    try:
        while waiting or children:
            left = until - time.monotonic()
            if left < TOO_LATE_SECONDS:
                waiting.clear()
            while waiting and len(children) < jobs:
                task = waiting.pop()
                children[_start(task, scratch / task.name, left)] = scratch / task.name
            if left < -2 * GRACE_SECONDS:
                for child in children:
                    os.kill(child, signal.SIGKILL)
                return
            yield from _collected(children, until)
            time.sleep(0.02)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def _start(task: Task, into: Path, left: float) -> int:
    child = os.fork()
    if child:
        return child
    try:
        into.mkdir()
        row = task.start(into / "work", min(LIMIT_SECONDS, left))
        save([row], into / "row.json")
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(0)


def _collected(children: dict[int, Path], until: float) -> Iterator[Ran]:
    for child, into in list(children.items()):
        done, _ = os.waitpid(child, os.WNOHANG)
        if not done:
            continue
        del children[child]
        rows = load(into / "row.json")
        shutil.rmtree(into, ignore_errors=True)
        was_cut_by_us = time.monotonic() > until and any(row.is_cut for row in rows)
        yield from [] if was_cut_by_us else rows
