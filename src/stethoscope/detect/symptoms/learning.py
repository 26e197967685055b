"""A training that learns nothing: its loss ends where knowing nothing would be, or it names one class for everything.

The baseline is the run's own: the entropy of the classes that were counted, the variance of the targets that were seen,
else the number of classes. Where none is known, a loss that stands still may as well be at its floor, and no symptom is
told. Nor is one told before the learning rate has warmed up, or while the loss still falls.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from stethoscope.analyse.trends import Direction, mann_kendall, noise, shorten
from stethoscope.detect.symptoms.loss_kind import LossFamily
from stethoscope.detect.symptoms.progress import Progress
from stethoscope.detect.symptoms.symptom import Symptom
from stethoscope.record import Evidence, FloatArray, Severity

LOSSES_NEEDED: Final = 50
LOSSES_NEEDED_LIVE: Final = 400
"""While it goes on, a training is given longer before it is said to learn nothing."""
AT_CHANCE: Final = 0.97
"""A loss above this share of what knowing nothing gives has learned nothing that matters."""
UNSURE: Final = 0.03
"""What noise may add to a level, as a share of the baseline: of a loss that jumps about, nothing is said here."""
LATE: Final = 1.0 / 3.0
SURE: Final = 2.0
"""Standard errors between one third of the losses and the next."""
HARDLY_SLOWER: Final = 0.3
FALLING: Final = 0.01
"""A fall from the first half of the last part to the second, as a share of the loss: it still learns."""


def does_not_learn(progress: Progress) -> Symptom | None:
    """The loss ends no better than guessing, and does not fall any more."""
    chance = progress.chance
    steps, values = progress.finite
    late = steps >= progress.warm_up_ends
    num_needed = LOSSES_NEEDED_LIVE if progress.is_live else LOSSES_NEEDED
    if chance is None or chance <= 0 or int(late.sum()) < num_needed or progress.is_mixed:
        return None
    if progress.num_losses > 1:
        return None  # in a game a loss stands wherever the two sides balance
    tail = values[late][-max(int(LATE * int(late.sum())), LOSSES_NEEDED // 2) :]
    level = float(np.median(tail))
    unsure = 1.25 * noise(tail) / len(tail) ** 0.5
    if level + min(2.0 * unsure, UNSURE * chance) < AT_CHANCE * chance or still_falls(tail):
        return None
    if falls_steadily(values[late]):
        return None
    first = progress.first or level
    began = int(steps[0])
    if first > 1.2 * level:
        inside = np.flatnonzero(values <= level + 4.0 * noise(values))
        began = int(steps[inside[0]]) if len(inside) else began
        fell = f"The loss fell from {first:.3g} and stays at {level:.3g} since step {began:,}"
    elif level > 1.2 * max(chance, first):
        fell = f"The loss stands at {level:.3g} and began at {first:.3g}"
    else:
        fell = f"The loss stands at {level:.3g} after {len(values):,} steps"
    return Symptom(
        "does_not_learn",
        f"{fell}: {guessing(progress)} gives {chance:.3g}, so nothing has been learned from the inputs.",
        began,
        int(steps[-1]),
        (Evidence("loss, against what guessing gives", level, chance, stat="loss"),),
        Severity.CRITICAL if level > 3.0 * chance else Severity.WARNING,
    )


def still_falls(tail: FloatArray) -> bool:
    """Whether the last part of a loss goes down by more than chance."""
    half = len(tail) // 2
    before, after = float(np.median(tail[:half])), float(np.median(tail[half:]))
    if before - after <= FALLING * abs(before):
        return False
    return mann_kendall(shorten(tail, 100)[0], alpha=0.01, correlated=True).direction is Direction.FALLING


def falls_steadily(values: FloatArray) -> bool:
    """Whether the loss goes down from third to third, by more than noise and hardly slower: slow is not stuck."""
    third = len(values) // 3
    first, middle, last = (float(np.median(values[at * third : (at + 1) * third])) for at in range(3))
    unsure = 1.25 * noise(values) / third**0.5
    falls = min(first - middle, middle - last) > SURE * unsure and middle - last > HARDLY_SLOWER * (first - middle)
    return falls and first - last > FALLING * abs(first)


def guessing(progress: Progress) -> str:
    """What the baseline is, in words."""
    if progress.kind.family is LossFamily.DISTANCE:
        return "always answering the targets' mean"
    if progress.label_entropy is not None:
        return "guessing by how often each class comes"
    classes = 2 if progress.kind.family is LossFamily.BINARY else progress.kind.num_classes
    return f"guessing among {classes:,} classes"
