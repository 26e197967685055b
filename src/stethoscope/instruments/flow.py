"""GradientFlowVisualizer: from gradient norms over steps to flows, a network, critical paths and regions.

Promises: without a model graph the layers form a chain in the order given and every number is the
ancestor's; with one, degrees, influence, paths, regions and parameter counts come from it. Numbers are over
finite norms; a non-finite norm is a Critical region with its layer and step.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from stethoscope.analyse.graph import graph_of
from stethoscope.instruments.flow_network import build_network, mean_in_order, sum_in_order
from stethoscope.instruments.flow_paths import find_critical_paths
from stethoscope.instruments.flow_types import (
    FlowDirection,
    GradientDirection,
    GradientFlowVisualization,
    GradientHistory,
    GradientLayerFlow,
    GradientVisualizationConfig,
    NonFiniteNorm,
    TemporalGradientFlow,
)
from stethoscope.instruments.model_graph import ModelGraph
from stethoscope.instruments.regions import find_dead_zones, find_exploding, find_vanishing
from stethoscope.instruments.run_gradients import RunGradients, gradient_edges, with_tied
from stethoscope.record import FloatArray

if TYPE_CHECKING:
    from stethoscope.store import Run

EPSILON = 1e-8
STAGNANT = 1e-6


class GradientFlowVisualizer:
    """Generates a GradientFlowVisualization from histories, with or without the model's graph."""

    def __init__(self, config: GradientVisualizationConfig | None = None) -> None:
        self.config = config or GradientVisualizationConfig()

    def generate_visualization(
        self, gradient_histories: Mapping[str, Any], current_step: int, graph: Any = None
    ) -> GradientFlowVisualization:
        """Everything at once.

        `gradient_histories` maps layer names, in the order of the layers, to GradientHistory (or a plain
        list of norms). `graph` is an edge list, a mapping to successors, a networkx DiGraph, or anything
        with `.nodes` and `.edges`; a parameter's name finds its module.
        """
        histories = {str(name): as_history(history) for name, history in gradient_histories.items()}
        config = self.config
        model = None if graph is None else ModelGraph.read(graph, histories)
        layered = histories if model is None else model.histories
        flows = {name: layer_flow(name, history) for name, history in histories.items()}
        node_flows = flows if model is None else {n: layer_flow(n, h) for n, h in layered.items()}
        network = build_network(node_flows, layered, model, config.flow_threshold)
        regions = config.show_problem_regions
        return GradientFlowVisualization(
            layer_flows=flows,
            temporal_flows=self._temporal_flows(histories, current_step) if config.show_temporal_flows else [],
            flow_network=network,
            critical_paths=find_critical_paths(network) if config.show_critical_paths else [],
            vanishing_regions=find_vanishing(layered, model) if regions else [],
            exploding_regions=find_exploding(layered, model) if regions else [],
            dead_zones=find_dead_zones(layered, model) if regions else [],
            visualization_config=config,
            current_step=int(current_step),
            non_finite=find_non_finite(histories),
        )

    def create_visualization(
        self, gradient_histories: Mapping[str, Any], graph: Any = None
    ) -> GradientFlowVisualization:
        """As `generate_visualization`, at the latest step any history knows."""
        histories = {str(name): as_history(history) for name, history in gradient_histories.items()}
        latest = max((h.step_numbers[-1] for h in histories.values() if h.step_numbers), default=0)
        return self.generate_visualization(histories, latest, graph)

    def visualize_run(
        self, run: Run, *, first: int | None = None, last: int | None = None
    ) -> GradientFlowVisualization:
        """A recorded run: its own gradients on the graph that its first forward pass showed."""
        found = RunGradients.read(run, first, last)
        histories = found.histories(run)
        latest = int(found.steps[-1]) if len(found.steps) else 0
        graph = graph_of(run)
        if graph is None or not histories:
            return self.generate_visualization(histories, latest)
        return self.generate_visualization(with_tied(histories, graph), latest, gradient_edges(graph))

    def _temporal_flows(
        self, histories: Mapping[str, GradientHistory], current_step: int
    ) -> list[TemporalGradientFlow]:
        window = self.config.temporal_window
        flows = []
        for name, history in histories.items():
            if not history.gradient_norms:
                continue
            norms = np.asarray(history.gradient_norms[-window:])
            flows.append(
                TemporalGradientFlow(
                    step=int(current_step),
                    layer_name=name,
                    gradient_magnitude=float(history.gradient_norms[-1]),
                    flow_direction=latest_direction(norms),
                    stability_score=stability(norms),
                )
            )
        return flows


def as_history(value: Any) -> GradientHistory:
    """A GradientHistory as it is; an object or mapping with its fields, or a list of norms, as one."""
    if isinstance(value, GradientHistory):
        return value
    if isinstance(value, Mapping):
        return GradientHistory(value["step_numbers"], value["gradient_norms"])
    if hasattr(value, "gradient_norms"):
        return GradientHistory(value.step_numbers, value.gradient_norms)
    norms = np.asarray(value, dtype=np.float64).reshape(-1)
    return GradientHistory(range(len(norms)), norms)  # type: ignore[arg-type]


def layer_flow(name: str, history: GradientHistory) -> GradientLayerFlow:
    """The flow of one layer; consistency, bottleneck and rate over its finite norms."""
    norms = np.asarray(history.gradient_norms, dtype=np.float64)
    finite = norms[np.isfinite(norms)]
    return GradientLayerFlow(
        layer_name=name,
        gradient_magnitudes=norms.tolist(),
        gradient_directions=directions(history, norms),
        flow_consistency=flow_consistency(finite),
        bottleneck_score=bottleneck_score(finite),
        information_flow_rate=information_flow_rate(finite),
    )


def directions(history: GradientHistory, norms: FloatArray) -> list[GradientDirection]:
    """Step by step: the sketch's direction where there is one, and how little the norm changed."""
    before, after = norms[:-1], norms[1:]
    with np.errstate(invalid="ignore", divide="ignore", over="ignore"):
        steady = 1.0 - np.abs(after - before) / (after + before + EPSILON)
    steady = np.where(np.isfinite(before) & np.isfinite(after), steady, 0.0)
    scores = [1.0, *steady.tolist()][: len(norms)]
    units = _unit_rows(history.sketches)
    out = []
    for index, (step, norm) in enumerate(zip(history.step_numbers, norms.tolist(), strict=True)):
        vector, cosine = [], None
        if units is not None:
            vector = units[index].tolist()
            cosine = float(units[index] @ units[index - 1]) if index else None
        out.append(GradientDirection(step, vector, norm, scores[index], cosine))
    return out


def _unit_rows(sketches: Any) -> FloatArray | None:
    if sketches is None:
        return None
    rows = np.nan_to_num(np.asarray(sketches, dtype=np.float64), nan=0.0, posinf=0.0, neginf=0.0)
    lengths = np.linalg.norm(rows, axis=1, keepdims=True)
    return rows / np.where(lengths > 0, lengths, 1.0)


def flow_consistency(norms: FloatArray) -> float:
    """1 / (1 + mean relative change from step to step); 1 where there is no change to speak of."""
    if len(norms) < 2:
        return 1.0
    with np.errstate(over="ignore", divide="ignore"):
        change = np.abs(np.diff(norms)) / (norms[:-1] + EPSILON)
    return min(1.0 / (1.0 + mean_in_order(change)), 1.0)


def information_flow_rate(norms: FloatArray) -> float:
    """The changes from step to step, added up, over the number of steps; 0 where there is no change to speak of."""
    if len(norms) < 2:
        return 0.0
    return sum_in_order(np.abs(np.diff(norms))) / len(norms)


def bottleneck_score(norms: FloatArray) -> float:
    """How far the norm falls below its own mean at worst: 1 - min/mean; 1 where it is all zero."""
    if not len(norms):
        return 0.0
    mean = mean_in_order(norms)
    return 1.0 if mean == 0.0 else 1.0 - min(float(norms.min()) / mean, 1.0)


def latest_direction(norms: FloatArray) -> FlowDirection:
    """From the last three norms. Strict alternation reads as Stagnant: the ends are compared first."""
    if len(norms) < 3:
        return FlowDirection.FORWARD
    oldest, middle, latest = norms[-3:].tolist()
    trend = latest - oldest
    if not np.isfinite([oldest, middle, latest]).all():
        return FlowDirection.OSCILLATING
    if abs(trend) < STAGNANT:
        return FlowDirection.STAGNANT
    if trend > 0:
        return FlowDirection.FORWARD
    turned = (latest - middle) * (middle - oldest) < 0
    return FlowDirection.OSCILLATING if turned else FlowDirection.BACKWARD


def stability(norms: FloatArray) -> float:
    """1 / (1 + variance of the last five); 0 where one of them is not finite."""
    if len(norms) < 3:
        return 1.0
    recent = norms[-5:]
    if not np.isfinite(recent).all():
        return 0.0
    with np.errstate(over="ignore"):  # a spread beyond the largest float is as unstable as can be
        return 1.0 / (1.0 + float(recent.var()))


def find_non_finite(histories: Mapping[str, GradientHistory]) -> list[NonFiniteNorm]:
    """The first step of each layer whose norm is NaN or infinite, earliest first."""
    found = []
    for name, history in histories.items():
        bad = np.flatnonzero(~np.isfinite(np.asarray(history.gradient_norms, dtype=np.float64)))
        if len(bad):
            first = int(bad[0])
            value = float(history.gradient_norms[first])
            found.append(NonFiniteNorm(name, history.step_numbers[first], value, len(bad)))
    return sorted(found, key=lambda where: where.step)
