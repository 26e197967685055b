"""ModelDiagnostics: how training goes as a whole, and how healthy the model is.

Records come by hand or from a session, in any order of steps, and are read in time order. Only what was
recorded is judged: a component without data neither helps nor harms the score.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from stethoscope.analyse.convergence import (
    ConvergenceStatus,
    Curve,
    Onset,
    TrainingStability,
    Verdict,
    convergence,
    degradation,
    overfitting,
    overfitting_by_accuracy,
    plateau,
    stability,
    underfitting,
)
from stethoscope.analyse.trends import Direction, mann_kendall
from stethoscope.instruments.architecture import (
    ArchitectureAnalysis,
    ModelArchitectureInfo,
    analyze_architecture,
)
from stethoscope.instruments.limits import own_limits
from stethoscope.instruments.source import Source
from stethoscope.record import StethoscopeError, plural

if TYPE_CHECKING:
    import torch

MAX_RECORDS: Final = 10_000
WEIGHTS: Final = {
    "convergence": 0.35,
    "stability": 0.25,
    "generalisation": 0.2,
    "throughput": 0.1,
    "memory": 0.1,
}
"""How much each component counts; those without data are left out and the rest scaled up."""

RULES: Final = "trend, swing and level of the latest losses on record, whatever else is known of the training"

CONVERGENCE_SCORES: Final = {
    ConvergenceStatus.CONVERGING: 1.0,
    ConvergenceStatus.CONVERGED: 1.0,
    ConvergenceStatus.PLATEAU: 0.6,
    ConvergenceStatus.OSCILLATING: 0.3,
    ConvergenceStatus.DIVERGING: 0.0,
}
STABILITY_SCORES: Final = {
    TrainingStability.STABLE: 1.0,
    TrainingStability.HIGH_VARIANCE: 0.6,
    TrainingStability.UNSTABLE: 0.0,
}


@dataclass(frozen=True, slots=True)
class ModelPerformanceMetrics:
    """What is known of training at one step."""

    training_step: int
    loss: float
    accuracy: float | None = None
    learning_rate: float | None = None
    batch_size: int | None = None
    throughput_samples_per_sec: float | None = None
    memory_usage_mb: float | None = None
    gpu_utilization: float | None = None
    timestamp: Any = None
    """When; by default the moment it is recorded."""
    validation_loss: float | None = None
    validation_accuracy: float | None = None


@dataclass(frozen=True, slots=True)
class TrainingDynamics:
    """How the loss goes."""

    convergence_status: ConvergenceStatus
    convergence_reason: str
    training_stability: TrainingStability
    stability_reason: str
    learning_efficiency: float | None
    """Relative fall of the loss per 1,000 samples seen, or per step where the batch size is unknown."""
    plateau: Onset | None
    overfitting: Onset | None
    underfitting: Onset | None


@dataclass(frozen=True, slots=True)
class PerformanceAnomaly:
    """A measure that got worse, since when and by how much."""

    metric: str
    onset: Onset


@dataclass(frozen=True, slots=True)
class HealthComponent:
    """One part of the health score."""

    name: str
    weight: float
    score: float
    reason: str


@dataclass(frozen=True, slots=True)
class ModelHealth:
    """From 0 to 1, with what it is made of; None where nothing is known."""

    score: float | None
    components: tuple[HealthComponent, ...] = ()

    @property
    def reasons(self) -> tuple[str, ...]:
        """Why the score is not 1, the heaviest reason first."""
        lost = sorted(self.components, key=lambda part: -part.weight * (1.0 - part.score))
        return tuple(part.reason for part in lost if part.score < 1.0)


@dataclass(frozen=True, slots=True)
class DiagnosticsReport:
    """Everything ModelDiagnostics has to say."""

    num_records: int
    dynamics: TrainingDynamics
    anomalies: tuple[PerformanceAnomaly, ...]
    health: ModelHealth
    architecture: ModelArchitectureInfo | None
    recommendations: tuple[str, ...] = field(default=())

    @property
    def limits(self) -> str:
        """What it is judged by."""
        return own_limits("model diagnostics", RULES)

    def summary(self) -> str:
        """A few lines for people."""
        score = "unknown" if self.health.score is None else f"{self.health.score:.2f}"
        dynamics = self.dynamics
        lines = [
            f"health {score} over {plural(self.num_records, 'record')}",
            f"{dynamics.convergence_status}: {dynamics.convergence_reason}",
            f"{dynamics.training_stability}: {dynamics.stability_reason}",
        ]
        for word, onset in (("overfitting", dynamics.overfitting), ("underfitting", dynamics.underfitting)):
            if onset is not None:
                lines.append(f"{word} since step {onset.step:,}: {onset.reason}")
        lines.extend(f"{anomaly.metric}: {anomaly.onset.reason}" for anomaly in self.anomalies)
        return "\n".join([*lines, *(f"try: {advice}" for advice in self.recommendations), self.limits])


class ModelDiagnostics:
    """Follows a training run by its metrics."""

    def __init__(
        self,
        *,
        max_records: int = MAX_RECORDS,
        clock: Callable[[], float] = time.time,
        enabled: bool = True,
        source: Callable[[ModelDiagnostics], None] | None = None,
    ) -> None:
        """`source` is asked before every question, and hands in what a session recorded since; where not
        `enabled` nothing is kept."""
        self.enabled = enabled
        self.architecture: ModelArchitectureInfo | None = None
        self._source = Source(source)
        self._by_step: dict[int, ModelPerformanceMetrics] = {}
        self._forgotten_until = -1
        self.max_records = max_records
        self._records: deque[ModelPerformanceMetrics] = deque(maxlen=max_records)
        self._clock = clock

    def record_architecture(self, info: ModelArchitectureInfo) -> None:
        """Keeps what the model is made of."""
        if self.enabled:
            self.architecture = info

    def analyze_architecture(self, model: torch.nn.Module, example: Any = None) -> ArchitectureAnalysis:
        """Analyses a torch model and records what it is made of; see `architecture.analyze_architecture`."""
        analysis = analyze_architecture(model, example)
        self.record_architecture(analysis.info)
        return analysis

    def record_performance(self, metrics: ModelPerformanceMetrics) -> None:
        """Keeps the metrics of one step."""
        if not isinstance(metrics, ModelPerformanceMetrics):
            raise StethoscopeError(
                "not a ModelPerformanceMetrics",
                where=type(metrics).__name__,
                do="Give ModelPerformanceMetrics(training_step=..., loss=...)",
            )
        if self.enabled:
            self._records.append(self._with_timestamp(metrics))

    def record_step(self, metrics: ModelPerformanceMetrics) -> None:
        """Keeps what a session knows of a step, instead of what it knew before; what a user recorded stays."""
        if not self.enabled or metrics.training_step <= self._forgotten_until:
            return
        before = self._by_step.get(metrics.training_step)
        if before is not None and replace(before, timestamp=metrics.timestamp) == metrics:
            return
        self._by_step[metrics.training_step] = self._with_timestamp(metrics)
        while len(self._by_step) > self.max_records:
            del self._by_step[next(iter(self._by_step))]

    def records(self) -> list[ModelPerformanceMetrics]:
        """What was recorded, by step; of two records of one step the later one comes last.

        A step that a user recorded by hand is theirs alone.
        """
        self._source.into(self)
        by_hand = {record.training_step for record in self._records}
        fed = [record for step, record in self._by_step.items() if step not in by_hand]
        return sorted([*fed, *self._records], key=lambda record: record.training_step)

    def _with_timestamp(self, metrics: ModelPerformanceMetrics) -> ModelPerformanceMetrics:
        return metrics if metrics.timestamp is not None else replace(metrics, timestamp=self._clock())

    def curve(self, name: str) -> Curve:
        """One metric over the steps at which it is known."""
        known = [(r.training_step, value) for r in self.records() if (value := getattr(r, name)) is not None]
        return Curve([step for step, _ in known], [float(value) for _, value in known])

    def analyze_training_dynamics(self) -> TrainingDynamics:
        """Convergence, stability, plateau, over- and underfitting."""
        loss, validation = self.curve("loss"), self.curve("validation_loss")
        course, steady = convergence(loss.values), stability(loss.values)
        return TrainingDynamics(
            convergence_status=ConvergenceStatus(course.status),
            convergence_reason=course.reason,
            training_stability=TrainingStability(steady.status),
            stability_reason=steady.reason,
            learning_efficiency=self._learning_efficiency(loss),
            plateau=plateau(loss.steps, loss.values),
            overfitting=overfitting(loss, validation)
            or overfitting_by_accuracy(self.curve("accuracy"), self.curve("validation_accuracy")),
            underfitting=underfitting(loss, validation if len(validation.values) else None),
        )

    def detect_performance_anomalies(self) -> list[PerformanceAnomaly]:
        """Throughput or accuracy that fell, memory that grew."""
        found = []
        for name in ("throughput_samples_per_sec", "accuracy", "validation_accuracy"):
            onset = degradation(self.curve(name))
            if onset is not None:
                found.append(PerformanceAnomaly(name, onset))
        growth = self._memory_growth()
        return [*found, PerformanceAnomaly("memory_usage_mb", growth)] if growth else found

    def assess_health(self) -> ModelHealth:
        """The score, what it is made of, and why."""
        dynamics, anomalies = self.analyze_training_dynamics(), self.detect_performance_anomalies()
        return self._model_health(dynamics, anomalies)

    def generate_report(self) -> DiagnosticsReport:
        """All of it at once."""
        dynamics, anomalies = self.analyze_training_dynamics(), self.detect_performance_anomalies()
        return DiagnosticsReport(
            num_records=len(self.records()),
            dynamics=dynamics,
            anomalies=tuple(anomalies),
            health=self._model_health(dynamics, anomalies),
            architecture=self.architecture,
            recommendations=tuple(_advice(dynamics, anomalies)),
        )

    def clear(self) -> None:
        """Forgets everything that was recorded."""
        self._source.into(self)
        self._forgotten_until = max(self._by_step, default=self._forgotten_until)
        self._records.clear()
        self._by_step.clear()
        self.architecture = None

    def _learning_efficiency(self, loss: Curve) -> float | None:
        steps, values = loss.known()
        if len(values) < 5 or steps[-1] == steps[0]:
            return None
        first, last = float(np.median(values[:3])), float(np.median(values[-3:]))
        if not first:
            return None
        fall = (first - last) / abs(first)
        sizes = [r.batch_size for r in self.records() if r.batch_size]
        spent = float(steps[-1] - steps[0]) * (float(np.mean(sizes)) / 1000.0 if sizes else 1.0)
        return fall / spent

    def _memory_growth(self) -> Onset | None:
        """Memory that rises steadily by more than a tenth of what it was: a leak, most often."""
        steps, values = self.curve("memory_usage_mb").known()
        if len(values) < 20:
            return None
        settled = values[len(values) // 5 :]  # caches and optimizer state fill up at the start
        trend = mann_kendall(settled, alpha=1e-4)
        grown = float(np.median(settled[-5:]) - np.median(settled[:5]))
        if trend.direction is not Direction.RISING or trend.tau < 0.5 or grown <= 0.1 * float(np.median(settled[:5])):
            return None
        begin = int(steps[len(values) // 5])
        reason = f"grew by {grown:.3g} MB since step {begin:,}, {trend.slope:.3g} MB a record"
        return Onset(begin, reason, {"grown_mb": grown, "slope_mb": trend.slope})

    def _model_health(self, dynamics: TrainingDynamics, anomalies: list[PerformanceAnomaly]) -> ModelHealth:
        parts = _dynamics_parts(dynamics)
        if max(len(self.curve(name).values) for name in ("validation_loss", "validation_accuracy")) >= 5:
            fit = dynamics.overfitting
            parts.append(
                (
                    "generalisation",
                    0.3 if fit else 1.0,
                    f"overfitting: {fit.reason}" if fit else "no overfitting",
                )
            )
        worse = {anomaly.metric: anomaly.onset.reason for anomaly in anomalies}
        for name, metric in (("throughput", "throughput_samples_per_sec"), ("memory", "memory_usage_mb")):
            if len(self.curve(metric).values) >= 20:
                trouble = worse.get(metric)
                parts.append((name, 0.3 if trouble else 1.0, f"{name} {trouble}" if trouble else f"{name} is steady"))
        if not parts:
            return ModelHealth(None)
        total = sum(WEIGHTS[name] for name, _, _ in parts)
        components = tuple(HealthComponent(name, WEIGHTS[name] / total, score, why) for name, score, why in parts)
        return ModelHealth(sum(part.weight * part.score for part in components), components)


def _dynamics_parts(dynamics: TrainingDynamics) -> list[tuple[str, float, str]]:
    parts = []
    if dynamics.convergence_status is not ConvergenceStatus.UNKNOWN:
        score = CONVERGENCE_SCORES[dynamics.convergence_status]
        parts.append(("convergence", score, f"{dynamics.convergence_status}: {dynamics.convergence_reason}"))
    if dynamics.training_stability is not TrainingStability.UNKNOWN:
        score = STABILITY_SCORES[dynamics.training_stability]
        parts.append(("stability", score, f"{dynamics.training_stability}: {dynamics.stability_reason}"))
    return parts


def _advice(dynamics: TrainingDynamics, anomalies: list[PerformanceAnomaly]) -> list[str]:
    by_status = {
        ConvergenceStatus.DIVERGING: "Lower the learning rate, warm it up, or clip the gradient norm",
        ConvergenceStatus.OSCILLATING: "Lower the learning rate or use a larger batch",
        ConvergenceStatus.PLATEAU: "Raise the learning rate, or look at what the inputs do not tell",
    }
    advice = [by_status[dynamics.convergence_status]] if dynamics.convergence_status in by_status else []
    if dynamics.training_stability is TrainingStability.HIGH_VARIANCE:
        advice.append("Use a larger batch or accumulate gradients")
    if dynamics.overfitting is not None:
        step = dynamics.overfitting.step
        advice.append(f"Stop near step {step:,}, or add regularisation, augmentation or data")
    if dynamics.underfitting is not None:
        advice.append("Use a larger model or learning rate, and check that inputs and labels belong together")
    by_metric = {
        "throughput_samples_per_sec": "Profile the data loader and other users of the machine",
        "memory_usage_mb": "Look for tensors kept from step to step: LeakDetector names the line",
    }
    return [*advice, *(by_metric[a.metric] for a in anomalies if a.metric in by_metric)]


__all__ = [
    "ConvergenceStatus",
    "DiagnosticsReport",
    "HealthComponent",
    "ModelArchitectureInfo",
    "ModelDiagnostics",
    "ModelHealth",
    "ModelPerformanceMetrics",
    "PerformanceAnomaly",
    "TrainingDynamics",
    "TrainingStability",
    "Verdict",
]
