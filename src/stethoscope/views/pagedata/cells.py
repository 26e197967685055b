"""The cells of a heatmap: from the rows where they can be read at once, else from the run's stored buckets."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Final

import numpy as np

from stethoscope.analyse import overview
from stethoscope.analyse.bins import Bins, MarkArray
from stethoscope.analyse.history import History, grid
from stethoscope.analyse.tree import Node, node_history, node_window
from stethoscope.record import FloatArray, IntArray, Kind
from stethoscope.views.common.open_run import OpenRun

MAX_EXACT_VALUES: Final = 2_500_000
"""Values of one statistic read from the rows for one picture, where the reader waits for it."""

_MAX_BUCKETS: Final = 1024


@dataclasses.dataclass(frozen=True, eq=False, slots=True)
class Cells:
    """One level and one mark for each row and bin, and what is usual for each row."""

    bins: Bins
    levels: FloatArray
    marks: MarkArray
    usual: FloatArray
    is_exact: bool = True
    """False where the rows would show more: whoever has time may ask for that."""


def cells_of(
    viewed: OpenRun,
    kind: Kind,
    stat: str,
    nodes: Sequence[Node],
    view: tuple[int, int, int],
    *,
    raw: bool,
    exact: bool = True,
) -> Cells:
    """These rows over first..last in at most `width` bins, as ratios to the usual or (`raw`) as values."""
    before = viewed.usual_before()
    if viewed.overview.is_large(kind, viewed.span):
        found = _of_a_large_run(viewed, kind, stat, nodes, view, before, raw=raw, exact=exact)
        if found is not None:
            return found
    shown = node_history(viewed.histories, kind, stat, nodes, usual_before=before)
    return _from_rows(shown.window(view[0], view[1]), view[2], raw)


def history_of(
    viewed: OpenRun, kind: Kind, stat: str, nodes: Sequence[Node], window: tuple[int, int] | None = None
) -> History:
    """These rows over the steps of a window; of a long run one value a bucket, unless the window is short."""
    first, last = window or viewed.span
    before = viewed.usual_before()
    if viewed.overview.is_large(kind, viewed.span):
        usual = viewed.overview.usual(kind, stat, nodes, viewed.span, before)
        few = viewed.overview.num_values(kind, (first, last)) <= MAX_EXACT_VALUES
        if usual is not None and few and len(_inside(viewed, first, last)):
            return dataclasses.replace(node_window(viewed.run, kind, stat, nodes, first, last), usual=usual)
        found = None if usual is None else viewed.overview.nodes(kind, stat, nodes, (first, last, _MAX_BUCKETS))
        if found is not None and usual is not None:
            return History(kind, stat, found.bins.starts, found.rows, found.mean.T, found.marks.T, usual)
    shown = node_history(viewed.histories, kind, stat, nodes, usual_before=before)
    return shown if window is None else shown.window(first, last)


def _from_rows(shown: History, width: int, raw: bool) -> Cells:
    cells = grid(shown, width, raw=raw)
    return Cells(cells.bins, cells.levels, cells.marks, shown.usual)


def _of_a_large_run(
    viewed: OpenRun,
    kind: Kind,
    stat: str,
    nodes: Sequence[Node],
    view: tuple[int, int, int],
    before: int | None,
    *,
    raw: bool,
    exact: bool,
) -> Cells | None:
    first, last, width = view
    usual = viewed.overview.usual(kind, stat, nodes, viewed.span, before)
    if usual is None:
        return None
    amount = viewed.overview.num_values(kind, (first, last))
    fits = last - first + 1 <= width << overview.BASE_LEVEL
    limit = MAX_EXACT_VALUES if exact else overview.AT_ONCE_VALUES
    if fits and amount <= limit and len(_inside(viewed, first, last)):
        shown = node_window(viewed.run, kind, stat, nodes, first, last)
        return _from_rows(dataclasses.replace(shown, usual=usual), width, raw)
    found = viewed.overview.nodes(kind, stat, nodes, view)
    if found is None:
        return None
    could_be_finer = fits and amount <= MAX_EXACT_VALUES and bool(len(_inside(viewed, first, last)))
    return Cells(found.bins, overview.levels(found, usual, raw=raw), found.marks, usual, is_exact=not could_be_finer)


def _inside(viewed: OpenRun, first: int, last: int) -> IntArray:
    steps = viewed.run.steps
    return steps[np.searchsorted(steps, first) : np.searchsorted(steps, last, side="right")]
