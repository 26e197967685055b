"""What a detector is, and the small tools that several share."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, Protocol

import numpy as np

from stethoscope.analyse.span import Span
from stethoscope.record import Finding, SiteInfo


class Detector(Protocol):
    """One mechanism. Sees every step once, in order; its findings depend on the steps, not on how they were cut."""

    codes: ClassVar[tuple[str, ...]]

    def observe(self, span: Span) -> None:
        """Take in the next steps."""

    def findings(self) -> list[Finding]:
        """What is found in all steps so far."""


class Streak:
    """How long something has been true in a row, and since when."""

    def __init__(self) -> None:
        self.length = 0
        self.longest = 0
        self.first_step = 0
        self.start_of_longest = 0
        self.last_step = 0

    def see(self, step: int, is_true: bool) -> None:
        """One more step."""
        if not is_true:
            self.length = 0
            return
        if self.length == 0:
            self.first_step = step
        self.length += 1
        self.last_step = step
        if self.length > self.longest:
            self.longest, self.start_of_longest = self.length, self.first_step


class Recent:
    """The last values of a number, for a median that a spike does not move."""

    def __init__(self, size: int) -> None:
        self._values = np.full(size, np.nan)
        self._count = 0

    def __len__(self) -> int:
        return min(self._count, len(self._values))

    def add(self, value: float) -> None:
        """One more value; non-finite ones do not count."""
        if np.isfinite(value):
            self._values[self._count % len(self._values)] = value
            self._count += 1

    def median(self) -> float:
        """The median of what is kept, NaN where there is nothing."""
        return float(np.median(self._values[: len(self)])) if len(self) else float("nan")


def name_list(paths: Sequence[str], limit: int = 3) -> str:
    """Names for a sentence: the first few, then how many more."""
    shown = ", ".join(paths[:limit])
    return f"{shown} and {len(paths) - limit} more" if len(paths) > limit else shown


def is_matrix(info: SiteInfo) -> bool:
    """Whether a parameter is a weight proper, not a bias or a scale."""
    return len(info.shape) >= 2
