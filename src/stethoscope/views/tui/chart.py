"""A line as a few rows of bars, on the cells of the picture under it: a spike stays a spike, NaN fills its column."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np

from stethoscope.analyse.bins import Bins, Mark, trend
from stethoscope.record import FloatArray, Series
from stethoscope.views.common import numbers
from stethoscope.views.common.glyphs import Screen
from stethoscope.views.common.styled_text import BROKEN, NOTE, PLAIN, STRONG, Line, Span, cell_width, join_runs, pad

CURSOR = "reverse"
_MAX_STRETCH = 3


@dataclasses.dataclass(frozen=True, slots=True)
class Frame:
    """Where cells go: the bins, the room they have, the width of the names, the cursor's cell."""

    bins: Bins
    room: int
    gutter: int
    cursor: int

    @property
    def width(self) -> int:
        """Characters that the cells take: all there are, but few cells are not drawn as wide fields."""
        return min(max(self.room, len(self.bins)), _MAX_STRETCH * len(self.bins))

    def edge(self, column: int) -> int:
        """Where a cell begins; cells differ by one character where they do not come out even."""
        return column * self.width // max(1, len(self.bins))

    def column(self, x: int) -> int | None:
        """The cell at a character, None beside them."""
        if not 0 <= x < self.width:
            return None
        return next(at for at in range(len(self.bins) - 1, -1, -1) if self.edge(at) <= x)

    def spread(self, spans: list[Span]) -> Line:
        """A span for each cell, as wide as cells are, the cursor's cell marked."""
        out = []
        for index, (sign, style) in enumerate(spans):
            marked = f"{style} {CURSOR}".strip() if index == self.cursor else style
            out.append((sign * (self.edge(index + 1) - self.edge(index)), marked))
        return join_runs(out)

    def flags(self, events: Sequence[int], screen: Screen) -> Line:
        """The numbers of the events, each over its cell; empty where none shows."""
        cells = [" "] * self.width
        for step, sign in zip(events, screen.glyphs.numbers, strict=False):
            index = self.bins.column(step)
            if index is not None and cells[self.edge(index)] == " ":
                cells[self.edge(index)] = sign
        text = "".join(cells).rstrip()
        return [(" " * (self.gutter + 4), ""), (text, STRONG)] if text else []

    def axis(self, head: str, ends: tuple[int, int], step: int) -> Line:
        """The name of what is shown, first and last step, and the cursor's step as a chip over its cell."""
        line: Line = [("  ", ""), (pad(head, self.gutter) + "  ", NOTE)]
        if self.cursor < 0:
            return line
        chip, (first, last) = numbers.count(step), (numbers.count(end) for end in ends)
        at = min(max(0, self.edge(self.cursor) - len(chip) // 2), max(0, self.width - len(chip)))
        # A number half under the chip would read as another number.
        before = first if len(first) < at else ""
        after = last if at + len(chip) + 1 + len(last) <= self.width else ""
        fill = max(0, self.width - at - len(chip) - len(after))
        return [*line, (before.ljust(at), NOTE), (chip, CURSOR), (" " * fill + after, NOTE)]


def chart_lines(label: str, series: Series, frame: Frame, screen: Screen, height: int, note: str = "") -> list[Line]:
    """The series in `height` rows: its name and scale at the left, its value at the cursor at the right."""
    values, marks = trend(series.steps, series.values, frame.bins)
    levels, ends, is_log = _bar_levels(np.where(marks == Mark.PLAIN, values, np.nan), height * 8)
    left = _axis_labels(label, ends, is_log, height, frame.gutter, screen, note)
    lines: list[Line] = []
    for row in range(height):
        floor = (height - 1 - row) * 8
        spans = [_cell_span(int(level), int(mark), floor, screen) for level, mark in zip(levels, marks, strict=True)]
        lines.append([*left[row], *frame.spread(spans)])
    if 0 <= frame.cursor < len(values):
        text, style = _at_cursor(float(values[frame.cursor]), int(marks[frame.cursor]), screen)
        lines[0].append((pad(text, 8, right=True), style))
    return lines


def _cell_span(level: int, mark: int, floor: int, screen: Screen) -> Span:
    glyphs = screen.glyphs
    if mark == Mark.NAN:
        return glyphs.nan, BROKEN
    if mark == Mark.INF:
        return glyphs.inf, BROKEN
    if mark == Mark.MISSING:
        return " ", PLAIN
    rest = level - floor
    if rest <= 0:
        return " ", PLAIN
    return glyphs.spark[min(rest, 8) - 1], PLAIN


def _bar_levels(values: FloatArray, num_levels: int) -> tuple[FloatArray, tuple[float, float], bool]:
    """1 to num_levels for each value, the ends of the scale, and whether it is a logarithm."""
    finite = values[np.isfinite(values)]
    if not len(finite):
        return np.zeros(len(values)), (np.nan, np.nan), False
    low, high = float(finite.min()), float(finite.max())
    is_log = low > 0 and high / low > 100
    shown, ends = (np.log(values), np.log([low, high])) if is_log else (values, np.array([low, high]))
    width = float(ends[1] - ends[0])
    if not width > 1e-9 * max(abs(low), abs(high), 1e-300):
        return np.where(np.isfinite(values), num_levels // 2, 0).astype(float), (low, high), False
    share = np.nan_to_num((shown - ends[0]) / width)
    out: FloatArray = np.where(np.isfinite(values), 1 + np.floor(share * (num_levels - 1) + 0.5), 0)
    return out, (low, high), is_log


def _axis_labels(
    label: str, ends: tuple[float, float], is_log: bool, height: int, gutter: int, screen: Screen, note: str
) -> list[Line]:
    """What stands left of the rows: name with the highest value, the lowest at the bottom."""
    room = gutter + 4
    texts = [numbers.number(end, ascii=screen.ascii) if np.isfinite(end) else "" for end in reversed(ends)]
    name = screen.name(label, max(0, room - cell_width(texts[0]) - 2))
    words = screen.name(f"{note} log".strip() if is_log else note, max(0, room - cell_width(texts[1]) - 2))
    out: list[Line] = []
    for row in range(height):
        left, right = "", ""
        if row == 0:
            left, right = name, texts[0]
        elif row == height - 1:
            left, right = words, texts[1] if texts[1] != texts[0] else ""
        fill = max(1, room - 1 - cell_width(left) - cell_width(right))
        out.append([(left, PLAIN if row == 0 else NOTE), (" " * fill + right + " ", NOTE)])
    return out


def _at_cursor(value: float, mark: int, screen: Screen) -> Span:
    if mark == Mark.NAN:
        return "NaN", BROKEN
    if mark == Mark.INF:
        return "Inf", BROKEN
    if mark == Mark.MISSING or not np.isfinite(value):
        return "", NOTE
    return numbers.number(value, ascii=screen.ascii), STRONG
