"""A training that loses what it had: the loss stops being a number, runs away, or takes values that it cannot have.

A loss that measures errors and ends above where it began has got worse than it was before any step. One that rises only
part of the way may do so on purpose (harder samples, a warm restart), which the loss alone does not tell.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from stethoscope.analyse.trends import noise
from stethoscope.detect.symptoms.loss_kind import LossFamily
from stethoscope.detect.symptoms.progress import FIRST, Progress
from stethoscope.detect.symptoms.symptom import Symptom
from stethoscope.record import Evidence, FloatArray, Severity

LOSSES_NEEDED: Final = 20
LOST: Final = 1.1
"""A loss that ends above this many times its first one, having been lower, has lost what it had learned."""
RUNAWAY: Final = 100.0
"""Of a loss whose size no baseline tells: this many times its best level and its first."""
SURE: Final = 4.0
"""How many standard errors a level must lie beyond a limit."""
SHARE: Final = 0.1


def not_a_number(progress: Progress) -> Symptom | None:
    """The loss is NaN or Inf, and stays so to the last step."""
    values, steps = progress.loss.values, progress.loss.steps
    bad = ~np.isfinite(values)
    if not len(values) or not bad[-1]:
        return None
    good = np.flatnonzero(~bad)
    index = int(good[-1]) + 1 if len(good) else 0
    # The last loss alone may be of a step that a gradient scaler skips.
    if len(values) - index < 2 and len(values) > 2 and progress.is_live:
        return None
    word = "NaN" if np.isnan(values[index]) else "Inf"
    step = int(steps[index])
    since = "from the first step on" if not len(good) else f"from step {step:,} on"
    before = float(values[good[-1]]) if len(good) else None
    return Symptom(
        "not_a_number",
        f"The loss is {word} {since}.",
        step,
        int(steps[-1]),
        (Evidence("loss", float(values[index]), before, stat="loss"),),
        Severity.CRITICAL,
    )


def impossible_value(progress: Progress) -> Symptom | None:
    """A loss below zero whose formula cannot give that for proper inputs."""
    steps, values = progress.finite
    if progress.kind.family is LossFamily.UNKNOWN or progress.kind.has_terms or not len(values):
        return None
    if progress.kind.is_negated:
        return None
    likely = progress.kind.name in ("NllLoss", "NllLoss2D", "BinaryCrossEntropy", "BinaryCrossEntropyWithLogits")
    below = np.flatnonzero(values < -1e-6)
    if not likely or len(below) < FIRST:
        return None
    given = (
        "probabilities or logits where nll_loss takes log-probabilities"
        if progress.kind.name.startswith("Nll")
        else "targets outside of 0 to 1"
    )
    first, lowest = int(steps[below[0]]), float(values[below].min())
    return Symptom(
        "impossible_value",
        f"The loss is {lowest:.3g}, below the zero that a likelihood of proper inputs cannot pass: a sign that was "
        f"flipped, or {given}.",
        first,
        int(steps[-1]),
        (Evidence("lowest loss, against the least possible", lowest, 0.0, stat="loss"),),
        Severity.CRITICAL,
    )


def errors_grow(progress: Progress) -> Symptom | None:
    """An error that is taken with a minus, and goes down: the errors grow. In a game, one side may want that."""
    steps, values = progress.finite
    first, level = progress.first or 0.0, progress.level or 0.0
    if not progress.kind.is_negated or progress.kind.has_terms or progress.num_losses > 1 or progress.is_mixed:
        return None
    if len(values) < LOSSES_NEEDED or not level < min(first, 0.0):
        return None
    if first - level < max(SURE * progress.unsure, SHARE * abs(first)):
        return None
    return Symptom(
        "errors_grow",
        f"The loss is the negative of an error ({progress.kind.name}) and fell from {first:.3g} to {level:.3g}: training makes "
        "the errors larger. A sign is turned round.",
        int(steps[0]),
        int(steps[-1]),
        (Evidence("loss", level, first, stat="loss"),),
        Severity.CRITICAL,
    )


def diverges(progress: Progress) -> Symptom | None:
    """The loss was lower and ends above where it began."""
    steps, values = progress.finite
    kind = progress.kind
    if len(values) < LOSSES_NEEDED or not kind.measures_error or progress.is_mixed or progress.num_losses > 1:
        return None
    first, level = progress.first or 0.0, progress.level or 0.0
    best, index = _lowest_level(values)
    if first <= 0 or best <= 0:
        return None
    # Without the targets a growing distance may be that of targets that grow, as returns do while an agent learns.
    known = kind.family is not LossFamily.OPAQUE
    known = known and (kind.family is not LossFamily.DISTANCE or progress.target_variance is not None)
    limit = LOST * first if known else RUNAWAY * first
    if level - SURE * progress.unsure < max(limit, LOST * best) or (not known and level < RUNAWAY * best):
        return None
    if progress.chance is not None and level < 0.9 * progress.chance:
        return None  # a pretrained model that is taught something harder
    after = values[index:]
    risen = np.flatnonzero(after <= best + SHARE * (level - best))
    began = int(steps[index + (int(risen[-1]) if len(risen) else 0)])
    was_lower = best < 0.9 * first
    told = (
        f"more than the {first:.3g} of the first steps, after {best:.3g} at best"
        if was_lower
        else (f"it began at {first:.3g} and was never lower")
    )
    return Symptom(
        "diverges" if was_lower else "only_rises",
        f"The loss rose to {level:.3g} since step {began:,}: {told}.",
        began,
        int(steps[-1]),
        (Evidence("loss, against its best level", level, best, stat="loss"),),
        Severity.CRITICAL,
    )


def swings(progress: Progress) -> Symptom | None:
    """The loss falls and is thrown back to where it began, again and again."""
    steps, values = progress.finite
    if len(values) < 4 * LOSSES_NEEDED or not progress.kind.measures_error or progress.is_mixed:
        return None
    if progress.num_losses > 1 or progress.kind.family is LossFamily.OPAQUE:
        return None
    if progress.kind.family is LossFamily.DISTANCE and progress.target_variance is None:
        return None
    first = progress.first or 0.0
    best, _ = _lowest_level(values)
    if first <= 0 or not best < 0.5 * first:
        return None
    is_high, was_low, began, num_thrown = False, False, None, 0
    late = len(values) // 2
    for index, value in enumerate(values):
        if value < 0.5 * first:
            was_low, is_high = True, False
        elif value > LOST * first + SURE * noise(values) and was_low and not is_high:
            is_high = True
            num_thrown += index >= late
            began = began if began is not None else int(steps[index])
    if num_thrown < 3 or began is None:
        return None
    highest = float(values[late:].max())
    return Symptom(
        "swings",
        f"The loss is thrown back {num_thrown} times in the second half of the run, up to {highest:.3g}: above the "
        f"{first:.3g} of the first steps, although it had fallen to {best:.3g}.",
        began,
        int(steps[-1]),
        (Evidence("highest loss, against its best level", highest, best, stat="loss"),),
    )


def _lowest_level(values: FloatArray) -> tuple[float, int]:
    """The lowest level, as a median over a tenth of the run, and where it ends."""
    width = max(int(SHARE * len(values)), FIRST)
    medians = [
        float(np.median(values[at : at + width])) for at in range(0, len(values) - width + 1, max(width // 2, 1))
    ]
    index = int(np.argmin(medians))
    return medians[index], min(index * max(width // 2, 1) + width, len(values)) - 1


def best_level(values: FloatArray) -> float:
    """The lowest level of a loss."""
    return _lowest_level(values)[0]
