"""Training against validation while it goes on: a metric that worsens as the loss falls, dropout that stifles, the wrong mode.

Train loss above validation loss is what ordinary dropout does; a worse metric is what overfitting does after a while. Here the metric never
gets better at all, and the dropout is so strong that training itself cannot fit.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import partial
from typing import ClassVar, Final

import numpy as np

from stethoscope.analyse.span import Span
from stethoscope.analyse.trends import Direction, mann_kendall
from stethoscope.detect.curves import Curve, Curves
from stethoscope.detect.detector import Code, Detector, Reading, Readings, Rule, all_hold, median, ratio
from stethoscope.detect.effects import BLOW_UP, LEARNING_TROUBLE, UNIT_TROUBLE
from stethoscope.detect.needs import EVAL_HINT, LOSS, VALIDATION, Need
from stethoscope.record import Evidence, Finding, Severity, name_list
from stethoscope.record.events import EvalBegin, EvalForward

LOOKS_NEEDED: Final = 5
WORSE: Final = 1.2
BELOW_CHANCE: Final = 0.6
FEW_CLASSES: Final = 3
"""With more classes, guessing is so seldom right that less than that may be chance."""
FELL: Final = 0.05
"""Of the training loss."""
KEPT: Final = 0.6
"""Of where it began."""
DROP: Final = 0.15
"""Fall of a metric between 0 and 1 that is more than noise, with a trend."""
CLEARLY: Final = 6.0
"""A fall of the loss, in median deviations of its latest values."""
STRONG: Final = 0.75
"""Dropout above this leaves a quarter of the units, or less."""
HELD_BACK: Final = 1.1
MOSTLY: Final = 0.8
UNFIT: Final = 0.3
"""A training loss above this share of where it began."""


Shown = Iterator[tuple[str, Readings, str]]
"""A metric, what is asked of it, and a remark about its beginning."""


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

    def rules(self) -> Iterator[Rule]:
        """The metric that shows it best."""
        loss = self._curves.loss
        first, last = median(loss.part(0, 0.2)), median(loss.part(0.8, 1))
        both = [(curve, sign) for sign in (1, -1) for curve in self._curves.validation(sign).values()]
        known = (
            Reading("training losses", len(loss), ">=", 4 * LOOKS_NEEDED),
            Reading("the loss is a measure of progress", self._curves.is_measure, "=", 1),
            Reading("validation metrics of a known direction", len(both), ">", 0),
            Reading(
                "of which got better, or are too few to tell", sum(_clearly_improved(*one) for one in both), "=", 0
            ),
        )
        is_worse = all_hold(known)
        fell = Reading("training loss at the end", last, "<", first - FELL * abs(first))
        # A loss near its floor falls by little; then only a metric that was good, and is lost, says enough.
        slowly = Reading(
            "training loss falls, or does so slowly and all the way",
            fell.holds or (is_worse and self._falls_slowly(first, last)),
            "=",
            1,
        )
        below = Reading("training loss at the end", last, "<", 0)
        for way, falls, shown in (
            ("below chance", (fell,), self._below_chance()),
            ("lost", (slowly,), self._lost(is_worse)),
            ("mirrored", (fell, below), self._mirrored(is_worse)),
        ):
            for name, readings, against in shown:
                tell = partial(self._tell, name, against, first, last, 3 if fell.holds else 5)
                yield Rule("loss_metric_disagree", (*known, *falls, *readings), tell, way, is_otherwise=True)

    def _tell(self, name: str, against: str, first: float, last: float, digits: int) -> Finding:
        curve = self._curves.curve(name)
        start, end = float(curve.values[0]), median(curve.part(0.66, 1))
        return Finding(
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

    def _falls_slowly(self, first: float, last: float) -> bool:
        """Whether the loss falls by little, all the way, and by more than it sways."""
        loss = self._curves.loss
        sway = float(np.median(np.abs(loss.part(0.8, 1) - last)))
        return (
            first - last > CLEARLY * sway
            and mann_kendall(loss.values, alpha=0.005, correlated=True).direction is Direction.FALLING
        )

    def _below_chance(self) -> Shown:
        classes = 2 if self._curves.is_binary else self._curves.num_classes
        named = {n: c for n, c in self._curves.validation(1).items() if "acc" in n.lower() or "correct" in n.lower()}
        for name, curve in named.items() or [("accuracy", self._curves.curve(""))]:
            best = max(curve.part(0.34, 1), default=np.nan)
            readings = (
                Reading("classes", classes, ">=", 2),
                Reading("classes", classes, "<=", FEW_CLASSES),
                Reading(f"best {name} after the first third", best, "<", ratio(BELOW_CHANCE, classes)),
            )
            yield name, readings, f"where guessing gives {ratio(1, classes):.3g}"

    def _lost(self, is_worse: bool) -> Shown:
        """A metric between 0 and 1 that was best when training began."""
        for name, curve in self._curves.validation(1).items():
            start, end = max(curve.part(0, 0.2), default=np.nan), median(curve.part(0.66, 1))
            falls = is_worse and mann_kendall(curve.values, alpha=0.005, correlated=True).direction is Direction.FALLING
            readings = (
                Reading(f"lowest {name}", min(curve.values, default=np.nan), ">=", 0),
                Reading("highest", max(curve.values, default=np.nan), "<=", min(1.0, start)),
                Reading("at the end", end, "<", min(start - DROP, KEPT * start)),
                Reading("it falls by more than chance", falls, "=", 1),
            )
            yield name, readings, f"from {start:.3g}"

    def _mirrored(self, is_worse: bool) -> Shown:
        """A loss that goes below zero while validation's own, which cannot, goes up."""
        for name, curve in self._curves.validation(-1).items():
            start, end = median(curve.values[:1]), median(curve.part(0.66, 1))
            rises = is_worse and mann_kendall(curve.values, alpha=0.005).direction is Direction.RISING
            readings = (
                Reading(f"lowest {name}", min(curve.values, default=np.nan), ">=", 0),
                Reading("at the end", end, ">", WORSE * start),
                Reading("it rises by more than chance", rises, "=", 1),
            )
            yield name, readings, f"from {start:.3g}"


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
            "over_regularised", needs=(LOSS, VALIDATION), leads_to=("dormant_units", "dead_units"), through_updates=True
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

    def rules(self) -> Iterator[Rule]:
        """Only with a strong layer to blame."""
        _, curve = self._curves.validation_loss() or ("", self._curves.curve(""))
        training = self._curves.training_at(curve.steps)
        known = np.isfinite(training) & (np.arange(len(curve)) >= len(curve) // 2)
        late, beside = curve.values[known], training[known]
        now, held, began = median(late), median(beside), median(self._curves.loss.part(0, 0.05))
        yield Rule(
            "over_regularised",
            (
                Reading(f"layers with dropout of {STRONG:g} or more", len(self._strong), ">", 0),
                Reading("validation losses", len(curve), ">=", LOOKS_NEEDED),
                Reading("training loss at the start", began, ">", 0),
                Reading("training loss, second half, against validation's", held, ">=", HELD_BACK * now),
                Reading("the same, against the start", held, ">=", UNFIT * began),
                Reading("share of validations below it", ratio(float((beside > late).sum()), len(late)), ">=", MOSTLY),
            ),
            lambda: self._tell(curve, held, now, began),
        )

    def _tell(self, curve: Curve, held: float, now: float, began: float) -> Finding:
        paths = sorted(self._strong, key=lambda path: -self._strong[path])
        share = self._strong[paths[0]]
        return Finding(
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

    def rules(self) -> Iterator[Rule]:
        """From the first one on."""
        first, paths = self._first_step or 0, list(self._paths)
        yield Rule(
            "train_mode_in_eval",
            (Reading("calls inside evaluating() in training mode", self._num_forwards, ">", 0),),
            lambda: Finding(
                "train_mode_in_eval",
                Severity.WARNING,
                f"Validation runs in training mode since step {first:,}: {name_list(paths)} "
                f"({', '.join(self._kinds)}) {'behaves' if len(paths) == 1 else 'behave'} as in training, so its figures are not "
                "those of the model.",
                first,
                self._last_step,
                tuple(paths),
                (Evidence("calls in training mode", float(self._num_forwards), 0.0),),
                "model.eval()  # before validation, and model.train() after it",
            ),
        )
