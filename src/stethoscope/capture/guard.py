"""The wall between us and the training loop: what goes wrong in here stays in here.

Every entry from the framework runs inside a guard. The first error is a warning with its place, the rest are
counted; after `LIMIT` errors of one entry that entry is switched off.
"""

from __future__ import annotations

import functools
import sys
import traceback
import warnings
from collections import Counter
from collections.abc import Callable
from typing import Any, Concatenate, Final, ParamSpec, Protocol, TypeVar

from stethoscope.record import StethoscopeWarning, StopTraining

LIMIT: Final = 3


def warn(message: str) -> None:
    """A warning that can never become an exception, whatever the user's warning filters say."""
    try:
        warnings.warn(message, StethoscopeWarning, stacklevel=3)
    except Warning:
        print(f"stethoscope: {message}", file=sys.stderr)  # noqa: T201 - the filter turned it into an error


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
    evaluator = sys.modules["torch"]._C._dynamo.eval_frame
    try:
        actions = [getattr(evaluator._FrameAction, name) for name in (itself, callees)]
        evaluator.set_code_exec_strategy(function.__code__, evaluator._FrameExecStrategy(*actions))
    except (AttributeError, TypeError):
        return False
    return True


class Guard:
    """Calls functions of ours and keeps their errors."""

    def __init__(self) -> None:
        self.errors: Counter[str] = Counter()
        self.last_traceback = ""

    def __call__(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> None:
        """Run it; an error is kept, not raised. Only a user's own request to stop passes."""
        name = function.__qualname__
        if self.errors[name] >= LIMIT:
            return
        try:
            function(*args, **kwargs)
        except StopTraining:
            raise
        except Exception as error:
            self.errors[name] += 1
            self.last_traceback = traceback.format_exc()
            if sum(self.errors.values()) == 1:
                warn(
                    f"an error inside stethoscope was kept from your training: {error!r} in {name}. Training goes "
                    "on; `stethoscope doctor` shows what was lost"
                )


never_compiled(Guard.__call__)


class _HasGuard(Protocol):
    guard: Guard


Owner = TypeVar("Owner", bound=_HasGuard)
Given = ParamSpec("Given")


def guarded(method: Callable[Concatenate[Owner, Given], None]) -> Callable[Concatenate[Owner, Given], None]:
    """For methods that the framework calls: they run inside their owner's guard."""

    @functools.wraps(method)
    def inside(self: Owner, /, *args: Given.args, **kwargs: Given.kwargs) -> None:
        self.guard(method, self, *args, **kwargs)

    never_compiled(inside)
    return inside
