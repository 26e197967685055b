"""The model's data-flow graph as read back from a run: who takes whose output, in which order.

Nodes are the modules that compute (a module that only calls others is a container, not a node), the model's
`(input)` and `(output)`, parameters that are used outside of a module's own forward, and joins: a sum or a
concatenation that several consumers read, such as a transformer's residual stream. `direct()` is the same graph
without joins. Edges go as the data goes; the gradient comes back along those that say so.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final

from stethoscope.record import ROOT_NAME, MissingExtraError, RunFormatError, StethoscopeError
from stethoscope.record.dataflow import VERSION, DataFlow, Edge, EdgeKind, Gradient, Node, Unregistered

if TYPE_CHECKING:
    from stethoscope.store import Run

INPUT: Final = "(input)"
OUTPUT: Final = "(output)"

__all__ = ["Edge", "Graph", "Node", "UnknownModuleError", "Unregistered", "graph_of"]
_STATES: Final[tuple[Gradient, ...]] = ("none", "integer", "detached", "flows")


class UnknownModuleError(StethoscopeError, LookupError):
    """The graph has no module of this name."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Graph:
    """Nodes by path and the edges between them."""

    nodes: Mapping[str, Node]
    edges: tuple[Edge, ...]
    containers: Mapping[str, Node] = dataclasses.field(default_factory=dict)
    """Modules that only call others, with the parameters of all that is in them."""
    unused: tuple[str, ...] = ()
    """Modules that were not called."""
    unregistered: tuple[Unregistered, ...] = ()
    absorbed: Mapping[str, str] = dataclasses.field(default_factory=dict)
    """From a module that another one uses without calling it to that other one."""
    tied: tuple[tuple[str, ...], ...] = ()
    """Names of one and the same parameter."""
    untraced: tuple[str, ...] = ()
    """Modules that took a tensor from somewhere that could not be seen."""
    status: str = "traced"
    """"copy": from a copy without data, because torch.compile runs the model; "parts": the model is never called
    as a whole, and what ran between its parts is known from autograd alone."""
    truncated: bool = False
    """Whether the forward pass was longer than what is followed."""

    # ---- questions ----

    @property
    def order(self) -> tuple[str, ...]:
        """The nodes that ran, in the order they first did."""
        ran = [node for node in self.nodes.values() if node.order >= 0]
        return tuple(node.path for node in sorted(ran, key=lambda node: node.order))

    @cached_property
    def _into(self) -> dict[str, list[Edge]]:
        found: dict[str, list[Edge]] = {path: [] for path in self.nodes}
        for edge in self.edges:
            found[edge.target].append(edge)
        return found

    @cached_property
    def _out(self) -> dict[str, list[Edge]]:
        found: dict[str, list[Edge]] = {path: [] for path in self.nodes}
        for edge in self.edges:
            found[edge.source].append(edge)
        return found

    def node_of(self, name: str) -> str | None:
        """The node that a module path or a parameter's or site's full name belongs to."""
        while name:
            if name in self.nodes:
                return name
            if name in self.absorbed:
                return self.absorbed[name]
            name = name.rpartition(".")[0]
        return None

    def inside(self, path: str) -> tuple[str, ...]:
        """The nodes of a module: itself, or what a container holds."""
        if path in self.nodes:
            return (path,)
        if path in ("", ROOT_NAME):
            return tuple(node.path for node in self.nodes.values() if node.role not in ("input", "output"))
        found = tuple(name for name in self.nodes if name.startswith((f"{path}.", f"{path}:")))
        if found:
            return found
        owner = self.node_of(path)
        if owner is None:
            raise UnknownModuleError(
                "not in the data-flow graph",
                where=path,
                do=f"Known, for example: {', '.join(list(self.nodes)[:5])}",
            )
        return (owner,)

    def inputs(self, path: str) -> tuple[Edge, ...]:
        """What goes into a module, or into a container from outside of it."""
        own = dict.fromkeys(self.inside(path))
        return tuple(edge for name in own for edge in self._into[name] if len(own) == 1 or edge.source not in own)

    def outputs(self, path: str) -> tuple[Edge, ...]:
        """Who takes what a module, or a container, makes."""
        own = dict.fromkeys(self.inside(path))
        return tuple(edge for name in own for edge in self._out[name] if len(own) == 1 or edge.target not in own)

    def neighbours(self, path: str) -> tuple[str, ...]:
        """Nodes one edge away, producers before consumers, in the order of execution."""
        own = set(self.inside(path))
        sides = (
            {edge.source for edge in self.inputs(path)} - own,
            {edge.target for edge in self.outputs(path)} - own,
        )
        names = [name for side in sides for name in sorted(side, key=lambda name: self.nodes[name].order)]
        return tuple(dict.fromkeys(names))

    def ancestors(self, path: str) -> tuple[str, ...]:
        """Everything whose data reaches this module, in the order of execution."""
        return self._reach(path, lambda name: [edge.source for edge in self._into[name]])

    def descendants(self, path: str) -> tuple[str, ...]:
        """Everything that this module's data reaches, in the order of execution."""
        return self._reach(path, lambda name: [edge.target for edge in self._out[name]])

    def _reach(self, path: str, following: Callable[[str], Iterable[str]]) -> tuple[str, ...]:
        own = self.inside(path)
        seen: set[str] = set()
        ahead = list(own)
        while ahead:
            for name in following(ahead.pop()):
                if name not in seen:
                    seen.add(name)
                    ahead.append(name)
        return tuple(sorted(seen - set(own), key=lambda name: self.nodes[name].order))

    def reaches(self, source: str, target: str) -> bool:
        """Whether data goes from the one to the other."""
        return self.path(source, target) is not None

    def path(self, source: str, target: str) -> tuple[str, ...] | None:
        """A shortest way for the data from one module to another, both ends included."""
        goals = set(self.inside(target))
        came: dict[str, str | None] = dict.fromkeys(self.inside(source))
        ahead = list(came)
        for name in ahead:
            for edge in self._out[name]:
                following = edge.target
                if following in goals and (following not in came or came[following] is None):
                    return (*_walk_back(came, name), following)
                if following not in came:
                    came[following] = name
                    ahead.append(following)
        return None

    # ---- other shapes ----

    def direct(self) -> Graph:
        """Without joins: every producer has an edge to every module that reads the sum it is part of."""
        into = {path: {edge.source: edge for edge in edges} for path, edges in self._into.items()}
        out = {path: {edge.target: edge for edge in edges} for path, edges in self._out.items()}
        joins = [node.path for node in self.nodes.values() if node.role == "join"]
        for join in joins:
            for source, before in into.pop(join).items():
                del out[source][join]
                if source == join:
                    continue
                for target, after in out[join].items():
                    if target == join:
                        continue
                    known = into[target].get(source)
                    into[target][source] = out[source][target] = _better_edge(known, _joined(before, after))
            for target in out.pop(join):
                into.get(target, {}).pop(join, None)
        edges = [edge for sources in into.values() for edge in sources.values()]
        nodes = {path: node for path, node in self.nodes.items() if node.role != "join"}
        return self._replaced(nodes, edges)

    def collapse(self, depth: int) -> Graph:
        """Modules deeper than `depth` path parts taken together as the container they are in."""
        names = {path: _cut_path(node, depth) for path, node in self.nodes.items()}
        edges: dict[tuple[str, str], Edge] = {}
        for edge in self.edges:
            pair = names[edge.source], names[edge.target]
            if pair[0] == pair[1]:
                continue
            moved = dataclasses.replace(edge, source=pair[0], target=pair[1])
            edges[pair] = _better_edge(edges.get(pair), moved)
        nodes: dict[str, Node] = {}
        for path, name in names.items():
            node = self.nodes[path]
            if name == path:
                nodes.setdefault(name, node)
            elif name not in nodes:
                whole = self.containers.get(name) or Node(path=name)
                nodes[name] = dataclasses.replace(whole, role="module", order=node.order)
            elif 0 <= node.order < nodes[name].order or nodes[name].order < 0:
                nodes[name] = dataclasses.replace(nodes[name], order=node.order)
        return self._replaced(nodes, edges.values())

    def _replaced(self, nodes: Mapping[str, Node], edges: Iterable[Edge]) -> Graph:
        ordered = sorted(edges, key=lambda edge: (nodes[edge.target].order, nodes[edge.source].order))
        return dataclasses.replace(self, nodes=nodes, edges=tuple(ordered))

    # ---- to and from other forms ----

    def to_json(self) -> dict[str, Any]:
        """As plain JSON values; `from_json` gives an equal graph back."""
        flow = DataFlow(
            version=VERSION,
            status=self.status,
            truncated=self.truncated,
            nodes=tuple(self.nodes.values()),
            edges=self.edges,
            containers=tuple(self.containers.values()),
            unused=self.unused,
            absorbed=self.absorbed,
            unregistered=self.unregistered,
            untraced=self.untraced,
            tied=self.tied,
        )
        return flow.to_body()

    @classmethod
    def from_json(cls, body: Mapping[str, Any]) -> Graph:
        """From what `to_json` or a run's event holds."""
        flow = DataFlow.from_body(body)
        if flow.version > VERSION:
            raise RunFormatError("the graph is of a newer version", where=flow.version, do="Update stethoscope")
        return cls.of(flow)

    @classmethod
    def of(cls, flow: DataFlow) -> Graph:
        """From what a run recorded; what leads to nodes that it does not name is left out."""
        nodes = {node.path: node for node in flow.nodes}
        return cls(
            nodes=nodes,
            edges=tuple(edge for edge in flow.edges if edge.source in nodes and edge.target in nodes),
            containers={node.path: node for node in flow.containers},
            unused=flow.unused,
            unregistered=flow.unregistered,
            absorbed={name: path for name, path in flow.absorbed.items() if path in nodes},
            tied=flow.tied,
            untraced=flow.untraced,
            status=flow.status,
            truncated=flow.truncated,
        )

    def to_networkx(self) -> Any:
        """As a networkx DiGraph, with what is known of nodes and edges as their attributes."""
        try:
            import networkx
        except ImportError as error:
            raise MissingExtraError("networkx", "graph", "The graph as a networkx DiGraph") from error
        out = networkx.DiGraph()
        for path, node in self.nodes.items():
            out.add_node(path, **dataclasses.asdict(node))
        for edge in self.edges:
            out.add_edge(edge.source, edge.target, **dataclasses.asdict(edge))
        return out


def graph_of(run: Run) -> Graph | None:
    """The latest graph that a run recorded; None where there is none."""
    found = [flow for _, flow in run.events_of(DataFlow) if flow.is_readable]
    return Graph.of(found[-1]) if found else None


def _walk_back(came: Mapping[str, str | None], name: str | None) -> tuple[str, ...]:
    way: list[str] = []
    while name is not None:
        way.append(name)
        name = came[name]
    return tuple(reversed(way))


def _joined(before: Edge, after: Edge) -> Edge:
    """The way through a join as one edge: as residual as its parts, as open as the narrower one."""
    state = min(_STATES.index(before.gradient), _STATES.index(after.gradient))
    return Edge(
        source=before.source,
        target=after.target,
        kind="residual" if "residual" in (before.kind, after.kind) else "data",
        gradient=_STATES[state],
        operations=(*before.operations, *after.operations),
        inside=after.inside or before.inside,
        uses=max(before.uses, after.uses),
    )


def _better_edge(known: Edge | None, other: Edge) -> Edge:
    """Two ways between the same nodes as one edge: it is residual where both are, and open where one is."""
    if known is None:
        return other
    state = max(_STATES.index(known.gradient), _STATES.index(other.gradient))
    kind: EdgeKind = "residual" if known.kind == other.kind == "residual" else "data"
    return dataclasses.replace(known, gradient=_STATES[state], kind=kind, uses=known.uses + other.uses)


def _cut_path(node: Node, depth: int) -> str:
    if node.role in ("input", "output"):
        return node.path
    home = node.path.split(":", 1)[0] if node.role == "join" else node.path
    parts = home.split(".")
    if node.role == "join" and (len(parts) < depth or home == ROOT_NAME):
        return node.path
    return ".".join(parts[:depth]) if len(parts) >= depth else node.path
