"""From causes, symptoms and evidence to one of the four states: what the verdict of a run is, and what to do next."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from stethoscope.detect.symptoms import (
    BY_HEART,
    LossFamily,
    LossKind,
    Progress,
    Symptom,
    learning,
    progress_of,
    symptoms,
)
from stethoscope.explain.diagnosis import LookedAt
from stethoscope.explain.ending import blindness, ending, is_by_hand, reservations
from stethoscope.explain.state import State, Verdict
from stethoscope.explain.suspects import suspects
from stethoscope.record import Evidence, Finding, Series, Severity, StethoscopeError, metrics
from stethoscope.store import Run

SLACK: Final = 0.1
"""A cause may be dated this share of the run after its symptom: detectors are sure later than a loss is."""
SLACK_STEPS: Final = 32
COSTS_ONLY: Final = ("data_bound", "graph_retained", "hooks_accumulate")
"""What takes time or memory, and does nothing to the weights."""
NEXT: Final = {
    "does_not_learn": BY_HEART,
    "impossible_value": "loss = F.cross_entropy(logits, targets)  # takes logits; F.nll_loss takes log-probabilities",
    "errors_grow": "loss.backward()  # without the minus: does an error that is printed beside it fall then?",
    "parts_from_training": (
        "model.eval(); print(loss_fn(model(train_inputs), train_targets))  # as low as in training: the validation data "
        "differ; higher: train() and eval() mode differ"
    ),
    "only_rises": "loss = -loss  # does it fall then? A sign is turned round: in the loss, or by maximize=True",
    "not_a_number": "torch.autograd.set_detect_anomaly(True)  # names the operation whose backward makes the NaN",
}


def judge(run: Run, causes: Sequence[Finding], looked: LookedAt) -> Verdict:
    """The one place where a state is decided."""
    told = tuple(reservations(looked, run))
    blind = blindness(looked, run)
    progress = _read_progress(run)
    found = () if blind else symptoms(progress)
    if run.state == "crashed" and not is_by_hand(run):
        found = (_crash_symptom(run), *found)
    unexplained = tuple(symptom for symptom in found if not any(explains(cause, symptom, run) for cause in causes))
    if causes:
        return Verdict(
            State.TROUBLE,
            causes[0].message,
            symptoms=found,
            unexplained=unexplained,
            reservations=told,
            severity=causes[0].severity,
        )
    if found:
        return _unexplained_verdict(run, found, told)
    if blind:
        return Verdict(State.CANNOT_TELL, blind, reservations=told)
    shown = learning(progress)
    state = State.LEARNS if shown.learns else State.CANNOT_TELL
    return Verdict(state, shown.message, shown.evidence, line=shown.line, limits=shown.limits, reservations=told)


def explains(cause: Finding, symptom: Symptom, run: Run) -> bool:
    """Whether a cause can be what a symptom comes from: it began before it, and it acts on what the symptom measures."""
    if symptom.name == "crashed":
        return cause.code in COSTS_ONLY or cause.severity is Severity.CRITICAL
    length = (run.last_step or 0) + 1
    return cause.code not in COSTS_ONLY and cause.first_step <= symptom.first_step + max(SLACK_STEPS, SLACK * length)


def _unexplained_verdict(run: Run, found: tuple[Symptom, ...], told: tuple[str, ...]) -> Verdict:
    first = found[0]
    weighed = suspects(run, first)
    return Verdict(
        State.UNEXPLAINED,
        first.message,
        first.evidence,
        symptoms=found,
        unexplained=found,
        suspects=weighed,
        line=next((one.line for one in weighed if one.line), "") or _next_experiment(run, first),
        reservations=told,
        severity=first.severity,
    )


def _crash_symptom(run: Run) -> Symptom:
    step = run.last_step or 0
    return Symptom("crashed", ending(run), step, step, (Evidence("last recorded step", float(step)),))


def _read_progress(run: Run) -> Progress:
    """What is read of a folder that may hold anything: what makes no sense is as good as not there."""
    try:
        return progress_of(run)
    except (StethoscopeError, ValueError, TypeError, KeyError, AttributeError, OverflowError):
        return Progress(Series(), LossKind(LossFamily.OPAQUE))


def _next_experiment(run: Run, symptom: Symptom) -> str:
    """The experiment that would split what is left."""
    if symptom.name in ("diverges", "swings"):
        rate = _rate_at(run, symptom.first_step)
        if rate is not None:
            return f"lr={0.1 * rate:.2g}  # a tenth of the {rate:.2g} of step {symptom.first_step:,}: does the loss still rise?"
        return 'for group in optimizer.param_groups: group["lr"] /= 10  # does the loss still rise?'
    return NEXT.get(symptom.name, "")


def _rate_at(run: Run, step: int) -> float | None:
    series = run.metric(metrics.LEARNING_RATE)
    before = series.values[(series.steps <= step) & (series.values > 0)]
    return float(before[-1]) if len(before) else None
