"""However the process ends, the run is closed: normally, by an exception, by a signal, or in a forked child.

The user's own ending passes unchanged: their traceback, their exception hooks, their signal's effect, their exit
status. Closing runs on a thread that waits for it from the start, and the process that ends waits for this thread for
`END_SECONDS` at most, whatever hangs: a disk, a companion, a lock that the interrupted code holds.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import os
import signal
import sys
import threading
import types
import weakref
from pathlib import Path
from typing import Any, Final

from stethoscope.record import StopTraining
from stethoscope.session import messages, tracebacks
from stethoscope.session.deadline import Deadline
from stethoscope.session.shield import in_words

END_SECONDS: Final = 3.0
"""What an ending process waits for us, in all."""
GIVE_UP_SECONDS: Final = 0.2
INSIDE_TRAINING: Final = tuple(str(Path(__file__).parents[1] / room) + os.sep for room in ("capture", "session"))
"""Where functions of ours live that the user's own calls pass through."""
_CLOSE: Final = 0

_live: weakref.WeakSet[Any] = weakref.WeakSet()
_failed_threads: dict[int, dict[str, Any]] = {}
_installed = False
_previous_hook: Any = None
_previous_thread_hook: Any = None
_error_before = 0
_closer: Closer | None = None


class GivenUp(SystemExit):
    """Raised in the thread that closes, when the process waits for it no longer; no guard keeps it."""


class Closer:
    """The thread that closes sessions when the process ends.

    A pipe wakes it, because that is how Python tells of a signal at once: a handler in Python would wait until the main
    thread returns from torch, which may take longer than anybody who sends SIGTERM waits. It is made when watching
    begins: an interpreter that shuts down makes no threads.
    """

    def __init__(self) -> None:
        self.pid = os.getpid()
        self._reading, self.writing = os.pipe()
        os.set_blocking(self.writing, False)
        self._ended: tuple[str, dict[str, Any] | None] | None = None
        self._deadline = Deadline(0.0)
        self._done = threading.Event()
        self._lock = threading.RLock()
        self._thread = threading.Thread(target=self._run, name="stethoscope-ending", daemon=True)
        self._thread.start()

    def close_all(self, ended: str | None, reason: dict[str, Any] | None = None) -> None:
        """Close every session, each as it ended or as is said here; returns when done or when the time is up."""
        sessions = list(_live)
        self._begin(ended or "", reason)
        with contextlib.suppress(OSError):
            os.write(self.writing, bytes([_CLOSE]))
        try:
            is_done = self._done.wait(self._deadline.left())
        except KeyboardInterrupt:
            self._give_up()
            raise
        if not is_done:
            self._give_up()
            for session in sessions:
                if not session.has_said_end:
                    session.say_unfinished()

    def _give_up(self) -> None:
        """End the thread's work: what it still imports would change how the interpreter ends (see `mark_interrupted`)."""
        ident = ctypes.c_ulong(self._thread.ident or 0)
        ctypes.pythonapi.PyThreadState_SetAsyncExc(ident, ctypes.py_object(GivenUp))
        self._done.wait(GIVE_UP_SECONDS)

    def _begin(self, ended: str, reason: dict[str, Any] | None) -> None:
        with self._lock:
            # A signal while the run is being closed changes neither what is written nor how long it may take.
            if self._ended is None:
                self._deadline = Deadline(END_SECONDS)
                self._ended = ended, reason
                self._done.clear()

    def _run(self) -> None:
        while True:
            for number in os.read(self._reading, 64):
                if number != _CLOSE and (number != signal.SIGTERM or not _is_ours(number)):
                    continue
                if number != _CLOSE:
                    self._begin("signal", {"signal": signal.Signals(number).name})
                self._close()
                if number != _CLOSE:
                    _die_of(number)

    def _close(self) -> None:
        if self._ended is None:
            return
        ended, reason = self._ended
        try:
            for session in list(_live):
                how = (ended, reason) if ended else _how_it_ended(session)
                session.close(*how, self._deadline)
        except GivenUp:
            pass
        except Exception as error:  # the process ends in any case
            messages.say(f"stethoscope: closing the run failed: {error!r}")
        self._ended = None
        self._done.set()


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
    global _installed, _previous_hook, _previous_thread_hook, _error_before, _closer
    if _installed:
        return
    _installed = True
    _error_before = id(getattr(sys, "last_value", None))
    if _closer is None or _closer.pid != os.getpid():
        _closer = Closer()
    atexit.register(_at_exit)
    _previous_hook, sys.excepthook = sys.excepthook, _on_exception
    _previous_thread_hook, threading.excepthook = threading.excepthook, _on_thread_exception
    if threading.current_thread() is threading.main_thread() and signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
        signal.signal(signal.SIGTERM, _on_signal)
        _wake_by(_closer.writing)


def _uninstall() -> None:
    global _installed
    if not _installed:
        return
    _installed = False
    atexit.unregister(_at_exit)
    if sys.excepthook is _on_exception:
        sys.excepthook = _previous_hook
    if threading.excepthook is _on_thread_exception:
        threading.excepthook = _previous_thread_hook
    # Not possible outside of the main thread: then the handler stays, and does what the default one does.
    with contextlib.suppress(ValueError):
        if signal.getsignal(signal.SIGTERM) is _on_signal:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            if _closer is not None:
                _wake_by(-1, instead_of=_closer.writing)


def _wake_by(descriptor: int, *, instead_of: int = -1) -> None:
    """Have signals written to this pipe; where another (an event loop) has its own already, that one keeps it."""
    if os.name == "posix":
        other = signal.set_wakeup_fd(descriptor, warn_on_full_buffer=False)
        if other != instead_of:
            signal.set_wakeup_fd(other, warn_on_full_buffer=False)


def _on_exception(kind: type[BaseException], error: BaseException, trace: types.TracebackType | None) -> None:
    if trace is not None and trace.tb_frame.f_globals.get("__name__") == "code":
        trace = trace.tb_next  # a console leaves its own frame out, and hands it only to hooks that are not Python's
    _leave_no_frames(error, trace)
    (_previous_hook or sys.__excepthook__)(kind, error, error.__traceback__)


def _on_thread_exception(args: Any) -> None:
    if args.exc_value is not None:
        _leave_no_frames(args.exc_value, args.exc_traceback)
        if args.thread is not None and args.thread.ident is not None:
            _failed_threads[args.thread.ident] = described(args.exc_value)
    (_previous_thread_hook or threading.__excepthook__)(args)


def _leave_no_frames(error: BaseException, trace: types.TracebackType | None) -> None:
    """Show the frames that there were without us; a fault of ours keeps its own, or nobody could find it."""
    last = tracebacks.last_frame(error)
    if last is None or not _is_inside_training(last) or isinstance(error, (KeyboardInterrupt, StopTraining)):
        tracebacks.strip(error, trace, _is_inside_training)


def _is_inside_training(frame: types.FrameType) -> bool:
    return frame.f_code.co_filename.startswith(INSIDE_TRAINING)


def _on_signal(number: int, frame: types.FrameType | None) -> None:  # noqa: ARG001 - the signature of a handler
    if _closer is not None and _closer.pid == os.getpid():
        with contextlib.suppress(KeyboardInterrupt):
            _closer.close_all("signal", {"signal": signal.Signals(number).name})
    _die_of(number)


def _is_ours(number: int) -> bool:
    return signal.getsignal(number) is _on_signal


def _die_of(number: int) -> None:
    """End by this signal, from whichever thread: only the C library sets a handler outside of the main one."""
    ctypes.CDLL(None).signal(ctypes.c_int(number), ctypes.c_void_p(0))
    os.kill(os.getpid(), number)


def _at_exit() -> None:
    error = _unhandled()
    if _closer is not None and _closer.pid == os.getpid():
        try:
            _closer.close_all(None)
        except KeyboardInterrupt as second:
            error = second
    if isinstance(error, KeyboardInterrupt):
        mark_interrupted()


def mark_interrupted() -> None:
    """Let the interpreter end as after a Ctrl-C that nobody caught: by SIGINT, which a shell shows as 130.

    It keeps that in a flag, which every `exec` of a string clears; importing a dataclass at exit is enough.
    """
    with contextlib.suppress(KeyboardInterrupt):
        exec("raise KeyboardInterrupt")  # noqa: S102 - nothing else sets the flag


def _unhandled() -> BaseException | None:
    """The exception that ended the script. At a prompt an exception ends nothing."""
    error = getattr(sys, "last_value", None)
    return None if id(error) == _error_before or hasattr(sys, "ps1") else error


def _how_it_ended(session: Any) -> tuple[str, dict[str, Any] | None]:
    error = _unhandled()
    failure = described(error) if error is not None else _failed_threads.get(session.trained_in)
    if failure is None:
        return "finished", None
    if failure["exception"] == StopTraining.__name__:
        # Asked for by a hook or at a prompt of ours: an end, not a crash.
        return "finished", {"stopped": failure["message"]}
    return "exception", failure


def described(error: BaseException | None) -> dict[str, Any]:
    """An exception as the run keeps it."""
    return {"exception": type(error).__name__, "message": in_words(error)}


def _in_child() -> None:
    """A forked child (a data loader's worker) inherits the memory, not the run."""
    for session in list(_live):
        session.abandon()
    _live.clear()
    _uninstall()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_in_child)
