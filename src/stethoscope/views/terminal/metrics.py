"""Loss and the other named numbers of a run: a small trend each, on one axis, first and last value."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from stethoscope.analyse.bins import bins_over
from stethoscope.record import Series, metrics
from stethoscope.views.common import numbers
from stethoscope.views.common.glyphs import Screen
from stethoscope.views.common.styled_text import BROKEN, NOTE, PLAIN, Line, pad
from stethoscope.views.lines.heatmap import name_width
from stethoscope.views.lines.sparkline import sparkline

if TYPE_CHECKING:
    from stethoscope.store import Run

_FIRST = (metrics.LOSS, metrics.GRADIENT_NORM, metrics.LEARNING_RATE, metrics.LOSS_SCALE)
_LAST = (metrics.STEP_MS, metrics.OVERHEAD_MS, metrics.NUM_BACKWARDS)
_QUIET = frozenset({metrics.NUM_BACKWARDS})
"""Shown only where they change: they say something when they move."""
_INNER = frozenset(
    {
        metrics.OVERHEAD_MS,
        metrics.DATA_MS,
        metrics.LOADER_MS,
        metrics.MEMORY_IN_USE,
        metrics.FORWARD_MS,
        metrics.BACKWARD_MS,
        metrics.OPTIMIZER_MS,
        metrics.GRAPHS_ALIVE,
        metrics.OUTPUTS_ALIVE,
        metrics.OUTPUTS_MARKED,
        metrics.NUM_HOOKS,
        metrics.TRAINING_MODE,
        metrics.UPDATE_COSINE,
        metrics.CLIP_SCALED,
    }
)
_INNER_GROUPS = (metrics.LEDGER, metrics.OUTPUT, "batch/")
"""What is written down for the detectors: theirs to read, in the way of a person who looks at the loss."""


def metric_order(names: tuple[str, ...]) -> list[str]:
    """Loss first, then what the optimizer does, then the user's own, then the clock."""

    def order(name: str) -> tuple[int, int, str]:
        stem = name.split(".")[0]
        if stem in _FIRST:
            return 0, _FIRST.index(stem), name
        if stem in _LAST:
            return 2, _LAST.index(stem), name
        return 1, 0, name

    return sorted(names, key=order)


def metrics_lines(
    run: Run,
    screen: Screen,
    *,
    first: int | None = None,
    last: int | None = None,
    gutter: int | None = None,
    inner: bool = False,
) -> list[Line]:
    """One line for each metric that has anything to say; with `inner` also for what only detectors read."""
    names = [name for name in metric_order(tuple(run.metrics())) if inner or not is_inner(name)]
    shown = [(name, run.metric(name).between(first, last)) for name in names]
    shown = [(name, series) for name, series in shown if len(series) and (inner or not _is_quiet(name, series))]
    if not shown:
        return []
    gutter = gutter or name_width([screen.text(name) for name, _ in shown], screen.width)
    steps = np.unique(np.concatenate([series.steps for _, series in shown]))
    room = screen.width - gutter - 4 - 28
    bins = bins_over(steps, max(8, min(room, 64)))
    lines = []
    for name, series in shown:
        line: Line = [("  ", ""), (pad(screen.name(name, gutter), gutter) + "  ", PLAIN)]
        line += sparkline(series, room, screen.glyphs, bins=bins)
        line += _first_and_last(series, screen)
        lines.append(line)
    return lines


def is_inner(name: str) -> bool:
    """Whether a metric is written down for the detectors."""
    return name.split(".")[0] in _INNER or name.startswith(_INNER_GROUPS)


def _is_quiet(name: str, series: Series) -> bool:
    return name.split(".")[0] in _QUIET and bool(np.all(series.values == series.values[0]))


def _first_and_last(series: Series, screen: Screen) -> Line:
    """First and last value; one where nothing changed."""
    begin, end = float(series.values[0]), float(series.values[-1])
    was, now = (numbers.number(value, ascii=screen.ascii) for value in (begin, end))
    style = BROKEN if not np.isfinite(end) else PLAIN
    if np.all(series.values == begin):
        return [(" " * (15 + len(screen.glyphs.arrow)), ""), (now, style)]
    before = pad(was, 13, right=True)
    return [(f"{before} {screen.glyphs.arrow} ", NOTE), (now, style)]
