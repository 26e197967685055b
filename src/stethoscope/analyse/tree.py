"""The model as a tree of modules: the rows that the history of a run can be shown in."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, Final

from stethoscope.analyse.grouping import OWN, Row, frozen_sites
from stethoscope.analyse.recorded import Recorded, model_modules
from stethoscope.record import OUTPUT_KINDS, ROOT_NAME, Kind, Site, select

MAX_NODES: Final = 20_000


@dataclasses.dataclass(frozen=True, slots=True)
class Node:
    """One row of the tree: a module, and what is inside it."""

    path: str
    label: str
    """The path as seen from the parent row."""
    parent: int
    """The parent's index, -1 at the top."""
    indent: int
    num_children: int
    num_sites: int
    frozen: bool
    depth: int
    """The number of path parts that its history is grouped at."""

    @property
    def row(self) -> Row:
        """Its row in a history."""
        return Row(self.path, (), self.frozen)


def module_tree(run: Recorded, kind: Kind | str) -> tuple[Node, ...]:
    """The modules that hold sites of this kind, parents before children, in the order of the model.

    A list of modules (`layers`) is no row of its own: its members stand in its place, under their full names.
    """
    kind = Kind(kind)
    infos = select(run.sites, "*", kind)
    asleep = {info.site for info in infos if info.measured == "frozen"}
    if infos:
        asleep |= set(frozen_sites(run.sites, kind, "*")) | _frozen_modules(run, kind)
    modules = model_modules(run)
    defined = {str(module.get("path", "")): at for at, module in enumerate(modules)}
    order = {info.site.path: at for at, info in enumerate(select(run.sites, "*", Kind.WEIGHT))}
    own = {info.site: at for at, info in enumerate(infos)}
    last = len(defined) + len(order) + len(own)
    known = sorted(
        {*own, *asleep},
        key=lambda site: (defined.get(site.module, last), order.get(site.path, last), own.get(site, last)),
    )
    root: dict[str, Any] = {}
    for site in known:
        here = root
        at_root = ROOT_NAME if kind in OUTPUT_KINDS else site.name or ROOT_NAME
        for part in (site.module or at_root).split("."):
            here = here.setdefault(part, {})
        here.setdefault("", []).append(site in asleep)
    types = {str(m.get("path", "")): str(m.get("type", "")) for m in modules}
    nodes: list[Node] = []
    _add_children(nodes, root, "", "", -1, types, kind)
    return tuple(nodes)


def _frozen_modules(run: Recorded, kind: Kind) -> set[Site]:
    """Modules whose parameters ask for no gradient: they have no site of this kind, and are shown as frozen."""
    if kind not in (Kind.GRADIENT, Kind.UPDATE):
        return set()
    seen = {info.site.module for info in select(run.sites, "*", kind)}
    return {
        Site(str(module["path"]), kind, "")
        for module in model_modules(run)
        if module.get("num_parameters") and module.get("trainable") is False and str(module.get("path", "")) not in seen
    }


def _add_children(
    nodes: list[Node], branch: dict[str, Any], path: str, label: str, parent: int, types: Mapping[str, str], kind: Kind
) -> None:
    """Appends the branch's children, depth first; lists are passed over."""
    for part, child in branch.items():
        if part == "" or len(nodes) >= MAX_NODES:
            continue
        name = f"{path}.{part}" if path else part
        shown = f"{label}.{part}" if label else part
        inner = [key for key in child if key]
        own: list[bool] = child.get("", [])
        is_list = types.get(name) in ("ModuleList", "ModuleDict") or (
            name not in types and parent == -1 and len(inner) > 1 and all(key.isdecimal() for key in inner)
        )
        if is_list and not own:
            _add_children(nodes, child, name, shown, parent, types, kind)
            continue
        if shown.isdecimal() and types.get(name):
            shown = f"{shown} {types[name]}"  # a position in a Sequential says nothing by itself
        flags = _branch_flags(child)
        depth = OWN if own and kind in OUTPUT_KINDS else len(name.split("."))
        indent = nodes[parent].indent + 1 if parent >= 0 else 0
        index = len(nodes)
        nodes.append(Node(name, shown, parent, indent, len(inner), len(flags), bool(flags) and all(flags), depth))
        _add_children(nodes, child, name, "", index, types, kind)


def _branch_flags(branch: dict[str, Any]) -> list[bool]:
    out = list(branch.get("", []))
    for part, child in branch.items():
        if part:
            out += _branch_flags(child)
    return out
