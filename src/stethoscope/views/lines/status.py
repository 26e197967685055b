"""How a run stands, as lines: its name with its state, and how much was measured at what cost."""

from __future__ import annotations

from typing import TYPE_CHECKING

from stethoscope.explain.diagnosis import LookedAt
from stethoscope.views.common.glyphs import STATE_STYLE, Screen
from stethoscope.views.common.run_status import clock, started_at, state_text, status_parts
from stethoscope.views.common.styled_text import NOTE, STRONG, Line, flow_parts, line_width, pad

if TYPE_CHECKING:
    from stethoscope.store import Run


def title_line(run: Run, screen: Screen) -> Line:
    """State, name, id, and the state in words."""
    sign = pad(screen.glyphs.state.get(run.state, "?"), 2)
    name = screen.name(run.name, max(16, screen.width // 3))
    head: Line = [(sign, STATE_STYLE.get(run.state, "")), (name, STRONG)]
    if screen.text(run.id) not in name:
        head += [("  ", ""), (screen.name(run.id, 16), NOTE)]
    room = screen.width - line_width(head) - 2
    return [*head, ("  ", ""), (screen.name(state_text(run), room), NOTE)]


def status_lines(run: Run, screen: Screen, looked_at: LookedAt | None = None) -> list[Line]:
    """The status line, on as many lines as it needs; no part is broken."""
    parts: list[Line] = [[(str(part), NOTE)] for part in status_parts(run, looked_at)]
    started = started_at(run)
    if started is not None:
        parts.append([(f"started {clock(started)}", NOTE)])
    return flow_parts(parts, screen.width, (f" {screen.glyphs.dot} ", NOTE))
