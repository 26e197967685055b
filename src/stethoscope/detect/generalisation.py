"""What the finished run shows of generalisation: labels that say nothing about the inputs, and learning by heart.

Both fit the training data. Where validation was never better than chance there was nothing to learn; where it was, and got worse,
training went on too long.
"""

from __future__ import annotations

from typing import ClassVar, Final

import numpy as np

from stethoscope.analyse.span import Span
from stethoscope.analyse.trends import noise
from stethoscope.detect.curves import Curve, Curves
from stethoscope.detect.detector import Code, Detector, Reading
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
GAIN: Final = 0.02
"""An accuracy that rose by this much since the best loss: the model is surer, not worse."""


class Generalisation(Detector):
    """Speaks when the run has ended."""

    codes: ClassVar[tuple[Code, ...]] = (
        Code(
            "labels_uninformative",
            needs=(LOSS, VALIDATION, TOTALS),
            leads_to=("overfitting", "output_logit_drift"),
        ),
        Code(
            "overfitting",
            needs=(LOSS, VALIDATION, TOTALS),
            leads_to=("output_logit_drift",),
        ),
    )

    def __init__(self) -> None:
        self._curves = Curves()

    def observe(self, span: Span) -> None:
        """Take in the next steps."""
        self._curves.observe(span)

    def readings(self) -> dict[str, list[Reading]]:
        """What each rule asks for, and what it got."""
        found = self._curves.validation_loss()
        curve = found[1] if found is not None and len(found[1]) else None
        num = 0 if curve is None else len(curve)
        best = float(curve.values.min()) if curve is not None else np.nan
        late = float(np.median(curve.values[-max(4, num // 3) :])) if curve is not None else np.nan
        training = self._curves.training_at(curve.steps) if curve is not None else np.array([np.nan])
        last, chance = float(np.median(training[-3:])), self._curves.chance()
        level = np.nan if chance is None else chance
        known = [
            Reading("the run has said its totals", int(self._curves.is_finished), "=", 1),
            Reading("validation losses", num, ">=", LOOKS_NEEDED),
        ]
        return {
            "labels_uninformative": [
                *known,
                Reading("training loss at the end", last, "<", FITTED * level),
                Reading("best validation loss", best, ">=", AT_CHANCE * level),
            ],
            "overfitting": [
                *known,
                Reading("validation loss at the end", late, ">", RISE * best),
                Reading("its best", best),
                Reading("training loss at the end", last),
            ],
        }

    def findings(self) -> list[Finding]:
        """One of the two at most; nothing where validation ran a few times only."""
        found = self._curves.validation_loss()
        if not self._curves.is_finished or found is None or len(found[1]) < LOOKS_NEEDED:
            return []
        name, curve = found
        training = self._curves.training_at(curve.steps)
        if not np.isfinite(training).all():
            return []
        uninformative = self._uninformative(name, curve, training)
        return [uninformative] if uninformative is not None else self._overfitting(name, curve, training)

    def _uninformative(self, name: str, curve: Curve, training: FloatArray) -> Finding | None:
        chance = self._curves.chance()
        last, best = float(np.median(training[-3:])), float(curve.values.min())
        if chance is None or chance <= 0 or not 0 <= last < FITTED * chance or best < AT_CHANCE * chance:
            return None
        accuracies = [c for n, c in self._curves.validation(1).items() if "acc" in n.lower()]
        guess = 1.0 / max(self._curves.num_classes, 2)
        if any(float(np.median(c.part(0.5, 1))) > guess + max(0.1, 0.5 * guess) for c in accuracies):
            return None
        shown = [Evidence("validation accuracy", float(np.median(c.part(0.5, 1))), guess) for c in accuracies[:1]]
        return Finding(
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
                *shown,
            ),
            "assert len(inputs) == len(labels)  # and look at ten pairs: shuffled apart, sorted, or of another file",
        )

    def _overfitting(self, name: str, curve: Curve, training: FloatArray) -> list[Finding]:
        onset = int(np.argmin(curve.values))
        best = float(curve.values[onset])
        late = curve.values[-max(4, len(curve) // 3) :]
        end, last = float(np.median(late)), float(np.median(training[-3:]))
        if onset > len(curve) - 5 or best <= 0 or last < 0:
            return []
        began = max(float(self._curves.loss.values[0]), float(curve.values[0]))
        rose = (
            end > RISE * best and end - best > OF_RANGE * (began - best) and end - best > NOISES * noise(curve.values)
        )
        lasting = float((late > best + 0.5 * (end - best)).mean()) > 0.9
        still_fitting = last < 0.8 * float(np.median(training[max(0, onset - 1) : onset + 2])) and end > 1.3 * last
        if not (rose and lasting and still_fitting):
            return []
        surer = any(self._gained(c, int(curve.steps[onset])) for c in self._curves.validation(1).values())
        step = int(curve.steps[onset])
        return [
            Finding(
                "overfitting",
                Severity.INFO if surer else Severity.WARNING,
                f"{name} was best at step {step:,} ({best:.3g}) and is {end:.3g} at the end, while the training loss went on "
                f"falling to {last:.3g}: the model learns its samples by heart since then.",
                step,
                int(curve.steps[-1]),
                (),
                (
                    Evidence(f"{name}, against its best", end, best),
                    Evidence("training loss, against that step's", last, float(training[onset])),
                ),
                f"torch.save(model.state_dict(), path)  # keep the model of step {step}, or use weight decay, dropout, more data",
            )
        ]

    @staticmethod
    def _gained(curve: Curve, step: int) -> bool:
        before = curve.values[curve.steps <= step]
        if not len(before) or len(curve) < LOOKS_NEEDED or curve.values.max() > 1:
            return False
        return float(np.median(curve.part(0.66, 1))) > float(before.max()) + GAIN
