"""What a detector is, and the small tools that several share."""

from __future__ import annotations

import abc
import dataclasses
import math
import operator
from typing import ClassVar, Final

import numpy as np

from stethoscope.analyse.span import Span
from stethoscope.detect.needs import Need
from stethoscope.record import Finding, SiteInfo

SIGNS: Final = {">=": operator.ge, ">": operator.gt, "<=": operator.le, "<": operator.lt, "=": operator.eq}


@dataclasses.dataclass(frozen=True, slots=True)
class Reading:
    """One number that a rule asks for, beside its limit: why it spoke, or did not."""

    label: str
    value: float
    """NaN where there was nothing to measure."""
    sign: str = ""
    """How the number must stand to the limit for the rule to speak; "" for a number that is only told."""
    limit: float = math.nan
    site: str = ""
    way: str = ""
    """A rule with several ways to speak names them: all readings of one way, and those of no way, must hold."""

    @property
    def holds(self) -> bool | None:
        """Whether the rule has here what it asks for; None for a number that is only told."""
        return bool(SIGNS[self.sign](self.value, self.limit)) if self.sign else None


@dataclasses.dataclass(frozen=True, slots=True)
class Code:
    """What is declared about one code beside the rule that finds it; its page is `codes/NAME.md`."""

    name: str
    needs: tuple[Need, ...] = ()
    """What must have been recorded for the rule to speak."""
    leads_to: tuple[str, ...] = ()
    """Codes that can follow from this one, where they begin no earlier: mechanisms, not coincidences."""
    through_updates: bool = False
    """Whether it does harm only by the updates that it makes."""


class Detector(abc.ABC):
    """One mechanism. Sees every step once, in order; its findings depend on the steps, not on how they were cut."""

    codes: ClassVar[tuple[Code, ...]] = ()
    """What it can find. A class without codes is no detector by itself, only a base of some."""

    @abc.abstractmethod
    def observe(self, span: Span) -> None:
        """Take in the next steps."""

    @abc.abstractmethod
    def findings(self) -> list[Finding]:
        """What is found in all steps so far."""

    def readings(self) -> dict[str, list[Reading]]:
        """By code, the numbers that its rule asks for, as far as they can be told; they are necessary, not sufficient."""
        return {}


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


def is_matrix(info: SiteInfo) -> bool:
    """Whether a parameter is a weight proper, not a bias or a scale."""
    return len(info.shape) >= 2
