"""The pictures of a session that was asked for them: one dashboard of how training went, where instruments write."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Final

import numpy as np

from stethoscope.record import MissingExtraError, metrics
from stethoscope.session import messages

if TYPE_CHECKING:
    from stethoscope.instruments.visualizer import DebugVisualizer
    from stethoscope.store import Run

METRICS: Final = (metrics.LOSS, metrics.EVALUATION + metrics.LOSS, metrics.LEARNING_RATE, metrics.STEP_MS)
MAX_LAYERS: Final = 64


def draw(visualizer: DebugVisualizer, run: Run | None) -> str:
    """Draws what there is and says where it lies; nothing where there is nothing to draw."""
    if run is not None:
        _plot_run(run, visualizer)
    if not visualizer.get_plot_names():
        return ""
    folder = Path(visualizer.config.output_directory)
    try:
        board = visualizer.create_dashboard()
    except MissingExtraError as error:
        return f"stethoscope: the plots are text files, because {error.what}: {messages.shown(folder)}"
    return f"stethoscope: pictures in {messages.shown(board.path)}"


def _plot_run(run: Run, visualizer: DebugVisualizer) -> None:
    for name in METRICS:
        series = run.metric(name)
        if len(series):
            visualizer.plot_lines(name, series.steps, series.values)
    gradients = run.matrix("gradient")
    if len(gradients.steps) and gradients.sites:
        order = np.argsort([-info.num_elements for info in gradients.sites], kind="stable")[:MAX_LAYERS]
        chosen = np.sort(order)
        labels = [gradients.sites[i].site.path for i in chosen]
        values = gradients.values[:, chosen].T
        visualizer.plot_heatmap("gradients by layer", values, labels, gradients.steps, history=True)
