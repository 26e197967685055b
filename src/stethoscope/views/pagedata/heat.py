"""Layers by steps: values in bins, what is usual for each row, and what a cell is where it is no number."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple, NotRequired, TypedDict

import numpy as np

from stethoscope.analyse.tree import Node
from stethoscope.record import Finding, Kind, Severity
from stethoscope.views.common.open_run import OpenRun
from stethoscope.views.pagedata.packing import floats, small, text
from stethoscope.views.pagedata.query import MAX_ROWS

MAX_CELLS: Final = 400_000
_OPEN_ROWS: Final = 44
_THUMBNAIL_BINS: Final = 58
_THUMBNAIL_ROWS: Final = 15


class TreeRow(NamedTuple):
    """A module of the tree."""

    path: str
    label: str
    parent: int
    indent: int
    children: int
    frozen: int
    severity: str


class HeatData(TypedDict):
    """The heatmap of some rows of the tree."""

    version: int
    kind: str
    stat: str
    first: int
    last: int
    start: int
    size: int
    count: int
    rows: list[int]
    values: str
    marks: str
    usual: str
    exact: bool
    tree: NotRequired[list[TreeRow]]


class Thumbnail(TypedDict):
    """A picture of a whole run for a list."""

    rows: int
    count: int
    levels: str
    marks: str


def heat_data(
    viewed: OpenRun,
    kind: Kind,
    stat: str,
    view: tuple[int, int, int],
    rows: Sequence[int] | None = None,
    *,
    with_tree: bool = True,
    exact: bool = True,
) -> HeatData:
    """The heatmap of some rows of the tree (by default those open at first) over first..last in `width` bins."""
    first, last, width = view
    tree = viewed.tree(kind)
    indices = shown_rows(viewed, tree, rows)
    nodes = [tree[at] for at in indices]
    width = max(8, min(width, MAX_CELLS // max(1, len(nodes)), 4096))
    cells = viewed.grid(kind, stat, nodes, (first, last, width), has_time=exact)
    out: HeatData = {
        "version": viewed.version,
        "kind": str(kind),
        "stat": stat,
        "first": first,
        "last": last,
        "start": int(cells.bins.starts[0]) if len(cells.bins) else first,
        "size": cells.bins.size,
        "count": len(cells.bins),
        "rows": indices,
        "values": floats(cells.levels),
        "marks": small(cells.marks),
        "usual": floats(cells.usual),
        "exact": not cells.can_be_refined,
    }
    if with_tree:
        out["tree"] = tree_data(tree, troubled(tree, viewed.diagnosis.causes))
    return out


def tree_data(tree: Sequence[Node], signs: dict[int, Severity]) -> list[TreeRow]:
    """Each node with the sign of what was found in it."""
    return [
        TreeRow(
            text(node.path, 10_000),
            text(node.label, 10_000),
            node.parent,
            node.indent,
            node.num_children,
            int(node.frozen),
            str(signs[at]) if at in signs else "",
        )
        for at, node in enumerate(tree)
    ]


def troubled(tree: Sequence[Node], findings: Iterable[Finding]) -> dict[int, Severity]:
    """Nodes in which a finding sits, with all that holds them; none where every row would be one."""
    out: dict[int, Severity] = {}
    for finding in findings:
        here: dict[int, Severity] = {}
        for at, node in enumerate(tree):
            if any(_is_within(site, node.path) for site in finding.sites):
                here[at] = finding.severity
        leaves = [at for at, node in enumerate(tree) if not node.num_children]
        if len(leaves) > 1 and all(at in here for at in leaves):
            continue
        for at, severity in here.items():
            if at not in out or out[at].rank < severity.rank:
                out[at] = severity
    return out


def _is_within(site: str, path: str) -> bool:
    return site == path or site.startswith(path + ".")


def shown_rows(viewed: OpenRun, tree: Sequence[Node], asked: Sequence[int] | None) -> list[int]:
    """The rows that were asked for and are there, by default those open at first; as many as a screen takes."""
    rows = opened_rows(viewed, tree) if asked is None else [at for at in asked if 0 <= at < len(tree)]
    return list(rows[:MAX_ROWS])


def opened_rows(viewed: OpenRun, tree: Sequence[Node]) -> list[int]:
    """The rows seen at first: the top ones, and the way down to where the first cause sits."""
    signs = troubled(tree, viewed.diagnosis.causes[:1])
    opened = {at for at in signs if tree[at].num_children}
    top = sum(node.parent == -1 for node in tree)
    if not opened and top < 6:
        opened = {at for at, node in enumerate(tree) if node.parent == -1 and node.num_children}
    shown = [at for at, node in enumerate(tree) if node.parent == -1 or _is_open(tree, at, opened)]
    return shown if top > _OPEN_ROWS or len(shown) <= MAX_ROWS else [at for at in shown if tree[at].parent == -1]


def _is_open(tree: Sequence[Node], at: int, opened: set[int]) -> bool:
    parent = tree[at].parent
    while parent >= 0:
        if parent not in opened:
            return False
        parent = tree[parent].parent
    return True


def thumbnail(viewed: OpenRun) -> Thumbnail | None:
    """A picture of the whole run for a list: a few rows, log2 ratios in eighths, marks."""
    kinds = viewed.kinds()
    if not kinds or not len(viewed.run.steps):
        return None
    tree = viewed.tree(kinds[0])
    top = [node for node in tree if node.parent == -1]
    if len(top) < 4:
        top = [node for node in tree if node.indent <= 1]
    if len(top) > _THUMBNAIL_ROWS:
        top = [top[int(at)] for at in np.linspace(0, len(top) - 1, _THUMBNAIL_ROWS)]
    cells = viewed.grid(kinds[0], "norm", top, (*viewed.span, _THUMBNAIL_BINS), raw=False)
    levels = np.clip(np.nan_to_num(cells.levels, nan=0.0, posinf=6.0, neginf=-6.0), -6, 6)
    return {
        "rows": len(top),
        "count": len(cells.bins),
        "levels": small(np.round(levels * 16) + 128),
        "marks": small(cells.marks),
    }
