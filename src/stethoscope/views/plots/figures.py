"""Plots as pictures, in our style: distributions, lines, heatmaps, dashboards; PNG, SVG and moving GIF.

Promises: no pyplot and no global state, so it is safe in a thread, a notebook and a user's own figures; NaN
and Inf are hatched, never blank; names are drawn as they are, not as markup.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt

from stethoscope.record import FloatArray, IntArray, printable
from stethoscope.views.common.plot_data import HeatGrid, Heatmap, Histogram, Lines, Plot, number
from stethoscope.views.common.style import (
    HEADING_WEIGHT,
    HISTORY_RANGE,
    Tokens,
    colormap,
    figure_style,
    log_ratio,
    monospace,
    tokens,
)
from stethoscope.views.common.styled_text import cut_middle

MAX_LABELS = 40


def new_figure(width: float = 7.2, height: float = 3.0) -> Any:
    """A figure that pyplot does not manage; call inside `figure_style`."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def save(figure: Any, file: BinaryIO, kind: str) -> None:
    """PNG at 200 dpi, or SVG with its text as text and no date, so that equal data gives equal files."""
    dark = figure.get_facecolor()[0] < 0.5
    metadata = {"Date": None} if kind == "svg" else {}
    with figure_style(dark):
        figure.savefig(file, format=kind, dpi=200, metadata=metadata)


def plain_text(text: str) -> str:
    """Text that matplotlib draws as it is: `$` would start a formula."""
    return printable(text).replace("$", r"\$")


def draw(plots: Sequence[Plot], *, dark: bool = False, title: str = "") -> Any:
    """One figure with every plot: alone full width, several in two columns."""
    with figure_style(dark):
        columns = 1 if len(plots) < 2 else 2
        rows = max(-(-len(plots) // columns), 1)
        height = sum(
            max((_plot_height(p) for p in plots[r * columns : (r + 1) * columns]), default=2.8) for r in range(rows)
        )
        figure = new_figure(7.2 if columns == 1 else 11.0, height + (0.4 if title else 0.0))
        if title:
            figure.suptitle(
                plain_text(title),
                x=0.01,
                ha="left",
                fontsize=12,
                fontweight=HEADING_WEIGHT,
                color=tokens(dark).ink,
            )
        axes = figure.subplots(rows, columns, squeeze=False).reshape(-1)
        for axis, plot in zip(axes, plots, strict=False):
            draw_on(axis, plot, dark=dark)
        for axis in axes[len(plots) :]:
            axis.set_axis_off()
    return figure


def _plot_height(plot: Plot) -> float:
    if isinstance(plot, Heatmap):
        return min(max(1.2 + 0.18 * min(len(plot.labels), MAX_LABELS), 2.4), 8.0)
    return 2.8


def draw_on(axis: Any, plot: Plot, *, dark: bool = False) -> None:
    """Draws one plot on a matplotlib axis of the caller's."""
    match plot:
        case Histogram():
            _draw_histogram(axis, plot, tokens(dark))
        case Lines():
            _draw_lines(axis, plot, tokens(dark))
        case Heatmap():
            _draw_heatmap(axis, plot, dark)
    axis.set_title(plain_text(plot.name))


def _draw_histogram(axis: Any, plot: Histogram, look: Tokens) -> None:
    axis.stairs(plot.counts, plot.edges, fill=True, color=look.series[0], alpha=0.2)
    axis.stairs(plot.counts, plot.edges, color=look.series[0], linewidth=1.2)
    axis.set_ylim(bottom=0)
    _few_ticks(axis)
    broken = plot.num_nan + plot.num_inf
    if broken:
        note = f"{plot.num_nan:,} NaN, {plot.num_inf:,} Inf left out"
        axis.annotate(note, (1, 1), xycoords="axes fraction", ha="right", va="top", color=look.crit, fontsize=8)


def _draw_lines(axis: Any, plot: Lines, look: Tokens) -> None:
    if plot.log:
        axis.set_yscale("log")
    drawn = []
    for position, (label, (x, y)) in enumerate(plot.series.items()):
        if position < 6:
            (line,) = axis.plot(x, np.where(np.isfinite(y), y, np.nan), zorder=3)
            color = line.get_color()
        else:  # a seventh color would not be told apart: the rest recede
            axis.plot(x, np.where(np.isfinite(y), y, np.nan), color=look.ink3, alpha=0.4, linestyle="solid")
            color = look.ink3
        if len(x) <= 40 and len(x) > 0:
            axis.plot(x, np.where(np.isfinite(y), y, np.nan), ".", color=color, markersize=5, zorder=4)
        _hatch_broken(axis, x, y, look)
        finite = np.flatnonzero(np.isfinite(y))
        if len(finite):
            drawn.append((label, float(x[finite[-1]]), float(y[finite[-1]]), color))
    if len(plot.series) > 1:
        _direct_labels(axis, drawn[:6], look)
    if plot.log:
        axis.minorticks_off()
    else:
        _few_ticks(axis)
    if all(bool(np.all(x == np.round(x))) for x, _ in plot.series.values()):
        axis.xaxis.get_major_locator().set_params(integer=True)
    axis.set_xlabel(plain_text(plot.x_label))


def _direct_labels(axis: Any, drawn: list[tuple[str, float, float, str]], look: Tokens) -> None:
    """Names at the line ends, pushed apart where they would touch."""
    readable = [look.series[i] for i in (0, 1, 3, 4)]
    axis.margins(x=0.02)
    axis.figure.canvas.draw()
    to_pixels = axis.transData.transform
    height = axis.get_window_extent().height or 1.0
    low = axis.get_window_extent().y0
    taken: list[float] = []
    for label, x, y, color in sorted(drawn, key=lambda item: item[2]):
        position = (to_pixels((x, y))[1] - low) / height
        if taken and position < taken[-1] + 0.07:
            position = taken[-1] + 0.07
        taken.append(position)
        axis.annotate(
            plain_text(label),
            (1.01, position),
            xycoords="axes fraction",
            va="center",
            fontsize=8,
            color=color if color in readable else look.ink2,
            annotation_clip=False,
        )


def _hatch_broken(axis: Any, x: FloatArray, y: FloatArray, look: Tokens) -> None:
    """The full height hatched wherever y is not finite."""
    if not len(x):
        return
    bad = ~np.isfinite(y)
    width = float(np.median(np.diff(x))) if len(x) > 1 else 1.0
    edges = np.flatnonzero(np.diff(np.concatenate([[0], bad.astype(np.int8), [0]])))
    for start, end in zip(edges[::2], edges[1::2], strict=True):
        axis.axvspan(
            x[start] - width / 2,
            x[end - 1] + width / 2,
            facecolor=look.crit_tint,
            edgecolor=look.crit,
            hatch="////",
            linewidth=0,
            zorder=1,
        )


def _few_ticks(axis: Any) -> None:
    from matplotlib.ticker import FuncFormatter, MaxNLocator

    axis.yaxis.set_major_locator(MaxNLocator(nbins=3, min_n_ticks=2))
    axis.yaxis.set_major_formatter(FuncFormatter(lambda value, _: number(float(f"{value:.6g}"))))


def _draw_heatmap(axis: Any, plot: Heatmap, dark: bool) -> None:
    values = plot.values
    state = np.where(np.isnan(values), 3, np.where(np.isinf(values), 2, 0)).astype(np.uint8)
    finite = values[np.isfinite(values)]
    if plot.history:
        cells, limits, ramp = log_ratio(values), (-HISTORY_RANGE, HISTORY_RANGE), "history"
    else:
        positive = len(finite) > 0 and bool((finite > 0).all()) and finite.max() / finite.min() > 100
        cells = np.log10(np.where(np.isfinite(values), values, np.nan)) if positive else values
        cells = np.where(np.isfinite(values), cells, np.nan)
        known = cells[np.isfinite(cells)]
        limits = (float(known.min()), float(known.max())) if len(known) else (0.0, 1.0)
        ramp = "value"
        if positive:
            axis.annotate("log scale", (1, 1.02), xycoords="axes fraction", ha="right", fontsize=8)
    image = _paint_cells(axis, cells, state, limits, ramp, dark)
    _label_rows(axis, plot.labels)
    _label_columns(axis, plot.columns)
    _draw_key(axis, image, history=plot.history, dark=dark)


def _paint_cells(
    axis: Any,
    cells: FloatArray,
    state: npt.NDArray[np.uint8],
    limits: tuple[float, float],
    ramp: str,
    dark: bool,
) -> Any:
    """Cells by ramp; 1 px between rows; textures for what has no plain number."""
    look = tokens(dark)
    rows, columns = cells.shape
    low, high = limits
    image = axis.imshow(
        np.ma.masked_invalid(cells),
        aspect="auto",
        interpolation="nearest",
        origin="upper",
        cmap=colormap(ramp, dark),
        vmin=low,
        vmax=high if high > low else low + 1.0,
        extent=(-0.5, columns - 0.5, rows - 0.5, -0.5),
    )
    axis.grid(False)
    axis.spines["bottom"].set_visible(False)
    if rows <= 80:
        axis.hlines(np.arange(rows - 1) + 0.5, -0.5, columns - 0.5, color=look.sheet, linewidth=0.8)
    zero = (state == 0) & np.isnan(cells)
    _draw_texture(axis, state == 3, look.crit_tint, look.crit, "////")
    _draw_texture(axis, state == 2, look.crit_tint, look.crit, "++++")
    _draw_texture(axis, state == 1, look.sheet, look.mark, "....")
    _draw_texture(axis, zero, look.sunken, look.sunken, "", bar=look.ink2)
    return image


def _draw_texture(axis: Any, where: npt.NDArray[np.bool_], face: str, edge: str, hatch: str, bar: str = "") -> None:
    """Runs of such cells in a row, joined into one strip: hatched, or with a bar along its middle."""
    from matplotlib.patches import Rectangle

    for row in np.flatnonzero(where.any(axis=1)):
        marks = np.flatnonzero(np.diff(np.concatenate([[0], where[row].astype(np.int8), [0]])))
        for start, end in zip(marks[::2], marks[1::2], strict=True):
            axis.add_patch(
                Rectangle(
                    (start - 0.5, row - 0.5),
                    end - start,
                    1.0,
                    facecolor=face,
                    edgecolor=edge,
                    hatch=hatch,
                    linewidth=0,
                )
            )
            if bar:
                axis.hlines(row, start - 0.5, end - 0.5, color=bar, linewidth=3)


def _label_rows(axis: Any, labels: Sequence[str]) -> None:
    every = max(-(-len(labels) // MAX_LABELS), 1)
    positions = range(0, len(labels), every)
    axis.set_yticks(list(positions))
    axis.set_yticklabels(
        [plain_text(cut_middle(labels[i], 28)) for i in positions], fontfamily=monospace(), fontsize=7.5
    )


def _label_columns(axis: Any, columns: FloatArray | IntArray) -> None:
    count = len(columns)
    if not count:
        return
    from matplotlib.ticker import MaxNLocator

    first, last = float(columns[0]), float(columns[-1])
    ticks = [first] if count == 1 else MaxNLocator(5, integer=True).tick_values(first, last)
    wanted = np.asarray(ticks, dtype=np.float64)
    wanted = wanted[(wanted >= first) & (wanted <= last)]
    axis.set_xticks(np.interp(wanted, np.asarray(columns, dtype=np.float64), np.arange(count)))
    axis.set_xticklabels([number(float(step)) for step in wanted])


def _draw_key(axis: Any, image: Any, *, history: bool, dark: bool) -> None:
    """The ends of the scale are written on the key."""
    bar = axis.figure.colorbar(image, ax=axis, shrink=0.6, aspect=18, pad=0.015)
    bar.outline.set_visible(False)
    bar.ax.tick_params(length=0, labelsize=7.5, labelcolor=tokens(dark).ink2)
    if history:
        bar.set_ticks([-HISTORY_RANGE, 0, HISTORY_RANGE])
        bar.set_ticklabels(["1/64", "usual", "×64"])


def history_heatmap(grid: HeatGrid, *, title: str, dark: bool = False) -> Any:
    """Each layer against its own median over the steps."""
    with figure_style(dark):
        figure = new_figure(8.0, min(max(1.4 + 0.18 * len(grid.labels), 2.4), 11.0))
        axis = figure.subplots()
        draw_history(axis, grid, dark)
        axis.set_title(plain_text(title))
        axis.set_xlabel("step")
    return figure


def draw_history(axis: Any, grid: HeatGrid, dark: bool) -> None:
    """The same on an axis of the caller's."""
    limits = (-HISTORY_RANGE, HISTORY_RANGE)
    cells = np.clip(log_ratio(grid.norms), *limits)
    cells = np.where(grid.state == 0, cells, np.nan)
    image = _paint_cells(axis, cells, grid.state, limits, "history", dark)
    _label_rows(axis, grid.labels)
    _label_columns(axis, grid.first_steps)
    _draw_key(axis, image, history=True, dark=dark)
