"""Leak detection inside a session: every n-th Step is watched from its first operator to its last.

Watching costs some 20 µs an operator, so it is off until asked for and then rare. The watch is a dispatch mode on
the training thread: it opens only where no other mode is open, and closes only where it is the innermost, so
that modes of the user's own are never taken off in its place.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from stethoscope.instruments.leaks import LeakDetector


class LeakWatch:
    """Opens and closes the detector's steps at the session's own."""

    def __init__(self, detector: LeakDetector, every: int) -> None:
        self.detector, self.every = detector, max(int(every), 1)
        self.num_watched = 0
        """Steps that were watched."""
        self.num_passed_over = 0
        """Steps that were due and not watched, because another dispatch mode was open."""

    def step_ends(self, next_step: int) -> None:
        """A Step is complete: end its watch, and begin the next one's where it is due."""
        if self.detector.is_open and not self._close():
            return
        if next_step % self.every:
            return
        if _modes():
            self.num_passed_over += 1
            return
        self.detector.begin_step(next_step)
        self.num_watched += 1

    def stop(self) -> None:
        """End a watch that is open, without judging the Step: it is not whole."""
        with contextlib.suppress(RuntimeError):
            self._close(whole=False)

    def _close(self, *, whole: bool = True) -> bool:
        modes = _modes()
        if self.detector.is_open and (not modes or not self.detector.is_mode(modes[-1])):
            return False
        self.detector.end_step() if whole else self.detector.abandon_step()
        return True


def _modes() -> list[Any]:
    from stethoscope.capture.modes import all_dispatch_modes

    return all_dispatch_modes()
