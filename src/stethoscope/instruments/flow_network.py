"""Layers and connections with their numbers: what each does to the gradient, and the network's metrics."""

from __future__ import annotations

import dataclasses
import itertools
from collections import Counter
from collections.abc import Mapping, Sequence

import numpy as np

from stethoscope.instruments.flow_types import (
    EdgeType,
    FlowEdge,
    FlowNode,
    GradientFlowNetwork,
    GradientHistory,
    GradientLayerFlow,
    NetworkMetrics,
    NodeType,
)
from stethoscope.instruments.model_graph import ModelGraph, networkx
from stethoscope.record import FloatArray

TENFOLD = 10.0


def build_network(
    flows: Mapping[str, GradientLayerFlow],
    histories: Mapping[str, GradientHistory],
    model: ModelGraph | None,
    flow_threshold: float,
) -> GradientFlowNetwork:
    """The network of the layers: a chain in the order given, or the model's own graph."""
    names = list(flows)
    pairs = list(itertools.pairwise(names)) if model is None else _ordered_edges(model)
    strength = {name: mean_finite(flow) for name, flow in flows.items()}
    levels = strength if model is None else _comparable_norms(strength, model)
    edges = [_make_edge(flows[a], flows[b], min(strength[a], strength[b]), (levels[a], levels[b])) for a, b in pairs]
    largest = max((edge.gradient for edge in edges), default=0.0)
    edges = [_with_flow(edge, edge.gradient >= flow_threshold * largest and edge.gradient > 0) for edge in edges]
    gates, reach = ({}, {}) if model is None else _gates_and_reach(model)
    num_inputs, num_outputs = Counter(b for _, b in pairs), Counter(a for a, _ in pairs)
    best_gain: dict[str, float] = {}
    for edge in edges:
        best_gain[edge.to_layer] = max(edge.gain, best_gain.get(edge.to_layer, 0.0))
    nodes = []
    for name, flow in flows.items():
        parameters = histories[name].num_parameters if model is None else model.parameters[name]
        is_narrow = gates.get(name, 0) > 0 and best_gain.get(name, 1.0) < 1.0 / TENFOLD
        nodes.append(
            FlowNode(
                layer_name=name,
                node_type=_node_type(flow, is_narrow),
                gradient_strength=strength[name],
                connectivity=num_inputs[name] + num_outputs[name],
                influence_score=strength[name] * flow.flow_consistency * reach.get(name, 1.0),
                num_inputs=num_inputs[name],
                num_outputs=num_outputs[name],
                num_parameters=parameters,
                gate_of=gates.get(name, 0),
                is_narrow=None if model is None else is_narrow,
            )
        )
    return GradientFlowNetwork(nodes, edges, _network_metrics(nodes, edges), from_model_graph=model is not None)


def _comparable_norms(strength: Mapping[str, float], model: ModelGraph) -> Mapping[str, float]:
    """Norms of layers of different size made comparable: per root of the number of weights, where all are known."""
    counts = [model.parameters.get(name) for name in strength]
    if any(not count for count in counts):
        return strength
    return {name: strength[name] / float(count or 1) ** 0.5 for name, count in zip(strength, counts, strict=True)}


def mean_finite(flow: GradientLayerFlow) -> float:
    """The mean of the finite norms; 0 where there is none."""
    norms = np.asarray(flow.gradient_magnitudes, dtype=np.float64)
    finite = norms[np.isfinite(norms)]
    return mean_in_order(finite)


def sum_in_order(values: FloatArray | Sequence[float]) -> float:
    """The sum, added up one by one, so that it is off by the same last bit as the ancestor's.

    NumPy adds in pairs, and Python's own `sum` carries what was rounded off from 3.12 on: either turns a score of
    exactly 0 into 1e-16 and back, and puts a sum that is a threshold to the last digit on its other side.
    """
    if not len(values):
        return 0.0
    with np.errstate(over="ignore"):  # a sum beyond the largest float is infinite, and the scores say so
        return float(np.add.accumulate(values)[-1])


def mean_in_order(values: FloatArray) -> float:
    """The mean of values added up one by one; 0 where there is none."""
    return sum_in_order(values) / len(values) if len(values) else 0.0


def _ordered_edges(model: ModelGraph) -> list[tuple[str, str]]:
    index = {name: i for i, name in enumerate(model.order)}
    return sorted(model.digraph.edges, key=lambda edge: (index[edge[0]], index[edge[1]]))


def _make_edge(
    source: GradientLayerFlow, target: GradientLayerFlow, gradient: float, levels: tuple[float, float]
) -> FlowEdge:
    g_source, g_target = levels
    strength = (source.information_flow_rate + target.information_flow_rate) / 2.0
    consistency = (source.flow_consistency + target.flow_consistency) / 2.0
    if g_source == g_target:  # both nothing, or both beyond the largest float, too
        gain = 1.0
    else:
        gain = g_source / g_target if g_target > 0 else float("inf")
    return FlowEdge(
        from_layer=source.layer_name,
        to_layer=target.layer_name,
        flow_strength=strength,
        flow_consistency=consistency,
        edge_type=_edge_type(strength, consistency),
        gradient=gradient,
        gain=gain,
    )


def _with_flow(edge: FlowEdge, carries_flow: bool) -> FlowEdge:
    return dataclasses.replace(edge, carries_flow=carries_flow)


def _edge_type(strength: float, consistency: float) -> EdgeType:
    if strength > 1.0 and consistency > 0.8:
        return EdgeType.STRONG
    if strength < 0.1 or consistency < 0.3:
        return EdgeType.WEAK
    return EdgeType.INTERMITTENT if consistency < 0.6 else EdgeType.BLOCKED


def _node_type(flow: GradientLayerFlow, is_narrow: bool) -> NodeType:
    """`is_narrow`: others get gradient through it alone, and every way on leaves a tenth of it or less."""
    finite = [norm for norm in flow.gradient_magnitudes if np.isfinite(norm)]
    if flow.bottleneck_score > 0.8 or is_narrow:
        return NodeType.BOTTLENECK
    if flow.information_flow_rate > 1.0:
        return NodeType.AMPLIFIER
    if sum_in_order(finite) < 0.01:
        return NodeType.SINK
    return NodeType.SOURCE if any(norm > 10.0 for norm in finite) else NodeType.NORMAL


def _gates_and_reach(model: ModelGraph) -> tuple[dict[str, int], dict[str, float]]:
    """Per layer: how many others get gradient through it alone, and what share of the layers it feeds at all.

    The first is the size of its subtree in the dominator tree of the reversed graph, rooted at the loss.
    """
    nx = networkx()
    loss = object()
    back = model.digraph.reverse(copy=True)
    ends = [name for name in model.digraph if model.digraph.out_degree(name) == 0] or [model.order[-1]]
    back.add_edges_from((loss, name) for name in ends)
    parent = nx.immediate_dominators(back, loss)
    gates = dict.fromkeys(model.order, 0)
    for name in model.order:
        if name not in parent:
            continue
        above = parent[name]
        while above is not loss and above is not None:
            gates[above] += 1
            above = parent[above]
    total = len(model.order)
    reach = {name: (len(nx.ancestors(model.digraph, name)) + 1) / total for name in model.order}
    return gates, reach


def _network_metrics(nodes: list[FlowNode], edges: list[FlowEdge]) -> NetworkMetrics:
    count = max(len(edges), 1)
    efficiency = sum_in_order([edge.flow_strength for edge in edges]) / count
    connectivity = len(edges) / (max(len(nodes), 1) * max(len(nodes) - 1, 1))
    bottlenecks = sum(node.node_type == NodeType.BOTTLENECK for node in nodes)
    return NetworkMetrics(
        overall_flow_efficiency=efficiency,
        network_connectivity=connectivity,
        bottleneck_density=bottlenecks / max(len(nodes), 1),
        flow_stability=sum_in_order([edge.flow_consistency for edge in edges]) / count,
        information_propagation_speed=efficiency * connectivity,
    )
