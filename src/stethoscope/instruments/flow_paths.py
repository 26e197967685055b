"""Critical paths: by which way the gradient reaches the earliest layers, where it is lost, what a skip
would change.

A connection's loss is -log(gain) where the gradient shrinks over it and 0 where it does not, so a path's
loss is the sum of its falls and `exp(-loss)` the share that gets through. The critical path to an earliest
layer is the one with the least loss from any last layer; all weights are non-negative, so Dijkstra finds it
on any graph, cycles included. A layer without any gradient blocks: it costs more than every other loss
together.

Ties are the rule, not the exception: where the gradient only falls, every way between two layers loses the same. So
losses count in whole billionths of a nat, in which equal sums are equal, and of equal ways the one with the fewest layers
is taken, then the one that comes first by its names: the same graph has the same path, in whatever order it is given.
"""

from __future__ import annotations

import dataclasses
import heapq
import itertools
import math
from collections.abc import Mapping

from stethoscope.instruments.animator_grid import natural_key
from stethoscope.instruments.flow_types import (
    CriticalGradientPath,
    FlowEdge,
    GradientFlowNetwork,
    NodeType,
    SkipConnection,
)

BLOCKED_LOSS = 1e4
"""exp(-1e4) is 0 in floating point, and the sum over a path of blocked connections stays ordered."""
UNUSED_LOSS = 1e3
"""Added to a connection under the flow threshold: taken only where there is no other way."""
WORTH_A_SKIP = 0.1
"""A path that loses less than this share needs none."""
LEAST_FACTOR = 1.5
"""A skip that carries less than this times more is not worth a change to the model."""

GRAIN = 1e-9

NameKey = tuple[tuple[int, int, str], ...]


def edge_loss(edge: FlowEdge) -> float:
    """How much gradient is lost from `to_layer` back to `from_layer`, in nats; never negative."""
    if edge.gain <= 0.0:
        return BLOCKED_LOSS
    return max(-math.log(edge.gain), 0.0)


def find_critical_paths(network: GradientFlowNetwork, limit: int = 8) -> list[CriticalGradientPath]:
    """One path for each earliest layer, the one that loses most first; at most `limit`."""
    if len(network.nodes) < 2 or not network.edges:
        return []
    order = [node.layer_name for node in network.nodes]
    costs = {
        (edge.from_layer, edge.to_layer): edge_loss(edge) + (0.0 if edge.carries_flow else UNUSED_LOSS)
        for edge in network.edges
    }
    starts, ends = _starts_and_ends(order, network.edges)
    found = []
    for start in starts:
        route = best_route(start, ends, costs)
        if route is not None and len(route) > 1:
            found.append(_describe_path(route, ends, costs, network))
    found.sort(key=lambda path: (-whole(path_loss(path)), natural_key(path.layers[0])))
    named = []
    for index, path in enumerate(found[:limit], start=1):
        named.append(_with_id(path, "main_path" if index == 1 else f"path_{index}"))
    return named


def best_route(start: str, ends: set[str], costs: Mapping[tuple[str, str], float]) -> list[str] | None:
    """The layers from `start` to the cheapest end; among equals the fewest, then the first by name; None without a way."""
    ahead: dict[str, list[tuple[str, int]]] = {}
    for (source, target), cost in costs.items():
        ahead.setdefault(source, []).append((target, whole(cost)))
    keys: dict[str, NameKey] = {}
    # A longer route that begins with the same layers always comes later, so the first time a layer is reached is the best.
    queue: list[tuple[int, int, tuple[NameKey, ...], tuple[str, ...]]] = [(0, 0, (), (start,))]
    settled: set[str] = set()
    while queue:
        cost, hops, by_name, route = heapq.heappop(queue)
        layer = route[-1]
        if layer in settled:
            continue
        settled.add(layer)
        if layer in ends:
            return list(route)
        for target, step_cost in ahead.get(layer, ()):
            if target not in settled:
                key = keys.setdefault(target, tuple(natural_key(target)))
                heapq.heappush(queue, (cost + step_cost, hops + 1, (*by_name, key), (*route, target)))
    return None


def whole(loss: float) -> int:
    """A loss in whole billionths of a nat."""
    return round(loss / GRAIN)


def path_loss(path: CriticalGradientPath) -> float:
    """What a path loses in all, in nats; bounded where nothing gets through."""
    return -math.log(path.transmission) if path.transmission > 0 else BLOCKED_LOSS


def route_loss(route: list[str], costs: Mapping[tuple[str, str], float]) -> float:
    """The sum over a route's connections."""
    return sum(costs[pair] for pair in itertools.pairwise(route))


def _starts_and_ends(order: list[str], edges: list[FlowEdge]) -> tuple[list[str], set[str]]:
    has_input = {edge.to_layer for edge in edges}
    has_output = {edge.from_layer for edge in edges}
    starts = [name for name in order if name not in has_input and name in has_output] or order[:1]
    ends = {name for name in order if name not in has_output and name in has_input} or {order[-1]}
    return starts, ends


def _describe_path(
    route: list[str], ends: set[str], costs: dict[tuple[str, str], float], network: GradientFlowNetwork
) -> CriticalGradientPath:
    edges = {(edge.from_layer, edge.to_layer): edge for edge in network.edges}
    losses = {pair: edge_loss(edges[pair]) for pair in itertools.pairwise(route)}
    weakest = max(losses, key=lambda pair: whole(losses[pair]))  # of equals the first on the way
    transmission = math.exp(-sum(losses.values()))
    detour_costs = {pair: cost for pair, cost in costs.items() if pair != weakest}
    detour = best_route(route[0], ends, detour_costs)
    kept = 0.0 if detour is None else math.exp(-min(route_loss(detour, costs), BLOCKED_LOSS))
    criticality = 1.0 if kept == 0.0 else max(1.0 - kept / max(transmission, kept), 0.0)
    kinds = {node.layer_name: node.node_type for node in network.nodes}
    return CriticalGradientPath(
        path_id="",
        layers=route,
        path_length=len(route),
        total_flow_strength=sum(edges[pair].flow_strength for pair in losses),
        bottleneck_layers=[name for name in route if kinds[name] == NodeType.BOTTLENECK],
        criticality_score=criticality,
        optimization_potential=1.0 - transmission,
        transmission=transmission,
        weakest_edge=weakest,
        weakest_gain=edges[weakest].gain,
        skip=best_skip(route, losses, network, transmission),
    )


def best_skip(
    route: list[str],
    losses: Mapping[tuple[str, str], float],
    network: GradientFlowNetwork,
    transmission: float,
) -> SkipConnection | None:
    """The single connection over one or two layers of the path that would let most gradient through.

    With a skip from `a` to `c`, `a` would get what `c` has: the falls between them are left out.
    Of skips that win the same, the shortest.
    """
    if transmission > 1.0 - WORTH_A_SKIP:
        return None
    best: tuple[float, int, str, str] | None = None
    total = sum(losses.values())
    pairs = list(itertools.pairwise(route))
    present = {(edge.from_layer, edge.to_layer) for edge in network.edges}
    for length in (2, 3):
        for index in range(len(pairs) - length + 1):
            span = pairs[index : index + length]
            source, target = span[0][0], span[-1][1]
            saved = sum(losses[pair] for pair in span)
            if saved > 0 and (source, target) not in present and (best is None or saved > best[0] * 1.05):
                best = (saved, length, source, target)
    if best is None:
        return None
    saved, _, source, target = best
    after = math.exp(-max(total - saved, 0.0))
    factor = math.inf if transmission == 0.0 else after / transmission
    return SkipConnection(source, target, after, factor) if factor >= LEAST_FACTOR else None


def _with_id(path: CriticalGradientPath, path_id: str) -> CriticalGradientPath:
    return dataclasses.replace(path, path_id=path_id)
