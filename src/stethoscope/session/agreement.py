"""Where an instrument and the diagnosis of the same run differ, and by what each of them goes."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from stethoscope.analyse.convergence import ConvergenceStatus
from stethoscope.instruments.gradient_health import LayerHealth

if TYPE_CHECKING:
    from stethoscope.explain import Diagnosis
    from stethoscope.instruments.diagnostics import DiagnosticsReport
    from stethoscope.instruments.gradient_health import GradientFlowAnalysis

GRADIENTS: Final = "gradient debugger"
TRAINING: Final = "model diagnostics"
MAX_NAMED: Final = 3


@dataclasses.dataclass(frozen=True, slots=True)
class Topic:
    """Something that an instrument and the diagnosis both speak of, each in its own way."""

    name: str
    instrument: str
    codes: frozenset[str]
    """Of findings and symptoms: whether the diagnosis says it."""
    limit: str
    """What the instrument goes by."""
    rule: str
    """What the diagnosis goes by."""


_TREND: Final = "how gradients change with depth and over the run's own steps, not how large they are"
TOPICS: Final = {
    topic.name: topic
    for topic in (
        Topic(
            "exploding gradients",
            GRADIENTS,
            frozenset({"exploding_gradients"}),
            "the median norm of the last looks at a layer, over a fixed size",
            _TREND,
        ),
        Topic(
            "vanishing gradients",
            GRADIENTS,
            frozenset({"vanishing_gradients"}),
            "the median norm of the last looks at a layer, under a fixed size",
            _TREND,
        ),
        Topic(
            "NaN or Inf in gradients",
            GRADIENTS,
            frozenset(
                {"nonfinite_origin", "nonfinite_batch", "nonfinite_buffer", "precision_overflow", "not_a_number"}
            ),
            "the last look at a layer alone",
            "where in the run the first of them came from, steps that a gradient scaler skips left out",
        ),
        Topic(
            "dead units",
            GRADIENTS,
            frozenset({"dead_units", "dormant_units"}),
            "units that fired in none of the looks so far, from a tenth of a layer on",
            "units that are silent in look after look and stay so",
        ),
        Topic(
            "a plateau",
            TRAINING,
            frozenset({"plateau", "does_not_learn"}),
            "the trend and level of the latest losses",
            "the last third of the run, against where it began and the noise of single losses",
        ),
        Topic(
            "oscillation",
            TRAINING,
            frozenset({"oscillation", "swings"}),
            "a loss that alternates more than chance would",
            "updates that undo each other, or a loss that swings around a level, for long",
        ),
        Topic(
            "divergence",
            TRAINING,
            frozenset({"diverges", "not_a_number", "exploding_gradients", "update_too_large", "adam_update_spike"}),
            "the trend and level of the latest losses",
            "a loss that leaves what the run had reached and does not come back",
        ),
        Topic(
            "overfitting",
            TRAINING,
            frozenset({"overfitting", "parts_from_training", "train_eval_gap"}),
            "validation that gets worse while the training loss falls",
            "the gap between the two against the run's own noise, evaluation by evaluation",
        ),
    )
}
_BY_STATUS: Final = {
    ConvergenceStatus.PLATEAU: "a plateau",
    ConvergenceStatus.OSCILLATING: "oscillation",
    ConvergenceStatus.DIVERGING: "divergence",
}


def differences(diagnosis: Diagnosis, gradients: GradientFlowAnalysis, training: DiagnosticsReport) -> list[str]:
    """A sentence for each topic of which one speaks and the other does not; none where one of the two has seen nothing."""
    if not diagnosis.looked_at.num_steps:
        return []
    said = _of_gradients(gradients) | _of_training(training)
    has_seen = {GRADIENTS: bool(gradients.layers), TRAINING: bool(training.num_records)}
    found = {finding.code: finding.message for finding in diagnosis.findings}
    found |= {symptom.name: symptom.message for symptom in diagnosis.verdict.symptoms}
    told = []
    for topic in TOPICS.values():
        messages = [found[code] for code in sorted(topic.codes & found.keys())]
        if not has_seen[topic.instrument] or bool(messages) == (topic.name in said):
            continue
        told.append(_only_diagnosis(topic, messages[0]) if messages else _only_instrument(topic, said[topic.name]))
    if not told and diagnosis.verdict.state.is_trouble and gradients.overall_health is LayerHealth.HEALTHY:
        told.append(
            f"{GRADIENTS.capitalize()}: {LayerHealth.HEALTHY}, of gradients alone; diagnosis: {diagnosis.verdict.message}"
        )
    return told


def _only_instrument(topic: Topic, claim: str) -> str:
    return f"{topic.instrument.capitalize()}: {topic.name} ({claim}); diagnosis: none. {_why(topic)}"


def _only_diagnosis(topic: Topic, message: str) -> str:
    return f"Diagnosis: {message.rstrip('.')}; {topic.instrument}: no {topic.name.removeprefix('a ')}. {_why(topic)}"


def _why(topic: Topic) -> str:
    return f"The {topic.instrument} goes by {topic.limit}; the diagnosis by {topic.rule}."


def _of_gradients(analysis: GradientFlowAnalysis) -> dict[str, str]:
    """What the gradient debugger says, by topic, with where."""
    by_topic: dict[str, Sequence[str]] = {
        "exploding gradients": [name for name in analysis.exploding_layers if name not in analysis.nonfinite_layers],
        "vanishing gradients": analysis.vanishing_layers,
        "NaN or Inf in gradients": analysis.nonfinite_layers,
        "dead units": [units.layer for units in analysis.dead_units],
    }
    return {topic: _listed(names) for topic, names in by_topic.items() if names}


def _of_training(report: DiagnosticsReport) -> dict[str, str]:
    """What the model diagnostics say, by topic, with why."""
    dynamics = report.dynamics
    said: dict[str, str] = {}
    topic = _BY_STATUS.get(dynamics.convergence_status)
    if topic is not None:
        said[topic] = dynamics.convergence_reason
    if dynamics.overfitting is not None:
        said["overfitting"] = dynamics.overfitting.reason
    return said


def _listed(names: Sequence[str]) -> str:
    more = len(names) - MAX_NAMED
    return ", ".join(names[:MAX_NAMED]) + (f" and {more:,} more" if more > 0 else "")
