"""The model's graph, whatever form it comes in, reduced to the layers that were measured.

Promises: an unmeasured node (an addition, an activation) is passed through, so that the layers around it
stay connected as the data flows; a parameter's history finds its module by the longest path that is a node;
several histories of one module add in quadrature.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from stethoscope.instruments.flow_types import GradientHistory
from stethoscope.record import ConfigError, MissingExtraError

COUNT_NAMES = ("num_parameters", "parameter_count", "parameters", "num_params", "params")


@dataclass(frozen=True, slots=True)
class ModelGraph:
    """Measured layers and their connections."""

    digraph: Any
    """A networkx DiGraph of the measured layers, data flowing from layer to layer."""
    order: tuple[str, ...]
    """The layers as the data meets them."""
    histories: dict[str, GradientHistory]
    parameters: dict[str, int | None]

    @classmethod
    def read(cls, graph: Any, histories: Mapping[str, GradientHistory]) -> ModelGraph:
        """Any accepted form of graph, joined with the histories."""
        nx = networkx()
        full, counts = _as_digraph(nx, graph)
        if not len(full):
            raise ConfigError("the graph has no nodes", where="graph", do="Give edges such as ('fc1', 'fc2')")
        owner = {name: _node_of(name, full) for name in histories}
        groups: dict[str, list[str]] = {}
        for name, node in owner.items():
            groups.setdefault(node or name, []).append(name)
        reduced = _contract_graph(nx, full, set(groups))
        order = _data_order(nx, reduced, list(groups))
        merged = {layer: _merge_norms([histories[name] for name in groups[layer]]) for layer in order}
        known = {layer: _count(layer, counts, groups[layer], histories) for layer in order}
        return cls(reduced, order, merged, known)


def networkx() -> Any:
    """The networkx module, or the error that says how to install it."""
    try:
        import networkx as module
    except ImportError as error:
        raise MissingExtraError("networkx", "graph", "Gradient flow on a model graph") from error
    return module


def _as_digraph(nx: Any, graph: Any) -> tuple[Any, dict[str, int]]:
    """The full graph and the parameter counts its nodes carry."""
    out, counts = nx.DiGraph(), {}
    nodes: Any = ()
    if isinstance(graph, Mapping) and set(graph) >= {"nodes", "edges"}:
        nodes, edges = graph["nodes"], graph["edges"]
    elif isinstance(graph, Mapping):
        nodes, edges = list(graph), [(a, b) for a, after in graph.items() for b in after]
    elif hasattr(graph, "nodes") and hasattr(graph, "edges"):
        nodes, edges = _as_value(graph.nodes), _as_value(graph.edges)
    else:
        edges = graph
    for node in nodes:
        info = nodes[node] if isinstance(nodes, Mapping) or hasattr(nodes, "data") else node
        name = node if isinstance(node, str) else _name_of(node)
        out.add_node(name)
        if (count := _parameter_count(info)) is not None:
            counts[name] = count
    for edge in edges:
        source, target = _edge_ends(edge)
        if source != target:
            out.add_edge(source, target)
    return out, counts


def _as_value(value: Any) -> Any:
    """networkx views iterate as they are; a plain method is called."""
    return value if hasattr(value, "__iter__") else value()


def _name_of(node: Any) -> str:
    if isinstance(node, Mapping):
        value = next((node[key] for key in ("name", "module", "path", "id") if key in node), None)
    else:
        value = next((v for key in ("name", "module", "path", "id") if (v := getattr(node, key, None))), None)
    return str(node if value is None else value)


def _parameter_count(info: Any) -> int | None:
    for key in COUNT_NAMES:
        value = info.get(key) if isinstance(info, Mapping) else getattr(info, key, None)
        if isinstance(value, int | np.integer) and not isinstance(value, bool):
            return int(value)
    return None


def _edge_ends(edge: Any) -> tuple[str, str]:
    pairs = (("source", "target"), ("from_layer", "to_layer"), ("producer", "consumer"))
    for first, second in pairs:
        if isinstance(edge, Mapping) and first in edge:
            return str(edge[first]), str(edge[second])
        if hasattr(edge, first):
            return _node_name(getattr(edge, first)), _node_name(getattr(edge, second))
    try:
        source, target = edge[0], edge[1]
    except (TypeError, IndexError, KeyError) as error:
        raise ConfigError("not an edge", where=repr(edge), do="Give pairs such as ('fc1', 'fc2')") from error
    return _node_name(source), _node_name(target)


def _node_name(value: Any) -> str:
    return value if isinstance(value, str) else _name_of(value)


def _node_of(name: str, full: Any) -> str | None:
    """The node itself, or the longest dotted prefix that is one: "fc.weight" belongs to "fc"."""
    while name:
        if name in full:
            return name
        name = name.rpartition(".")[0]
    return None


def _contract_graph(nx: Any, full: Any, measured: set[str]) -> Any:
    """Edges between measured layers that data reaches through unmeasured nodes only."""
    out = nx.DiGraph()
    out.add_nodes_from(node for node in full if node in measured)
    out.add_nodes_from(sorted(measured - set(out)))
    for layer in [node for node in full if node in measured]:
        seen: set[str] = set()
        ahead = list(full.successors(layer))
        while ahead:
            node = ahead.pop()
            if node in seen:
                continue
            seen.add(node)
            if node in measured:
                if node != layer:
                    out.add_edge(layer, node)
            else:
                ahead.extend(full.successors(node))
    return out


def _data_order(nx: Any, graph: Any, given: list[str]) -> tuple[str, ...]:
    """Topological, ties in the order given; a cycle (a recurrent model) keeps the order given."""
    index = {name: i for i, name in enumerate(given)}
    if nx.is_directed_acyclic_graph(graph):
        return tuple(nx.lexicographical_topological_sort(graph, key=lambda name: index[name]))
    return tuple(given)


def _count(
    layer: str, counts: Mapping[str, int], names: list[str], histories: Mapping[str, GradientHistory]
) -> int | None:
    if layer in counts:
        return counts[layer]
    own = [histories[name].num_parameters for name in names]
    return None if any(n is None for n in own) else sum(n for n in own if n is not None)


def _merge_norms(parts: list[GradientHistory]) -> GradientHistory:
    """Norms of one module's parameters together: squares add, step by step."""
    if len(parts) == 1:
        return parts[0]
    squares: dict[int, float] = {}
    for part in parts:
        for step, norm in zip(part.step_numbers, part.gradient_norms, strict=True):
            squares[step] = float(np.hypot(squares.get(step, 0.0), norm))
    steps = sorted(squares)
    return GradientHistory(steps, [squares[step] for step in steps])
