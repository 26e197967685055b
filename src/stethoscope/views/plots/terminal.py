"""Plots as text for a terminal of a given size: every line fits the width, every picture the height.

Promises: plain characters only, no color codes; NaN and infinities have marks of their own.
"""

from __future__ import annotations

import math

import numpy as np

from stethoscope.record import FloatArray, printable
from stethoscope.views.common.plot_data import Heatmap, Histogram, Lines, Plot, number
from stethoscope.views.common.style import USUAL, log_ratio
from stethoscope.views.common.styled_text import cut_middle

EIGHTHS = " ▏▎▍▌▋▊▉█"
HEAT = "·░▒▓█"
MARKS = "•+×o*◦"


def render(plot: Plot, width: int, height: int) -> str:
    """The plot as text, title first."""
    match plot:
        case Histogram():
            return histogram(plot, width, height)
        case Lines():
            return lines(plot, width, height)
        case Heatmap():
            return heatmap(plot, width, height)


def histogram(plot: Histogram, width: int, height: int) -> str:
    """A bar a bin, with its lower end on the left and its count on the right."""
    edges, counts = plot.edges, plot.counts
    room = max(height - 2, 1)
    while len(counts) > room:  # neighbours join until it fits
        if len(counts) % 2:
            counts, edges = np.append(counts, 0.0), np.append(edges, edges[-1])
        counts = counts.reshape(-1, 2).sum(axis=1)
        edges = edges[::2]
    labels = [number(float(edge)) for edge in edges[:-1]]
    numbers = [f"{int(count):,}" for count in counts]
    left, right = max(map(len, labels), default=0), max(map(len, numbers), default=0)
    bar_room = max(width - left - right - 3, 1)
    largest = float(counts.max(initial=0.0)) or 1.0
    broken = plot.num_nan + plot.num_inf
    note = f", {broken:,} not finite" if broken else ""
    out = [cut_middle(printable(f"{plot.name}: {int(plot.counts.sum()):,} values{note}"), width)]
    for label, count, shown in zip(labels, counts.tolist(), numbers, strict=True):
        bar = _bar_text(count / largest * bar_room, count > 0)
        out.append(f"{label:>{left}} │{bar:<{bar_room}} {shown:>{right}}"[:width].rstrip())
    return "\n".join(out) + "\n"


def _bar_text(length: float, some: bool) -> str:
    whole = int(length)
    part = EIGHTHS[int((length - whole) * 8)].strip()
    bar = "█" * whole + part
    return bar or ("▏" if some else "")


def lines(plot: Lines, width: int, height: int) -> str:
    """Points on a grid with the ends of both axes written out; ╳ on the bottom row where y is not finite."""
    out = [cut_middle(printable(plot.name), width)]
    ys = np.concatenate([y for _, y in plot.series.values()] or [np.zeros(0)])
    xs = np.concatenate([x for x, _ in plot.series.values()] or [np.zeros(0)])
    usable = np.isfinite(ys) & ((ys > 0) if plot.log else True)
    if not len(xs):
        return "\n".join([*out, "no values"]) + "\n"
    low, high = _value_range(ys[usable], plot.log)
    x_low, x_high = float(np.nanmin(xs)), float(np.nanmax(xs))
    ends = (number(_unscale_value(high, plot.log)), number(_unscale_value(low, plot.log)))
    left = max(len(end) for end in ends)
    columns, rows = max(width - left - 2, 2), max(height - (4 if len(plot.series) > 1 else 3), 2)
    grid = [[" "] * columns for _ in range(rows)]
    for position, (x, y) in enumerate(plot.series.values()):
        _mark_points(grid, x, _scale(y, plot.log), (x_low, x_high), (low, high), MARKS[position % len(MARKS)])
    for row, cells in enumerate(grid):
        label = ends[0] if row == 0 else ends[1] if row == rows - 1 else ""
        out.append(f"{label:>{left}} │{''.join(cells)}".rstrip())
    first, last = number(x_low), number(x_high)
    out.append(f"{'':>{left}}  {first}{last:>{max(columns - len(first), 1)}}"[:width])
    if len(plot.series) > 1:
        key = "  ".join(f"{MARKS[i % len(MARKS)]} {label}" for i, label in enumerate(plot.series))
        out.append(cut_middle(printable(key), width))
    return "\n".join(out) + "\n"


def _scale(values: FloatArray, log: bool) -> FloatArray:
    if not log:
        return values
    positive = np.where(values > 0, values, np.nan)
    scaled: FloatArray = np.log10(positive)
    return scaled


def _unscale_value(value: float, log: bool) -> float:
    return 10.0**value if log else value


def _value_range(values: FloatArray, log: bool) -> tuple[float, float]:
    if not len(values):
        return 0.0, 1.0
    scaled = _scale(values, log)
    return float(scaled.min()), float(scaled.max())


def _mark_points(
    grid: list[list[str]],
    x: FloatArray,
    y: FloatArray,
    x_range: tuple[float, float],
    y_range: tuple[float, float],
    mark: str,
) -> None:
    rows, columns = len(grid), len(grid[0])
    if 1 < len(x) < columns and np.isfinite(y).all() and (np.diff(x) > 0).all():  # few points: join them
        between = np.linspace(x[0], x[-1], columns)
        x, y = between, np.interp(between, x, y)
    for a, b in zip(x.tolist(), y.tolist(), strict=True):
        if not math.isfinite(a):
            continue
        col = _position(a, x_range, columns)
        if not math.isfinite(b):
            grid[rows - 1][col] = "╳"
        else:
            grid[rows - 1 - _position(b, y_range, rows)][col] = mark


def _position(value: float, span: tuple[float, float], count: int) -> int:
    low, high = span
    share = (value - low) / (high - low) if high > low else 0.5
    return min(max(round(share * (count - 1)), 0), count - 1)


def heatmap(plot: Heatmap, width: int, height: int) -> str:
    """A glyph a cell, the latest columns that fit; with history `^` or `v` ends a row that left the usual."""
    labels = [cut_middle(printable(label), max(width // 3, 6)) for label in plot.labels]
    left = max(map(len, labels), default=0)
    room = max(width - left - 4, 1)
    values = plot.values[:, -room:]
    ratios = (log_ratio(plot.values) if plot.history else _heat_levels(plot.values))[:, -room:]
    limit = max(height - 2, 1)
    out = [cut_middle(printable(plot.name), width)]
    for row in range(min(len(labels), limit)):
        glyphs = [_heat_glyph(v, c, plot.history) for v, c in zip(values[row], ratios[row], strict=True)]
        end = _trend_glyph(ratios[row]) if plot.history else ""
        out.append(f"{labels[row]:>{left}}  {''.join(glyphs)} {end}".rstrip())
    if len(labels) > limit:
        out.append(f"and {len(labels) - limit:,} more rows")
    return "\n".join(out) + "\n"


def _heat_levels(values: FloatArray) -> FloatArray:
    """0 to 1 between the smallest and largest finite value, on a log scale past two decades."""
    finite = values[np.isfinite(values)]
    if not len(finite):
        return np.zeros(values.shape)
    log = bool((finite > 0).all()) and finite.max() / finite.min() > 100
    with np.errstate(divide="ignore", invalid="ignore"):
        scaled = np.log10(values) if log else values
        low, high = _value_range(finite, log)
        level: FloatArray = (scaled - low) / (high - low) if high > low else np.zeros(values.shape)
    return level


def _heat_glyph(value: float, cell: float, history: bool) -> str:
    if math.isnan(value):
        return "╳"
    if math.isinf(value):
        return "∞"
    if history:
        if math.isnan(cell):
            return "_"
        return HEAT[min(1 + int(abs(cell) / 2.0), 4)] if abs(cell) > USUAL else HEAT[0]
    return HEAT[min(max(round(cell * 4), 0), 4)]


def _trend_glyph(cells: FloatArray) -> str:
    known = cells[np.isfinite(cells)]
    if not len(known) or abs(known[-1]) <= USUAL:
        return ""
    return "^" if known[-1] > 0 else "v"
