"""The process starts of a run, and from them how the run stands: live, finished, crashed or gone quiet."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Mapping, Sequence
from typing import Any, Final

from stethoscope.store import process

STALE_AFTER_S: Final = 60.0
_GOOD_ENDS: Final = frozenset({"finished", "exit"})


@dataclasses.dataclass(frozen=True, slots=True)
class Start:
    """One process that wrote, or writes, to the run."""

    rank: int
    ordinal: int
    token: str
    pid: int | None
    host: str
    started_at: float | None
    ended: dict[str, Any] | None
    """What the END frame says, None where there is none."""
    how: str
    """ "live", "finished", "crashed" or "stale"."""
    first_step: int | None = None
    last_step: int | None = None


def how(head: Mapping[str, Any] | None, ended: Mapping[str, Any] | None, last_time: float) -> str:
    """How one process start stands."""
    if ended is not None:
        return "finished" if ended.get("ended") in _GOOD_ENDS else "crashed"
    if head is not None and process.is_known_dead(head.get("process", {})):
        return "crashed"
    return "stale" if time.time() - last_time > STALE_AFTER_S else "live"


def overall(starts: Sequence[Start]) -> str:
    """How the run stands: the latest start of each rank decides, the worst of them first."""
    latest: dict[int, list[Start]] = {}
    for start in starts:
        rivals = latest.setdefault(start.rank, [])
        if rivals and rivals[0].ordinal < start.ordinal:
            rivals.clear()
        if not rivals or rivals[0].ordinal == start.ordinal:
            rivals.append(start)
    states = {start.how for rivals in latest.values() for start in rivals}
    for state in ("live", "crashed", "stale"):
        if state in states:
            return state
    return "finished" if states else "stale"
