"""Symptoms: a small set that any training has which is worse than it should be, whatever the reason.

Each has a measure, a beginning, a size and a baseline that the run itself gives. They say that something is wrong, and
detectors say why; where none does, the verdict is "trouble, cause unknown" and not silence.
"""

from __future__ import annotations

from typing import Final

from stethoscope.detect.symptoms.course import diverges, errors_grow, impossible_value, not_a_number, swings
from stethoscope.detect.symptoms.evidence import BY_HEART, Learning, learning
from stethoscope.detect.symptoms.learning import does_not_learn
from stethoscope.detect.symptoms.loss_kind import LossFamily, LossKind
from stethoscope.detect.symptoms.progress import Progress, progress_of
from stethoscope.detect.symptoms.symptom import Symptom
from stethoscope.detect.symptoms.validation import parts_from_training

__all__ = [
    "BY_HEART",
    "Learning",
    "LossFamily",
    "LossKind",
    "Progress",
    "Symptom",
    "learning",
    "progress_of",
    "symptoms",
]

_LOOKED_FOR: Final = (
    not_a_number,
    impossible_value,
    errors_grow,
    diverges,
    does_not_learn,
    swings,
    parts_from_training,
)
"""The gravest first: of several that a run has, the first is the one to speak of."""


def symptoms(progress: Progress) -> tuple[Symptom, ...]:
    """Everything that shows, the gravest first."""
    return tuple(found for look in _LOOKED_FOR if (found := look(progress)) is not None)
