"""However the process ends, the run is closed: normally, by an exception, by a signal, or in a forked child.

The user's own ending passes unchanged: their exception hook, their signal's effect, their exit code.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import signal
import sys
import threading
import types
import weakref
from typing import Any

from stethoscope.record import StopTraining

_live: weakref.WeakSet[Any] = weakref.WeakSet()
_failure: dict[str, Any] | None = None
_installed = False
_previous_hook: Any = None


def remember(session: Any) -> None:
    """This session must be closed if the process ends."""
    _live.add(session)
    _install()


def forget(session: Any) -> None:
    """It closed itself; with the last one our hooks go."""
    _live.discard(session)
    if not _live:
        _uninstall()


def _install() -> None:
    global _installed, _previous_hook
    if _installed:
        return
    _installed = True
    atexit.register(_at_exit)
    _previous_hook, sys.excepthook = sys.excepthook, _on_exception
    if (
        threading.current_thread() is threading.main_thread()
        and signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    ):
        signal.signal(signal.SIGTERM, _on_signal)


def _uninstall() -> None:
    global _installed
    if not _installed:
        return
    _installed = False
    atexit.unregister(_at_exit)
    if sys.excepthook is _on_exception:
        sys.excepthook = _previous_hook
    with contextlib.suppress(ValueError):
        if signal.getsignal(signal.SIGTERM) is _on_signal:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)


def _on_exception(kind: type[BaseException], error: BaseException, trace: types.TracebackType | None) -> None:
    global _failure
    _failure = {"exception": kind.__name__, "message": str(error)[:500]}
    (_previous_hook or sys.__excepthook__)(kind, error, trace)


def _on_signal(number: int, frame: types.FrameType | None) -> None:  # noqa: ARG001 - the signature of a handler
    _close_all("signal", {"signal": signal.Signals(number).name})
    signal.signal(number, signal.SIG_DFL)
    os.kill(os.getpid(), number)


def _at_exit() -> None:
    if _failure is None or _failure["exception"] == StopTraining.__name__:
        # Asked for by a hook or at a prompt of ours: an end, not a crash.
        _close_all("finished", None if _failure is None else {"stopped": _failure["message"]})
    else:
        _close_all("exception", _failure)


def _close_all(ended: str, reason: dict[str, Any] | None) -> None:
    for session in list(_live):
        session.stop(ended, reason)


def _in_child() -> None:
    """A forked child (a data loader's worker) inherits the memory, not the run."""
    for session in list(_live):
        session.abandon()
    _live.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_in_child)
