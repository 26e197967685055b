"""What could be behind a symptom without a cause: each suspect with the number of the run that speaks for it or against it.

A suspect whose numbers were not recorded is not named: nothing clears it, and nothing speaks for it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

import numpy as np

from stethoscope.detect.symptoms import Symptom
from stethoscope.explain.state import Suspect
from stethoscope.record import Evidence, Kind, metrics
from stethoscope.record.events import EvalBegin, EvalForward
from stethoscope.store import Run

LOOKED_AT: Final = 128
"""Steps that are read: the last of the symptom's time."""
TOO_LARGE: Final = 0.03
"""An update of this share of its weight destroys more than it builds."""
TOO_NEAR: Final = 0.1
"""A weight that cannot move by this share of itself in the whole run, all updates going one way, stays what it was."""
WANTED: Final = 1e-3
REACHED: Final = 1e-6
"""The smallest median gradient of a weight, as a share of the largest."""
ALIVE: Final = 0.95
"""The share of zeros in a layer's output up to which it has something to say."""
INPUT_SIZES: Final = (0.01, 30.0)
STEADY: Final = 10.0
"""Times the usual gradient norm."""
ENOUGH: Final = 8

Question = Callable[[Run, range], Suspect | None]


def suspects(run: Run, symptom: Symptom) -> tuple[Suspect, ...]:
    """Those of this symptom, over the last recorded steps of its time; first what a number still speaks for."""
    last = symptom.last_step
    steps = range(max(symptom.first_step, last - LOOKED_AT + 1, 0), last + 1)
    found = [suspect for ask in _QUESTIONS.get(symptom.name, ()) if (suspect := ask(run, steps)) is not None]
    return tuple(sorted(found, key=lambda suspect: suspect.is_cleared))


def _median_by_site(run: Run, kind: Kind, stat: str, steps: range) -> Iterator[tuple[str, float]]:
    matrix = run.matrix(kind, stat, first=steps.start, last=steps.stop - 1)
    for at, info in enumerate(matrix.sites):
        values = matrix.values[:, at]
        values = values[np.isfinite(values)]
        if len(values):
            yield info.site.path, float(np.median(values))


def _overflow_suspect(run: Run, steps: range) -> Suspect | None:
    counts = run.matrix(None, "num_nonfinite", first=steps.start, last=steps.stop - 1)
    recorded = ~counts.missing
    if not recorded.any():
        return None
    found = float(np.nansum(counts.values[recorded]))
    evidence = Evidence(f"NaN and Inf in steps {steps.start:,} to {steps.stop - 1:,}", found)
    return Suspect("numbers that overflow", evidence, found == 0)


def _update_size(run: Run, steps: range) -> Suspect | None:
    sizes = dict(_median_by_site(run, Kind.WEIGHT, "rms", steps))
    updates = _median_by_site(run, Kind.UPDATE, "rms", steps)
    ratios = [size / sizes[path] for path, size in updates if sizes.get(path, 0.0) > 0]
    if not ratios:
        return None
    usual = float(np.median(ratios))
    num_steps = max(len(run.steps), 1)
    if usual > TOO_LARGE:
        evidence = Evidence("size of an update, as a share of its weight", usual)
        return Suspect("steps too large", evidence, False, _other_rate(run, usual))
    evidence = Evidence(f"most that {num_steps:,} updates can change a weight, as a share of it", usual * num_steps)
    if usual * num_steps < TOO_NEAR:
        return Suspect("steps too small for the time", evidence, False, _other_rate(run, usual))
    return Suspect("steps too small or too large", evidence, True)


def _other_rate(run: Run, usual: float) -> str:
    """A learning rate that brings updates to the size that training mostly has, where they are proportional to it."""
    rates = run.metric(metrics.LEARNING_RATE).finite
    rates = rates[rates > 0]
    if not len(rates) or not usual > 0:
        return ""
    return f"lr={rates.max() * WANTED / usual:.1g}  # brings an update to {WANTED:g} of its weight"


def _gradient_reach(run: Run, steps: range) -> Suspect | None:
    norms = [
        (size, path) for path, size in _median_by_site(run, Kind.GRADIENT, "norm", steps) if path.endswith("weight")
    ]
    if len(norms) < 2:
        return None
    size, path = min(norms)
    evidence = Evidence(f"smallest gradient norm of a weight ({path})", size, site=path, kind="gradient", stat="norm")
    return Suspect("a layer that the gradient does not reach", evidence, size > REACHED * max(norms)[0])


def _gradient_peak(run: Run, steps: range) -> Suspect | None:
    values = run.metric(metrics.GRADIENT_NORM).values
    if not len(values):
        first = max(steps.start - LOOKED_AT, 0)
        norms = run.matrix(Kind.GRADIENT, "norm", first=first, last=steps.stop - 1).values
        values = np.sqrt(np.nansum(norms**2, axis=1)) if norms.size else np.empty(0)
    values = values[np.isfinite(values)]
    if len(values) < ENOUGH or not np.median(values) > 0:
        return None
    largest, usual = float(values.max()), float(np.median(values))
    evidence = Evidence("largest gradient norm (and the usual one)", largest, usual)
    return Suspect("gradients that explode", evidence, largest < STEADY * usual)


def _zero_outputs(run: Run, steps: range) -> Suspect | None:
    shares = [(share, path) for path, share in _median_by_site(run, Kind.ACTIVATION, "zero_fraction", steps)]
    if not shares:
        return None
    share, path = max(shares)
    label = f"largest share of zeros in a layer's output ({path})"
    evidence = Evidence(label, share, site=path, kind="activation", stat="zero_fraction")
    return Suspect("dead units", evidence, share < ALIVE)


def _input_spread(run: Run, steps: range) -> Suspect | None:
    # Of token ids a spread says nothing.
    floats = {info.site.path for info in run.sites if info.site.kind is Kind.INPUT and "float" in info.dtype}
    for path, std in _median_by_site(run, Kind.INPUT, "std", range(steps.stop)):
        if path in floats:
            low, high = INPUT_SIZES
            what = "inputs that are all alike" if std < low else "inputs that are constant or badly scaled"
            return Suspect(what, Evidence("spread (std) of the inputs", std), low <= std <= high)
    return None


def _rate_suspect(run: Run, _: range) -> Suspect | None:
    values = run.metric(metrics.LEARNING_RATE).finite
    if not len(values) or not values.max() > 0:
        return None
    evidence = Evidence("learning rate (and its largest)", float(values[-1]), float(values.max()), stat="lr")
    return Suspect("a schedule that takes the learning rate away", evidence, values[-1] >= 0.01 * values.max())


def _training_mode(run: Run, _: range) -> Suspect | None:
    values = run.metric(metrics.TRAINING_MODE).values
    if not len(values):
        return None
    share = float(np.mean(values > 0))
    return Suspect("training in eval() mode", Evidence("share of steps in train() mode", share), share == 1.0)


def _validation_mode(run: Run, _: range) -> Suspect | None:
    if not run.events_of(EvalBegin):
        return None
    wrong = sum(bool(body.in_training) for _, body in run.events_of(EvalForward))
    return Suspect(
        "validation in train() mode", Evidence("calls in train() mode during validation", float(wrong)), not wrong
    )


_QUESTIONS: Final[dict[str, tuple[Question, ...]]] = {
    "does_not_learn": (
        _update_size,
        _gradient_reach,
        _overflow_suspect,
        _zero_outputs,
        _input_spread,
        _rate_suspect,
        _training_mode,
    ),
    "only_rises": (_update_size, _gradient_peak, _overflow_suspect, _input_spread),
    "diverges": (_update_size, _gradient_peak, _overflow_suspect, _input_spread),
    "swings": (_update_size, _gradient_peak, _overflow_suspect, _input_spread),
    "parts_from_training": (_validation_mode, _overflow_suspect),
}
