"""A loss that stands still: advice, never a cause, and withdrawn as soon as the loss falls again."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar, Final

import numpy as np

from stethoscope.analyse.span import Span
from stethoscope.analyse.trends import Direction, mann_kendall, noise, shorten
from stethoscope.detect.curves import Curves
from stethoscope.detect.detector import Code, Detector, Reading, Rule, median, ratio
from stethoscope.detect.needs import LOSS
from stethoscope.record import Evidence, Finding, FloatArray, Severity

VALUES_NEEDED: Final = 100
LAST: Final = 1.0 / 3.0
"""The share of the run that must be flat, and at least half of what is needed."""
STILL: Final = 0.01
"""Change from the first half of the flat part to the second, as a share of the loss."""
SLOW: Final = 0.2 * STILL
"""A fall below this is flat even where it is no chance."""
POSSIBLE: Final = 0.02
"""The largest fall that the noise of the losses could hide: above it nothing is said, for a slow fall may be there."""
CONVERGED: Final = 0.02
"""A loss below this share of where it began has nowhere to fall to."""


class Plateau(Detector):
    """Looks at the last part of the loss's curve, whenever asked."""

    codes: ClassVar[tuple[Code, ...]] = (Code("plateau", needs=(LOSS,)),)

    def __init__(self) -> None:
        self._curves = Curves()

    def observe(self, span: Span) -> None:
        """Take in the next steps."""
        self._curves.observe(span)

    def rules(self) -> Iterator[Rule]:
        """The flat stretch that reaches to now."""
        loss = self._curves.loss
        tail = loss.values[-max(VALUES_NEEDED // 2, int(LAST * len(loss))) :]
        half = len(tail) // 2
        before, after, level = median(tail[:half]), median(tail[half:]), median(tail)
        began = median(self._curves.first_losses(5))
        falls = mann_kendall(shorten(tail, 100)[0], alpha=0.001, correlated=True).direction is Direction.FALLING
        yield Rule(
            "plateau",
            (
                Reading("losses", len(loss), ">=", VALUES_NEEDED),
                Reading("the loss is a measure of progress", self._curves.is_measure, "=", 1),
                Reading(
                    "fall within the last part, as a share of the loss", ratio(before - after, abs(before)), "<=", STILL
                ),
                # Where single losses are so noisy that progress could hide in them, nothing is said.
                Reading(
                    "the same, at most, with what the noise could hide",
                    ratio(_possible_fall(tail, before - after), abs(before)),
                    "<=",
                    POSSIBLE,
                ),
                Reading(
                    "the same, where it is a trend and no chance",
                    ratio(before - after, abs(before)) if falls else 0.0,
                    "<",
                    SLOW,
                ),
                Reading(
                    "loss of the last part, above next to nothing of the first ones", level, ">", CONVERGED * abs(began)
                ),
            ),
            lambda: self._tell(tail, level, began),
        )

    def _tell(self, tail: FloatArray, level: float, began: float) -> Finding:
        loss = self._curves.loss
        first = self._plateau_start(loss.values, level, len(loss) - len(tail))
        step = int(loss.steps[first])
        return Finding(
            "plateau",
            Severity.INFO,
            f"The loss has stood at about {level:.3g} since step {step:,}.",
            step,
            int(loss.steps[-1]),
            (),
            (
                Evidence("loss, against where it began", level, began),
                Evidence("steps without progress", float(round((1 - first / len(loss)) * loss.num))),
            ),
            "torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer)  # if more was to be learned",
        )

    @staticmethod
    def _plateau_start(values: FloatArray, level: float, upto: int) -> int:
        """How far back the level reaches, by the medians of windows of ten."""
        room = max(STILL * abs(level), 4.0 * noise(values[upto:]) / 10**0.5)
        first = upto
        while first >= 10 and abs(float(np.median(values[first - 10 : first])) - level) <= room:
            first -= 10
        return first


def _possible_fall(tail: FloatArray, fall: float) -> float:
    """The fall from the first half to the second that the noise of single losses does not rule out."""
    return fall + 2.0 * 1.25 * noise(tail) * float(np.sqrt(2.0 / max(len(tail) // 2, 1)))
