"""Layers by steps: a healthy run is a field of dots, and the first wrong cell is the first one seen."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

import numpy as np

from stethoscope.analyse.bins import Mark
from stethoscope.analyse.history import Grid, History, grid
from stethoscope.record import FloatArray, Severity, plural
from stethoscope.views.common import numbers
from stethoscope.views.common.glyphs import SEVERITY_STYLE, Screen
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
    flow_parts,
    join_runs,
    pad,
)
from stethoscope.views.lines import axis

LEVELS = (1.5, 3.0, 6.0, 12.0)
"""How far from usual, as a factor either way, each darker sign begins."""

_GUTTER = 2
"""Cells left of a name, where a finding's sign stands."""


@dataclasses.dataclass(frozen=True, slots=True)
class Picture:
    """What to draw besides the numbers: findings by row, numbered events, raw values instead of ratios."""

    troubled: Mapping[str, Severity] = dataclasses.field(default_factory=dict)
    """From the name of a row to the worst severity found in it."""
    events: Sequence[int] = ()
    raw: bool = False
    limit: int | None = None
    """At most so many rows, those with most to show; None for all."""


def heatmap_lines(
    history: History, screen: Screen, picture: Picture | None = None, *, gutter: int | None = None
) -> list[Line]:
    """The picture with its axis above and its key below; `gutter` is the width of the names."""
    picture = picture or Picture()
    history, num_hidden = shortened(history, picture)
    names = [screen.text(row.label) for row in history.rows]
    gutter = gutter or name_width(names, screen.width, heading=kind_text(history))
    room = screen.width - _GUTTER - gutter - 2 - (2 if screen.glyphs.marks_direction else 0)
    cells = grid(history, max(room, 8), raw=picture.raw)
    lines = _heading_lines(history, cells, gutter, screen, picture)
    levels = cell_levels(cells, raw=picture.raw)
    for index, row in enumerate(history.rows):
        severity = picture.troubled.get(row.name)
        line = _name_spans(row.label, severity, gutter, screen)
        line += join_runs(cell_spans(cells, levels, index, screen, raw=picture.raw))
        lines.append(line + ([] if picture.raw else direction(cells, levels, index, screen)))
    if num_hidden:
        lines.append(hidden_line(num_hidden))
    lines += [[], *flow_parts(key_parts(cells, screen, raw=picture.raw), screen.width, indent="  ")]
    return lines


def hidden_line(num_rows: int, how: str = "") -> Line:
    """What is not shown, and how to see it."""
    note = f"and {plural(num_rows, 'row')} more, nearer to usual"
    return [("  ", ""), (f"{note}; {how}" if how else note, NOTE)]


def name_width(names: Sequence[str], width: int, heading: str = "") -> int:
    """Cells for the column of names: what they need, up to a third of the screen."""
    needed = max((cell_width(name) for name in [*names, heading]), default=8)
    return max(6, min(needed, width // 3))


def kind_text(history: History) -> str:
    """The words over the names: "gradient", or with the statistic where it is not the norm."""
    kind = history.kind.replace("_", " ")
    return kind if history.stat == "norm" else f"{kind} {history.stat}"


def _heading_lines(history: History, cells: Grid, gutter: int, screen: Screen, picture: Picture) -> list[Line]:
    left = " " * (_GUTTER + gutter + 2)
    lines: list[Line] = []
    marks = axis.flags(cells.bins, picture.events, screen.glyphs)
    if marks:
        lines.append([(left, ""), *marks])
    ends = (int(history.steps[0]), int(history.steps[-1])) if len(history.steps) else (0, 0)
    label = pad(screen.name(kind_text(history), gutter), gutter)
    return [*lines, [("  ", ""), (f"{label}  {axis.axis(cells.bins, *ends)}", NOTE)]]


def _name_spans(name: str, severity: Severity | None, gutter: int, screen: Screen) -> Line:
    text = pad(screen.name(name, gutter), gutter) + "  "
    if severity is None:
        return [(" " * _GUTTER, ""), (text, PLAIN)]
    sign = pad(screen.glyphs.severity[severity], _GUTTER)
    return [(sign, SEVERITY_STYLE[severity]), (text, STRONG)]


def cell_levels(cells: Grid, *, raw: bool) -> FloatArray:
    """How dark each cell is, [R, C]: -4 to 4 from far under usual to far over it; of values, 0 to 4."""
    return _value_levels(cells) if raw else ratio_levels(cells.levels)


def cell_spans(cells: Grid, levels: FloatArray, index: int, screen: Screen, *, raw: bool) -> list[Span]:
    """One row of the picture, a sign for each cell."""
    marks = cells.marks[index]
    spans = [cell_sign(int(mark), float(level), screen) for mark, level in zip(marks, levels[index], strict=True)]
    if raw:
        return [(sign, "" if style in (LARGER, SMALLER) else style) for sign, style in spans]
    return spans


def direction(cells: Grid, levels: FloatArray, index: int, screen: Screen) -> Line:
    """Which way the farthest cell of a row lies, where the signs alone cannot say it."""
    plain = levels[index][(cells.marks[index] == Mark.PLAIN) & (levels[index] != 0)]
    if not screen.glyphs.marks_direction or not len(plain):
        return []
    return [(" ^", LARGER)] if plain[int(np.abs(plain).argmax())] > 0 else [(" v", SMALLER)]


def cell_sign(mark: int, level: float, screen: Screen) -> Span:
    """Level -4 to 4: how many signs away from usual, and which way."""
    glyphs = screen.glyphs
    if mark == Mark.PLAIN:
        if np.isnan(level) or level == 0:
            return glyphs.heat[0], NOTE
        style = LARGER if level > 0 else SMALLER
        return glyphs.heat[min(4, int(abs(level)))], style
    sign, style = {
        int(Mark.NAN): (glyphs.nan, BROKEN),
        int(Mark.INF): (glyphs.inf, BROKEN),
        int(Mark.DEAD): (glyphs.dead, PLAIN),
        int(Mark.FROZEN): (glyphs.frozen, NOTE),
        int(Mark.SKIPPED): (glyphs.skipped, NOTE),
    }.get(mark, (glyphs.missing, PLAIN))
    return sign, style


def ratio_levels(ratios: FloatArray) -> FloatArray:
    """From log2 ratios to -4 to 4, by the factors of LEVELS."""
    edges = np.log2(np.array(LEVELS))
    steps = np.searchsorted(edges, np.abs(np.nan_to_num(ratios, nan=0.0)), side="right")
    out: FloatArray = np.sign(np.nan_to_num(ratios, nan=0.0)) * steps
    return out


def _value_levels(cells: Grid) -> FloatArray:
    """0 to 4 from the lowest to the highest value shown."""
    low, high, log = value_range(cells)
    with np.errstate(divide="ignore", invalid="ignore"):
        shown = np.log(np.abs(cells.levels)) if log else cells.levels
    ends = (np.log(low), np.log(high)) if log else (low, high)
    if not ends[1] > ends[0]:
        return np.zeros_like(cells.levels)
    share = (shown - ends[0]) / (ends[1] - ends[0])
    out: FloatArray = np.clip(np.floor(np.nan_to_num(share, nan=0.0, neginf=0.0) * 5), 0, 4)
    return out


def value_range(cells: Grid) -> tuple[float, float, bool]:
    """Lowest and highest value shown, and whether the scale between them is a logarithm."""
    shown = cells.levels[(cells.marks == Mark.PLAIN) & np.isfinite(cells.levels)]
    if not len(shown):
        return 0.0, 0.0, False
    low, high = float(shown.min()), float(shown.max())
    return low, high, low > 0 and high / low > 100


def shortened(history: History, picture: Picture) -> tuple[History, int]:
    """The rows with most to show where there are too many, in model order, and how many are left out."""
    num_rows = len(history.rows)
    if picture.limit is None or num_rows <= picture.limit:
        return history, 0
    ratios = np.nan_to_num(np.abs(history.ratios), nan=0.0, posinf=64.0)
    score = ratios.max(axis=0, initial=0.0)
    score += 100.0 * (history.marks >= Mark.INF).any(axis=0)
    score += 1000.0 * np.array([row.name in picture.troubled for row in history.rows])
    kept = sorted(np.argsort(-score, kind="stable")[: picture.limit].tolist())
    return history.take(kept), num_rows - len(kept)


def key_parts(cells: Grid, screen: Screen, *, raw: bool) -> list[Line]:
    """What the signs mean, only those that are in the picture."""
    glyphs, marks = screen.glyphs, cells.marks
    if raw:
        low, high, log = value_range(cells)
        ends = [numbers.number(end, ascii=screen.ascii) for end in (low, high)]
        words = [(f"{glyphs.heat[0]} {ends[0]}", NOTE), (f"{glyphs.heat[4]} {ends[1]}", PLAIN)]
        words += [("log scale", NOTE)] if log else []
    else:
        words = [(f"{glyphs.heat[0]} usual", NOTE)]
        if glyphs.marks_direction:
            words += [("^ larger", LARGER), ("v smaller", SMALLER)]
        else:
            words += [(f"{glyphs.heat[3]} larger", LARGER), (f"{glyphs.heat[3]} smaller", SMALLER)]
    signs = (
        (Mark.NAN, glyphs.nan, "NaN", BROKEN),
        (Mark.INF, glyphs.inf, "Inf", BROKEN),
        (Mark.DEAD, glyphs.dead, "all zero", PLAIN),
        (Mark.FROZEN, glyphs.frozen, "frozen", NOTE),
        (Mark.SKIPPED, glyphs.skipped, "step skipped", NOTE),
    )
    words += [(f"{sign} {word}", style) for mark, sign, word, style in signs if (marks == mark).any()]
    if (marks == Mark.MISSING).any():
        words.append(("blank missing", NOTE))
    if cells.bins.size > 1:
        words.append((f"{numbers.count(cells.bins.size)} steps a cell", NOTE))
    return [[word] for word in words]
