"""How healthy gradients are: each layer, all of them, and why.

The bounds on norms are the seeds'. A layer is judged by the median of its last looks, so that one odd batch
does not decide, except that a gradient which is not finite at the last sample is Critical at once.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

import numpy as np

from stethoscope.analyse.trends import Oscillation, Trend, mann_kendall, oscillation
from stethoscope.instruments.array_input import NonFinite
from stethoscope.instruments.gradient_layers import LayerGradients
from stethoscope.instruments.limits import own_limits
from stethoscope.instruments.units import DeadUnits
from stethoscope.record import FloatArray, plural

VANISHING: Final = 1e-7
EXPLODING: Final = 10.0
DEAD_RATIO: Final = 0.1
NO_GRADIENT_STEPS: Final = 10
CRITICAL_BOUNDS: Final = (1e-8, 100.0)
WARNING_BOUNDS: Final = (1e-6, 10.0)
RECENT: Final = 10
"""How many of the last looks a layer is judged by."""
CONFLICT_COSINE: Final = -0.1
OPPOSED: Final = -0.5
"""A mean cosine between successive gradients under this is a zigzag."""


RULES: Final = (
    f"a median norm of the last {RECENT} looks under {VANISHING:g} vanishes, over {EXPLODING:g} explodes; outside "
    f"{WARNING_BOUNDS[0]:g} to {WARNING_BOUNDS[1]:g} it warns"
)


class LayerHealth(StrEnum):
    """How healthy a layer, or all of them, are."""

    HEALTHY = "Healthy"
    WARNING = "Warning"
    CRITICAL = "Critical"
    UNKNOWN = "Unknown"


@dataclass(frozen=True, slots=True)
class HealthReason:
    """Something that takes from the score: how much, why, and where."""

    penalty: float
    text: str
    layers: tuple[str, ...] = ()
    advice: str = ""


@dataclass(frozen=True, slots=True)
class GradientConflict:
    """How the gradients of two losses or tasks agree."""

    first: str
    second: str
    mean_cosine: float
    negative_share: float
    last_cosine: float
    num_steps: int

    @property
    def is_conflict(self) -> bool:
        """Whether they pull against each other at more than half of the steps, and not by a hair."""
        return self.mean_cosine < CONFLICT_COSINE and self.negative_share > 0.5


@dataclass(frozen=True, slots=True)
class LayerGradientAnalysis:
    """One layer over its recorded steps."""

    layer: str
    health: LayerHealth
    reasons: tuple[str, ...]
    norm: float | None
    """Median norm of the last looks."""
    last_norm: float | None
    mean: float | None
    std: float | None
    cosine_to_last: float | None
    cosine_to_mean: float | None
    signal_to_noise: float | None
    update_ratio: float | None
    trend: Trend
    """Of the norm's logarithm: its slope is the relative change per step."""
    oscillation: Oscillation
    dead_units: DeadUnits | None
    nonfinite: NonFinite | None
    is_vanishing: bool
    is_exploding: bool
    has_no_gradient: bool
    """No gradient to speak of for ten samples in a row."""
    num_looks: int


@dataclass(frozen=True, slots=True)
class GradientFlowAnalysis:
    """All layers together."""

    overall_health: LayerHealth
    health_score: float
    """From 0 to 1: 1 less the penalties of the reasons."""
    reasons: tuple[HealthReason, ...]
    recommendations: tuple[str, ...]
    layers: Mapping[str, LayerGradientAnalysis]
    vanishing_layers: tuple[str, ...]
    exploding_layers: tuple[str, ...]
    dead_layers: tuple[str, ...]
    """Layers that got no gradient for ten looks or more."""
    nonfinite_layers: tuple[str, ...]
    oscillating_layers: tuple[str, ...]
    dead_units: tuple[DeadUnits, ...]
    """Of the layers with more than a tenth of their units dead."""
    conflicts: tuple[GradientConflict, ...]

    @property
    def limits(self) -> str:
        """What it is judged by."""
        return own_limits("gradient debugger", RULES)

    def __str__(self) -> str:
        lines = [f"{self.overall_health}: score {self.health_score:.2f} over {plural(len(self.layers), 'layer')}"]
        return "\n".join(
            [*lines, *(f"  -{reason.penalty:.2f} {reason.text}" for reason in self.reasons), f"  {self.limits}"]
        )


def analyse_layer(known: LayerGradients, dead: DeadUnits | None) -> LayerGradientAnalysis:
    """Judges one layer."""
    last = known.looks[-1]
    norms = known.series("norm")
    recent = norms[-RECENT:][np.isfinite(norms[-RECENT:])]
    norm = float(np.median(recent)) if recent.size else None
    swing = _find_swing(known, norms)
    health, reasons = _judge_layer(known, norm, dead, swing)
    return LayerGradientAnalysis(
        layer=known.name,
        health=health,
        reasons=tuple(reasons),
        norm=norm,
        last_norm=last.norm,
        mean=last.mean,
        std=last.std,
        cosine_to_last=_recent_mean(known.series("cosine_to_last")),
        cosine_to_mean=_recent_mean(known.series("cosine_to_mean")),
        signal_to_noise=known.signal_to_noise,
        update_ratio=_recent_mean(known.series("update_ratio")),
        trend=mann_kendall(np.log(norms[norms > 0]), correlated=True),
        oscillation=swing,
        dead_units=dead,
        nonfinite=last.nonfinite,
        is_vanishing=norm is not None and last.is_finite and norm < VANISHING,
        is_exploding=not last.is_finite or (norm is not None and norm > EXPLODING),
        has_no_gradient=known.steps_without_gradient >= NO_GRADIENT_STEPS,
        num_looks=known.num_looks,
    )


def _recent_mean(series: FloatArray) -> float | None:
    recent = series[-RECENT:][~np.isnan(series[-RECENT:])]
    return float(recent.mean()) if recent.size else None


def _find_swing(known: LayerGradients, norms: FloatArray) -> Oscillation:
    """A norm that alternates more than chance allows, or gradients that turn around at every step."""
    level = float(np.nanmedian(norms)) if np.isfinite(norms).any() else 0.0
    found = oscillation(norms, amplitude=0.1 * level)
    turns = known.series("cosine_to_last")[-RECENT:]
    turns = turns[~np.isnan(turns)]
    if not found.found and len(turns) >= 5 and float(np.mean(turns)) < OPPOSED:
        # By chance as many turn as do not; what turns around swings by its whole size.
        num, back = len(turns), int((turns < 0).sum())
        p_value = sum(math.comb(num, k) for k in range(back, num + 1)) / 2.0**num
        return Oscillation(True, p_value, level, 2.0)
    return found


def _judge_layer(
    known: LayerGradients, norm: float | None, dead: DeadUnits | None, swing: Oscillation
) -> tuple[LayerHealth, list[str]]:
    last = known.looks[-1]
    if last.nonfinite is not None:
        return LayerHealth.CRITICAL, [str(last.nonfinite)]
    if norm is None:
        return LayerHealth.UNKNOWN, ["no elements"]
    reasons, worst = [], LayerHealth.HEALTHY
    if not WARNING_BOUNDS[0] <= norm <= WARNING_BOUNDS[1]:
        outside = not CRITICAL_BOUNDS[0] <= norm <= CRITICAL_BOUNDS[1]
        worst = LayerHealth.CRITICAL if outside else LayerHealth.WARNING
        bounds = CRITICAL_BOUNDS if outside else WARNING_BOUNDS
        side = f"under {bounds[0]:g}" if norm < bounds[0] else f"over {bounds[1]:g}"
        reasons.append(f"gradient norm {norm:.3g} is {side}")
    if dead is not None and dead.ratio > DEAD_RATIO:
        reasons.append(f"{len(dead.dead):,} of {plural(dead.num_units, 'unit')} never fired in {_unit_extent(dead)}")
    if swing.found:
        reasons.append("the gradient swings back and forth")
    if reasons and worst is LayerHealth.HEALTHY:
        worst = LayerHealth.WARNING
    return worst, reasons


def summarise(
    layers: Mapping[str, LayerGradientAnalysis],
    only_units: Sequence[DeadUnits],
    conflicts: Sequence[GradientConflict],
) -> GradientFlowAnalysis:
    """Judges all layers together."""

    def named(flag: str) -> tuple[str, ...]:
        return tuple(name for name, layer in layers.items() if getattr(layer, flag))

    nonfinite = tuple(name for name, layer in layers.items() if layer.nonfinite is not None)
    swinging = tuple(name for name, layer in layers.items() if layer.oscillation.found)
    counted = [*(layer.dead_units for layer in layers.values() if layer.dead_units), *only_units]
    dead = tuple(units for units in counted if units.ratio > DEAD_RATIO)
    opposed = tuple(conflict for conflict in conflicts if conflict.is_conflict)
    exploding = tuple(name for name in named("is_exploding") if name not in nonfinite)
    reasons = _health_reasons(layers, nonfinite, exploding, named("is_vanishing"), named("has_no_gradient"), swinging)
    reasons += _unit_reasons(dead, len(counted)) + _conflict_reasons(opposed)
    return GradientFlowAnalysis(
        overall_health=_overall_health(layers, reasons),
        health_score=max(0.0, 1.0 - sum(reason.penalty for reason in reasons)),
        reasons=tuple(sorted(reasons, key=lambda reason: -reason.penalty)),
        recommendations=tuple(dict.fromkeys(r.advice for r in reasons if r.advice)),
        layers=dict(layers),
        vanishing_layers=named("is_vanishing"),
        exploding_layers=named("is_exploding"),
        dead_layers=named("has_no_gradient"),
        nonfinite_layers=nonfinite,
        oscillating_layers=swinging,
        dead_units=dead,
        conflicts=tuple(conflicts),
    )


def _overall_health(layers: Mapping[str, LayerGradientAnalysis], reasons: Sequence[HealthReason]) -> LayerHealth:
    """The worst layer's health; Warning where only tasks or units are in trouble."""
    known = {layer.health for layer in layers.values()}
    for health in (LayerHealth.CRITICAL, LayerHealth.WARNING):
        if health in known:
            return health
    if reasons:
        return LayerHealth.WARNING
    return LayerHealth.HEALTHY if LayerHealth.HEALTHY in known else LayerHealth.UNKNOWN


def _health_reasons(
    layers: Mapping[str, LayerGradientAnalysis],
    nonfinite: tuple[str, ...],
    exploding: tuple[str, ...],
    vanishing: tuple[str, ...],
    absent: tuple[str, ...],
    swinging: tuple[str, ...],
) -> list[HealthReason]:
    """Weights: a non-finite gradient takes all; the others up to their weight, by the share of layers."""
    reasons = []
    if nonfinite:
        text = str(layers[nonfinite[0]].nonfinite)
        reasons.append(HealthReason(1.0, text, nonfinite, "Find the first operation that gives NaN or Inf"))
    clip = "Clip the gradient norm: torch.nn.utils.clip_grad_norm_(parameters, 1.0)"
    reach = "Check requires_grad, detach() and that the loss reaches these layers"
    table = (
        (exploding, 0.5, "exploding", clip),
        (vanishing, 0.4, "vanishing", "Use normalisation, residual connections or another initialisation"),
        (absent, 0.3, "without gradient", reach),
        (swinging, 0.2, "swinging back and forth", "Lower the learning rate or raise the momentum"),
    )
    for names, weight, word, advice in table:
        if names:
            share = len(names) / len(layers)
            text = f"{len(names):,} of {plural(len(layers), 'layer')} {word}, first {names[0]}"
            reasons.append(HealthReason(weight * (0.5 + 0.5 * share), text, names, advice))
    return reasons


def _unit_extent(units: DeadUnits) -> str:
    """A session knows of a batch which units fired in it, and not of how many rows it was."""
    return (
        plural(units.num_batches, "batch", "batches")
        if units.num_rows == units.num_batches
        else plural(units.num_rows, "row")
    )


def _unit_reasons(dead: tuple[DeadUnits, ...], num_counted: int) -> list[HealthReason]:
    if not dead:
        return []
    worst = max(dead, key=lambda units: units.ratio)
    text = f"{len(worst.dead):,} of {plural(worst.num_units, 'unit')} of {worst.layer} never fired in {_unit_extent(worst)}"
    names = tuple(units.layer for units in dead)
    advice = "Lower the learning rate or use an activation with a slope on both sides"
    return [HealthReason(0.3 * (0.5 + 0.5 * len(dead) / num_counted), text, names, advice)]


def _conflict_reasons(conflicts: tuple[GradientConflict, ...]) -> list[HealthReason]:
    if not conflicts:
        return []
    worst = conflicts[0]
    text = f"{worst.first} and {worst.second} pull against each other (mean cosine {worst.mean_cosine:.2f})"
    advice = "Weight the losses, or project the conflict out"
    return [HealthReason(0.2, text, (worst.first, worst.second), advice)]
