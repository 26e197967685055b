"""Outputs in half precision that double again and again on their way to the largest number float16 holds.

Large is no fault: float16 serves well with values of a thousand. What has doubled three times while it was trained and needs only a few
doublings more, at a pace that does not slow down, runs out of numbers soon: past 65,504 there is Inf, then NaN.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import ClassVar, Final

import numpy as np

from stethoscope.analyse.span import Span
from stethoscope.detect.detector import Code, Detector, Reading, Rule
from stethoscope.detect.needs import OUTPUTS
from stethoscope.kernels.columns import INDEX
from stethoscope.record import Evidence, Finding, Kind, Severity

LARGEST: Final = 65504.0
DOUBLED: Final = 3
"""Times that it must have doubled since it was first measured."""
LEFT: Final = 4
"""Doublings up to the limit from which on it is told."""
SLOWER: Final = 2.5
"""Times as long as the doubling before: growth in a straight line takes twice as long each time."""


class Doublings:
    """When the largest value of one output first reached each power of two of what it began with."""

    def __init__(self) -> None:
        self._before = self._first = math.nan
        self.latest = math.nan
        self.steps: list[int] = []

    def see(self, step: int, largest: float) -> None:
        """One more measurement; the smaller of two in a row counts, so that one batch does not decide."""
        steady = min(largest, self._before)
        self._before = largest
        if not steady > 0:
            return
        if not self.steps:
            self._first, self.steps = steady, [step]
        self.latest = steady
        self.steps += [step] * (int(math.log2(steady / self._first)) + 1 - len(self.steps))

    @property
    def steps_left(self) -> float:
        """At the pace of the last doubling, until the limit; NaN where it has not doubled often enough, or slows down."""
        if len(self.steps) <= DOUBLED or self.latest >= LARGEST:
            return math.nan
        last, before = self.steps[-1] - self.steps[-2], self.steps[-2] - self.steps[-3]
        left = math.log2(LARGEST / self.latest)
        return left * max(last, 1) if left <= LEFT and last <= SLOWER * max(before, 1) else math.nan


class OverflowAhead(Detector):
    """Follows the largest value of every output in float16."""

    codes: ClassVar[tuple[Code, ...]] = (
        Code(
            "overflow_ahead",
            needs=(OUTPUTS,),
        ),
    )

    def __init__(self) -> None:
        self._sites: dict[int, Doublings] = {}
        self._paths: dict[int, str] = {}
        self._said: tuple[int, int, float, float] | None = None
        """The step, the site, its largest value and the steps left."""
        self._last_step = 0

    def observe(self, span: Span) -> None:
        """Every measurement of every output in float16."""
        if len(span.steps):
            self._last_step = int(span.steps[-1])
        for index, info in enumerate(span.sites):
            if info.dtype != "float16" or info.site.kind not in (Kind.ACTIVATION, Kind.OUTPUT):
                continue
            self._paths[index] = info.site.path
            largest = span.rows[:, index, INDEX["abs_max"]]
            for row in np.flatnonzero(np.isfinite(largest)):
                self._see(int(span.steps[row]), index, float(largest[row]))

    def _see(self, step: int, index: int, largest: float) -> None:
        known = self._sites.setdefault(index, Doublings())
        known.see(step, largest)
        # It must end within what was trained so far: further ahead nobody can tell how it goes on.
        if self._said is None and known.steps_left <= step:
            self._said = (step, index, known.latest, known.steps_left)
        elif self._said is not None and self._said[1] == index and known.latest < self._said[2] / 2:
            self._said = None

    def rules(self) -> Iterator[Rule]:
        """Of the first that is on its way, how it was then; else of the largest, how it is."""
        known = {n: one for n, one in self._sites.items() if math.isfinite(one.latest)}
        worst = max(known, key=lambda n: known[n].latest, default=-1)
        now = known.get(worst, Doublings())
        step, index, largest, left = self._said or (self._last_step, worst, now.latest, now.steps_left)
        doubled = max(len(self._sites.get(index, now).steps) - 1, 0)
        path = self._paths.get(index, "")
        yield Rule(
            "overflow_ahead",
            (
                Reading("largest value of an output in float16", largest, ">=", LARGEST / 2**LEFT, path),
                Reading("times that it doubled", doubled, ">=", DOUBLED),
                Reading("steps left at this pace", left, "<=", step),
            ),
            lambda: self._tell(step, path, largest, left),
        )

    def _tell(self, step: int, path: str, largest: float, left: float) -> Finding:
        return Finding(
            "overflow_ahead",
            Severity.INFO,
            f"The output of {path} may overflow: at step {step:,} its largest value was {largest:,.0f} of the {LARGEST:,.0f} that "
            f"float16 holds, which it reaches in about {left:,.0f} steps if it doubles on as before.",
            step,
            self._last_step,
            (path,),
            (Evidence("largest value", largest, LARGEST, site=path, kind="activation", stat="abs_max"),),
            "torch.autocast(device, dtype=torch.bfloat16)  # the range of float32; or a penalty on the size of this output",
        )
