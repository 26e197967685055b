"""The list of runs: state, name, when it began, how far, loss, what was found; newest last."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

from stethoscope.explain import Verdict, conclude
from stethoscope.record import Finding, Series, metrics
from stethoscope.views.common import numbers
from stethoscope.views.common.glyphs import SEVERITY_STYLE, STATE_STYLE, Screen
from stethoscope.views.common.run_status import started_at
from stethoscope.views.common.styled_text import (
    BROKEN,
    NOTE,
    PLAIN,
    WARNING,
    Line,
    cell_width,
    fit_line,
    line_width,
    pad,
)
from stethoscope.views.lines.sparkline import sparkline
from stethoscope.views.lines.verdict import state_sign, state_style

if TYPE_CHECKING:
    from stethoscope.store import Run


@dataclasses.dataclass(frozen=True, slots=True)
class RunRow:
    """One run as the list shows it."""

    id: str
    name: str
    state: str
    started_at: float | None = None
    last_step: int | None = None
    loss: Series = dataclasses.field(default_factory=Series)
    finding: Finding | None = None
    """The first cause of what was found while it ran, as everything else that shows the run names it."""
    trouble: str = ""
    """Why it cannot be read, where it cannot."""
    verdict: Verdict | None = None
    """None where nothing searched for findings while it ran."""


def run_row(run: Run) -> RunRow:
    """What the list needs of a run."""
    diagnosis = conclude(run, run.findings())
    return RunRow(
        run.id,
        run.name,
        run.state,
        started_at(run),
        run.last_step,
        run.metric(metrics.LOSS),
        diagnosis.causes[0] if diagnosis.causes else None,
        verdict=diagnosis.verdict if run.was_examined else None,
    )


def runs_lines(rows: Sequence[RunRow], screen: Screen) -> list[Line]:
    """One line a run under a quiet head."""
    name_cells = max([4, *(cell_width(screen.text(row.name)) for row in rows)])
    id_cells = max([2, *(cell_width(screen.text(row.id)) for row in rows)])
    id_cells = min(id_cells, 12)
    trend = 16 if screen.width >= 110 else 0
    fixed = 2 + 2 + id_cells + 2 + 16 + 2 + 7 + 2 + 8 + 2 + (trend + 2 if trend else 0)
    # The year gives way to what was found.
    codes = max([0, *(cell_width(screen.text(row.finding.code)) + 2 for row in rows if row.finding is not None)])
    begun = 16 if fixed + name_cells + codes <= screen.width else 11
    fixed -= 16 - begun
    name_cells = max(8, min(name_cells, screen.width - fixed - 16, 40))
    lines: list[Line] = [_heading(name_cells, id_cells, begun, trend)]
    for row in rows:
        state: Line = [
            (pad(screen.glyphs.state.get(row.state, "?"), 2), STATE_STYLE.get(row.state, "")),
            (pad(screen.name(row.name, name_cells), name_cells) + "  ", PLAIN),
            (pad(screen.name(row.id, id_cells), id_cells) + "  ", NOTE),
        ]
        if row.trouble:
            lines.append(fit_line([*state, (screen.text(row.trouble), WARNING)], screen.width))
            continue
        line = state + _numbers(row, begun, trend, screen)
        lines.append(fit_line(line + _finding_line(row, screen, screen.width - line_width(line)), screen.width))
    return lines


def _heading(name_cells: int, id_cells: int, begun: int, trend: int) -> Line:
    cells = [
        "  " + pad("run", name_cells),
        pad("id", id_cells),
        pad("started", begun),
        pad("step", 7, right=True),
        pad("loss", 8, right=True),
    ]
    if trend:
        cells.append(" " * trend)
    return [("  ".join([*cells, "found"]), NOTE)]


def _numbers(row: RunRow, begun: int, trend: int, screen: Screen) -> Line:
    try:
        written = time.strftime("%Y-%m-%d %H:%M", time.localtime(row.started_at)) if row.started_at else ""
    except (OverflowError, ValueError, OSError):  # no date that a calendar has
        written = ""
    step = numbers.count(row.last_step) if row.last_step is not None else ""
    loss = float(row.loss.values[-1]) if len(row.loss) else None
    text = numbers.number(loss, ascii=screen.ascii)
    if cell_width(text) > 8 and loss is not None:
        text = f"{loss:.1e}"
    line: Line = [
        (f"{pad(written[-begun:], begun)}  {pad(step, 7, right=True)}  ", PLAIN),
        (pad(text, 8, right=True) + "  ", BROKEN if text in ("NaN", "Inf", "-Inf") else PLAIN),
    ]
    if trend:
        spark = sparkline(row.loss, trend, screen.glyphs) if len(row.loss) else []
        line += [*spark, (" " * (trend + 2 - line_width(spark)), "")]
    return line


def _finding_line(row: RunRow, screen: Screen, room: int) -> Line:
    if row.finding is None and row.verdict is not None:
        return [
            (f"{state_sign(row.verdict, screen.glyphs)} {row.verdict.state.label}", state_style(row.verdict) or NOTE)
        ]
    if row.finding is None:
        return [("not diagnosed yet", NOTE)]
    sign = screen.glyphs.severity[row.finding.severity]
    text = screen.name(row.finding.code, max(8, room - 2))
    return [(f"{sign} ", SEVERITY_STYLE[row.finding.severity]), (text, PLAIN)]
