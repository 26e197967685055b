"""A loss that stands still: advice, never a cause, and withdrawn as soon as the loss falls again."""

from __future__ import annotations

from typing import ClassVar, Final

import numpy as np

from stethoscope.analyse.span import Span
from stethoscope.analyse.trends import Direction, mann_kendall, noise, shorten
from stethoscope.detect.curves import Curves
from stethoscope.detect.detector import Code, Detector, Reading
from stethoscope.detect.needs import LOSS
from stethoscope.record import Evidence, Finding, FloatArray, Severity

VALUES_NEEDED: Final = 100
LAST: Final = 1.0 / 3.0
"""The share of the run that must be flat, and at least half of what is needed."""
STILL: Final = 0.01
"""Change from the first half of the flat part to the second, as a share of the loss."""
POSSIBLE: Final = 0.02
"""The largest fall that the noise of the losses could hide: above it nothing is said, for a slow fall may be there."""
CONVERGED: Final = 0.02
"""A loss below this share of where it began has nowhere to fall to."""


class Plateau(Detector):
    """Looks at the last part of the loss's curve, whenever asked."""

    codes: ClassVar[tuple[Code, ...]] = (
        Code(
            "plateau",
            needs=(LOSS,),
        ),
    )

    def __init__(self) -> None:
        self._curves = Curves()

    def observe(self, span: Span) -> None:
        """Take in the next steps."""
        self._curves.observe(span)

    def readings(self) -> dict[str, list[Reading]]:
        """What the rule asks for, and what it got."""
        values = self._curves.loss.values
        tail = values[-max(VALUES_NEEDED // 2, int(LAST * len(values))) :]
        half = len(tail) // 2
        before, after = (float(np.median(part)) if half else np.nan for part in (tail[:half], tail[half:]))
        hidden = _possible_fall(tail) if half else np.nan
        return {
            "plateau": [
                Reading("losses", len(values), ">=", VALUES_NEEDED),
                Reading("the loss is a measure of progress", int(self._curves.is_measure), "=", 1),
                Reading(
                    "fall within the last part, as a share of the loss",
                    (before - after) / abs(before) if before else np.nan,
                    "<=",
                    STILL,
                ),
                Reading(
                    "the same, at most, with what the noise could hide",
                    hidden / abs(before) if before else np.nan,
                    "<=",
                    POSSIBLE,
                ),
            ]
        }

    def findings(self) -> list[Finding]:
        """The flat stretch that reaches to now."""
        loss = self._curves.loss
        if len(loss) < VALUES_NEEDED or not self._curves.is_measure:
            return []
        values = loss.values
        began, tail = (
            float(np.median(self._curves.first_losses(5))),
            values[-max(VALUES_NEEDED // 2, int(LAST * len(values))) :],
        )
        level = float(np.median(tail))
        if not _is_flat(tail) or abs(level) < CONVERGED * abs(began) or level <= 0:
            return []
        first = self._plateau_start(values, level, len(values) - len(tail))
        step = int(loss.steps[first])
        return [
            Finding(
                "plateau",
                Severity.INFO,
                f"The loss has stood at about {level:.3g} since step {step:,}.",
                step,
                int(loss.steps[-1]),
                (),
                (
                    Evidence("loss, against where it began", level, began),
                    Evidence("steps without progress", float(round((1 - first / len(values)) * loss.num))),
                ),
                "torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer)  # if more was to be learned",
            )
        ]

    @staticmethod
    def _plateau_start(values: FloatArray, level: float, upto: int) -> int:
        """How far back the level reaches, by the medians of windows of ten."""
        room = max(STILL * abs(level), 4.0 * noise(values[upto:]) / 10**0.5)
        first = upto
        while first >= 10 and abs(float(np.median(values[first - 10 : first])) - level) <= room:
            first -= 10
        return first


def _is_flat(tail: FloatArray) -> bool:
    half = len(tail) // 2
    before, after = float(np.median(tail[:half])), float(np.median(tail[half:]))
    # Where single losses are so noisy that progress could hide in them, nothing is said.
    if before - after > STILL * abs(before) or _possible_fall(tail) > POSSIBLE * abs(before):
        return False
    short, _ = shorten(tail, 100)
    trend = mann_kendall(short, alpha=0.001, correlated=True)
    return trend.direction is not Direction.FALLING or before - after < 0.2 * STILL * abs(before)


def _possible_fall(tail: FloatArray) -> float:
    """The fall from the first half to the second that the noise of single losses does not rule out."""
    half = len(tail) // 2
    error = 1.25 * noise(tail) * float(np.sqrt(2.0 / half))
    return float(np.median(tail[:half]) - np.median(tail[half:])) + 2.0 * error
