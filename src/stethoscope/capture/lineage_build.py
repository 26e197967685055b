"""From a finished Trace to the graph as JSON values.

A join that one consumer alone reads is replaced by edges from its producers to that consumer; one that nobody
reads is dropped (it was inside a leaf module); the others stay as nodes, so that a residual stream of n blocks has
of the order of n edges and not n squared.
"""

from __future__ import annotations

from collections import defaultdict
from typing import Any, Final

import torch

from stethoscope.capture.lineage_mode import DETACHED, FLOWS, Wire
from stethoscope.capture.lineage_trace import INPUT, OUTPUT, PARAMETER_MARK, Trace
from stethoscope.record import ROOT_NAME

VERSION: Final = 1
GRADIENTS: Final = ("none", "integer", "detached", "flows")

Node = str | int
Wires = dict[tuple[Node, Node], Wire]


def build(trace: Trace) -> dict[str, Any]:
    """The body of the "graph" event; `analyse.graph.Graph.from_json` reads it."""
    modules, sizes = trace.modules, Sizes()
    times: dict[Node, int] = {INPUT: 0}
    times.update(trace.leaves)
    times.update({number: join.time for number, join in enumerate(trace.tags.joins)})
    times[OUTPUT] = trace.tags.time + 1
    wires = _settle_held(trace.tags.wires, times)
    wires = _absorb_joins(_mark_gates(_drop_unread(wires, times), times), times)
    wires, parameters = _attach_parameters(wires, modules, times)
    names = _name_joins(trace, wires)
    edges = _edges(wires, names, times)
    used = {node for wire in wires for node in wire}
    called = set(trace.calls)
    seen = {key[len(PARAMETER_MARK) :].rpartition(".")[0] for key in trace.tags.seen_parameters}
    absorbed, unused = _idle(modules, called, seen, set(trace.leaves), used)
    shown = [path for path in modules if path in trace.leaves or path in used or path in unused]
    nodes = [_module_node(path, trace, sizes, path in trace.leaves or path in used) for path in shown]
    nodes += [_parameter_node(name, parameter, times[name]) for name, parameter in parameters.items() if name in used]
    nodes += [
        {"path": name, "role": "join", "type": trace.tags.joins[number].operation, "order": times[number]}
        for number, name in names.items()
    ]
    nodes += [
        {"path": path, "role": role, "type": "", "order": times[path]}
        for path, role in ((INPUT, "input"), (OUTPUT, "output"))
        if path in used
    ]
    nodes.sort(key=lambda node: (node["order"] < 0, node["order"]))
    for position, node in enumerate(nodes):
        node["order"] = position if node["order"] >= 0 else -1
    return {
        "version": VERSION,
        "status": "traced",
        "truncated": trace.truncated,
        "nodes": nodes,
        "edges": edges,
        "containers": [
            _described(path, module, sizes)
            for path, module in modules.items()
            if path not in trace.leaves and (path in called or _has_children(module))
        ],
        "unused": [path for path in modules if path in unused],
        "absorbed": absorbed,
        "unregistered": [
            _described(found.path, found.module, sizes) | {"inside": found.inside} for found in trace.strangers.values()
        ],
        "untraced": list(trace.untraced),
        "tied": _tied(modules),
    }


class Sizes:
    """How many parameters modules hold, each counted once, without walking a subtree twice."""

    def __init__(self) -> None:
        self._held: dict[int, dict[int, tuple[int, bool]]] = {}

    def of(self, module: torch.nn.Module) -> tuple[int, int]:
        """All and trainable ones."""
        held = self._of(module).values()
        return sum(count for count, _ in held), sum(count for count, trained in held if trained)

    def _of(self, module: torch.nn.Module) -> dict[int, tuple[int, bool]]:
        known = self._held.get(id(module))
        if known is None:
            known = self._held[id(module)] = {
                id(p): (p.numel(), p.requires_grad) for p in module._parameters.values() if p is not None
            }
            for child in module._modules.values():
                if child is not None:
                    known.update(self._of(child))
        return known


def _settle_held(wires: Wires, times: dict[Node, int]) -> Wires:
    """Edges inside a no_grad region carry gradient only where what came out of the region does."""
    leaving: dict[Node, list[tuple[Node, Wire]]] = defaultdict(list)
    for (source, target), wire in wires.items():
        leaving[source].append((target, wire))
    for (_, target), wire in sorted(wires.items(), key=lambda item: -times.get(item[0][1], 0)):
        if wire.held and wire.state == FLOWS:
            later = [other.state == FLOWS for node, other in leaving[target] if node != target]
            wire.state = FLOWS if any(later) else DETACHED
            wire.held = False
    return wires


def _drop_unread(wires: Wires, times: dict[Node, int]) -> Wires:
    """Without joins that nothing reads: they were inside a leaf module, whose output is its own."""
    num_readers: dict[Node, int] = defaultdict(int)
    sources: dict[Node, list[Node]] = defaultdict(list)
    for source, target in wires:
        if source != target:
            num_readers[source] += 1
            sources[target].append(source)
    dropped = set()
    for number in sorted((node for node in times if isinstance(node, int)), key=lambda node: -times[node]):
        if not num_readers[number]:
            dropped.add(number)
            for source in sources[number]:
                num_readers[source] -= 1
    return {pair: wire for pair, wire in wires.items() if pair[0] not in dropped and pair[1] not in dropped}


def _mark_gates(wires: Wires, times: dict[Node, int]) -> Wires:
    into = _sources(wires)
    for (source, target), wire in wires.items():
        wire.gated = (
            isinstance(target, int) and not wire.added and not wire.gated and _goes_around(source, target, into, times)
        )
    return wires


def _sources(wires: Wires) -> dict[Node, list[Node]]:
    into: dict[Node, list[Node]] = defaultdict(list)
    for source, target in wires:
        into[target].append(source)
    return into


def _absorb_joins(wires: Wires, times: dict[Node, int]) -> Wires:
    into: dict[Node, dict[Node, Wire]] = defaultdict(dict)
    out: dict[Node, dict[Node, Wire]] = defaultdict(dict)
    for (source, target), wire in wires.items():
        into[target][source] = wire
        out[source][target] = wire
    # Latest first: what a join is replaced by may be another join, never an earlier one.
    for number in sorted((node for node in times if isinstance(node, int)), key=lambda node: -times[node]):
        readers = [target for target in out[number] if target != number]
        if len(readers) > 1:
            continue
        for source, wire in into.pop(number, {}).items():
            del out[source][number]
            if readers and source != number:
                after = out[number][readers[0]]
                through = _through(wire, after)
                _merge(into[readers[0]], out[source], source, readers[0], through)
        for target in readers:
            del into[target][number]
        out.pop(number, None)
    return {(source, target): wire for target, sources in into.items() for source, wire in sources.items()}


def _through(before: Wire, after: Wire) -> Wire:
    return Wire(
        min(before.state, after.state),
        before.added or after.added,
        False,
        (*before.operations, *after.operations)[:8],
        after.inside or before.inside,
        max(before.uses, after.uses),
        before.gated or after.gated,
    )


def _merge(into: dict[Node, Wire], out: dict[Node, Wire], source: Node, target: Node, wire: Wire) -> None:
    known = into.get(source)
    if known is not None:
        known.state, known.added = max(known.state, wire.state), known.added or wire.added
        known.gated = known.gated and wire.gated
        return
    into[source] = wire
    out[target] = wire


def _attach_parameters(
    wires: Wires, modules: dict[str, torch.nn.Module], times: dict[Node, int]
) -> tuple[Wires, dict[str, torch.nn.Parameter]]:
    """Parameters used outside of their own module: as that module where it is a leaf, else as nodes."""
    placed: Wires = {}
    parameters: dict[str, torch.nn.Parameter] = {}
    for (source, target), wire in wires.items():
        node = source
        if isinstance(source, str) and source.startswith(PARAMETER_MARK):
            full = source[len(PARAMETER_MARK) :]
            owner, _, name = full.rpartition(".")
            module = modules[owner or ROOT_NAME]
            if owner and not _has_children(module):
                node = owner
            else:
                node, parameters[full] = full, module._parameters[name]  # type: ignore[assignment]
            times.setdefault(node, max(times.get(target, 1) - 1, 1))
        placed.setdefault((node, target), wire)
    return placed, parameters


def _name_joins(trace: Trace, wires: Wires) -> dict[int, str]:
    kept = sorted({node for pair in wires for node in pair if isinstance(node, int)})
    names: dict[int, str] = {}
    num_named: dict[str, int] = defaultdict(int)
    for number in kept:
        join = trace.tags.joins[number]
        base = f"{join.path}:{join.operation}"
        names[number] = f"{base}_{num_named[base]}" if num_named[base] else base
        num_named[base] += 1
    return names


def _edges(wires: Wires, names: dict[int, str], times: dict[Node, int]) -> list[dict[str, Any]]:
    into = _sources(wires)
    edges = []
    for (source, target), wire in wires.items():
        residual = wire.added and not wire.gated and _goes_around(source, target, into, times)
        edge: dict[str, Any] = {
            "source": names[source] if isinstance(source, int) else source,
            "target": names[target] if isinstance(target, int) else target,
            "kind": "residual" if residual else "data",
            "gradient": GRADIENTS[wire.state],
        }
        if wire.operations:
            edge["operations"], edge["inside"] = list(wire.operations), wire.inside or ROOT_NAME
        if wire.uses > 1:
            edge["uses"] = wire.uses
        edges.append(((times.get(target, 0), times.get(source, 0)), edge))
    return [edge for _, edge in sorted(edges, key=lambda pair: pair[0])]


def _goes_around(source: Node, target: Node, into: dict[Node, list[Node]], times: dict[Node, int]) -> bool:
    """Whether a longer way leads from the one to the other, through nodes that ran after the first."""
    began = times.get(source, 0)
    ahead = [node for node in into[target] if node not in (source, target)]
    seen = {target, *ahead}
    while ahead:
        for node in into[ahead.pop()]:
            if node == source:
                return True
            if node not in seen and times.get(node, 0) > began:
                seen.add(node)
                ahead.append(node)
    return False


def _idle(
    modules: dict[str, torch.nn.Module], called: set[str], seen: set[str], leaves: set[str], used: set[Node]
) -> tuple[dict[str, str], set[str]]:
    """Modules without a call: those whose parameters a leaf above them used itself, and those nobody used."""
    absorbed: dict[str, str] = {}
    unused: set[str] = set()
    containers = (torch.nn.ModuleList, torch.nn.ModuleDict, torch.nn.ParameterList, torch.nn.ParameterDict)
    for path, module in modules.items():
        if path in called or path in used or isinstance(module, containers) or _has_children(module):
            continue
        above = _leaf_above(path, leaves)
        if above is not None and (path in seen or ".parametrizations." in path):
            absorbed[path] = above
        elif path not in seen:
            unused.add(path)
    return absorbed, unused


def _has_children(module: torch.nn.Module) -> bool:
    return any(child is not None for child in module._modules.values())


def _leaf_above(path: str, leaves: set[str]) -> str | None:
    while "." in path:
        path = path.rpartition(".")[0]
        if path in leaves:
            return path
    return ROOT_NAME if ROOT_NAME in leaves else None


def _module_node(path: str, trace: Trace, sizes: Sizes, ran: bool) -> dict[str, Any]:
    order = trace.first.get(path, 1 if ran else -1)
    calls = trace.calls.get(path, 0)
    return {**_described(path, trace.modules[path], sizes), "role": "module", "calls": calls, "order": order}


def _described(path: str, module: torch.nn.Module, sizes: Sizes) -> dict[str, Any]:
    num_parameters, num_trainable = sizes.of(module)
    return {
        "path": path,
        "type": type(module).__name__,
        "num_parameters": num_parameters,
        "num_trainable": num_trainable,
    }


def _parameter_node(path: str, parameter: torch.nn.Parameter, order: int) -> dict[str, Any]:
    count = parameter.numel()
    return {
        "path": path,
        "role": "parameter",
        "type": "Parameter",
        "num_parameters": count,
        "num_trainable": count if parameter.requires_grad else 0,
        "order": order,
    }


def _tied(modules: dict[str, torch.nn.Module]) -> list[list[str]]:
    """Parameters that several modules share, by all their names."""
    names: dict[int, list[str]] = defaultdict(list)
    for path, module in modules.items():
        prefix = "" if path == ROOT_NAME else f"{path}."
        for name, parameter in module._parameters.items():
            if parameter is not None:
                names[id(parameter)].append(prefix + name)
    return [group for group in names.values() if len(group) > 1]
