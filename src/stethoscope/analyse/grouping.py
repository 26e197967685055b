"""Sites into rows of a picture: by the first parts of their names, in the order of the model."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from typing import Final

import numpy as np

from stethoscope.record import OUTPUT_KINDS, ROOT_NAME, IntArray, Kind, Site, SiteInfo, select

OWN: Final = 99
"""The depth at which every module stands by itself, with all that it returns: a tuple's or a dict's tensors are one row."""


@dataclasses.dataclass(frozen=True, slots=True)
class Row:
    """One line of the picture: a module or a tensor, and the sites that make it up."""

    name: str
    sites: tuple[Site, ...]
    frozen: bool = False
    """No site of this kind exists although the weights do: nothing asked for this gradient."""
    type: str = ""
    """The module's type, where its name is a number: a position in a Sequential says nothing by itself."""

    short: str = ""
    """What to call it where the row above says the rest of its name."""

    @property
    def label(self) -> str:
        """What to call it before people."""
        return self.short or (f"{self.name} {self.type}" if self.type else self.name)


def row_name(site: Site, depth: int) -> str:
    """The site's path cut to its first `depth` parts; at depth OWN an output's module."""
    if depth == OWN and site.kind in OUTPUT_KINDS:
        return site.module or ROOT_NAME
    return ".".join(site.path.split(".")[:depth]) or ROOT_NAME


def fitting_depth(sites: Iterable[Site], max_rows: int = 24) -> int:
    """The deepest grouping by modules with at most `max_rows` rows; one deeper where that says too little."""
    modules = [site.module.split(".") if site.module else [site.name] for site in sites]
    deepest = max((len(parts) for parts in modules), default=1)
    sizes = {depth: len({tuple(parts[:depth]) for parts in modules}) for depth in range(1, deepest + 1)}
    chosen = max((depth for depth, rows in sizes.items() if rows <= max_rows), default=1)
    deeper = sizes.get(chosen + 1, 0)
    return chosen + 1 if sizes[chosen] < 5 and max_rows < deeper <= 400 else chosen


def group_rows(
    sites: Sequence[Site], frozen: Sequence[Site], depth: int | None, max_rows: int
) -> tuple[tuple[Row, ...], list[IntArray]]:
    """The rows in the order of the model, and for each the columns of the matrix that belong to it."""
    by_modules = depth is None
    depth = fitting_depth([*sites, *frozen], max_rows) if depth is None else depth
    groups: dict[str, list[int]] = {}
    members: dict[str, list[Site]] = {}
    for site in frozen:
        members.setdefault(_group_name(site, depth, by_modules), [])
    for index, site in enumerate(sites):
        name = _group_name(site, depth, by_modules)
        groups.setdefault(name, []).append(index)
        members.setdefault(name, []).append(site)
    order = _model_order(list(members), sites, frozen, depth, by_modules)
    rows = tuple(Row(name, tuple(members[name]), frozen=name not in groups) for name in order)
    return rows, [np.array(groups.get(name, []), dtype=np.int64) for name in order]


def _group_name(site: Site, depth: int, by_modules: bool) -> str:
    if by_modules and site.module:
        return ".".join(site.module.split(".")[:depth])
    return row_name(site, depth)


def _model_order(
    names: list[str], sites: Sequence[Site], frozen: Sequence[Site], depth: int, by_modules: bool
) -> list[str]:
    """Names in the order their sites were registered; frozen ones stand where the weights' order has them."""
    if not frozen:
        return names
    position = {_group_name(site, depth, by_modules): at for at, site in reversed(list(enumerate(frozen)))}
    known = {_group_name(site, depth, by_modules) for site in sites}
    out = [name for name in names if name in known]
    for name in sorted((n for n in names if n not in known), key=lambda n: position[n]):
        later = [at for at, other in enumerate(out) if _natural_order(other) > _natural_order(name)]
        out.insert(later[0] if later else len(out), name)
    return out


def _natural_order(name: str) -> tuple[tuple[int, int, str], ...]:
    return tuple((0, int(part), "") if part.isdecimal() else (1, 0, part) for part in name.split("."))


def frozen_sites(infos: Sequence[SiteInfo], kind: Kind, pattern: str) -> list[Site]:
    """Weights that have no gradient (or update) site, although others do: nothing asked for theirs."""
    if kind not in (Kind.GRADIENT, Kind.UPDATE):
        return []
    seen = {info.site.path for info in infos if info.site.kind == kind}
    return [info.site for info in select(infos, pattern, Kind.WEIGHT) if info.site.path not in seen]
