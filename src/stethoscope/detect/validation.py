"""Training against validation while it goes on: a metric that worsens as the loss falls, dropout that stifles, the wrong mode.

Train loss above validation loss is what ordinary dropout does; a worse metric is what overfitting does after a while. Here the metric never
gets better at all, and the dropout is so strong that training itself cannot fit.
"""

from __future__ import annotations

import re
from typing import ClassVar, Final

import numpy as np

from stethoscope.analyse.span import Span
from stethoscope.analyse.trends import Direction, mann_kendall
from stethoscope.detect.curves import Curve, Curves
from stethoscope.detect.detector import Code, Detector, Reading
from stethoscope.detect.effects import BLOW_UP, LEARNING_TROUBLE, UNIT_TROUBLE
from stethoscope.detect.needs import EVAL_HINT, LOSS, VALIDATION, Need
from stethoscope.record import Evidence, Finding, Severity, name_list
from stethoscope.record.events import EvalBegin, EvalForward

LOOKS_NEEDED: Final = 5
WORSE: Final = 1.2
BELOW_CHANCE: Final = 0.6
FEW_CLASSES: Final = 3
"""With more classes, guessing is so seldom right that less than that may be chance."""
DROP: Final = 0.15
"""Fall of a metric between 0 and 1 that is more than noise, with a trend."""
CLEARLY: Final = 6.0
"""A fall of the loss, in median deviations of its latest values."""
STRONG: Final = 0.75
"""Dropout above this leaves a quarter of the units, or less."""
HELD_BACK: Final = 1.1
UNFIT: Final = 0.3
"""A training loss above this share of where it began."""


class Disagreement(Detector):
    """The training loss falls, and validation is the worse for it from the start."""

    codes: ClassVar[tuple[Code, ...]] = (
        Code(
            "loss_metric_disagree",
            needs=(LOSS, VALIDATION),
            leads_to=(
                *LEARNING_TROUBLE,
                *UNIT_TROUBLE,
                *BLOW_UP,
                "output_logit_drift",
                "labels_uninformative",
                "overfitting",
            ),
            through_updates=True,
        ),
    )

    def __init__(self) -> None:
        self._curves = Curves()

    def observe(self, span: Span) -> None:
        """Take in the next steps."""
        self._curves.observe(span)

    def readings(self) -> dict[str, list[Reading]]:
        """What the rule asks for, and what it got."""
        loss = self._curves.loss
        first, last = (float(np.median(loss.part(*part))) if len(loss) else np.nan for part in ((0, 0.2), (0.8, 1)))
        both = {n: c for sign in (1, -1) for n, c in self._curves.validation(sign).items()}
        better = [n for sign in (1, -1) for n, c in self._curves.validation(sign).items() if _clearly_improved(c, sign)]
        return {
            "loss_metric_disagree": [
                Reading("training losses", len(loss), ">=", 4 * LOOKS_NEEDED),
                Reading("the loss is a measure of progress", int(self._curves.is_measure), "=", 1),
                Reading("training loss at the end", last, "<", first),
                Reading("validation metrics of a known direction", len(both), ">", 0),
                Reading("of which got better, or are too few to tell", len(better), "=", 0),
            ]
        }

    def findings(self) -> list[Finding]:
        """The metric that shows it best."""
        loss = self._curves.loss
        if len(loss) < 4 * LOOKS_NEEDED or not self._curves.is_measure:
            return []
        first, last = float(np.median(loss.part(0, 0.2))), float(np.median(loss.part(0.8, 1)))
        fell = last < first - 0.05 * abs(first)
        if not fell and not self._falls_slowly(first, last):
            return []
        better = {
            n: c for sign in (1, -1) for n, c in self._curves.validation(sign).items() if _clearly_improved(c, sign)
        }
        if better:
            return []
        # A loss near its floor falls by little; then only a metric that was good, and is lost, says enough.
        shown = (
            (self._below_chance() if fell else None)
            or self._falling()
            or (self._mirrored() if fell and last < 0 else None)
        )
        if shown is None:
            return []
        name, curve, against = shown
        digits = 3 if fell else 5
        start, end = float(curve.values[0]), float(np.median(curve.part(0.66, 1)))
        return [
            Finding(
                "loss_metric_disagree",
                Severity.CRITICAL,
                f"Training lowers the loss from {first:.{digits}g} to {last:.{digits}g}, but {name} only gets worse: {end:.3g}, "
                f"{against}. The "
                "loss may have the wrong sign.",
                int(curve.steps[0]),
                int(curve.steps[-1]),
                ("(loss)",),
                (Evidence(name, end, start), Evidence("training loss", last, first)),
                "loss = loss_fn(output, target)  # minimise it: no minus sign, unless it is a score to be raised",
            )
        ]

    def _falls_slowly(self, first: float, last: float) -> bool:
        """Whether the loss falls by little, all the way, and by more than it sways."""
        loss = self._curves.loss
        sway = float(np.median(np.abs(loss.part(0.8, 1) - last)))
        return (
            first - last > CLEARLY * sway
            and mann_kendall(loss.values, alpha=0.005, correlated=True).direction is Direction.FALLING
        )

    def _below_chance(self) -> tuple[str, Curve, str] | None:
        classes = 2 if self._curves.is_binary else self._curves.num_classes
        if not 2 <= classes <= FEW_CLASSES:
            return None
        for name, curve in self._curves.validation(1).items():
            named = "acc" in name.lower() or "correct" in name.lower()
            if named and len(curve) >= LOOKS_NEEDED and float(np.max(curve.part(0.34, 1))) < BELOW_CHANCE / classes:
                return name, curve, f"where guessing gives {1 / classes:.3g}"
        return None

    def _falling(self) -> tuple[str, Curve, str] | None:
        for name, curve in self._curves.validation(1).items():
            if len(curve) < LOOKS_NEEDED or curve.values.min() < 0 or curve.values.max() > 1:
                continue
            start, end = float(np.max(curve.part(0, 0.2))), float(np.median(curve.part(0.66, 1)))
            trend = mann_kendall(curve.values, alpha=0.005, correlated=True)
            best_at_start = float(curve.values.max()) <= start
            if best_at_start and trend.direction is Direction.FALLING and end < start - DROP and end < 0.6 * start:
                return name, curve, f"from {start:.3g}"
        return None

    def _mirrored(self) -> tuple[str, Curve, str] | None:
        """A loss that goes below zero while validation's own, which cannot, goes up."""
        for name, curve in self._curves.validation(-1).items():
            if len(curve) < LOOKS_NEEDED or curve.values.min() < 0:
                continue
            trend = mann_kendall(curve.values, alpha=0.005)
            start, end = float(curve.values[0]), float(np.median(curve.part(0.66, 1)))
            if trend.direction is Direction.RISING and end > WORSE * start:
                return name, curve, f"from {start:.3g}"
        return None


def _clearly_improved(curve: Curve, sign: int) -> bool:
    """Whether a metric is clearly better in its last third than at the start."""
    if len(curve) < LOOKS_NEEDED:
        return True
    start, end = float(curve.values[0]), float(np.median(curve.part(0.66, 1)))
    bounded = float(curve.values.min()) >= 0 and float(curve.values.max()) <= 1
    return sign * (end - start) > (0.05 if bounded else 0.05 * max(abs(start), abs(end)))


class Dropout(Detector):
    """Dropout so strong that the training loss stays up while validation, without it, is lower."""

    codes: ClassVar[tuple[Code, ...]] = (
        Code(
            "over_regularised",
            needs=(LOSS, VALIDATION),
            leads_to=("dormant_units", "dead_units"),
            through_updates=True,
        ),
    )

    def __init__(self) -> None:
        self._curves = Curves()
        self._strong: dict[str, float] = {}

    def observe(self, span: Span) -> None:
        """The curves, and the dropout layers as the run describes them."""
        self._curves.observe(span)
        if not self._strong:
            for path, module in span.modules.items():
                share = re.search(r"\bp=([0-9.]+)", str(module.get("detail", "")))
                if "Dropout" in str(module.get("type", "")) and share and float(share[1]) >= STRONG:
                    self._strong[path] = float(share[1])

    def readings(self) -> dict[str, list[Reading]]:
        """What the rule asks for, and what it got."""
        found = self._curves.validation_loss()
        curve = found[1] if found is not None else None
        late = float(np.median(curve.part(0.5, 1))) if curve is not None and len(curve) else np.nan
        training = self._curves.training_at(curve.steps) if curve is not None and len(curve) else np.empty(0)
        held = training[len(training) // 2 :]
        held = held[np.isfinite(held)]
        return {
            "over_regularised": [
                Reading(f"layers with dropout of {STRONG:g} or more", len(self._strong), ">", 0),
                Reading("validation losses", 0 if curve is None else len(curve), ">=", LOOKS_NEEDED),
                Reading(
                    "training loss / validation loss, second half",
                    float(np.median(held)) / late if len(held) and late else np.nan,
                    ">=",
                    HELD_BACK,
                ),
            ]
        }

    def findings(self) -> list[Finding]:
        """Only with a strong layer to blame."""
        found = self._curves.validation_loss()
        if not self._strong or found is None or len(found[1]) < LOOKS_NEEDED:
            return []
        curve = found[1]
        training = self._curves.training_at(curve.steps)
        half = len(curve) // 2
        late, beside = curve.values[half:], training[half:]
        known = np.isfinite(beside)
        began = float(np.median(self._curves.loss.part(0, 0.05)))
        if not known.any() or began <= 0:
            return []
        late, beside = late[known], beside[known]
        above = float((beside > late).mean())
        now, held = float(np.median(late)), float(np.median(beside))
        if above < 0.8 or held < HELD_BACK * now or held < UNFIT * began:
            return []
        paths = sorted(self._strong, key=lambda path: -self._strong[path])
        share = self._strong[paths[0]]
        return [
            Finding(
                "over_regularised",
                Severity.WARNING,
                f"Dropout of {share:g} in {name_list(paths)} leaves too little to train with: the training loss stays at "
                f"{held:.3g}, above the {now:.3g} of validation, where nothing is dropped.",
                int(curve.steps[0]),
                int(curve.steps[-1]),
                tuple(paths),
                (
                    Evidence("training loss, against validation's", held, now),
                    Evidence("training loss, against where it began", held, began),
                    Evidence(f"dropout in {paths[0]}", share),
                ),
                f"nn.Dropout({min(0.5, share / 2):.1g})  # instead of {share:g}",
            )
        ]


class ModeInEvaluation(Detector):
    """Validation with the whole model in training mode; single layers left so are on purpose."""

    codes: ClassVar[tuple[Code, ...]] = (
        Code(
            "train_mode_in_eval",
            needs=(Need("validation inside evaluating()", "event", (EvalBegin.KIND, EvalForward.KIND), EVAL_HINT),),
        ),
    )

    def __init__(self) -> None:
        self._first_step: int | None = None
        self._last_step = 0
        self._num_forwards = 0
        self._paths: dict[str, None] = {}
        self._kinds: dict[str, None] = {}

    def observe(self, span: Span) -> None:
        """Every call of the model inside `evaluating()` that was in training mode."""
        for event, modes in span.events_of(EvalForward):
            if modes.training and modes.in_training:
                self._first_step = event.step if self._first_step is None else self._first_step
                self._last_step = event.step
                self._num_forwards += 1
                self._paths |= dict.fromkeys(modes.in_training)
                self._kinds |= dict.fromkeys(modes.kinds_in_training)

    def readings(self) -> dict[str, list[Reading]]:
        """What the rule asks for, and what it got."""
        return {
            "train_mode_in_eval": [Reading("calls inside evaluating() in training mode", self._num_forwards, ">", 0)]
        }

    def findings(self) -> list[Finding]:
        """From the first one on."""
        if self._first_step is None:
            return []
        paths = list(self._paths)
        return [
            Finding(
                "train_mode_in_eval",
                Severity.WARNING,
                f"Validation runs in training mode since step {self._first_step:,}: {name_list(paths)} "
                f"({', '.join(self._kinds)}) {'behaves' if len(paths) == 1 else 'behave'} as in training, so its figures are not "
                "those of the model.",
                self._first_step,
                self._last_step,
                tuple(paths),
                (Evidence("calls in training mode", float(self._num_forwards), 0.0),),
                "model.eval()  # before validation, and model.train() after it",
            )
        ]
