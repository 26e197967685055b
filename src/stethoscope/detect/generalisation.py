"""What the finished run shows of generalisation: labels that say nothing about the inputs, and learning by heart.

Both fit the training data. Where validation was never better than chance there was nothing to learn; where it was, and got worse,
training went on too long.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar, Final

import numpy as np

from stethoscope.analyse.span import Span
from stethoscope.analyse.trends import noise
from stethoscope.detect.curves import Curve, Curves
from stethoscope.detect.detector import Code, Detector, Reading, Readings, Rule, median, ratio
from stethoscope.detect.needs import LOSS, TOTALS, VALIDATION
from stethoscope.record import Evidence, Finding, FloatArray, Severity

LOOKS_NEEDED: Final = 8
FITTED: Final = 0.5
"""A training loss below this share of chance."""
AT_CHANCE: Final = 0.97
RISE: Final = 1.15
"""Validation loss against its best."""
OF_RANGE: Final = 0.1
"""And as a share of what was gained from the first training loss to the best validation loss."""
NOISES: Final = 4.0
LASTS: Final = 0.9
"""Of the last validations: so many lie above the middle between the best and the end."""
FITS_ON: Final = 0.8
"""Of the training loss when validation was best."""
APART: Final = 1.3
"""Validation loss at the end, against the training loss."""
GAIN: Final = 0.02
"""An accuracy that rose by this much since the best loss: the model is surer, not worse."""


class Generalisation(Detector):
    """Speaks when the run has ended."""

    codes: ClassVar[tuple[Code, ...]] = (
        Code("labels_uninformative", needs=(LOSS, VALIDATION, TOTALS), leads_to=("overfitting", "output_logit_drift")),
        Code("overfitting", needs=(LOSS, VALIDATION, TOTALS), leads_to=("output_logit_drift",)),
    )

    def __init__(self) -> None:
        self._curves = Curves()

    def observe(self, span: Span) -> None:
        """Take in the next steps."""
        self._curves.observe(span)

    def rules(self) -> Iterator[Rule]:
        """One of the two at most; nothing where validation ran a few times only."""
        name, curve = self._curves.validation_loss() or ("", self._curves.curve(""))
        training = self._curves.training_at(curve.steps)
        known = (
            Reading("the run has said its totals", self._curves.is_finished, "=", 1),
            Reading("validation losses", len(curve), ">=", LOOKS_NEEDED),
            Reading("of which without a training loss beside them", int(np.isnan(training).sum()), "=", 0),
        )
        uninformative = self._uninformative(known, name, curve, training)
        yield uninformative
        told = Reading("told as labels_uninformative", uninformative.holds, "=", 0)
        yield self._overfitting((*known, told), name, curve, training)

    def _uninformative(self, known: Readings, name: str, curve: Curve, training: FloatArray) -> Rule:
        chance = self._curves.chance() or np.nan
        last, best = median(training[-3:]), min(curve.values, default=np.nan)
        metrics = self._curves.validation(1).items()
        accuracies = [median(found.part(0.5, 1)) for name, found in metrics if "acc" in name.lower() and len(found)]
        guess = 1.0 / max(self._curves.num_classes, 2)
        return Rule(
            "labels_uninformative",
            (
                *known,
                Reading("what knowing nothing gives", chance, ">", 0),
                Reading("training loss at the end", last, "<", FITTED * chance),
                Reading("the same", last, ">=", 0),
                Reading("best validation loss", best, ">=", AT_CHANCE * chance),
                Reading(
                    "validation accuracy, second half",
                    max(accuracies, default=0.0),
                    "<=",
                    guess + max(0.1, 0.5 * guess),
                ),
            ),
            lambda: Finding(
                "labels_uninformative",
                Severity.WARNING,
                f"The training samples were learned by heart (loss {last:.3g}), and {name} was never better than chance: its best "
                f"is {best:.3g} where knowing nothing gives {chance:.3g}. The labels may not belong to these inputs.",
                int(curve.steps[0]),
                int(curve.steps[-1]),
                ("batch",),
                (
                    Evidence(f"best {name}, against chance", best, chance),
                    Evidence("training loss", last, float(training[0])),
                    *(Evidence("validation accuracy", accuracy, guess) for accuracy in accuracies[:1]),
                ),
                "assert len(inputs) == len(labels)  # and look at ten pairs: shuffled apart, sorted, or of another file",
            ),
        )

    def _overfitting(self, known: Readings, name: str, curve: Curve, training: FloatArray) -> Rule:
        onset = int(np.argmin(curve.values)) if len(curve) else 0
        best, began = (
            min(curve.values, default=np.nan),
            max([*self._curves.loss.values[:1], *curve.values[:1]], default=0.0),
        )
        late = curve.values[-max(4, len(curve) // 3) :]
        end, last = median(late), median(training[-3:])
        return Rule(
            "overfitting",
            (
                *known,
                Reading("validations after the best one", max(len(curve) - 1 - onset, 0), ">=", 4),
                Reading("best validation loss", best, ">", 0),
                Reading("validation loss at the end", end, ">", RISE * best),
                Reading("its rise since the best", end - best, ">", OF_RANGE * (began - best)),
                Reading("the same, against its noise", end - best, ">", NOISES * noise(curve.values)),
                Reading(
                    "share of the last ones up there", ratio((late > (best + end) / 2).sum(), len(late)), ">", LASTS
                ),
                Reading("training loss at the end", last, ">=", 0),
                Reading("the same, since then", last, "<", FITS_ON * median(training[max(0, onset - 1) : onset + 2])),
                Reading("validation loss at the end, against the training loss", end, ">", APART * last),
            ),
            lambda: Finding(
                "overfitting",
                Severity.INFO if self._is_surer(int(curve.steps[onset])) else Severity.WARNING,
                f"{name} was best at step {curve.steps[onset]:,} ({best:.3g}) and is {end:.3g} at the end, while the training loss "
                f"went on falling to {last:.3g}: the model learns its samples by heart since then.",
                int(curve.steps[onset]),
                int(curve.steps[-1]),
                (),
                (
                    Evidence(f"{name}, against its best", end, best),
                    Evidence("training loss, against that step's", last, float(training[onset])),
                ),
                f"torch.save(model.state_dict(), path)  # keep the model of step {curve.steps[onset]}, or use weight decay, dropout, "
                "more data",
            ),
        )

    def _is_surer(self, step: int) -> bool:
        """Whether an accuracy went on rising after the best loss."""
        return any(_has_gained(curve, step) for curve in self._curves.validation(1).values())


def _has_gained(curve: Curve, step: int) -> bool:
    before = curve.values[curve.steps <= step]
    if not len(before) or len(curve) < LOOKS_NEEDED or curve.values.max() > 1:
        return False
    return float(np.median(curve.part(0.66, 1))) > float(before.max()) + GAIN
