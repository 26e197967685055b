"""What a training loop calls on a session never raises: errors are kept and counted, as those of our hooks are."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Concatenate, ParamSpec, Protocol, TypeVar

from stethoscope.record import WatchError

if TYPE_CHECKING:
    from stethoscope.capture.guard import Guard


class _HasGuard(Protocol):
    @property
    def _guard(self) -> Guard: ...


Owner = TypeVar("Owner", bound=_HasGuard)
Given = ParamSpec("Given")
Answer = TypeVar("Answer")


def never_raises(
    otherwise: Answer,
) -> Callable[[Callable[Concatenate[Owner, Given], Answer]], Callable[Concatenate[Owner, Given], Answer]]:
    """For a method of a session: `otherwise` is returned where an error was kept.

    Three things pass: the user's own requests to stop, an interrupt, and a WatchError, which says how it is to be called.
    """

    def decorate(
        method: Callable[Concatenate[Owner, Given], Answer],
    ) -> Callable[Concatenate[Owner, Given], Answer]:
        @functools.wraps(method)
        def inside(self: Owner, /, *args: Given.args, **kwargs: Given.kwargs) -> Answer:
            guard = self._guard
            try:
                if guard.any_mode():
                    answers: list[Answer] = []
                    guard.unseen(lambda: answers.append(method(self, *args, **kwargs)))
                    return answers[0]
                return method(self, *args, **kwargs)
            except WatchError:
                raise
            except BaseException as error:
                from stethoscope.capture.guard import can_be_kept

                if not can_be_kept(error):
                    raise
                guard.keep(method.__qualname__, error)
                return otherwise

        return inside

    return decorate


def in_words(error: BaseException | None) -> str:
    """An exception's message, also where its own `__str__` raises."""
    try:
        return str(error)[:500]
    except Exception:
        return ""
