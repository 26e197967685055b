"""The gradient on the model's graph: nodes and edges drawn together where nothing is wrong, values over steps.

The layers are compact (a module inside a layer is one node); the module where the first cause sits is opened. Each
node carries its history, so a reader can scrub through the steps without asking again.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Mapping, Sequence
from typing import Final, TypedDict

import numpy as np

from stethoscope.analyse.graph import Graph, graph_of
from stethoscope.analyse.history import Grid
from stethoscope.analyse.tree import Node
from stethoscope.record import Kind
from stethoscope.views.common.open_run import OpenRun
from stethoscope.views.pagedata.heat import troubled
from stethoscope.views.pagedata.overview import heat_kind
from stethoscope.views.pagedata.packing import floats, small, text
from stethoscope.views.pagedata.query import QueryParams
from stethoscope.views.pagedata.screens import Screen

MAX_STEPS: Final = 600
MAX_NODES: Final = 400
_DYING, _EXPLODING, _FADING = -2.58, 2.58, -1.0
"""log2 of 1/6, 6 and 1/2: a region's members are this far from usual."""


class FlowNode(TypedDict):
    """A node of the picture."""

    path: str
    label: str
    role: str
    layer: str
    order: int
    isOpen: bool
    row: int


class EdgeKind(TypedDict):
    """What passes along an edge, and whether the gradient comes back."""

    kind: str
    gradient: str


class FlowEdge(EdgeKind):
    """An edge of the picture."""

    source: str
    target: str


class LayerBars(TypedDict):
    """The top rows over the same steps."""

    paths: list[str]
    labels: list[str]
    count: int
    values: str
    marks: str
    usual: str


class Thresholds(TypedDict):
    """From which log2 ratio a region is dying, exploding or fading."""

    dying: float
    exploding: float
    fading: float


class FlowData(TypedDict):
    """Everything of the flow screen."""

    version: int
    kind: str
    hasGraph: bool
    status: str
    opened: str
    nodes: list[FlowNode]
    edges: list[FlowEdge]
    numSites: int
    numEdges: int
    start: int
    size: int
    count: int
    numRows: int
    values: str
    marks: str
    usual: str
    layers: LayerBars
    signs: dict[str, str]
    thresholds: Thresholds


@dataclasses.dataclass(frozen=True, slots=True)
class Shown:
    """A node of the picture: what it stands for."""

    path: str
    label: str
    role: str
    layer: str
    order: int
    is_open: bool


def flow_data(viewed: OpenRun, kind: Kind, view: tuple[int, int, int]) -> FlowData:
    """Everything of the flow screen."""
    tree = viewed.tree(kind)
    opened = opened_module(viewed, tree)
    graph = graph_of(viewed.run)
    if graph is None:
        shown, edges = chain(tree, opened)
    else:
        shown, edges = condensed(graph, tree, opened)
    at, cells = measured_cells(viewed, kind, [node.path for node in shown], view)
    layers = [node for node in tree if node.parent == -1]
    return {
        "version": viewed.version,
        "kind": str(kind),
        "hasGraph": graph is not None,
        "status": graph.status if graph is not None else "",
        "opened": text(opened, 10_000),
        "nodes": [
            {
                "path": text(node.path, 10_000),
                "label": text(node.label, 200),
                "role": node.role,
                "layer": text(node.layer, 400),
                "order": node.order,
                "isOpen": node.is_open,
                "row": at.get(node.path, -1),
            }
            for node in shown
        ],
        "edges": edges,
        "numSites": len(viewed.run.sites),
        "numEdges": len(graph.edges) if graph else len(edges),
        "start": int(cells.bins.starts[0]) if len(cells.bins) else view[0],
        "size": cells.bins.size,
        "count": len(cells.bins),
        "numRows": len(at),
        "values": floats(cells.levels),
        "marks": small(cells.marks),
        "usual": floats(cells.usual),
        "layers": layer_bars(viewed, kind, layers, view),
        "signs": {text(tree[n].path, 10_000): str(s) for n, s in troubled(tree, viewed.diagnosis.causes).items()},
        "thresholds": {"dying": _DYING, "exploding": _EXPLODING, "fading": _FADING},
    }


def measured_cells(
    viewed: OpenRun, kind: Kind, paths: Sequence[str], view: tuple[int, int, int]
) -> tuple[dict[str, int], Grid]:
    """Rows, values in bins and what is usual of the nodes; one without parameters shows its output's gradient."""
    seen = (view[0], view[1], min(view[2], MAX_STEPS))

    def of(which: Kind, wanted: Sequence[str]) -> tuple[list[str], Grid]:
        known = {node.path: node for node in viewed.tree(which)}
        nodes = [known[path] for path in wanted if path in known]
        return [node.path for node in nodes], viewed.grid(which, "norm", nodes, seen)

    names, cells = of(kind, paths)
    rest = [path for path in paths if path not in set(names)]
    if kind is Kind.GRADIENT and rest and Kind.ACTIVATION_GRADIENT in viewed.kinds():
        more, other = of(Kind.ACTIVATION_GRADIENT, rest)
        if more and np.array_equal(other.bins.starts, cells.bins.starts):
            names += more
            cells = dataclasses.replace(
                cells,
                usual=np.concatenate([cells.usual, other.usual]),
                levels=np.concatenate([cells.levels, other.levels]),
                marks=np.concatenate([cells.marks, other.marks]),
            )
    return {path: index for index, path in enumerate(names)}, cells


def layer_bars(viewed: OpenRun, kind: Kind, layers: Sequence[Node], view: tuple[int, int, int]) -> LayerBars:
    """The top rows over the same steps: bars below the graph, and the small heatmap of the scrubber."""
    layers = [node for node in layers if not node.frozen][:MAX_NODES]
    cells = viewed.grid(kind, "norm", layers, (view[0], view[1], min(view[2], MAX_STEPS)))
    return {
        "paths": [text(node.path, 10_000) for node in layers],
        "labels": [text(node.label, 200) for node in layers],
        "count": len(cells.bins),
        "values": floats(cells.levels),
        "marks": small(cells.marks),
        "usual": floats(cells.usual),
    }


def opened_module(viewed: OpenRun, tree: Sequence[Node]) -> str:
    """The module to open: the smallest one with parts that holds the first cause."""
    causes = viewed.diagnosis.causes
    if not causes:
        return ""
    sites = causes[0].layers[:1]
    best = ""
    for node in tree:
        holds = any(site == node.path or site.startswith(node.path + ".") for site in sites)
        if holds and node.num_children and len(node.path) > len(best):
            best = node.path
    return best


def _top_of(path: str, tops: Mapping[str, str]) -> str:
    """The layer (top row of the tree) that a path is in."""
    parts = path.split(":", 1)[0].split(".")
    for cut in range(len(parts), 0, -1):
        found = tops.get(".".join(parts[:cut]))
        if found is not None:
            return found
    return parts[0]


def condensed(graph: Graph, tree: Sequence[Node], opened: str) -> tuple[list[Shown], list[FlowEdge]]:
    """The graph with every module inside a layer as one node, but for the opened one."""
    tops = {node.path: node.path for node in tree if node.parent == -1}
    names: dict[str, str] = {}
    for path, node in graph.nodes.items():
        layer = _top_of(path, tops)
        home = path.split(":", 1)[0]
        if node.role != "module" or (opened and home.startswith(opened + ".")) or path == layer:
            names[path] = path
            continue
        rest = path.removeprefix(layer + ".").split(".")
        names[path] = f"{layer}.{rest[0]}" if path.startswith(layer + ".") else path
    merged = _merged_edges(graph, names)
    types = {path: node.type for path, node in graph.nodes.items()}
    merged = _without_norms(merged, types, opened)
    kept = {end for pair in merged for end in pair}
    shown = [
        _shown_node(path, graph, names, tops, opened)
        for path in dict.fromkeys(names[p] for p in graph.order)
        if path in kept
    ]
    return shown[:MAX_NODES], _edge_data(merged, {node.path for node in shown[:MAX_NODES]})


def _shown_node(path: str, graph: Graph, names: Mapping[str, str], tops: Mapping[str, str], opened: str) -> Shown:
    node = graph.nodes.get(path)
    order = min(graph.nodes[p].order for p, name in names.items() if name == path)
    layer = _top_of(path, tops)
    inside = bool(opened) and path.startswith(opened + ".")
    label = path.removeprefix((opened if inside else layer) + ".")
    return Shown(path, label or path, node.role if node else "module", layer, order, inside)


def _merged_edges(graph: Graph, names: Mapping[str, str]) -> dict[tuple[str, str], EdgeKind]:
    out: dict[tuple[str, str], EdgeKind] = {}
    for edge in graph.edges:
        pair = names[edge.source], names[edge.target]
        if pair[0] == pair[1]:
            continue
        known = out.get(pair)
        if known is None:
            out[pair] = {"kind": edge.kind, "gradient": edge.gradient}
        elif edge.gradient == "flows":
            known["gradient"] = "flows"
    return out


def _without_norms(
    edges: dict[tuple[str, str], EdgeKind], types: Mapping[str, str], opened: str
) -> dict[tuple[str, str], EdgeKind]:
    """Edges with normalizations and dropouts of the compact layers left out: one way in, one way out."""
    out = dict(edges)
    for path, kind in types.items():
        if not ("Norm" in kind or "Dropout" in kind) or (opened and path.startswith(opened + ".")):
            continue
        if opened and any(source == path and target.startswith(opened + ".") for source, target in out):
            continue  # what feeds the opened module is part of its story
        into = [pair for pair in out if pair[1] == path]
        after = [pair for pair in out if pair[0] == path]
        if len(into) == 1 and len(after) == 1 and "." in path:
            joined = (into[0][0], after[0][1])
            body = out.pop(into[0])
            out.pop(after[0])
            if joined[0] != joined[1]:
                out.setdefault(joined, body)
    return out


def _edge_data(merged: Mapping[tuple[str, str], EdgeKind], known: set[str]) -> list[FlowEdge]:
    return [
        {"source": text(source, 10_000), "target": text(target, 10_000), **body}
        for (source, target), body in merged.items()
        if source in known and target in known
    ]


def chain(tree: Sequence[Node], opened: str) -> tuple[list[Shown], list[FlowEdge]]:
    """Without a recorded graph: the modules in the order of the model, each to the next."""
    shown: list[Shown] = []
    for index, node in enumerate(tree):
        top = node if node.parent == -1 else tree[node.parent]
        is_part = node.parent >= 0 and top.parent == -1
        if (node.parent == -1 and not node.num_children) or is_part or (opened and node.path.startswith(opened + ".")):
            if node.path == opened or node.frozen:
                continue
            inside = bool(opened) and node.path.startswith(opened + ".")
            layer = _layer_of(tree, index)
            shown.append(Shown(node.path, node.label, "module", layer, index, inside))
    shown = shown[:MAX_NODES]
    return shown, [
        {"source": text(a.path, 10_000), "target": text(b.path, 10_000), "kind": "data", "gradient": "flows"}
        for a, b in itertools.pairwise(shown)
    ]


def _layer_of(tree: Sequence[Node], index: int) -> str:
    while tree[index].parent >= 0:
        index = tree[index].parent
    return tree[index].path


def _answer_flow(viewed: OpenRun, query: QueryParams) -> FlowData:
    return flow_data(viewed, query.kind(heat_kind(viewed)), query.view(viewed.span))


SCREEN: Final = Screen(name="flow", title="Flow", order=30, key="f", icon="flow", questions={"flow": _answer_flow})
