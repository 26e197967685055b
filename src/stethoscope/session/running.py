"""Which session watches which model now: one each."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from stethoscope.session.session import DebugSession

_sessions: dict[int, DebugSession] = {}
"""By the address of each model, which the session keeps alive. Not by the model: it may define `__eq__`."""


def stop_those_of(models: Iterable[Any]) -> None:
    """These models are about to be watched by another session."""
    for model in models:
        old = _sessions.pop(id(model), None)
        if old is not None:
            old.stop()


def remember(session: DebugSession, models: Iterable[Any]) -> None:
    """This session watches these models."""
    _sessions.update(dict.fromkeys(map(id, models), session))


def forget(session: DebugSession) -> None:
    """It watches none any more."""
    for model in [model for model, one in _sessions.items() if one is session]:
        del _sessions[model]
