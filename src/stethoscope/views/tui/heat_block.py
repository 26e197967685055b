"""Layers by steps with a cursor: the rows that fit, their cells, what stands at the cursor."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np

from stethoscope.analyse.bins import Mark
from stethoscope.analyse.history import Grid, History, grid
from stethoscope.analyse.tree import Node
from stethoscope.record import FloatArray, Kind, Severity
from stethoscope.views.common import numbers
from stethoscope.views.common.glyphs import SEVERITY_STYLE, Screen
from stethoscope.views.common.open_run import OpenRun
from stethoscope.views.common.styled_text import (
    BROKEN,
    LARGER,
    NOTE,
    PLAIN,
    SMALLER,
    STRONG,
    Line,
    Span,
    cell_width,
    cut_middle,
    flow_parts,
    line_width,
    pad,
)
from stethoscope.views.lines.heatmap import cell_levels, cell_spans, direction, key_parts
from stethoscope.views.pagedata.heat import opened_rows, troubled
from stethoscope.views.tui.chart import CURSOR, Frame
from stethoscope.views.tui.view import View, column_of, filled, visible

VALUE, RATIO = 11, 8
"""Cells of the two columns right of the picture."""
_WITH_VALUES = 100
"""From this width on every row says its value at the cursor; below, only how it stands to the usual one."""


_FEW_ROWS = 6


@dataclasses.dataclass(frozen=True, eq=False, slots=True)
class Heat:
    """The part of the tree that shows, with its numbers in cells."""

    kind: Kind
    tree: Sequence[Node]
    shown: list[int]
    """Places in the tree of every row that could be scrolled to."""
    first_row: int
    nodes: list[Node]
    """The rows on the screen."""
    row: str
    opened: frozenset[str]
    signs: dict[int, Severity]
    history: History
    cells: Grid
    values: FloatArray
    frame: Frame
    with_values: bool
    window: tuple[int, int]


def heat_of(viewed: OpenRun, view: View, screen: Screen, kind: Kind, window: tuple[int, int], num_rows: int) -> Heat:
    """The rows around the selected one over the window."""
    tree = viewed.tree(kind)
    opened = view.opened if view.opened is not None else first_opened(viewed, tree)
    shown = visible(tree, opened, view.pattern)
    signs = troubled(tree, viewed.diagnosis.causes)
    row = chosen_row(view, tree, shown, signs)
    at = next((index for index, node in enumerate(shown) if tree[node].path == row), 0)
    first = int(np.clip(at - num_rows // 2, 0, max(0, len(shown) - num_rows)))
    indices = shown[first : first + num_rows]
    nodes = [tree[index] for index in indices]
    with_values = screen.width >= _WITH_VALUES
    gutter = _gutter_width([tree[index] for index in shown[:2000]], screen, bool(view.pattern))
    room = screen.width - gutter - 4 - (VALUE + RATIO if with_values else RATIO)
    room -= 2 if screen.glyphs.marks_direction else 0
    window = filled(window, viewed.span, viewed.run.steps, max(room, 8))
    source = viewed.history(kind, "norm", nodes, window)
    cells = grid(source, max(room, 8), raw=view.raw)
    other = grid(source, max(room, 8), raw=not view.raw).levels
    values = cells.levels if view.raw else other
    cursor = column_of(cells.bins.starts, cursor_of(viewed, view))
    return Heat(
        kind,
        tree,
        shown,
        first,
        nodes,
        row,
        opened,
        signs,
        source,
        cells,
        values,
        Frame(cells.bins, room, gutter, cursor),
        with_values,
        window,
    )


def cursor_of(viewed: OpenRun, view: View) -> int:
    """The step under the cursor: of a run that is over, at first the one where the cause began."""
    if not isinstance(view.cursor, str):
        return view.cursor
    causes = viewed.diagnosis.causes
    if view.cursor == "cause" and causes and viewed.run.state != "live":
        return causes[0].first_step
    return viewed.span[1]


def first_opened(viewed: OpenRun, tree: Sequence[Node]) -> frozenset[str]:
    """The branches the page opens with: the way down to where the first cause sits; never so few rows that nothing is said."""
    shown = opened_rows(viewed, tree)
    opened = {tree[tree[at].parent].path for at in shown if tree[at].parent >= 0}
    while len(shown) < _FEW_ROWS:
        closed = {tree[at].path for at in shown if tree[at].num_children} - opened
        if not closed:
            break
        opened |= closed
        shown = visible(tree, frozenset(opened), "")
    return frozenset(opened)


def chosen_row(view: View, tree: Sequence[Node], shown: Sequence[int], signs: dict[int, Severity]) -> str:
    """The selected row; where it is not on show, the deepest one with a finding, else the first."""
    paths = [tree[index].path for index in shown]
    if view.row in paths:
        return view.row
    found = [index for index in shown if index in signs]
    worst = max((signs[index].rank for index in found), default=0)
    deep = [index for index in found if signs[index].rank == worst]
    if deep and not view.pattern:
        return tree[max(deep, key=lambda index: (tree[index].indent, -index))].path
    return paths[0] if paths else ""


def label_of(node: Node, opened: frozenset[str], screen: Screen, *, flat: bool) -> str:
    """The name as the tree shows it: indented, with a triangle where it holds others."""
    if flat:
        return screen.text(node.path)
    signs = ("+ ", "- ") if screen.ascii else ("▸ ", "▾ ")
    sign = "  " if not node.num_children else signs[node.path in opened]
    return "  " * node.indent + sign + screen.text(node.label)


def _gutter_width(nodes: Sequence[Node], screen: Screen, flat: bool) -> int:
    """Wide enough for the names however the branches are opened, so that the picture does not jump."""
    widths = [cell_width(label_of(node, frozenset(), screen, flat=flat)) for node in nodes]
    least = 24 if screen.width >= _WITH_VALUES else 12
    return max(least, min(max(widths, default=12), 40, screen.width // 4))


def heat_lines(heat: Heat, screen: Screen, events: Sequence[int], *, raw: bool, flat: bool) -> list[Line]:
    """Events, axis with the cursor's step, rows."""
    frame = heat.frame
    flags = frame.flags(events, screen)
    lines: list[Line] = [flags] if flags else []
    lines.append(axis_line(heat, screen))
    levels = cell_levels(heat.cells, raw=raw)
    for index in range(len(heat.nodes)):
        line = name_spans(heat, index, screen, flat=flat)
        line += frame.spread(cell_spans(heat.cells, levels, index, screen, raw=raw))
        if not raw:
            line += direction(heat.cells, levels, index, screen)
        at = frame.gutter + 4 + frame.width + (2 if screen.glyphs.marks_direction else 0)
        line.append((" " * max(0, at - line_width(line)), ""))
        line += at_cursor(heat, index, screen) if heat.with_values else _short_at_cursor(heat, index, screen)
        lines.append(line)
    return lines


def name_spans(heat: Heat, index: int, screen: Screen, *, flat: bool) -> Line:
    """A row's name, with the sign of what was found in it."""
    node, severity = heat.nodes[index], heat.signs.get(heat.shown[heat.first_row + index])
    text = cut_middle(label_of(node, heat.opened, screen, flat=flat), heat.frame.gutter, ascii=screen.ascii)
    text = pad(text, heat.frame.gutter)
    is_chosen = node.path == heat.row
    style = CURSOR if is_chosen else STRONG if severity else PLAIN
    sign: Span = ("  ", "")
    if severity is not None:
        sign = (pad(screen.glyphs.severity[severity], 2), SEVERITY_STYLE[severity])
    return [sign, (text, style), ("  ", "")]


def at_cursor(heat: Heat, index: int, screen: Screen) -> Line:
    """The row's value at the cursor and how that stands to its usual one."""
    column = heat.frame.cursor
    if column < 0:
        return []
    mark, value = int(heat.cells.marks[index, column]), float(heat.values[index, column])
    word = {
        int(Mark.NAN): "NaN",
        int(Mark.INF): "Inf",
        int(Mark.MISSING): "missing",
        int(Mark.FROZEN): "frozen",
        int(Mark.SKIPPED): "skipped",
    }.get(mark)
    if word is not None:
        style = BROKEN if mark in (Mark.NAN, Mark.INF) else NOTE
        return [(pad(word, VALUE, right=True), style), (" " * RATIO, "")]
    usual = float(heat.history.usual[index])
    ratio = abs(value) / usual if usual > 0 else float("nan")
    text = numbers.ratio(ratio, ascii=screen.ascii) if usual > 0 else ""
    style = NOTE if text in ("usual", "") else LARGER if ratio > 1 else SMALLER
    shown = numbers.number(value, ascii=screen.ascii)
    return [(pad(shown, VALUE, right=True), PLAIN), (pad(text, RATIO, right=True), style)]


def _short_at_cursor(heat: Heat, index: int, screen: Screen) -> Line:
    """The ratio alone, or the word for what is no number."""
    spans = at_cursor(heat, index, screen)
    text, style = next(((text.strip(), style) for text, style in reversed(spans) if text.strip()), ("", ""))
    return [(pad(text, RATIO, right=True), style)] if len(text) < RATIO else []


def axis_line(heat: Heat, screen: Screen) -> Line:
    """Kind, first and last step, and the step under the cursor as a chip over its cell."""
    steps = heat.history.steps
    ends = (int(steps[0]), int(steps[-1])) if len(steps) else (0, 0)
    head = screen.name(str(heat.kind).replace("_", " "), heat.frame.gutter)
    return heat.frame.axis(head, ends, cursor_step(heat) if heat.frame.cursor >= 0 else 0)


def cursor_step(heat: Heat) -> int:
    """The step that the cursor's cell is named by: the last recorded one in it."""
    bins, steps = heat.frame.bins, heat.history.steps
    start = int(bins.starts[heat.frame.cursor])
    inside = steps[(steps >= start) & (steps < start + bins.size)]
    return int(inside[-1]) if len(inside) else start


def key_line(heat: Heat, screen: Screen, *, raw: bool) -> list[Line]:
    """What the signs mean, and which rows are on the screen where not all are."""
    parts = key_parts(heat.cells, screen, raw=raw)
    if len(heat.shown) > len(heat.nodes):
        last = heat.first_row + len(heat.nodes)
        parts.append([(f"rows {heat.first_row + 1}-{last} of {numbers.count(len(heat.shown))}", NOTE)])
    return flow_parts(parts, screen.width, indent="  ")


def readout(heat: Heat, screen: Screen) -> Line:
    """The cell under the cursor in words: layer, step, value, ratio."""
    index = next((at for at, node in enumerate(heat.nodes) if node.path == heat.row), None)
    if index is None or heat.frame.cursor < 0:
        return []
    words = [text.strip() for text, _ in at_cursor(heat, index, screen) if text.strip()]
    size = heat.frame.bins.size
    step = cursor_step(heat)
    start = int(heat.frame.bins.starts[heat.frame.cursor])
    at = (
        f"step {numbers.count(step)}"
        if size == 1
        else f"steps {numbers.count(start)}-{numbers.count(start + size - 1)}"
    )
    tail = f"  {at}  {', '.join(words)}"
    name = screen.name(heat.row, max(12, screen.width - len(tail) - 2))
    return [("  ", ""), (name, STRONG), (tail, PLAIN)]
