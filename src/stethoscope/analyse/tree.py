"""The model as a tree of modules, and the history of any of its nodes, kept and extended as a run grows.

Promises: a node's history is the group's own statistic, as `history` takes it; the history of a live run is read
once and then only its new steps are; what is kept stays under a number of bytes; long runs are read in parts.
"""

from __future__ import annotations

import dataclasses
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, cast

import numpy as np

from stethoscope.analyse.grouping import OWN, frozen_sites
from stethoscope.analyse.history import History, history, usual_of
from stethoscope.kernels.statistics import STATISTICS
from stethoscope.record import OUTPUT_KINDS, ROOT_NAME, Kind, Site, select

if TYPE_CHECKING:
    from stethoscope.analyse.bins import MarkArray
    from stethoscope.record import FloatArray, IntArray
    from stethoscope.store import Event, Run

MAX_NODES: Final = 20_000
_PART_VALUES: Final = 8_000_000
"""Values of one statistic read at a time."""
_REREAD_STEPS: Final = 4
"""The last steps of a live run are read again: rows of one step come in several frames."""
_MIN_PAST: Final = 8
_NONFINITE: Final = STATISTICS["num_nonfinite"].inputs


@dataclasses.dataclass(frozen=True, slots=True)
class Node:
    """One row of the tree: a module, and what is inside it."""

    path: str
    label: str
    """The path as seen from the parent row."""
    parent: int
    """The parent's place, -1 at the top."""
    indent: int
    num_children: int
    num_sites: int
    frozen: bool
    depth: int
    """The number of path parts that its history is grouped at."""


def module_tree(run: Run, kind: Kind | str) -> tuple[Node, ...]:
    """The modules that hold sites of this kind, parents before children, in the order of the model.

    A list of modules (`layers`) is no row of its own: its members stand in its place, under their full names.
    """
    kind = Kind(kind)
    infos = select(run.sites, "*", kind)
    asleep = {info.site for info in infos if info.measured == "frozen"}
    if infos:
        asleep |= set(frozen_sites(run.sites, kind, "*")) | _frozen_modules(run, kind)
    place = {str(module.get("path", "")): at for at, module in enumerate(_modules(run))}
    order = {info.site.path: at for at, info in enumerate(select(run.sites, "*", Kind.WEIGHT))}
    own = {info.site: at for at, info in enumerate(infos)}
    last = len(place) + len(order) + len(own)
    known = sorted(
        {*own, *asleep},
        key=lambda site: (place.get(site.module, last), order.get(site.path, last), own.get(site, last)),
    )
    root: dict[str, Any] = {}
    for site in known:
        here = root
        at_root = ROOT_NAME if kind in OUTPUT_KINDS else site.name or ROOT_NAME
        for part in (site.module or at_root).split("."):
            here = here.setdefault(part, {})
        here.setdefault("", []).append(site in asleep)
    types = {str(m.get("path", "")): str(m.get("type", "")) for m in _modules(run)}
    nodes: list[Node] = []
    _grow(nodes, root, "", "", -1, types, kind)
    return tuple(nodes)


def _frozen_modules(run: Run, kind: Kind) -> set[Site]:
    """Modules whose parameters ask for no gradient: they have no site of this kind, and are shown as frozen."""
    if kind not in (Kind.GRADIENT, Kind.UPDATE):
        return set()
    seen = {info.site.module for info in select(run.sites, "*", kind)}
    return {
        Site(str(module["path"]), kind, "")
        for module in _modules(run)
        if module.get("num_parameters") and module.get("trainable") is False and str(module.get("path", "")) not in seen
    }


def _modules(run: Run) -> list[Mapping[str, Any]]:
    model = run.info.get("model")
    found = model.get("modules", []) if isinstance(model, Mapping) else []
    return [module for module in found if isinstance(module, Mapping)]


def _grow(
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
            _grow(nodes, child, name, shown, parent, types, kind)
            continue
        if shown.isdecimal() and types.get(name):
            shown = f"{shown} {types[name]}"  # a place in a Sequential says nothing by itself
        flags = _flags(child)
        depth = OWN if own and kind in OUTPUT_KINDS else len(name.split("."))
        indent = nodes[parent].indent + 1 if parent >= 0 else 0
        place = len(nodes)
        nodes.append(Node(name, shown, parent, indent, len(inner), len(flags), bool(flags) and all(flags), depth))
        _grow(nodes, child, name, "", place, types, kind)


def _flags(branch: dict[str, Any]) -> list[bool]:
    out = list(branch.get("", []))
    for part, child in branch.items():
        if part:
            out += _flags(child)
    return out


@dataclasses.dataclass(frozen=True, slots=True)
class _Window:
    """A run as seen through some of its steps: what `history` asks of a run, and no more; each matrix read once."""

    run: Run
    first: int
    last: int
    matrices: dict[tuple[Kind, str, str], Any] = dataclasses.field(default_factory=dict)

    @property
    def sites(self) -> Any:
        return self.run.sites

    def matrix(self, kind: Kind, stat: str, *, pattern: str, rank: int | None) -> Any:
        key = (kind, stat, pattern)
        if key not in self.matrices:
            if stat == "num_nonfinite":
                # The sum of three columns needs no table of all of them.
                parts = [self.matrix(kind, name, pattern=pattern, rank=rank) for name in _NONFINITE]
                total = np.sum([part.values for part in parts], axis=0)
                self.matrices[key] = dataclasses.replace(parts[0], values=total)
                for name in _NONFINITE[1:]:
                    del self.matrices[(kind, name, pattern)]
            else:
                found = self.run.matrix(kind, stat, pattern=pattern, first=self.first, last=self.last, rank=rank)
                self.matrices[key] = found
        return self.matrices[key]

    def block(self, first: int, last: int, *, rank: int | None) -> Any:
        return self.run.block(first, last, rank=rank)

    def events(self, kind: str) -> list[Event]:
        return self.run.events(kind, first=self.first, last=self.last)


@dataclasses.dataclass(slots=True)
class _Kept:
    """A history as far as it was read, and what is usual in it, by the step that ends the past."""

    source: History
    num_sites: int
    usual: dict[int | None, FloatArray] = dataclasses.field(default_factory=dict)

    @property
    def num_bytes(self) -> int:
        return self.source.values.nbytes + self.source.marks.nbytes


class Histories:
    """The histories of a run's groups, by depth; the latest asked ones are kept."""

    def __init__(self, run: Run, limit_bytes: int = 128 << 20) -> None:
        self._run, self._limit_bytes = run, limit_bytes
        self._kept: OrderedDict[tuple[Kind, str, int], _Kept] = OrderedDict()
        self._window: tuple[tuple[Kind, str, int], _Window] | None = None

    def at(self, kind: Kind | str, stat: str, depth: int, *, usual_before: int | None = None) -> History:
        """The history of every group at this depth; what is usual is taken before `usual_before`."""
        key = (Kind(kind), stat, depth)
        kept = self._brought_up(key, self._kept.pop(key, None))
        self._kept[key] = kept
        while len(self._kept) > 1 and sum(one.num_bytes for one in self._kept.values()) > self._limit_bytes:
            self._kept.popitem(last=False)
        usual = kept.usual.get(usual_before)
        if usual is None:
            usual = kept.usual[usual_before] = _usual(kept.source, usual_before)
        return dataclasses.replace(kept.source, usual=usual)

    def _brought_up(self, key: tuple[Kind, str, int], kept: _Kept | None) -> _Kept:
        run = self._run
        steps = run.steps
        if kept is not None and (kept.num_sites != len(run.sites) or not len(kept.source.steps)):
            kept = None
        if kept is not None and (not len(steps) or int(steps[-1]) == int(kept.source.steps[-1])):
            fresh = self._read(key, _tail(steps, 1))
            if not len(fresh.steps) or np.array_equal(fresh.marks[-1], kept.source.marks[-1]):
                return kept
        if kept is None:
            return _Kept(self._read(key, steps), len(run.sites))
        known = kept.source.steps
        new = steps[steps >= known[max(0, len(known) - _REREAD_STEPS)]]
        added = self._read(key, new)
        if added.rows != kept.source.rows or not len(new):
            return _Kept(self._read(key, steps), len(run.sites))
        return _Kept(_joined(kept.source.window(last=int(new[0]) - 1), added), len(run.sites))

    def _read(self, key: tuple[Kind, str, int], steps: IntArray) -> History:
        """The history over these steps, in parts that fit in memory."""
        kind, stat, depth = key
        num_sites = max(1, len(select(self._run.sites, "*", kind)))
        size = max(64, _PART_VALUES // num_sites)
        out: History | None = None
        for begin in range(0, max(1, len(steps)), size):
            part = steps[begin : begin + size]
            first, last = (int(part[0]), int(part[-1])) if len(part) else (0, -1)
            window = self._seen_through(kind, stat, len(steps), first, last)
            found = history(cast("Run", window), kind, stat, depth=depth)
            out = found if out is None or out.rows != found.rows else _joined(out, found)
        assert out is not None
        return out

    def _seen_through(self, kind: Kind, stat: str, num_steps: int, first: int, last: int) -> _Window:
        """The window that was read last, where it is the same: other depths ask for the same matrices."""
        key = (kind, stat, num_steps)
        if (
            self._window is None
            or self._window[0] != key
            or (self._window[1].first, self._window[1].last) != (first, last)
        ):
            self._window = (key, _Window(self._run, first, last))
        return self._window[1]


def _tail(steps: IntArray, amount: int) -> IntArray:
    return steps[len(steps) - amount :] if len(steps) >= amount else steps


def _joined(a: History, b: History) -> History:
    values = np.concatenate([a.values, b.values])
    marks: MarkArray = np.concatenate([a.marks, b.marks])
    return dataclasses.replace(b, steps=np.concatenate([a.steps, b.steps]), values=values, marks=marks)


def _usual(source: History, before: int | None) -> FloatArray:
    from stethoscope.analyse.bins import Mark

    num_past = len(source.steps) if before is None else int(np.searchsorted(source.steps, before))
    if num_past < _MIN_PAST:
        num_past = len(source.steps)
    past = source.values[:num_past]
    return usual_of(np.where(np.isin(source.marks[:num_past], (Mark.NAN, Mark.INF)), np.nan, past))


def node_history(
    kept: Histories, kind: Kind | str, stat: str, nodes: Sequence[Node], *, usual_before: int | None = None
) -> History:
    """The history of these nodes, in this order."""
    return _by_depth(nodes, lambda depth: kept.at(kind, stat, depth, usual_before=usual_before))


def node_window(run: Run, kind: Kind | str, stat: str, nodes: Sequence[Node], first: int, last: int) -> History:
    """The history of these nodes over some steps of a long run: no other step is read. Usual is what is usual there."""
    window = _Window(run, first, last)
    return _by_depth(nodes, lambda depth: history(cast("Run", window), kind, stat, depth=depth))


def _by_depth(nodes: Sequence[Node], at_depth: Callable[[int], History]) -> History:
    parts: list[tuple[History, list[int], list[int]]] = []
    for depth in sorted({node.depth for node in nodes}):
        source = at_depth(depth)
        place_of = {row.name: place for place, row in enumerate(source.rows)}
        wanted = [at for at, node in enumerate(nodes) if node.depth == depth and node.path in place_of]
        parts.append((source, wanted, [place_of[nodes[at].path] for at in wanted]))
    if not parts:
        return at_depth(1).take([])
    return _assembled(parts, nodes)


def _assembled(parts: Sequence[tuple[History, list[int], list[int]]], nodes: Sequence[Node]) -> History:
    from stethoscope.analyse.bins import Mark
    from stethoscope.analyse.grouping import Row

    base = parts[0][0]
    num_steps = min(len(source.steps) for source, _, _ in parts)
    shape = (num_steps, len(nodes))
    values, usual = np.full(shape, np.nan), np.full(len(nodes), np.nan)
    marks = np.full(shape, Mark.MISSING, dtype=np.uint8)
    rows = [Row(node.path, (), node.frozen) for node in nodes]
    for source, wanted, places in parts:
        if wanted:
            values[:, wanted] = source.values[:num_steps, places]
            marks[:, wanted] = source.marks[:num_steps, places]
            usual[wanted] = source.usual[places]
            for at, place in zip(wanted, places, strict=True):
                rows[at] = source.rows[place]
    return dataclasses.replace(
        base, steps=base.steps[:num_steps], rows=tuple(rows), values=values, marks=marks, usual=usual
    )
