"""The moving picture: layers by steps with a cursor that walks, and every layer's norm at it; as frames and as a GIF."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt

from stethoscope.record import FloatArray, MissingExtraError
from stethoscope.views.common.plot_data import HeatGrid
from stethoscope.views.common.style import Tokens, figure_style, tokens
from stethoscope.views.plots.figures import draw_history, new_figure


def flow_pictures(grid: HeatGrid, max_pictures: int, *, dark: bool = False) -> list[npt.NDArray[np.uint8]]:
    """RGB pictures, one a step or every few: the heatmap with a cursor, and bars of the norms at it.

    Laid out and drawn once; from picture to picture only what moves is drawn again.
    """
    look = tokens(dark)
    count = len(grid.first_steps)
    indices = np.unique(np.linspace(0, max(count - 1, 0), min(max_pictures, count)).round().astype(int))
    out = []
    with figure_style(dark):
        figure = new_figure(9.6, min(max(1.6 + 0.2 * len(grid.labels), 2.6), 8.0))
        heat, bars = figure.subplots(1, 2, width_ratios=(3, 1), sharey=True)
        draw_history(heat, grid, dark)
        heat.set_xlabel("step")
        cursor = heat.axvline(0, color=look.ink, linewidth=1.2)
        title = heat.set_title(f"Gradient flow at step {int(grid.first_steps[-1]) if count else 0:,}")
        lengths = _bar_lengths(grid)
        shown, ticks = _draw_bars(bars, lengths, look)
        for artist in (cursor, title, *shown, ticks):
            artist.set_animated(True)
        figure.canvas.draw()
        figure.set_layout_engine("none")
        still = figure.canvas.copy_from_bbox(figure.bbox)
        for index in indices:
            figure.canvas.restore_region(still)
            cursor.set_xdata([index, index])
            title.set_text(f"Gradient flow at step {int(grid.first_steps[index]):,}")
            for bar, length, state in zip(shown, lengths[:, index], grid.state[:, index], strict=True):
                is_broken = bool(state >= 2)
                bar.set_width(bars.get_xlim()[1] if is_broken else 0.0 if math.isnan(length) else length)
                bar.set(
                    facecolor="none" if is_broken else look.series[1],
                    edgecolor=look.crit,
                    linewidth=0,
                    hatch="/////" if is_broken else None,
                )
                bars.draw_artist(bar)
            bars.draw_artist(ticks)
            heat.draw_artist(cursor)
            heat.draw_artist(title)
            out.append(np.asarray(figure.canvas.buffer_rgba())[..., :3].copy())
    return out


def _draw_bars(bars: Any, lengths: FloatArray, look: Tokens) -> tuple[Any, Any]:
    """A bar a layer, still without length, and the tick that marks its usual one."""
    usual = np.array([_median_length(row) for row in lengths])
    rows = np.arange(len(lengths))
    bars.grid(False)
    bars.set_xlim(0, max(float(np.nanmax(lengths, initial=0.0)), 1e-9) * 1.05)
    bars.set_xticks([])
    bars.tick_params(labelleft=False)
    shown = bars.barh(rows, np.zeros(len(rows)), height=0.62, color=look.series[1])
    ticks = bars.vlines(usual, rows - 0.42, rows + 0.42, color=look.ink, linewidth=1.2)
    bars.set_xlabel("norm (log), tick: usual")
    return shown, ticks


def _median_length(row: FloatArray) -> float:
    """The median of the steps that have a length: a layer that turned NaN is usually what it was before."""
    known = row[~np.isnan(row)]
    return float(np.median(known)) if len(known) else math.nan


def _bar_lengths(grid: HeatGrid) -> FloatArray:
    """Decades over the smallest positive norm, at most twelve of them."""
    positive = np.where((grid.norms > 0) & np.isfinite(grid.norms), grid.norms, np.nan)
    if np.isnan(positive).all():
        return np.zeros(grid.norms.shape)
    floor = max(float(np.nanmin(positive)), float(np.nanmax(positive)) * 1e-12)
    lengths: FloatArray = np.maximum(np.log10(positive / floor), 0.0) + 0.05
    return lengths


def save_gif(pictures: Sequence[npt.NDArray[np.uint8]], file: BinaryIO, frames_per_second: float) -> None:
    """One palette for all pictures, looping for ever; the last picture stays for two seconds."""
    try:
        from PIL import Image
    except ImportError as error:
        raise MissingExtraError("pillow", "plots", "Writing a GIF") from error
    images = [Image.fromarray(picture) for picture in pictures] or [Image.new("RGB", (8, 8), "white")]
    # Colors of the beginning, the middle and the end: what only one of them shows would else turn into something near it.
    chosen = [images[0], images[len(images) // 2], images[-1]]
    sheet = Image.new("RGB", (chosen[0].width, sum(image.height for image in chosen)))
    for index, image in enumerate(chosen):
        sheet.paste(image, (0, index * chosen[0].height))
    palette = sheet.quantize(colors=255, dither=Image.Dither.NONE)
    frames = [image.quantize(palette=palette, dither=Image.Dither.NONE) for image in images]
    duration = round(1000 / max(frames_per_second, 0.1))
    durations = [duration] * (len(frames) - 1) + [max(duration, 2000)]
    frames[0].save(file, format="GIF", save_all=True, append_images=frames[1:], duration=durations, loop=0)
