"""The animator's files: JSON, CSV, text, still pictures and the moving one. Each is whole or not there."""

from __future__ import annotations

import csv
import io
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from stethoscope.instruments.files import plain, write_atomically, write_text

if TYPE_CHECKING:
    from stethoscope.instruments.animator import GradientFlowAnimator

CSV_HEADER = (
    "step", "layer", "mean_abs_grad", "max_abs_grad", "grad_norm", "is_vanishing", "is_exploding",
)  # fmt: skip


def export_json(animator: GradientFlowAnimator, path: str | Path) -> Path:
    """A list of frames, one to a line, so that a long recording is written as it is read."""
    import json

    def write(file: BinaryIO) -> None:
        file.write(b"[")
        for place, frame in enumerate(animator.frames):
            line = json.dumps(plain(frame), allow_nan=False, ensure_ascii=False)
            file.write(("\n" if place == 0 else ",\n").encode() + line.encode())
        file.write(b"\n]\n")

    return write_atomically(path, write)


def export_csv(animator: GradientFlowAnimator, path: str | Path) -> Path:
    """The timeline, quoted where a name needs it."""

    def write(file: BinaryIO) -> None:
        text = io.TextIOWrapper(file, encoding="utf-8", newline="")
        lines = csv.writer(text, lineterminator="\n")
        lines.writerow(CSV_HEADER)
        for frame in animator.frames:
            lines.writerows(
                (
                    frame.step,
                    layer.name,
                    f"{layer.mean_abs_grad:.8e}",
                    f"{layer.max_abs_grad:.8e}",
                    f"{layer.grad_norm:.8e}",
                    int(layer.is_vanishing),
                    int(layer.is_exploding),
                )
                for layer in frame.layers
            )
        text.flush()
        text.detach()

    return write_atomically(path, write)


def export_text(animator: GradientFlowAnimator, path: str | Path) -> Path:
    """The heatmap as text, and the verdict under it."""
    summary = animator.summary_report()
    lines = [animator.to_ascii_animation(), f"{summary.overall_health}", *summary.recommendations, ""]
    return write_text(path, "\n".join(lines))


def export_picture(animator: GradientFlowAnimator, path: str | Path, kind: str, *, dark: bool) -> Path:
    """The heatmap, each layer against its own median."""
    from stethoscope.views import plots

    grid = animator.grid(max_rows=160, max_columns=800, natural=True)
    figure = plots.history_heatmap(grid, title="Gradient norm against its own median", dark=dark)
    return write_atomically(path, lambda file: plots.save(figure, file, kind))


def export_gif(
    animator: GradientFlowAnimator, path: str | Path, fps: float, max_pictures: int, *, dark: bool
) -> Path:
    """The cursor walks over the heatmap while bars show every layer's norm at it."""
    from stethoscope.views import plots

    grid = animator.grid(max_rows=64, max_columns=400, natural=True)
    pictures = plots.flow_pictures(grid, max_pictures, dark=dark)
    return write_atomically(path, lambda file: plots.save_gif(pictures, file, fps))
