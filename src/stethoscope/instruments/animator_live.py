"""The animation in the terminal: while it is recorded, or played back. Glyphs carry it; color helps."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Self

import numpy as np
from rich.console import Console
from rich.live import Live
from rich.text import Text

from stethoscope.instruments.animator_grid import INF, MISSING, NAN, Grid
from stethoscope.record import FloatArray
from stethoscope.views.common.style import USUAL, log_ratio
from stethoscope.views.common.styled_text import cut_middle

if TYPE_CHECKING:
    from stethoscope.instruments.animator import GradientFlowAnimator

HISTORY_GLYPHS = "·░▒▓█"
LARGER, SMALLER, TROUBLE, QUIET = "yellow", "blue", "red", "bright_black"


def render(grid: Grid, width: int, upto: int | None = None) -> Text:
    """The last steps that fit, each layer against its own median: larger yellow, smaller blue, NaN red."""
    labels = [cut_middle(label, max(width // 3, 8)) for label in grid.labels]
    label_width = max((len(label) for label in labels), default=5)
    room = max(width - label_width - 3, 4)
    end = len(grid.first_steps) if upto is None else upto
    start = max(end - room, 0)
    ratios = log_ratio(grid.norms)
    text = Text(no_wrap=True, overflow="crop")
    if end > start:
        text.append(f"Gradient flow  step {int(grid.first_steps[end - 1]):,}", style="bold")
        text.append(f"  since {int(grid.first_steps[start]):,}\n", style=QUIET)
    for row, label in enumerate(labels):
        text.append(f"{label:>{label_width}}  ")
        _append_cells(text, grid, ratios, row, start, end)
        text.append("\n")
    text.append("· usual  ", style=QUIET)
    text.append("▓ larger  ", style=LARGER)
    text.append("▓ smaller  ", style=SMALLER)
    text.append("╳ NaN  ∞ Inf", style=TROUBLE)
    return text


def _append_cells(text: Text, grid: Grid, ratios: FloatArray, row: int, start: int, end: int) -> None:
    for col in range(start, end):
        state, ratio = int(grid.state[row, col]), float(ratios[row, col])
        if state == NAN:
            text.append("╳", style=TROUBLE)
        elif state == INF:
            text.append("∞", style=TROUBLE)
        elif state == MISSING:
            text.append(" ")
        elif np.isnan(ratio):
            text.append("_", style=QUIET)
        else:
            level = min(int(abs(ratio) / 6.0 * 4 + 0.9), 4) if abs(ratio) > USUAL else 0
            style = QUIET if level == 0 else (LARGER if ratio > 0 else SMALLER)
            text.append(HISTORY_GLYPHS[level], style=style)


class LiveView:
    """Redraws the heatmap in place on every recorded step, at most ten times a second."""

    def __init__(self, animator: GradientFlowAnimator, console: Any, max_rows: int | None) -> None:
        self._animator = animator
        self._console = console or Console()
        self._max_rows = max_rows
        self._live = Live(console=self._console, refresh_per_second=10, transient=False)
        self._last = 0.0

    def _draw(self) -> Text:
        size = self._console.size
        height = min(size.height - 1, (self._max_rows or size.height) + 3)
        return render(self._animator.grid(max_rows=max(height - 3, 1), natural=True), size.width)

    def refresh(self) -> None:
        """Redraws now unless the last redraw was under a tenth of a second ago."""
        now = time.monotonic()
        if now - self._last >= 0.1:
            self._last = now
            self._live.update(self._draw())

    def __enter__(self) -> Self:
        self._animator._listeners.append(self)
        self._live.__enter__()
        return self

    def __exit__(self, *exc: object) -> None:
        self._animator._listeners.remove(self)
        self._live.update(self._draw(), refresh=True)
        self._live.stop()


def play(animator: GradientFlowAnimator, console: Any, frames_per_second: float) -> None:
    """Plays what was recorded, a column at a time; without a terminal the last picture only."""
    console = console or Console()
    size = console.size
    grid = animator.grid(max_rows=max(size.height - 4, 1), natural=True)
    if not console.is_terminal:
        console.print(render(grid, size.width))
        return
    with Live(console=console, refresh_per_second=max(frames_per_second, 1.0)) as live:
        for upto in range(1, len(grid.first_steps) + 1):
            live.update(render(grid, size.width, upto))
            time.sleep(1.0 / frames_per_second)
