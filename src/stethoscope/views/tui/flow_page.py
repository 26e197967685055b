"""The gradient at one step: a bar for every layer, from the loss back to the input, with a tick where it usually is."""

from __future__ import annotations

import numpy as np

from stethoscope.analyse.bins import Mark
from stethoscope.record import Kind, metrics
from stethoscope.views.common import numbers
from stethoscope.views.common.glyphs import Screen
from stethoscope.views.common.open_run import OpenRun
from stethoscope.views.common.styled_text import (
    BROKEN,
    LARGER,
    NOTE,
    PLAIN,
    SMALLER,
    STRONG,
    Line,
    fit_line,
    join_runs,
)
from stethoscope.views.tui.chart import chart_lines
from stethoscope.views.tui.heat_block import RATIO, VALUE, Heat, at_cursor, axis_line, cursor_step, heat_of, name_spans
from stethoscope.views.tui.run_page import event_steps, page_of, window_of
from stethoscope.views.tui.view import Page, View

_EIGHTHS = " ▏▎▍▌▋▊▉"
_DECADES = 12
"""A bar's scale spans no more than this."""


def flow_page(viewed: OpenRun, view: View, screen: Screen, height: int) -> Page:
    """The loss with the cursor on it, then the bars."""
    run = viewed.run
    kinds = tuple(viewed.kinds())
    kind = next((one for one in (Kind.GRADIENT, Kind.ACTIVATION_GRADIENT) if one in kinds), None)
    if kind is None:
        return Page([[("No gradients were recorded in this run.", NOTE)], [], [("Esc goes back.", NOTE)]])
    head_rows = 3 if metrics.LOSS in run.metrics() else 0
    num_rows = max(4, height - head_rows - 5)
    heat = heat_of(viewed, view, screen, kind, window_of(viewed, view), num_rows)
    lines: list[Line] = [_title_line(heat, kind)]
    if head_rows:
        lines += chart_lines("loss", run.metric(metrics.LOSS).between(*heat.window), heat.frame, screen, head_rows)
    lines += [axis_line(heat, screen), []]
    low, high = scale_of(heat)
    width = screen.width - heat.frame.gutter - 4 - VALUE - RATIO - 1
    for index in range(len(heat.nodes)):
        lines.append(_layer_row(heat, index, (low, high), max(8, width), screen, flat=bool(view.pattern)))
    foot: Line = [("  ", ""), (_legend_text(low, high, screen), NOTE)]
    room = height - 1
    lines = [*lines[:room], *([[]] * (room - len(lines))), foot]
    top = 3 + head_rows
    return page_of([fit_line(line, screen.width) for line in lines], heat, viewed.span, event_steps(viewed), kinds, top)


def _title_line(heat: Heat, kind: Kind) -> Line:
    if heat.frame.cursor < 0:
        return [("Gradient flow", STRONG)]
    what = "gradient of the weights" if kind is Kind.GRADIENT else "gradient of the outputs"
    return [
        (f"Gradient flow at step {numbers.count(cursor_step(heat))}", STRONG),
        (f"  {what}, norm", NOTE),
    ]


def scale_of(heat: Heat) -> tuple[float, float]:
    """The smallest and largest norm of the window: bars of different steps can be compared."""
    shown = heat.values[(heat.cells.marks == Mark.PLAIN) & np.isfinite(heat.values) & (heat.values > 0)]
    if not len(shown):
        return 0.0, 0.0
    high = float(shown.max())
    return max(float(shown.min()), high * 10.0**-_DECADES), high


def _layer_row(heat: Heat, index: int, scale: tuple[float, float], width: int, screen: Screen, *, flat: bool) -> Line:
    name, bar = name_spans(heat, index, screen, flat=flat), _bar_spans(heat, index, scale, width, screen)
    return [*name, *bar, *at_cursor(heat, index, screen)]


def _bar_spans(heat: Heat, index: int, scale: tuple[float, float], width: int, screen: Screen) -> Line:
    """As long as the norm is large, on a log scale; a tick over it where it usually ends."""
    column = heat.frame.cursor
    mark = int(heat.cells.marks[index, column]) if column >= 0 else int(Mark.MISSING)
    usual = float(heat.history.usual[index])
    cells = [(" ", PLAIN)] * width
    if mark in (Mark.NAN, Mark.INF):
        sign = screen.glyphs.nan if mark == Mark.NAN else screen.glyphs.inf
        cells = [(sign, BROKEN)] * width
    elif mark == Mark.PLAIN:
        value = float(heat.values[index, column])
        ratio = abs(value) / usual if usual > 0 else 1.0
        style = LARGER if ratio >= numbers.USUAL else SMALLER if ratio <= 1 / numbers.USUAL else PLAIN
        length = _share_of_range(value, scale) * width
        for at in range(int(length)):
            cells[at] = ("#" if screen.ascii else "█", style)
        rest = int((length - int(length)) * 8)
        if rest and int(length) < width and not screen.ascii:
            cells[int(length)] = (_EIGHTHS[rest], style)
    if usual > 0 and mark not in (Mark.NAN, Mark.INF):
        at = min(width - 1, int(_share_of_range(usual, scale) * width))
        cells[at] = ("|" if screen.ascii else "┃", STRONG)
    return join_runs(cells)


def _share_of_range(value: float, scale: tuple[float, float]) -> float:
    low, high = scale
    if not 0 < low < high or value <= 0:
        return 0.5 if value > 0 else 0.0
    # A twentieth is left of the smallest, so that it is a bar too.
    return float(np.clip(0.05 + 0.95 * np.log(value / low) / np.log(high / low), 0.01, 1.0))


def _legend_text(low: float, high: float, screen: Screen) -> str:
    ends = [numbers.number(end, ascii=screen.ascii) for end in (low, high)]
    tick = "|" if screen.ascii else "┃"
    return f"bars from {ends[0]} to {ends[1]}, log scale; {tick} is where the layer usually is"
