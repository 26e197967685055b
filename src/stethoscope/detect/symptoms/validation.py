"""Validation that says otherwise than training: never better than at its start, worse than that, or lost again.

Single looks at validation are noisy: a level is the middle of a third of them, and a change counts beyond their jitter.
"""

from __future__ import annotations

import math
from typing import Final

import numpy as np

from stethoscope.analyse.trends import noise
from stethoscope.detect.curves import direction, is_validation, words
from stethoscope.detect.symptoms.progress import Progress
from stethoscope.detect.symptoms.symptom import Symptom
from stethoscope.record import Evidence, FloatArray, Series

LOOKS_NEEDED: Final = 5
SURE: Final = 3.0
LEARNED: Final = 0.2
"""A training loss that has lost this share of what it began with has learned something, true or not."""
WORSE: Final = 1.1
GROWN: Final = 1.5
"""A validation loss this many times its best has been left behind."""
AT_CHANCE: Final = 0.85
LEARNED_THERE: Final = 0.6
"""Of what guessing gives: a training loss above the one, and a validation loss below the other."""
DROP: Final = 0.15
"""Of a score between 0 and 1: a fall that is larger than noise."""


def parts_from_training(progress: Progress) -> Symptom | None:
    """The training loss falls, and what it learns does not hold in validation."""
    for name, series in _validation_series(progress):
        found = (
            _never_better(progress, name, series) or _left_behind(name, series) or _far_better(progress, name, series)
        )
        if found is not None:
            return found
    return None


def _validation_series(progress: Progress) -> list[tuple[str, Series]]:
    out = []
    for name, series in progress.validation.items():
        keep = np.isfinite(series.values)
        if is_validation(name) and int(keep.sum()) >= LOOKS_NEEDED:
            out.append((name, Series(series.steps[keep], series.values[keep])))
    return out


def improved(name: str, values: FloatArray) -> bool | None:
    """Whether a score got better than it began by more than jitter; None where there are too few values."""
    if len(values) < 2:
        return None
    sign, start, end = direction(name), early(values), late(values)
    num_early = _num_early(values)
    # Where it began jitters too: a single value by all of the noise, the middle of several by less.
    unsure = math.hypot(_uncertainty(values), noise(values) * (1.25 if num_early > 2 else 1.0) / math.sqrt(num_early))
    return bool(sign * (end - start) > max(SURE * unsure, 0.05 * max(abs(start), abs(end))))


def early(values: FloatArray) -> float:
    """The middle of the first tenth."""
    return float(np.median(values[: _num_early(values)]))


def _num_early(values: FloatArray) -> int:
    return max(len(values) // 10, 1)


def late(values: FloatArray) -> float:
    """The middle of the last third."""
    return float(np.median(values[-max(len(values) // 3, 1) :]))


def _uncertainty(values: FloatArray) -> float:
    return 1.25 * noise(values) / math.sqrt(max(len(values) // 3, 1))


def _training_fell(progress: Progress) -> tuple[float, float] | None:
    first, level = progress.first, progress.level
    if first is None or level is None or progress.num_losses > 1 or not progress.kind.measures_error:
        return None
    return (first, level) if first - level > max(LEARNED * abs(first), SURE * progress.unsure) else None


def _never_better(progress: Progress, name: str, series: Series) -> Symptom | None:
    values, fell = series.values, _training_fell(progress)
    if fell is None or (direction(name) >= 0 and not _is_share(values)):
        return None
    sign, start, end = direction(name), float(values[0]), late(values)
    best = float(np.max(sign * values)) * sign
    if sign * (best - start) > SURE * noise(values) + 0.02 * abs(start):
        return None
    # Looked at once training had done its work, validation has nothing left to gain.
    first_look = progress.loss.values[progress.loss.steps <= series.steps[0]]
    first_look = first_look[np.isfinite(first_look)][-5:]
    if not len(first_look) or float(np.median(first_look)) - fell[1] < 0.5 * (fell[0] - fell[1]):
        return None
    return Symptom(
        "parts_from_training",
        f"The training loss falls from {fell[0]:.3g} to {fell[1]:.3g}, but {name} was never better than its first value: "
        f"{end:.3g}, after {start:.3g}. What is learned does not hold in validation.",
        int(series.steps[0]),
        int(series.steps[-1]),
        (Evidence(name, end, start, stat=name), Evidence("training loss", fell[1], fell[0], stat="loss")),
    )


def _left_behind(name: str, series: Series) -> Symptom | None:
    values, sign = series.values, direction(name)
    start, end = float(values[0]), late(values)
    index = int(np.argmax(sign * values))
    best = float(values[index])
    if sign < 0:
        lost = best > 0 and end > max(GROWN * best, WORSE * start) and end - best > SURE * noise(values)
    else:
        lost = _is_share(values) and best - end > DROP and best - end > SURE * noise(values)
        lost = lost and best - end > 0.5 * (best - start)
    if not lost or not index < len(values) - LOOKS_NEEDED // 2:
        return None
    step = int(series.steps[index])
    return Symptom(
        "parts_from_training",
        f"{name} was best at step {step:,} with {best:.3g} and has worsened to {end:.3g} since"
        + (f", {_comparison_text(end, start)} its first value ({start:.3g})." if sign < 0 else "."),
        step,
        int(series.steps[-1]),
        (Evidence(name, end, best, stat=name),),
    )


def _far_better(progress: Progress, name: str, series: Series) -> Symptom | None:
    """Validation is well beyond guessing while the loss on the training batches is not: they do not see the same."""
    chance, level, end = progress.chance, progress.level, late(series.values)
    if chance is None or level is None or direction(name) >= 0 or not words(name)[-1].endswith("loss"):
        return None
    if (
        level - SURE * progress.unsure < AT_CHANCE * chance
        or end + SURE * _uncertainty(series.values) > LEARNED_THERE * chance
    ):
        return None
    return Symptom(
        "parts_from_training",
        f"The training loss is {level:.3g}, hardly below the {chance:.3g} of guessing, while {name} is {end:.3g}: training does "
        "not see the data, or not in the mode, that validation sees.",
        int(series.steps[0]),
        int(series.steps[-1]),
        (Evidence(name, end, level, stat=name), Evidence("training loss", level, progress.first, stat="loss")),
    )


def _comparison_text(end: float, start: float) -> str:
    return "worse than" if end > start else "about as bad as"


def _is_share(values: FloatArray) -> bool:
    return bool(values.min() >= 0 and values.max() <= 1)
