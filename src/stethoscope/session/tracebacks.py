"""Tracebacks without frames of ours: an exception of the user's looks as it does without us."""

from __future__ import annotations

import types
from collections.abc import Callable


def strip(error: BaseException, trace: types.TracebackType | None, is_ours: Callable[[types.FrameType], bool]) -> None:
    """Take frames of ours out of this exception and of those it came from."""
    _strip(error, trace, is_ours, set())


def last_frame(error: BaseException) -> types.FrameType | None:
    """Where it was raised."""
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    return None if trace is None else trace.tb_frame


def _strip(
    error: BaseException,
    trace: types.TracebackType | None,
    is_ours: Callable[[types.FrameType], bool],
    seen: set[int],
) -> None:
    seen.add(id(error))
    kept = []
    while trace is not None:
        if not is_ours(trace.tb_frame):
            kept.append(trace)
        trace = trace.tb_next
    for place, entry in enumerate(kept):
        entry.tb_next = kept[place + 1] if place + 1 < len(kept) else None
    error.__traceback__ = kept[0] if kept else None
    for other in (error.__cause__, error.__context__):
        if other is not None and id(other) not in seen:
            _strip(other, other.__traceback__, is_ours, seen)
