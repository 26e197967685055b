"""The wall between us and the training loop: what goes wrong in here stays in here.

Every entry from the framework runs inside a guard. The first error is a warning with its place, the rest are
counted; after `LIMIT` errors in a row of one entry that entry is switched off. An entry is a function, or a method of
one object: the tap of one module that keeps failing does not switch off the taps of the others.
"""

from __future__ import annotations

import contextlib
import functools
import signal
import sys
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path
from types import CodeType
from typing import Any, Concatenate, Final, ParamSpec, Protocol, TypeVar

from stethoscope.record import StethoscopeWarning, StopTraining

LIMIT: Final = 3
MAX_TRACEBACKS: Final = 12
"""Errors whose traceback is put into words: that takes longer than a small step."""
PACKAGE: Final = str(Path(__file__).parents[1])


def warn(message: str) -> None:
    """A warning that can never become an exception, whatever the user's filters, hooks and streams do."""
    with contextlib.suppress(Exception):
        try:
            warnings.warn(message, StethoscopeWarning, stacklevel=3)
        except Warning:  # a filter turned it into an error
            if sys.stderr is not None:
                print(f"stethoscope: {message}", file=sys.stderr)  # noqa: T201


def never_compiled(function: Any) -> Any:
    """Keep torch.compile away from this function of ours and from all that it calls.

    A function that runs between two graphs (an optimizer's hook under a compiled step) would be compiled frame by
    frame otherwise. This asks the evaluator itself, without the second that importing torch.compile's Python costs.
    """
    if not _set_strategy(function, "SKIP", "SKIP"):
        # Another torch, with other names: its own decorator does the same, more slowly.
        function._torchdynamo_disable = True
    return function


def not_compiled_itself(function: Any) -> Any:
    """Keep torch.compile away from this function of ours, but not from what it calls."""
    _set_strategy(function, "SKIP", "DEFAULT")
    return function


def _set_strategy(function: Any, itself: str, callees: str) -> bool:
    import torch  # not above: sessions without a model use the guard, and need no torch

    evaluator: Any = torch._C._dynamo.eval_frame
    try:
        actions = [getattr(evaluator._FrameAction, name) for name in (itself, callees)]
        evaluator.set_code_exec_strategy(function.__code__, evaluator._FrameExecStrategy(*actions))
    except (AttributeError, TypeError):
        return False
    return True


class Modes(Protocol):
    """`capture.modes`, which needs torch; sessions without a model do without."""

    def any_on(self) -> bool:
        """Whether anything listens to operations on this thread."""

    def unseen(self, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> None:
        """Run it without the modes of the user's."""


def _no_mode() -> bool:
    return False


def _run(function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> None:
    function(*args, **kwargs)


class Guard:
    """Calls functions of ours and keeps their errors, and what they do from modes that the user has on."""

    def __init__(self, modes: Modes | None = None) -> None:
        self.any_mode = _no_mode if modes is None else modes.any_on
        self.unseen = _run if modes is None else modes.unseen
        self.errors: Counter[str] = Counter()
        self.last_traceback = ""
        self.in_a_row: dict[Callable[..., Any], int] = {}
        """How often each entry has failed without working once in between."""
        self.spent = 0.0
        """Seconds inside of what the framework called, since somebody set it to zero."""
        self.entered = 0.0
        """When the framework called us last."""

    def __call__(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> None:
        """Run it; an error is kept, not raised. Only a user's own request to stop passes."""
        if self.in_a_row and self.in_a_row.get(function, 0) >= LIMIT:
            return
        try:
            if self.any_mode():
                self.unseen(function, *args, **kwargs)
            else:
                function(*args, **kwargs)
        except BaseException as error:
            if not self.has_kept(function, error):
                raise
        else:
            if self.in_a_row:
                self.in_a_row.pop(function, None)

    def each(self, functions: Iterable[Callable[[Any], None]], given: Any) -> None:
        """Run one after the other with the same argument; each fails alone."""
        for function in functions:
            if self.in_a_row and self.in_a_row.get(function, 0) >= LIMIT:
                continue
            try:
                if self.any_mode():
                    self.unseen(function, given)
                else:
                    function(given)
            except BaseException as error:
                if not self.has_kept(function, error):
                    raise
            else:
                if self.in_a_row:
                    self.in_a_row.pop(function, None)

    def has_kept(self, function: Callable[..., Any], error: BaseException) -> bool:
        """Keep what an entry raised; False where it is meant for the training loop."""
        if not can_be_kept(error):
            return False
        self.in_a_row[function] = self.in_a_row.get(function, 0) + 1
        self.keep(_name_of(function), error)
        return True

    def keep(self, name: str, error: BaseException) -> None:
        """Count an error; the first one is told."""
        self.errors[name] += 1
        num_errors = sum(self.errors.values())
        if num_errors <= MAX_TRACEBACKS:
            self.last_traceback = "".join(traceback.format_exception(error))
        if num_errors == 1:
            warn(
                f"an error inside stethoscope was kept from your training: {in_words(error)} in {name}. Training goes "
                "on; `stethoscope doctor` shows what was lost"
            )


def can_be_kept(error: BaseException) -> bool:
    """Whether an error that came up in our code is not meant for the training loop.

    Requests to stop are, and so is whatever a signal handler of the user's raised while our code happened to run. Of the
    exceptions that are no `Exception`, only those are kept that something we called has raised: one that arose in our
    own frames was put there from outside.
    """
    if isinstance(error, (StopTraining, KeyboardInterrupt, SystemExit)):
        return False
    codes: list[CodeType] = []
    trace = error.__traceback__
    while trace is not None:
        codes.append(trace.tb_frame.f_code)
        trace = trace.tb_next
    handlers = {_code_of(signal.getsignal(number)) for number in signal.valid_signals()} - {None}
    if not handlers.isdisjoint(codes):
        return False
    return isinstance(error, Exception) or not codes[-1].co_filename.startswith(PACKAGE)


def _code_of(handler: Any) -> CodeType | None:
    """What a signal's handler runs: of a function, a method, a partial, or an object that is called."""
    while isinstance(handler, functools.partial):
        handler = handler.func
    if callable(handler) and not hasattr(handler, "__code__"):
        handler = type(handler).__call__
    return getattr(handler, "__code__", None)


def in_words(error: BaseException) -> str:
    """An exception as its repr shows it, also where its own repr raises."""
    try:
        return repr(error)
    except Exception:
        return type(error).__name__


def _name_of(function: Callable[..., Any]) -> str:
    """What is said of an entry that failed: the function, and the module whose tap it is."""
    path = getattr(getattr(function, "__self__", None), "path", None)
    name: str = getattr(function, "__qualname__", type(function).__name__)
    return f"{name} at {path}" if path else name


class _HasGuard(Protocol):
    guard: Guard


Owner = TypeVar("Owner", bound=_HasGuard)
Given = ParamSpec("Given")


def guarded(method: Callable[Concatenate[Owner, Given], None]) -> Callable[Concatenate[Owner, Given], None]:
    """For methods that the framework calls: they run inside their owner's guard, which is written out here to save a call."""

    @functools.wraps(method)
    def inside(self: Owner, /, *args: Given.args, **kwargs: Given.kwargs) -> None:
        guard = self.guard
        if guard.in_a_row and guard.in_a_row.get(method, 0) >= LIMIT:
            return
        guard.entered = time.perf_counter()
        try:
            if guard.any_mode():
                guard.unseen(method, self, *args, **kwargs)
            else:
                method(self, *args, **kwargs)
        except BaseException as error:
            if not guard.has_kept(method, error):
                raise
        else:
            if guard.in_a_row:
                guard.in_a_row.pop(method, None)
        guard.spent += time.perf_counter() - guard.entered

    never_compiled(inside)
    return inside
