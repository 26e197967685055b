"""Whether a training learns, and what shows it; where nothing shows it, what is missing and the line that would bring it.

Silence is never evidence: a training learns where its loss measures errors and ends far below what knowing nothing gives,
or where a score of validation got better. A falling loss alone is none as long as the frequency of the classes explains it.
"""

from __future__ import annotations

import dataclasses
from typing import Final

import numpy as np

from stethoscope.detect.curves import direction, is_validation
from stethoscope.detect.symptoms.course import best_level
from stethoscope.detect.symptoms.learning import AT_CHANCE, guessing
from stethoscope.detect.symptoms.loss_kind import LossFamily
from stethoscope.detect.symptoms.progress import FIRST, Progress
from stethoscope.detect.symptoms.validation import early, improved, late
from stethoscope.record import Evidence, plural

LOSSES_NEEDED: Final = 20
SURE: Final = 4.0
FELL: Final = 0.05
"""A fall of the loss that counts, as a share of its first value."""
BELOW_FREQUENCIES: Final = 0.75
"""Where the targets were seen: a loss under this share of what guessing by their distribution gives."""
BELOW_CLASSES: Final = 0.6
"""Where only the number of classes is known: in language and in skewed data the frequencies alone come to two thirds."""
OF_FIRST: Final = 0.2
"""Of a loss without a baseline: what it must fall to, as a share of its first value."""
EXPLAINED: Final = 0.1
"""Squared output deviations, as a share of the squared error: an output that varies less answers the mean."""
BETTER: Final = 0.7
"""An error of validation that fell to this share of its first value, or a score that closed as much of its gap to 1."""
RISEN: Final = 0.3
"""A loss that gave back this share of its fall does not show that training goes well."""
ONE_CLASS: Final = 0.98

VALIDATE: Final = "with session.evaluating(): session.log(loss=val_loss, accuracy=val_accuracy)"
LOG_TARGETS: Final = "session.log_batch(inputs, targets)  # what guessing by the targets' frequency gives is then known"
BY_HEART: Final = (
    "stethoscope.checkup(model, (inputs, targets), loss_fn, optimizer)  # can it learn one batch by heart? Then see how "
    "inputs and targets are paired"
)
LOG_LOSS: Final = "session.log(loss=loss)  # after each loss.backward()"
LOG_SCORE: Final = "session.log(reward=mean_reward)  # or any score of which more is better: accuracy, psnr, fid"


@dataclasses.dataclass(frozen=True, slots=True)
class Learning:
    """What there is of evidence."""

    learns: bool
    message: str
    """What shows it, or why nothing does."""
    evidence: tuple[Evidence, ...] = ()
    line: str = ""
    """The line of code that would tell, or tell more."""
    limits: str = ""
    """What the evidence does not show."""


def learning(progress: Progress) -> Learning:
    """The evidence that a run without symptoms gives."""
    scores = _score_courses(progress)
    better = [e for e, is_better in scores if is_better]
    much = [e for e in better if _by_much(e)]
    values = progress.finite[1]
    if progress.is_mixed:
        message = "Several trainings wrote to this run: their losses cannot be told apart."
        return Learning(
            False, message, line='stethoscope.watch(model, optimizer, name="…")  # each training in a run of its own'
        )
    if not len(values) and not scores:
        return Learning(False, "No loss was seen.", line=LOG_LOSS)
    if not progress.kind.measures_error or progress.num_losses > 1:
        if better:
            return Learning(True, f"{_improvement_text(better)}.", tuple(better))
        return _no_measure(progress, tuple(e for e, _ in scores))
    if len(values) < LOSSES_NEEDED and not better:
        yet = " yet" if progress.is_live else ""
        line = "" if progress.is_live else f"train for {LOSSES_NEEDED} steps or more"
        return Learning(
            False, f"{plural(len(values), 'loss', 'losses')}{yet}: too few to tell.", _loss_evidence(progress), line
        )
    return _by_error(progress, scores, better, much)


def _by_error(
    progress: Progress, scores: list[tuple[Evidence, bool]], better: list[Evidence], much: list[Evidence]
) -> Learning:
    """A loss that measures errors, with enough values."""
    first, level = progress.first or 0.0, progress.level or 0.0
    evidence = (*_loss_evidence(progress), *(e for e, _ in scores))
    doubt = _reason_to_doubt(progress, first, level)
    if much or (better and doubt is None):
        told = f"The training loss went from {first:.3g} to {level:.3g}, and {_improvement_text(much or better)}."
        return Learning(True, told, evidence)
    if doubt is not None:
        return Learning(False, doubt[0], evidence, doubt[1])
    looked = [e for e, _ in scores if is_validation(e.label)]
    if looked:
        worst = looked[0]
        return Learning(
            False,
            f"The training loss fell from {first:.3g} to {level:.3g}, but validation does not show it: {worst.label} is "
            f"{worst.value:.3g}, {worst.before:.3g} at first.",
            evidence,
            "model.eval(); print(loss_fn(model(train_inputs), train_targets))  # as low as in training?",
        )
    return Learning(
        True,
        f"The training loss fell from {first:.3g} to {level:.3g}{_chance_text(progress)}.",
        evidence,
        VALIDATE,
        "Nothing was validated: how it does on other data is not known.",
    )


def _reason_to_doubt(progress: Progress, first: float, level: float) -> tuple[str, str] | None:
    """Why the loss alone does not show that it learns well, and the line that would tell."""
    values = progress.finite[1]
    chance, best = progress.chance, best_level(values)
    fell = first - level
    if first - best > SURE * progress.unsure and level - best > max(RISEN * (first - best), SURE * progress.unsure):
        told = (
            f"The loss rose again, from {best:.3g} at best to {level:.3g}. Samples that get harder on purpose do that, and "
            "so does a training that comes apart."
        )
        return told, VALIDATE
    if fell < max(FELL * abs(first), SURE * progress.unsure):
        return _no_fall(progress, first, level)
    is_sure = progress.is_chance_exact and chance is not None and level < 0.5 * chance
    if progress.same_class is not None and progress.same_class >= ONE_CLASS and not is_sure:
        told = (
            f"The loss fell from {first:.3g} to {level:.3g}, but {progress.same_class:.0%} of the predictions name one and "
            "the same class: that may be all it has learned."
        )
        return told, LOG_TARGETS
    if chance is not None:
        share = BELOW_FREQUENCIES if progress.is_chance_exact else BELOW_CLASSES
        if level > share * chance:
            fall = f"The loss fell from {first:.3g} to {level:.3g}; {guessing(progress)} gives {chance:.3g}"
            if not progress.is_chance_exact:
                return (
                    f"{fall}, and how often each class comes, which was not seen, may explain that much.",
                    LOG_TARGETS,
                )
            if level > AT_CHANCE * chance:
                return f"{fall}: it is no better than that so far.", BY_HEART
            return f"{fall}. It learns something; whether it could learn more does not show.", BY_HEART
        return None
    if level > OF_FIRST * abs(first) or (level <= 0 and progress.kind.has_terms):
        told = f"The loss fell from {first:.3g} to {level:.3g}; what knowing nothing gives is not known here."
        return told, _baseline_line(progress)
    varies = progress.output_std
    if varies is not None and varies**2 < EXPLAINED * level:
        told = (
            f"The loss fell from {first:.3g} to {level:.3g}, but the model's answers hardly differ from one another "
            f"(standard deviation {varies:.3g}): it may have learned the mean of the targets alone."
        )
        return told, LOG_TARGETS
    return None


def _no_fall(progress: Progress, first: float, level: float) -> tuple[str, str]:
    chance = progress.chance
    if chance is not None and level < 0.8 * chance:
        told = (
            f"The loss began at {first:.3g} and is {level:.3g}, far below the {chance:.3g} that {guessing(progress)} gives: the "
            "model was trained before, and whether this training adds to it does not show."
        )
        return told, VALIDATE
    if chance is not None:
        told = f"The loss went from {first:.3g} to {level:.3g}; {guessing(progress)} gives {chance:.3g}."
        return (told, BY_HEART)
    told = f"The loss began at {first:.3g} and is {level:.3g}: whether that is a floor or a failure does not show."
    return told, _baseline_line(progress)


def _baseline_line(progress: Progress) -> str:
    return LOG_TARGETS if progress.kind.family is LossFamily.DISTANCE and not progress.kind.has_terms else VALIDATE


def _no_measure(progress: Progress, evidence: tuple[Evidence, ...]) -> Learning:
    if progress.num_losses > 1:
        why = (
            f"{progress.num_losses} optimizers each have a loss of their own, as in an adversarial game: none of these losses "
            "says by itself whether the models get better."
        )
    elif not progress.kind.measures_error and len(progress.loss):
        why = (
            f"The loss is not one of PyTorch's measures of error{_made_by(progress)}: a policy gradient, a contrastive loss or "
            "a formula of your own can fall or rise while the model gets better."
        )
    else:
        why = "No loss was seen."
    if evidence:
        shown = evidence[0]
        why += f" {shown.label} went from {shown.before:.3g} to {shown.value:.3g}, which is within its jitter."
    return Learning(False, why, (*_loss_evidence(progress), *evidence), "" if evidence else LOG_SCORE)


def _score_courses(progress: Progress) -> list[tuple[Evidence, bool]]:
    """Each score with where it began and where it stands, and whether it got better beyond doubt."""
    out = []
    for name, series in progress.validation.items():
        values = series.values[np.isfinite(series.values)]
        is_better = improved(name, values)
        if is_better is not None:
            out.append((Evidence(name, late(values), early(values), stat=name), is_better))
    return sorted(out, key=lambda one: (not one[1], not is_validation(one[0].label), one[0].label))


def _by_much(score: Evidence) -> bool:
    """Whether a score got so much better that the loss need not show it too."""
    start, end = score.before or 0.0, score.value or 0.0
    if direction(score.label) < 0:
        return start > 0 and end < BETTER * start
    is_share = 0.0 <= start <= 1.0 and 0.0 <= end <= 1.0
    return not is_share or end - start > (1.0 - BETTER) * (1.0 - start)


def _improvement_text(better: list[Evidence]) -> str:
    said = []
    for e in better[:2]:
        word = "rose" if direction(e.label) > 0 else "fell"
        said.append(f"{e.label} {word} from {e.before:.3g} to {e.value:.3g}")
    return " and ".join(said)


def _loss_evidence(progress: Progress) -> tuple[Evidence, ...]:
    values = progress.finite[1]
    if not len(values):
        return ()
    first = progress.first if len(values) > FIRST else float(values[0])
    return (Evidence("training loss", progress.level, first, stat="loss"),)


def _made_by(progress: Progress) -> str:
    made = progress.kind.operations
    return f" (its last operations are {', '.join(made)})" if made else ""


def _chance_text(progress: Progress) -> str:
    return "" if progress.chance is None else f", where {guessing(progress)} gives {progress.chance:.3g}"
