"""How long the parts of a step take on the host: forward pass with the loss, backward pass, optimizer.

Two readings of a clock a part; what our own taps spend inside is left out, and so is a part that runs inside another (a
closure's passes inside the optimizer's step). On a device these are the times of launching, not of computing.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final, Protocol

from stethoscope.record import metrics

PARTS: Final = (metrics.FORWARD_MS, metrics.BACKWARD_MS, metrics.OPTIMIZER_MS)


class Spender(Protocol):
    """Somebody whose own time is left out."""

    spent: float
    """Seconds in the step under way."""


class Phases:
    """The clock of one step's parts."""

    def __init__(self, ours: Spender) -> None:
        self._ours = ours
        self._open: dict[str, float] = {}
        """What the clock showed when each began: the time that was neither ours nor an inner part's."""
        self._counted = 0.0
        self.on_end: Callable[[str], None] | None = None
        """Told which part has ended."""

    def begin(self, part: str, at: float | None = None) -> None:
        """A part begins, or began at that time; one that is under way goes on."""
        if part not in self._open:
            self._open[part] = (time.perf_counter() if at is None else at) - self._ours.spent - self._counted

    def end(self, part: str, scalars: dict[str, float], at: float | None = None) -> None:
        """A part ends, or ended at that time: its milliseconds are added to the step's named numbers."""
        began = self._open.pop(part, None)
        if began is None:
            return
        now = time.perf_counter() if at is None else at
        spent = max(now - self._ours.spent - self._counted - began, 0.0)
        self._counted += spent
        scalars[part] = scalars.get(part, 0.0) + spent * 1e3
        if self.on_end is not None:
            self.on_end(part)

    def forget(self) -> None:
        """The step is over: what did not end belongs to none."""
        self._open.clear()
