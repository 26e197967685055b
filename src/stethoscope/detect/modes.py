"""Training in evaluation mode: dropout off and BatchNorm frozen while gradients flow."""

from __future__ import annotations

from typing import ClassVar, Final

import numpy as np

from stethoscope.analyse.span import Span
from stethoscope.detect.detector import Code, Detector, Reading, Streak
from stethoscope.detect.needs import Need
from stethoscope.record import Evidence, Finding, Severity, events, metrics, name_list

STEPS_NEEDED: Final = 3


class Modes(Detector):
    """Follows the root's mode; single layers in evaluation mode under a root in training mode are on purpose."""

    codes: ClassVar[tuple[Code, ...]] = (
        Code(
            "eval_mode_in_training",
            needs=(
                Need("the model's mode", "metric", (metrics.TRAINING_MODE,), "a forward pass of the watched model"),
            ),
        ),
    )

    def __init__(self) -> None:
        self._streak = Streak()
        self._in_evaluation: events.Modes | None = None

    def observe(self, span: Span) -> None:
        """One mode for every step."""
        for _, modes in span.events_of(events.Modes):
            if not modes.training:
                self._in_evaluation = modes
        is_training = span.metric(metrics.TRAINING_MODE)
        for row in np.flatnonzero(np.isfinite(is_training)):
            self._streak.see(int(span.steps[row]), bool(is_training[row] == 0.0))

    def _affected_modules(self) -> tuple[str, ...]:
        """The modules that behave otherwise in evaluation mode, and are in it."""
        return () if self._in_evaluation is None else self._in_evaluation.evaluating

    def readings(self) -> dict[str, list[Reading]]:
        """What the rule asks for, and what it got."""
        return {
            "eval_mode_in_training": [
                Reading("training steps in a row in evaluation mode", self._streak.longest, ">=", STEPS_NEEDED),
                Reading("modules that behave differently there", len(self._affected_modules()), ">", 0),
            ]
        }

    def findings(self) -> list[Finding]:
        """Only where the mode makes a difference."""
        affected = self._affected_modules()
        if self._streak.longest < STEPS_NEEDED or self._in_evaluation is None or not affected:
            return []
        kinds = ", ".join(self._in_evaluation.kinds_evaluating)
        return [
            Finding(
                "eval_mode_in_training",
                Severity.CRITICAL,
                f"The model trains in evaluation mode since step {self._streak.start_of_longest:,}: {name_list(affected)} ({kinds}) "
                f"{'does' if len(affected) == 1 else 'do'} not behave as in training.",
                self._streak.start_of_longest,
                self._streak.last_step,
                affected,
                (Evidence("steps in evaluation mode", float(self._streak.longest)),),
                "model.train()  # after every validation",
            )
        ]
