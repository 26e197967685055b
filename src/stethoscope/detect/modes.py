"""Training in evaluation mode: dropout off and BatchNorm frozen while gradients flow."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar, Final

import numpy as np

from stethoscope.analyse.span import Span
from stethoscope.detect.detector import Code, Detector, Reading, Rule, Streak
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

    def rules(self) -> Iterator[Rule]:
        """Only where the mode makes a difference."""
        streak, modes = self._streak, self._in_evaluation
        # What behaves otherwise in evaluation mode, and is in it.
        affected, kinds = (modes.evaluating, modes.kinds_evaluating) if modes else ((), ())
        yield Rule(
            "eval_mode_in_training",
            (
                Reading("training steps in a row in evaluation mode", streak.longest, ">=", STEPS_NEEDED),
                Reading("modules that behave differently there", len(affected), ">", 0),
            ),
            lambda: Finding(
                "eval_mode_in_training",
                Severity.CRITICAL,
                f"The model trains in evaluation mode since step {streak.start_of_longest:,}: {name_list(affected)} "
                f"({', '.join(kinds)}) "
                f"{'does' if len(affected) == 1 else 'do'} not behave as in training.",
                streak.start_of_longest,
                streak.last_step,
                affected,
                (Evidence("steps in evaluation mode", float(streak.longest)),),
                "model.train()  # after every validation",
            ),
        )
