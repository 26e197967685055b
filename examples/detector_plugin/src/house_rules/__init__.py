"""A rule of this house: a training whose loss is above where it began, ten steps in a row, has gone wrong."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import ClassVar

from stethoscope.analyse.span import Span
from stethoscope.detect import Code, Detector, Reading, Rule
from stethoscope.detect.detector import Streak
from stethoscope.detect.needs import LOSS
from stethoscope.record import Evidence, Finding, Severity

STEPS_IN_A_ROW = 10


class LossAboveStart(Detector):
    """The loss is higher than at the first step for ten steps in a row."""

    codes: ClassVar[tuple[Code, ...]] = (Code("loss_above_start", needs=(LOSS,)),)

    def __init__(self) -> None:
        self._first = math.nan
        self._last = math.nan
        self._above = Streak()

    def observe(self, span: Span) -> None:
        """Compare each step's loss with the first one."""
        for step, loss in zip(span.steps, span.metric("loss"), strict=True):
            if math.isfinite(loss):
                if math.isnan(self._first):
                    self._first = float(loss)
                self._last = float(loss)
                self._above.see(int(step), bool(loss > self._first))

    def rules(self) -> Iterator[Rule]:
        """One finding, for the longest time above; `diagnose --why loss_above_start` prints the reading."""
        since = self._above.start_of_longest
        yield Rule(
            "loss_above_start",
            (Reading("steps in a row above the first loss", self._above.longest, ">=", STEPS_IN_A_ROW),),
            lambda: Finding(
                "loss_above_start",
                Severity.WARNING,
                f"The loss is above its first value from step {since:,} on.",
                since,
                self._above.last_step,
                evidence=(Evidence("loss", self._last, self._first),),
                remedy="optimizer = type(optimizer)(model.parameters(), lr=lr / 10)",
            ),
        )
