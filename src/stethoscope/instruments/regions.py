"""Where gradients vanish, explode or are dead: single layers without a model graph, neighbourhoods with one.

Thresholds: mean norm under 1e-5 vanishes (under 1e-7 Critical); a norm over 100 explodes (over 1000
Critical); a layer whose norm is under 1e-8 at more than half of its steps is dead. Without a graph there
are the ancestor's two levels. With one, the range between the thresholds is cut into three equal parts on a
log scale: Mild, Moderate, Severe. A norm that is not finite is Critical.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping

import numpy as np

from stethoscope.instruments.flow_network import mean_in_order
from stethoscope.instruments.flow_types import (
    GradientDeadZone,
    GradientHistory,
    GradientRegion,
    RecoveryPotential,
    RegionExtent,
    RegionSeverity,
)
from stethoscope.instruments.model_graph import ModelGraph, networkx
from stethoscope.record import FloatArray

VANISHING, VANISHING_CRITICAL = 1e-5, 1e-7
EXPLODING, EXPLODING_CRITICAL = 100.0, 1000.0
DEAD = 1e-8
RULES = f"a mean norm under {VANISHING:g} vanishes, a norm over {EXPLODING:g} explodes, half of the steps under {DEAD:g} is dead"

LEVELS = tuple(RegionSeverity)

VANISHING_ADVICE = (
    "Scale the initial weights to their fan-in: torch.nn.init.kaiming_normal_(layer.weight)",
    "Give the gradient a shorter way: a residual connection around these layers",
    "Put a normalisation layer before them",
)
EXPLODING_ADVICE = (
    "Clip: torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)",
    "Lower the learning rate, or warm it up over more steps",
    "Check the scale of the initial weights and of the inputs",
)


def find_vanishing(histories: Mapping[str, GradientHistory], model: ModelGraph | None) -> list[GradientRegion]:
    """Regions whose mean norm is under the threshold, in the order of the layers."""
    levels: dict[str, RegionSeverity] = {}
    for name, history in histories.items():
        norms = _finite_norms(history)
        mean = mean_in_order(norms)
        if len(norms) and mean < VANISHING:
            depth = _severity_depth(VANISHING, VANISHING_CRITICAL, mean)
            levels[name] = _severity_level(depth, mean < VANISHING_CRITICAL, model)
    return _find_regions("vanishing", levels, histories, model, lambda norms: norms < VANISHING, VANISHING_ADVICE)


def find_exploding(histories: Mapping[str, GradientHistory], model: ModelGraph | None) -> list[GradientRegion]:
    """Regions whose largest norm is over the threshold or not finite, in the order of the layers."""
    levels: dict[str, RegionSeverity] = {}
    for name, history in histories.items():
        norms = np.asarray(history.gradient_norms, dtype=np.float64)
        broken = not np.isfinite(norms).all()
        largest = float(_finite_norms(history).max(initial=0.0))
        if broken or largest > EXPLODING:
            depth = _severity_depth(EXPLODING, EXPLODING_CRITICAL, largest)
            levels[name] = _severity_level(depth, broken or largest > EXPLODING_CRITICAL, model)
    regions = _find_regions("exploding", levels, histories, model, _is_exploding, EXPLODING_ADVICE)
    return [_locate_non_finite(region, histories) for region in regions]


def _is_exploding(norms: FloatArray) -> np.ndarray[tuple[int, ...], np.dtype[np.bool_]]:
    return ~np.isfinite(norms) | (np.nan_to_num(norms, nan=0.0) > EXPLODING)


def find_dead_zones(histories: Mapping[str, GradientHistory], model: ModelGraph | None) -> list[GradientDeadZone]:
    """Zones of layers that get no gradient at more than half of their steps."""
    dead: dict[str, tuple[int, float]] = {}
    for name, history in histories.items():
        norms = np.asarray(history.gradient_norms, dtype=np.float64)
        num_dead = int((norms < DEAD).sum())
        if len(norms) and num_dead / len(norms) > 0.5:
            dead[name] = (num_dead, num_dead / len(norms))
    zones = []
    for index, layers in enumerate(_neighborhoods(dead, model), start=1):
        share = max(dead[name][1] for name in layers)
        zones.append(
            GradientDeadZone(
                zone_id=f"dead_zone_{index}",
                affected_layers=layers,
                dead_duration=max(dead[name][0] for name in layers),
                recovery_potential=_recovery_level(share, model),
                intervention_required=share > 0.8,
            )
        )
    return zones


def _recovery_level(share: float, model: ModelGraph | None) -> RecoveryPotential:
    """By the share of dead steps; High (up to 70%) and None (all of them) are told apart with a graph."""
    if model is not None and share <= 0.7:
        return RecoveryPotential.HIGH
    if share <= 0.9:
        return RecoveryPotential.MEDIUM
    return RecoveryPotential.NONE if model is not None and share == 1.0 else RecoveryPotential.LOW


def _finite_norms(history: GradientHistory) -> FloatArray:
    norms = np.asarray(history.gradient_norms, dtype=np.float64)
    finite: FloatArray = norms[np.isfinite(norms)]
    return finite


def _severity_depth(near: float, far: float, value: float) -> float:
    """0 at the threshold, 1 at the critical one, on a log scale."""
    if value <= 0.0:
        return 1.0
    return float(np.log(value / near) / np.log(far / near))


def _severity_level(depth: float, critical: bool, model: ModelGraph | None) -> RegionSeverity:
    if critical:
        return RegionSeverity.CRITICAL
    if model is None:
        return RegionSeverity.MODERATE
    return LEVELS[min(max(int(depth * 3), 0), 2)]


def _find_regions(
    kind: str,
    levels: Mapping[str, RegionSeverity],
    histories: Mapping[str, GradientHistory],
    model: ModelGraph | None,
    is_bad: Callable[[FloatArray], np.ndarray[tuple[int, ...], np.dtype[np.bool_]]],
    advice: tuple[str, ...],
) -> list[GradientRegion]:
    regions = []
    for index, layers in enumerate(_neighborhoods(levels, model), start=1):
        bad_steps: set[int] = set()
        for name in layers:
            norms = np.asarray(histories[name].gradient_norms, dtype=np.float64)
            bad_steps.update(np.asarray(histories[name].step_numbers)[is_bad(norms)].tolist())
        duration = len(bad_steps) if model is not None else len(histories[layers[0]].gradient_norms)
        regions.append(
            GradientRegion(
                region_id=f"{kind}_{index}",
                affected_layers=layers,
                severity_level=max((levels[name] for name in layers), key=LEVELS.index),
                extent=RegionExtent(layers[0], layers[-1], _parameter_count(layers, histories, model), duration),
                mitigation_suggestions=list(advice),
                since_step=min(bad_steps, default=None),
            )
        )
    return regions


def _neighborhoods(names: Iterable[str], model: ModelGraph | None) -> list[list[str]]:
    """Each layer alone, or with a graph the connected neighbourhoods, all in the order of the layers."""
    wanted = list(names)
    if model is None:
        return [[name] for name in wanted]
    index = {name: i for i, name in enumerate(model.order)}
    parts = networkx().weakly_connected_components(model.digraph.subgraph(wanted))
    groups = [sorted(part, key=lambda name: index[name]) for part in parts]
    return sorted(groups, key=lambda group: index[group[0]])


def _parameter_count(
    layers: list[str], histories: Mapping[str, GradientHistory], model: ModelGraph | None
) -> int | None:
    counts = [histories[n].num_parameters if model is None else model.parameters[n] for n in layers]
    return None if any(count is None for count in counts) else sum(c for c in counts if c is not None)


def _locate_non_finite(region: GradientRegion, histories: Mapping[str, GradientHistory]) -> GradientRegion:
    """Puts the layer and step of the first non-finite norm at the head of the advice."""
    first: tuple[int, str] | None = None
    for name in region.affected_layers:
        history = histories[name]
        bad = np.flatnonzero(~np.isfinite(np.asarray(history.gradient_norms, dtype=np.float64)))
        if len(bad) and (first is None or history.step_numbers[int(bad[0])] < first[0]):
            first = (history.step_numbers[int(bad[0])], name)
    if first is None:
        return region
    note = f"{first[1]} has a gradient that is not finite at step {first[0]:,}: replay the step before it"
    return dataclasses.replace(region, mitigation_suggestions=[note, *region.mitigation_suggestions])
