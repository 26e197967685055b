"""What was handed in and did not reach the disk: rows by number, steps exactly, as ranges."""

from __future__ import annotations

import threading
from bisect import bisect_right
from collections.abc import Iterable, Mapping
from typing import Any, Final

COUNTERS: Final = (
    "queued",
    "written",
    "dropped_rows",
    "dropped_other",
    "dropped_bytes",
    "rejected",
    "write_errors",
    "fsync_errors",
    "bytes_written",
)
_REPORTED: Final = (
    "dropped_rows",
    "dropped_other",
    "dropped_bytes",
    "rejected",
    "write_errors",
    "fsync_errors",
)
LOST_STEPS, FIRST_LOST, LAST_LOST = "lost_steps", "first_lost_step", "last_lost_step"
UNWRITTEN_SINCE: Final = "unwritten_since_step"
"""In the last word of a process that could not write any more: from this step on its rows were in memory only."""
_RANGES_TOLD: Final = 100


class StepRanges:
    """A set of steps, kept as ranges: lost steps mostly follow each other."""

    def __init__(self, steps: Iterable[int] = ()) -> None:
        self._firsts: list[int] = []
        self._lasts: list[int] = []
        for step in steps:
            self.add(step)

    def add(self, step: int) -> None:
        """Takes in a step, in any order; one that is there already changes nothing."""
        index = bisect_right(self._firsts, step) - 1
        if index >= 0 and step <= self._lasts[index]:
            return
        joins_next = index + 1 < len(self._firsts) and self._firsts[index + 1] == step + 1
        if index >= 0 and self._lasts[index] == step - 1:
            self._lasts[index] = step
            if joins_next:
                self._lasts[index] = self._lasts.pop(index + 1)
                del self._firsts[index + 1]
        elif joins_next:
            self._firsts[index + 1] = step
        else:
            self._firsts.insert(index + 1, step)
            self._lasts.insert(index + 1, step)

    def copy(self) -> StepRanges:
        """The same steps in a set of their own."""
        other = StepRanges()
        other._firsts, other._lasts = list(self._firsts), list(self._lasts)
        return other

    def __len__(self) -> int:
        return sum(self._lasts) - sum(self._firsts) + len(self._firsts)

    @property
    def ranges(self) -> list[tuple[int, int]]:
        """First and last step of each range, rising."""
        return list(zip(self._firsts, self._lasts, strict=True))


class Losses:
    """The account of one process start; the training thread and the writer's own both add to it."""

    def __init__(self, counters: dict[str, int]) -> None:
        self._counters = counters
        self._lock = threading.RLock()  # re-entrant: a signal handler may come in between
        self._steps = StepRanges()

    def add(self, step: int, num_rows: int, num_bytes: int, *, is_rows: bool) -> None:
        """Something of a step that will not be written."""
        with self._lock:
            self._counters["dropped_rows" if is_rows else "dropped_other"] += max(num_rows, 1)
            self._counters["dropped_bytes"] += num_bytes
            if is_rows:
                self._steps.add(step)

    def numbers(self, in_memory: Iterable[tuple[int, int]] = ()) -> dict[str, int]:
        """As the run keeps them; step and number of rows that are `in_memory` are counted as lost."""
        with self._lock:
            found = {name: self._counters[name] for name in _REPORTED}
            steps = self._steps.copy()
        for step, num_rows in in_memory:
            found["dropped_rows"] += num_rows
            steps.add(step)
        if ranges := steps.ranges:
            found |= {LOST_STEPS: len(steps), FIRST_LOST: ranges[0][0], LAST_LOST: ranges[-1][1]}
        return found

    def ranges(self) -> list[tuple[int, int]]:
        """The lost steps for the last frame of a process start, the first hundred ranges of them."""
        with self._lock:
            return self._steps.ranges[:_RANGES_TOLD]


def add_up(accounts: Iterable[Mapping[str, int]]) -> dict[str, int]:
    """The numbers of several process starts as one: amounts added, of steps the first and the last."""
    total: dict[str, int] = {}
    for account in accounts:
        for name, value in account.items():
            if name in (FIRST_LOST, UNWRITTEN_SINCE):
                total[name] = min(total.get(name, value), value)
            elif name == LAST_LOST:
                total[name] = max(total.get(name, value), value)
            else:
                total[name] = total.get(name, 0) + value
    return total


def lost_steps_text(losses: Mapping[str, Any]) -> str:
    """ "501 steps (199 to 699)", "" where none were lost."""
    num, first, last = (losses.get(name) for name in (LOST_STEPS, FIRST_LOST, LAST_LOST))
    if not num or first is None or last is None:
        return ""
    between = f"{first:,} to {last:,}" if last > first else f"{first:,}"
    return f"{num:,} step{'s' * (num > 1)} ({between if num == last - first + 1 else 'between ' + between.replace(' to ', ' and ')})"
