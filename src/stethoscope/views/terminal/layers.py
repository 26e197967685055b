"""The layers as a table: a small trend each, the value at the last step, and that against the usual."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from stethoscope.analyse.bins import Mark, bins_over, trend
from stethoscope.analyse.history import History
from stethoscope.record import Severity
from stethoscope.views.common import numbers
from stethoscope.views.common.glyphs import SEVERITY_STYLE, Screen
from stethoscope.views.common.styled_text import BROKEN, LARGER, NOTE, PLAIN, SMALLER, STRONG, Line, pad
from stethoscope.views.lines.heatmap import name_width
from stethoscope.views.lines.sparkline import bars

_VALUE, _RATIO = 12, 8
_STEADY = 2.2
"""The least a trend's scale spans, as a factor either way: a tenth of noise then stays in one row of bars."""


def layers_lines(
    history: History,
    screen: Screen,
    troubled: Mapping[str, Severity] | None = None,
    *,
    gutter: int | None = None,
) -> list[Line]:
    """One line a row, with a head that names the statistic and the step."""
    troubled = troubled or {}
    names = [screen.text(row.label) for row in history.rows]
    gutter = gutter or name_width(names, screen.width, heading(history))
    room = screen.width - 2 - gutter - 2 - _VALUE - _RATIO - 2
    bins = bins_over(history.steps, max(8, min(room, 64)))
    last = int(history.steps[-1]) if len(history.steps) else 0
    lines: list[Line] = [_heading_line(history, gutter, len(bins), last, screen)]
    for index, row in enumerate(history.rows):
        severity = troubled.get(row.name)
        name = pad(screen.name(row.label, gutter), gutter) + "  "
        sign = pad(screen.glyphs.severity[severity] if severity else "", 2)
        line: Line = [(sign, SEVERITY_STYLE[severity]) if severity else (sign, "")]
        line.append((name, STRONG if severity else PLAIN))
        series = history.series(index)
        heights, marks = trend(series.steps, series.values, bins)
        if row.frozen:
            marks[:] = Mark.MISSING
        line += bars(heights, marks, screen.glyphs, usual=_STEADY)
        line += _numbers(history, index, last, screen)
        lines.append(line)
    return lines


def heading(history: History) -> str:
    """What the table is of."""
    return f"{history.kind.replace('_', ' ')} {history.stat}"


def _heading_line(history: History, gutter: int, num_bins: int, last: int, screen: Screen) -> Line:
    label = pad(screen.name(heading(history), gutter), gutter)
    value = pad(f"at {numbers.count(last)}", _VALUE, right=True)
    return [("  ", ""), (f"{label}  {' ' * num_bins}{value}{pad('ratio', _RATIO, right=True)}", NOTE)]


def _numbers(history: History, index: int, last: int, screen: Screen) -> Line:
    found = history.last(index)
    if found is None:
        word = "no gradient" if history.rows[index].frozen else "not recorded"
        return [(pad(word, _VALUE + _RATIO, right=True), NOTE)]
    step, value = found
    text = pad(numbers.number(value, ascii=screen.ascii), _VALUE, right=True)
    if not np.isfinite(value):
        return [(text, BROKEN)]
    usual = float(history.usual[index])
    compared = abs(value) / usual if usual > 0 else float("nan")
    word = numbers.ratio(compared, ascii=screen.ascii) if usual > 0 else ""
    style = NOTE if word in ("usual", "") else LARGER if compared > 1 else SMALLER
    line: Line = [(text, PLAIN), (pad(word, _RATIO, right=True), style)]
    if step != last:
        line.append((f"  at {numbers.count(step)}", NOTE))
    return line
