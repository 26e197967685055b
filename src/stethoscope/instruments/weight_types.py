"""What the weight analyzer gives: statistics, health, outliers, explosion, drift. Plain data."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

from stethoscope.instruments.array_input import NonFinite


class ExplosionSeverity(StrEnum):
    """How bad exploding gradients are, of one layer or overall."""

    LOW = "Low"
    MEDIUM = "Medium"
    HIGH = "High"
    CRITICAL = "Critical"


class DistributionHealthStatus(StrEnum):
    """The score of all weights together, in a word."""

    EXCELLENT = "Excellent"
    GOOD = "Good"
    FAIR = "Fair"
    POOR = "Poor"
    CRITICAL = "Critical"
    UNKNOWN = "Unknown"
    """There was nothing to analyze."""


class OutlierSeverity(StrEnum):
    """Over 3 or over 5 standard deviations from the mean."""

    MEDIUM = "Medium"
    HIGH = "High"


class WeightDriftSeverity(StrEnum):
    """By the mean over layers of the mean absolute difference."""

    MINIMAL = "Minimal"
    LOW = "Low"
    MEDIUM = "Medium"
    HIGH = "High"
    UNKNOWN = "Unknown"
    """No layer could be compared with its counterpart."""


class WeightIssue(StrEnum):
    """What can be wrong with a layer's weights; `sentence` and `advice` say it in words."""

    ZERO_FRACTION = "zero_fraction"
    SKEWED = "skewed"
    HEAVY_TAILED = "heavy_tailed"
    EXTREME_VALUES = "extreme_values"
    NON_FINITE = "non_finite"

    @property
    def sentence(self) -> str:
        """What is wrong."""
        return _SENTENCES[self][0]

    @property
    def advice(self) -> str:
        """What to do about it."""
        return _SENTENCES[self][1]


_SENTENCES = {
    WeightIssue.ZERO_FRACTION: (
        "More than half of the weights are exactly zero",
        "Unless it was pruned, look for dead units: lower the learning rate or use a leaky activation",
    ),
    WeightIssue.SKEWED: (
        "The weights lean strongly to one side",
        "Check the initialisation, and whether a bias or a normalisation layer is missing",
    ),
    WeightIssue.HEAVY_TAILED: (
        "A few weights are far larger than the rest",
        "Watch the gradient norm of this layer: heavy tails precede instability",
    ),
    WeightIssue.EXTREME_VALUES: (
        "Some weights are larger than 10",
        "Add weight decay or lower the learning rate of this layer",
    ),
    WeightIssue.NON_FINITE: (
        "Some weights are NaN or infinite",
        "Go back to the last good checkpoint: every output of this layer is damaged",
    ),
}


@dataclass(frozen=True, slots=True)
class ExplodingLayer:
    """A layer whose gradient norm is over the threshold, or not finite."""

    layer_index: int
    gradient_norm: float
    severity: ExplosionSeverity
    """By its norm against the mean of all layers: over 100, 50 and 10 times; Critical where not finite."""
    recommended_action: str
    layer_name: str | None = None


@dataclass(frozen=True, slots=True)
class GradientExplosionAnalysis:
    """All layers' gradient norms against a threshold."""

    exploding_layers: list[ExplodingLayer]
    max_gradient_norm: float
    mean_gradient_norm: float
    std_gradient_norm: float
    explosion_ratio: float
    overall_severity: ExplosionSeverity
    mitigation_recommendations: list[str]
    non_finite: list[NonFinite] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class WeightStatistics:
    """Of a tensor's finite values; std divides by n, kurtosis is excess."""

    mean: float = 0.0
    std_dev: float = 0.0
    skewness: float | None = None
    """None for fewer than 3 values."""
    kurtosis: float | None = None
    """None for fewer than 4 values."""
    entropy: float = 0.0
    """Of a 50-bin histogram, in bits: 0 for a constant, 5.6 for a uniform distribution."""
    min: float = 0.0
    max: float = 0.0
    zero_fraction: float = 0.0
    num_elements: int = 0


@dataclass(frozen=True, slots=True)
class WeightHealth:
    """A score out of 100, with its reasons."""

    score: float
    issues: list[WeightIssue]
    recommendations: list[str]


@dataclass(frozen=True, slots=True)
class LayerWeightAnalysis:
    """One layer's weights."""

    layer_index: int
    statistics: WeightStatistics
    health_score: float
    issues: list[WeightIssue]
    recommendations: list[str]
    layer_name: str | None = None
    num_outliers: int = 0
    non_finite: NonFinite | None = None


@dataclass(frozen=True, slots=True)
class DistributionHealth:
    """All layers together."""

    score: float
    """From 0 to 100; NaN where there was nothing to analyze."""
    status: DistributionHealthStatus


@dataclass(frozen=True, slots=True)
class WeightOutlier:
    """A weight more than 3 standard deviations from its layer's mean."""

    layer_index: int
    weight_index: int
    """Into the flattened tensor."""
    value: float
    z_score: float
    severity: OutlierSeverity
    layer_name: str | None = None


@dataclass(frozen=True, slots=True)
class WeightDistributionAnalysis:
    """Every layer, all of them together, and the outliers."""

    layer_analyses: list[LayerWeightAnalysis]
    overall_statistics: WeightStatistics
    """Means over the layers; the minimum and maximum are the true ones."""
    distribution_health: DistributionHealth
    outlier_detection: list[WeightOutlier]
    """By layer, then index; where a layer has more than 100, its 100 largest."""
    non_finite: list[NonFinite] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class LayerDrift:
    """How far one layer moved."""

    layer: int | str
    drift: float
    """Mean absolute difference."""
    max_change: float
    relative: float
    """Norm of the difference over the norm before; inf where it was zero before and is not now."""
    cosine: float | None
    """Between before and after; None where one of them is zero."""
    num_changed: int
    num_elements: int


@dataclass(frozen=True, slots=True)
class WeightDriftAnalysis:
    """How far the weights moved between two checkpoints or steps."""

    mean_drift: float
    """NaN where nothing could be compared."""
    max_drift: float
    """The largest layer's mean absolute difference."""
    severity: WeightDriftSeverity
    affected_layers: list[int | str]
    """Those that moved more than twice the mean: names where they are known, else indices."""
    layers: list[LayerDrift] = field(default_factory=list)
    unmatched: list[str] = field(default_factory=list)
    """In one of the two only, or of another shape: not compared."""
    note: str = ""
    """What the verdict does not speak of; empty where every layer was compared."""
    non_finite: list[NonFinite] = field(default_factory=list)
