"""Where the flow's layers stand and how its connections run: layers in columns along the data, ways around over them.

Promises: a connection over several columns bows past the layers between its ends, on the side that is nearer; a
network with more connections than a picture can hold shows those that carry most, and says how many it leaves out.
"""

from __future__ import annotations

import math
from typing import Final

from stethoscope.instruments.flow_types import FlowEdge, GradientFlowVisualization

MAX_EDGES: Final = 120
CLEARANCE: Final = 0.36
"""How far a line must pass from the middle of a layer."""

Position = tuple[float, float]


def node_positions(shown: GradientFlowVisualization) -> dict[str, tuple[float, float]]:
    """x is the longest way from an input, y spreads the layers that share it, centered on 0."""
    names = [node.layer_name for node in shown.flow_network.nodes]
    order = {name: i for i, name in enumerate(names)}
    depth = dict.fromkeys(names, 0)
    for edge in sorted(shown.flow_network.edges, key=lambda e: order[e.from_layer]):
        if order[edge.to_layer] > order[edge.from_layer]:
            depth[edge.to_layer] = max(depth[edge.to_layer], depth[edge.from_layer] + 1)
    lanes: dict[int, list[str]] = {}
    for name in names:
        lanes.setdefault(depth[name], []).append(name)
    return {
        name: (float(level), (len(group) - 1) / 2.0 - position)
        for level, group in lanes.items()
        for position, name in enumerate(group)
    }


def edges_to_draw(shown: GradientFlowVisualization) -> tuple[list[FlowEdge], int]:
    """Connections of neighbours and of the critical path, then those that carry most; and how many are left out."""
    edges = shown.flow_network.edges
    if len(edges) <= MAX_EDGES:
        return list(edges), 0
    positions = node_positions(shown)
    critical = {pair for path in shown.critical_paths[:1] for pair in zip(path.layers, path.layers[1:], strict=False)}

    def worth(edge: FlowEdge) -> tuple[bool, bool, float]:
        near = positions[edge.to_layer][0] - positions[edge.from_layer][0] <= 1
        return (edge.from_layer, edge.to_layer) in critical, near, edge.gradient

    kept = sorted(edges, key=worth, reverse=True)[:MAX_EDGES]
    return kept, len(edges) - len(kept)


def apex(start: Position, end: Position, positions: list[Position]) -> float | None:
    """The height a connection must reach to pass the layers between its ends; None where a straight one passes."""
    span = end[0] - start[0]
    between = [(x, y) for x, y in positions if min(start[0], end[0]) < x < max(start[0], end[0])]
    if not between:
        return None

    def straight(x: float) -> float:
        return start[1] + (end[1] - start[1]) * (x - start[0]) / span

    if all(abs(y - straight(x)) > CLEARANCE for x, y in between):
        return None
    room = 0.22 + 0.34 * math.log2(abs(span))
    over, under = max(y for _, y in between) + room, min(y for _, y in between) - room - 0.2
    middle = (start[1] + end[1]) / 2
    return over if over - middle <= middle - under else under


def curve(start: Position, end: Position, height: float | None) -> list[Position]:
    """Two points of a straight connection, or the four of a cubic Bezier curve that reaches `height`."""
    if height is None:
        return [start, end]
    lift = (height - 0.125 * (start[1] + end[1])) / 0.75
    reach = 0.12 * (end[0] - start[0])
    return [start, (start[0] + reach, lift), (end[0] - reach, lift), end]
