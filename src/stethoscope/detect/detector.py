"""What a detector is, and the small tools that several share."""

from __future__ import annotations

import abc
import dataclasses
import math
import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import ClassVar, Final

import numpy as np
import numpy.typing as npt

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
    """Of a code with several rules, which of them asks for it; "" where all do."""

    @property
    def holds(self) -> bool | None:
        """Whether the rule has here what it asks for; None for a number that is only told."""
        return bool(SIGNS[self.sign](self.value, self.limit)) if self.sign else None


Readings = Sequence[Reading]


@dataclasses.dataclass(frozen=True, slots=True)
class Rule:
    """What a finding rests on: it is told where all readings hold, and `diagnose --why` prints the same readings."""

    code: str
    readings: Readings
    tell: Callable[[], Finding]
    """Puts it into words; called only where the readings hold."""
    way: str = ""
    """Of a code that is found in several ways, which of them this is. Rules of one way ask the same of several candidates."""
    is_otherwise: bool = False
    """Whether it is told only where no rule about its code before it is."""

    @property
    def holds(self) -> bool:
        """Whether everything is as the rule asks."""
        return all_hold(self.readings)


def all_hold(readings: Iterable[Reading]) -> bool:
    """Whether every number is as it is asked to be."""
    return all(reading.holds is not False for reading in readings)


def nearest(candidates: Iterable[Readings]) -> Readings:
    """Of candidates of whom the same is asked, the first of those that lack least; nothing where there are none."""
    return min(candidates, key=_lacks, default=())


def _lacks(readings: Readings) -> tuple[int, float]:
    """How many numbers are not as they are asked to be, and by how much of their size."""
    lacking = [(float(reading.value), float(reading.limit)) for reading in readings if reading.holds is False]
    sizes = [abs(value - limit) / max(abs(value), abs(limit), 1e-300) for value, limit in lacking]
    return len(lacking), sum(math.inf if math.isnan(size) else size for size in sizes)


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

    def rules(self) -> Iterable[Rule]:
        """What all steps so far come to, in the order in which it is told. A code may have several rules."""
        return ()

    def findings(self) -> list[Finding]:
        """What is found in all steps so far."""
        told: list[Finding] = []
        for rule in self.rules():
            if rule.holds and not (rule.is_otherwise and any(finding.code == rule.code for finding in told)):
                told.append(rule.tell())
        return told

    def readings(self) -> dict[str, list[Reading]]:
        """By code, the numbers on which it is decided: of each way, and of candidates those of the one that lacks least."""
        ways: dict[str, dict[str, Readings]] = {}
        for rule in self.rules():
            of_code = ways.setdefault(rule.code, {})
            of_code[rule.way] = nearest([of_code.get(rule.way, rule.readings), rule.readings])
        return {code: _of_all_ways(found) for code, found in ways.items()}


def _of_all_ways(ways: dict[str, Readings]) -> list[Reading]:
    """What all ways ask for, once; then what each asks for besides, under its name."""
    common = [one for one in next(iter(ways.values())) if all(any(one is r for r in other) for other in ways.values())]
    own = [(way, one) for way, readings in ways.items() for one in readings if all(one is not c for c in common)]
    return common + [dataclasses.replace(one, way=way) for way, one in own]


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
        return median(self._values[: len(self)])


FEW: Final = 512


def median(values: npt.ArrayLike) -> float:
    """The median as NumPy gives it, NaN of nothing; in a tenth of the time where there are few values."""
    if np.size(values) > FEW:
        return float(np.median(np.asarray(values)))
    ordered = np.sort(np.asarray(values, dtype=np.float64), axis=None)
    size = len(ordered)
    if not size or ordered[-1] != ordered[-1]:  # NaN is sorted behind all others
        return math.nan
    middle = float(ordered[size // 2])
    return middle if size % 2 else (float(ordered[size // 2 - 1]) + middle) / 2


def ratio(part: float, whole: float) -> float:
    """The quotient, NaN where there is nothing to divide by."""
    return part / whole if whole else math.nan


def layer_name(path: str, types: Mapping[str, str]) -> str:
    """For a sentence: "layer 2 (Linear)"."""
    return f"layer {path} ({types[path]})" if types.get(path) else f"layer {path}"


def is_matrix(info: SiteInfo) -> bool:
    """Whether a parameter is a weight proper, not a bias or a scale."""
    return len(info.shape) >= 2
