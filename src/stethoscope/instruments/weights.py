"""WeightAnalyzer: weights and gradients of all layers at once, from arrays, a mapping, a model or a
checkpoint.

Promises: names are used wherever they are known; statistics are over finite values and exact, or where it makes no
difference the ancestor's to the last digit; a NaN or an infinity is Critical and located; no `.pt` file is
ever opened.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from stethoscope.instruments import initialization, spectral, weight_drift
from stethoscope.instruments.array_input import NonFinite, as_floats, locate, named_arrays
from stethoscope.instruments.rows import measure_rows, plain_norms
from stethoscope.instruments.weight_float32 import Moments, ancestral
from stethoscope.instruments.weight_types import (
    DistributionHealth,
    DistributionHealthStatus,
    ExplodingLayer,
    ExplosionSeverity,
    GradientExplosionAnalysis,
    LayerWeightAnalysis,
    OutlierSeverity,
    WeightDistributionAnalysis,
    WeightDriftAnalysis,
    WeightHealth,
    WeightIssue,
    WeightOutlier,
    WeightStatistics,
)
from stethoscope.kernels import Table, stat
from stethoscope.record import FloatArray

MAX_OUTLIERS = 100
ENTROPY_BINS = 50
EPSILON = 1e-8


class WeightAnalyzer:
    """Each method takes a sequence of arrays, a mapping by name, a model, or a `.safetensors` path."""

    @staticmethod
    def compute_l2_norm(tensor: Any) -> float:
        """The L2 norm of the finite values; 0 for an empty tensor."""
        names = ["tensor"]
        return float(plain_norms([tensor], measure_rows([tensor], names), names)[0])

    @staticmethod
    def detect_gradient_explosion(arrays: Any, threshold: float) -> GradientExplosionAnalysis:
        """Which layers' gradient norms are over the threshold, and how bad it is overall."""
        names, values = named_arrays(arrays)
        labels = _labels(names, len(values))
        table = measure_rows(values, labels)
        norms = plain_norms(values, table, labels)
        broken = {int(i): locate(values[i], labels[i]) for i in np.flatnonzero(stat(table, "num_nonfinite"))}
        mean = float(norms.mean()) if len(norms) else 0.0
        exploding = [
            ExplodingLayer(
                layer_index=i,
                gradient_norm=float(norm),
                severity=ExplosionSeverity.CRITICAL if i in broken else _against_all(float(norm), mean),
                recommended_action=_action(float(norm), broken.get(i)),
                layer_name=names[i] if names else None,
            )
            for i, norm in enumerate(norms)
            if norm > threshold or i in broken
        ]
        largest = float(norms.max(initial=0.0))
        share = len(exploding) / max(len(norms), 1)
        located = [where for where in broken.values() if where is not None]
        return GradientExplosionAnalysis(
            exploding_layers=exploding,
            max_gradient_norm=largest,
            mean_gradient_norm=mean,
            std_gradient_norm=float(norms.std()) if len(norms) else 0.0,
            explosion_ratio=share,
            overall_severity=_overall(share, largest, threshold, bool(located)),
            mitigation_recommendations=_mitigations(share, largest, located, len(norms)),
            non_finite=located,
        )

    @staticmethod
    def analyze_weight_distribution(arrays: Any) -> WeightDistributionAnalysis:
        """Statistics, health, issues and outliers of every layer, and of all of them together."""
        names, values = named_arrays(arrays)
        labels = _labels(names, len(values))
        table = measure_rows(values, labels)
        layers: list[LayerWeightAnalysis] = []
        outliers: list[WeightOutlier] = []
        for index, (value, label) in enumerate(zip(values, labels, strict=True)):
            flat = as_floats(value, label)
            statistics = _statistics(table[index], flat)
            found, count = _outliers(flat, statistics, index, names[index] if names else None)
            broken = locate(value, label) if stat(table[index], "num_nonfinite") > 0 else None
            health = _health(statistics, broken)
            outliers.extend(found)
            layers.append(
                LayerWeightAnalysis(
                    index,
                    statistics,
                    health.score,
                    health.issues,
                    health.recommendations,
                    names[index] if names else None,
                    count,
                    broken,
                )
            )
        overall = _together([layer.statistics for layer in layers])
        located = [layer.non_finite for layer in layers if layer.non_finite is not None]
        together = _assess(overall, located) if overall.num_elements else _NOTHING
        return WeightDistributionAnalysis(layers, overall, together, outliers, located)

    @staticmethod
    def weight_health(tensor: Any) -> WeightHealth:
        """The health of one tensor."""
        row = measure_rows([tensor], ["tensor"])[0]
        broken = locate(tensor, "tensor") if stat(row, "num_nonfinite") > 0 else None
        return _health(_statistics(row, as_floats(tensor)), broken)

    @staticmethod
    def analyze_weight_drift(before: Any, after: Any) -> WeightDriftAnalysis:
        """How far each layer moved between two checkpoints or steps; joined by name where both have names."""
        return weight_drift.analyze(before, after)

    @staticmethod
    def analyze_spectrum(arrays: Any, *, full: bool | None = None) -> list[spectral.SpectralAnalysis]:
        """Largest singular value, stable rank and tail exponent of every matrix."""
        return spectral.analyze(arrays, full=full)

    @staticmethod
    def check_initialization(model: Any) -> list[initialization.InitializationCheck]:
        """Each weight's spread against what its fan-in and fan-out ask for."""
        return initialization.check(model)


def _labels(names: Sequence[str] | None, count: int) -> list[str]:
    return list(names) if names is not None else [f"layer {i}" for i in range(count)]


def _or_zero(value: float) -> float:
    return 0.0 if np.isnan(value) else value


def _against_all(norm: float, mean: float) -> ExplosionSeverity:
    """A layer's norm against the mean of all layers, not only of those before it."""
    ratio = norm / (mean + EPSILON)
    if ratio > 100.0:
        return ExplosionSeverity.CRITICAL
    if ratio > 50.0:
        return ExplosionSeverity.HIGH
    return ExplosionSeverity.MEDIUM if ratio > 10.0 else ExplosionSeverity.LOW


def _overall(share: float, largest: float, threshold: float, non_finite: bool) -> ExplosionSeverity:
    if non_finite or share > 0.5 or largest > threshold * 10.0:
        return ExplosionSeverity.CRITICAL
    if share > 0.3 or largest > threshold * 5.0:
        return ExplosionSeverity.HIGH
    return ExplosionSeverity.MEDIUM if share > 0.1 or largest > threshold * 2.0 else ExplosionSeverity.LOW


def _action(norm: float, broken: NonFinite | None) -> str:
    if broken is not None:
        return f"{broken.what} in this gradient: find the operation that made it before training on"
    if norm > 100.0:
        return "Divide the learning rate by 10 and clip the gradient norm"
    if norm > 10.0:
        return "Lower the learning rate and clip the gradient norm"
    return "Clip the gradient norm" if norm > 5.0 else "Keep watching this layer"


def _mitigations(share: float, largest: float, located: list[NonFinite], num_layers: int) -> list[str]:
    if num_layers == 0:
        return ["No gradients were given: nothing was analyzed"]
    advice = [str(where) for where in located[:5]]
    if share > 0.3:
        advice.append(f"{share:.0%} of the layers are over the threshold: lower the learning rate by a lot")
    if largest > 100.0:
        advice.append("Clip: torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0) or lower")
    return [
        *advice,
        "Follow the gradient norms over the next steps",
        "Normalisation layers keep them in range",
    ]


def _statistics(row: Table, flat: FloatArray) -> WeightStatistics:
    """From the kernels' row; skewness and kurtosis only where there are enough values to speak of them."""
    finite = flat[np.isfinite(flat)]
    if not len(finite):
        return WeightStatistics(num_elements=len(flat))
    moments = ancestral(finite, _moments(row))
    return WeightStatistics(
        mean=moments.mean,
        std_dev=moments.std,
        skewness=_or_zero(moments.skewness) if len(finite) >= 3 else None,
        kurtosis=_or_zero(moments.kurtosis) if len(finite) >= 4 else None,
        entropy=histogram_entropy(finite),
        min=float(stat(row, "min")),
        max=float(stat(row, "max")),
        zero_fraction=float(stat(row, "zero_fraction")),
        num_elements=len(flat),
    )


def _moments(row: Table) -> Moments:
    return Moments(*(float(stat(row, name)) for name in ("mean", "std", "skewness", "kurtosis")))


def histogram_entropy(values: FloatArray, bins: int = ENTROPY_BINS) -> float:
    """Shannon entropy in bits of an equal-width histogram; 0 for a constant."""
    low, high = float(values.min()), float(values.max())
    if not np.isfinite(high - low) or high - low <= abs(high) * 1e-14:
        return 0.0
    # From 0 to 1: where values lie closer than float64 has room for edges between them, their distances still have it.
    share = np.histogram((values - low) / (high - low), bins=bins, range=(0.0, 1.0))[0] / len(values)
    share = share[share > 0]
    return float(max(-(share * np.log2(share)).sum(), 0.0))


def _health(stats: WeightStatistics, broken: NonFinite | None) -> WeightHealth:
    checks = (
        (stats.zero_fraction > 0.5, 30.0, WeightIssue.ZERO_FRACTION),
        (abs(stats.skewness or 0.0) > 2.0, 15.0, WeightIssue.SKEWED),
        ((stats.kurtosis or 0.0) > 10.0, 15.0, WeightIssue.HEAVY_TAILED),
        (max(abs(stats.max), abs(stats.min)) > 10.0, 20.0, WeightIssue.EXTREME_VALUES),
        (broken is not None, 100.0, WeightIssue.NON_FINITE),
    )
    issues = [issue for hit, _, issue in checks if hit]
    score = max(100.0 - sum(points for hit, points, _ in checks if hit), 0.0)
    return WeightHealth(score, issues, [issue.advice for issue in issues])


def _outliers(
    flat: FloatArray, stats: WeightStatistics, index: int, name: str | None
) -> tuple[list[WeightOutlier], int]:
    """The layer's outliers by index, the largest where there are too many, and how many there are."""
    if stats.std_dev <= 0.0:
        return [], 0
    with np.errstate(invalid="ignore"):
        z = np.abs((flat - stats.mean) / stats.std_dev)
    indices = np.flatnonzero(np.isfinite(z) & (z > 3.0))
    count = len(indices)
    if count > MAX_OUTLIERS:
        indices = np.sort(indices[np.argsort(-z[indices], kind="stable")[:MAX_OUTLIERS]])
    found = [
        WeightOutlier(
            index,
            int(i),
            float(flat[i]),
            float(z[i]),
            OutlierSeverity.HIGH if z[i] > 5.0 else OutlierSeverity.MEDIUM,
            name,
        )
        for i in indices
    ]
    return found, count


def _together(parts: list[WeightStatistics]) -> WeightStatistics:
    """Means over the layers, a missing skewness counting as 0; extremes over layers with elements."""
    if not parts:
        return WeightStatistics()
    count = len(parts)
    measured = [part for part in parts if part.num_elements] or parts
    return WeightStatistics(
        mean=sum(part.mean for part in parts) / count,
        std_dev=sum(part.std_dev for part in parts) / count,
        skewness=sum(part.skewness or 0.0 for part in parts) / count,
        kurtosis=sum(part.kurtosis or 0.0 for part in parts) / count,
        entropy=sum(part.entropy for part in parts) / count,
        min=min(part.min for part in measured),
        max=max(part.max for part in measured),
        zero_fraction=sum(part.zero_fraction for part in parts) / count,
        num_elements=sum(part.num_elements for part in parts),
    )


def _assess(stats: WeightStatistics, located: list[NonFinite]) -> DistributionHealth:
    if located:
        return DistributionHealth(0.0, DistributionHealthStatus.CRITICAL)
    score = 100.0
    score -= 25.0 if stats.zero_fraction > 0.3 else 0.0
    score -= 15.0 if abs(stats.skewness or 0.0) > 1.0 else 0.0
    score -= 15.0 if (stats.kurtosis or 0.0) > 5.0 else 0.0
    score -= 20.0 if max(abs(stats.max), abs(stats.min)) > 5.0 else 0.0
    for least, status in _STATUSES:
        if score >= least:
            return DistributionHealth(score, status)
    return DistributionHealth(score, DistributionHealthStatus.CRITICAL)


_NOTHING = DistributionHealth(float("nan"), DistributionHealthStatus.UNKNOWN)
_STATUSES = (
    (90.0, DistributionHealthStatus.EXCELLENT),
    (75.0, DistributionHealthStatus.GOOD),
    (60.0, DistributionHealthStatus.FAIR),
    (40.0, DistributionHealthStatus.POOR),
)
