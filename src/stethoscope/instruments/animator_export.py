"""The animator's files: JSON, CSV, text, still pictures and the moving one. Each is whole or not there."""

from __future__ import annotations

import csv
import io
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from stethoscope.instruments.files import plain, write_atomically, write_text
from stethoscope.record import StethoscopeError, printable
from stethoscope.views.common.placing import placed_beside

if TYPE_CHECKING:
    from stethoscope.instruments.animator import GradientFlowAnimator

CSV_HEADER = (
    "step",
    "layer",
    "mean_abs_grad",
    "max_abs_grad",
    "grad_norm",
    "is_vanishing",
    "is_exploding",
)

JSON_FIELDS = (
    "name",
    "mean_abs_grad",
    "max_abs_grad",
    "grad_norm",
    "is_vanishing",
    "is_exploding",
    "flow_intensity",
    "non_finite",
)


def export_json(animator: GradientFlowAnimator, path: str | Path) -> Path:
    """A list of frames, one to a line, so that a long recording is written as it is read."""
    import json

    def write(file: BinaryIO) -> None:
        file.write(b"[")
        for temporary, (step, rows) in enumerate(animator.rows()):
            layers = [dict(zip(JSON_FIELDS, (*row[:-1], plain(row[-1])), strict=True)) for row in rows]
            line = json.dumps({"step": step, "layers": layers}, allow_nan=False, ensure_ascii=False)
            file.write(("\n" if temporary == 0 else ",\n").encode() + line.encode())
        file.write(b"\n]\n")

    return write_atomically(path, write)


def export_csv(animator: GradientFlowAnimator, path: str | Path) -> Path:
    """The timeline, quoted where a name needs it; a layer that holds a NaN has `nan` in its numbers, one that holds an
    infinity `inf`, as floating-point arithmetic over all of its elements would have."""
    quoted: dict[str, str] = {}

    def line_of(step: int, row: tuple[Any, ...]) -> str:
        name, mean, largest, norm, vanishing, exploding, _, where = row
        cell = quoted.get(name)
        if cell is None:
            cell = quoted[name] = _csv_cell(name)
        if where is not None:
            mean = largest = norm = float("nan") if where.num_nan else float("inf")
        return f"{step},{cell},{mean:.8e},{largest:.8e},{norm:.8e},{vanishing:d},{exploding:d}\n"

    def write(file: BinaryIO) -> None:
        file.write((",".join(CSV_HEADER) + "\n").encode())
        for step, rows in animator.rows():
            file.write("".join([line_of(step, row) for row in rows]).encode())

    return write_atomically(path, write)


def _csv_cell(name: str) -> str:
    """A name as a cell, by the rules of the csv module."""
    text = io.StringIO()
    end = "\r\n"  # what it is told to end lines with is what it looks for in a name, besides commas and quotes
    csv.writer(text, lineterminator=end).writerow([name])
    return text.getvalue().removesuffix(end)


def _require_frames(animator: GradientFlowAnimator) -> None:
    """Pictures need at least one frame."""
    if not len(animator.frames):
        raise StethoscopeError("there is nothing to draw: no step was recorded", do="Call record_step first")


def export_text(animator: GradientFlowAnimator, path: str | Path) -> Path:
    """The heatmap as text, and the verdict under it."""
    summary = animator.summary_report()
    lines = [animator.to_ascii_animation(), f"{summary.overall_health}", *summary.recommendations, ""]
    return write_text(path, "\n".join(lines))


def export_picture(animator: GradientFlowAnimator, path: str | Path, kind: str, *, dark: bool) -> Path:
    """The heatmap, each layer against its own median."""
    _require_frames(animator)
    from stethoscope.views.plots import figures as plots

    grid = animator.grid(max_rows=160, max_columns=800, natural=True)
    figure = plots.history_heatmap(grid, title="Gradient norm against its own median", dark=dark)
    return write_atomically(path, lambda file: plots.save(figure, file, kind))


def export_gif(animator: GradientFlowAnimator, path: str | Path, fps: float, max_pictures: int, *, dark: bool) -> Path:
    """The cursor walks over the heatmap while bars show every layer's norm at it."""
    _require_frames(animator)
    from stethoscope.views.plots import moving as moving_plots

    grid = animator.grid(max_rows=64, max_columns=400, natural=True)
    pictures = moving_plots.flow_pictures(grid, max_pictures, dark=dark)
    return write_atomically(path, lambda file: moving_plots.save_gif(pictures, file, fps))


def export_html(animator: GradientFlowAnimator, path: str | Path, title: str, fps: float) -> Path:
    """One page with its numbers, style and script inside."""
    _require_frames(animator)
    from stethoscope.views.motion import motion_html

    grid = animator.grid(max_rows=200, max_columns=1200, natural=True)
    plain = animator.to_ascii_animation(max_rows=120, max_columns=160)
    return write_text(
        path, motion_html(grid, title=printable(title, limit=200), plain=plain, last_step=grid.last_step, speed=fps)
    )


def export_mp4(animator: GradientFlowAnimator, path: str | Path, fps: float, max_pictures: int, *, dark: bool) -> Path:
    """The pictures of the GIF, more of them, as a film."""
    _require_frames(animator)
    from stethoscope.instruments.film import find_ffmpeg, write_mp4
    from stethoscope.views.plots import moving as moving_plots

    find_ffmpeg()
    grid = animator.grid(max_rows=64, max_columns=400, natural=True)
    pictures = moving_plots.flow_pictures(grid, max_pictures, dark=dark)
    with placed_beside(path) as temporary:
        write_mp4(pictures, temporary, fps)
    return Path(path)
