"""What kind of number the loss is, read from its recorded graph: whether a lower one means a better model.

A policy gradient, an adversarial game or a loss of the script's own need not fall while the model gets better, and may
fall while it does not. Of those nothing is concluded from the loss.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from enum import StrEnum
from typing import Final

from stethoscope.detect.surrogate_loss import is_surrogate
from stethoscope.record.events import Backward, LossGraph

WRAPPING: Final = (
    "Mul",
    "Div",
    "Mean",
    "Sum",
    "ToCopy",
    "View",
    "UnsafeView",
    "Squeeze",
    "Unsqueeze",
    "Alias",
    "Clone",
    "Stack",
    "Add",
    "Sub",
)
"""Operations between a loss function and `backward`: a scale, an average, a sum with further terms."""
CLASSES: Final = ("NllLoss", "NllLoss2D", "CrossEntropyLoss")
BINARY: Final = ("BinaryCrossEntropyWithLogits", "BinaryCrossEntropy")
DISTANCES: Final = ("MseLoss", "L1Loss", "SmoothL1Loss", "HuberLoss")
OTHERS: Final = ("KlDiv", "CtcLoss", "CudnnCtcLoss")
WRITTEN_OUT: Final = ("Pow", "Abs")
"""With a difference under it and an average over it, a distance that the script computes itself."""
COMPILED: Final = "CompiledFunction"
_LOOKED_AT: Final = 8


class LossFamily(StrEnum):
    """What the loss compares."""

    CLASSES = "cross-entropy"
    BINARY = "binary cross-entropy"
    DISTANCE = "a distance"
    OTHER = "a known loss function"
    OPAQUE = "not seen"
    """Made inside a compiled function, or logged by hand."""
    UNKNOWN = "no known loss function"


@dataclasses.dataclass(frozen=True, slots=True)
class LossKind:
    """What is known of the loss as a measure."""

    family: LossFamily
    name: str = ""
    """The operation that makes it, "NllLoss"."""
    num_classes: int = 0
    has_terms: bool = False
    """Whether further terms are added to it."""
    is_mean: bool = False
    """Whether it is known to be an average over the targets, and nothing more is done to it."""
    is_negated: bool = False
    """Whether it is taken with the other sign, so that what falls is not the error."""
    operations: tuple[str, ...] = ()
    """The last operations before `backward`, of a loss that is not known."""

    @property
    def measures_error(self) -> bool:
        """Whether a lower value means fewer errors on the batches that it was computed on."""
        return self.family is not LossFamily.UNKNOWN and not self.is_negated

    @property
    def chance(self) -> float | None:
        """What knowing nothing but the number of classes gives."""
        if self.family is LossFamily.CLASSES and self.num_classes > 1:
            return math.log(self.num_classes)
        return math.log(2.0) if self.family is LossFamily.BINARY else None


def loss_kind(graph: LossGraph, backward: Backward | None) -> LossKind:
    """From what was recorded of the loss and its backward at one step."""
    names = [name for name, _ in graph.operations[:_LOOKED_AT]]
    if not names:
        return LossKind(LossFamily.OPAQUE)
    # Times advantages, a likelihood of actions is no error.
    family, index = (LossFamily.UNKNOWN, 0) if is_surrogate(graph.coefficients) else _loss_family(names)
    if family is LossFamily.UNKNOWN:
        return LossKind(family, operations=tuple(names[:3]))
    before = names[:index]
    has_terms = "Add" in before or "Sub" in before
    num_targets = backward.num_targets if backward is not None else 0.0
    is_scaled = backward is not None and not 0.99 < backward.factor < 1.01
    return LossKind(
        family,
        names[index],
        graph.num_classes,
        has_terms,
        is_negated=before.count("Neg") % 2 == 1,
        is_mean=not is_scaled and "Sum" not in before and ("Mean" in before or num_targets > 0),
    )


def _loss_family(names: Sequence[str]) -> tuple[LossFamily, int]:
    """The loss function nearest to `backward`, and where it stands; none where something unknown comes before it."""
    for index, name in enumerate(names):
        if name in CLASSES or "CrossEntropyFunction" in name:
            return LossFamily.CLASSES, index
        if name.startswith(COMPILED):
            return LossFamily.OPAQUE, index
        if name in BINARY:
            return LossFamily.BINARY, index
        # A square behind a minus may as well be the exponent of a likelihood.
        is_plain = "Neg" not in names[:index]
        if name in DISTANCES or (
            is_plain and name in WRITTEN_OUT and "Sub" in names[index + 1 : index + 3] and "Mean" in names
        ):
            return LossFamily.DISTANCE, index
        if name in OTHERS:
            return LossFamily.OTHER, index
        if name not in (*WRAPPING, "Neg"):
            break
    return LossFamily.UNKNOWN, 0
