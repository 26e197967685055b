"""Pictures for the terminal: each as lines of styled text, and as one string to print.

`render_*` give the string; the `*_lines` they are made of give (text, style) pairs for faces that compose them.
No function here writes anywhere, reads the environment, or imports torch.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from stethoscope.explain.diagnosis import Diagnosis
from stethoscope.record import Finding, Kind, Severity
from stethoscope.views.common.glyphs import Screen
from stethoscope.views.common.styled_text import NOTE, STRONG, Line, to_text
from stethoscope.views.lines.heatmap import Picture, heatmap_lines
from stethoscope.views.lines.verdict import verdict_lines
from stethoscope.views.terminal.layers import layers_lines
from stethoscope.views.terminal.report import diagnosis_lines, heat_kind, troubled_rows

if TYPE_CHECKING:
    from stethoscope.analyse.history import History
    from stethoscope.store import Run

__all__ = [
    "Picture",
    "Screen",
    "render_diagnosis",
    "render_finding",
    "render_heatmap",
    "render_layers",
    "render_verdict",
]


def render_verdict(
    diagnosis: Diagnosis,
    run: Run | None = None,
    width: int = 80,
    ascii: bool = False,  # noqa: A002 - what the option is called
    color: bool = False,
) -> str:
    """The causes, ranked: the first in full, the others as rows; or that there is nothing to report."""
    screen = Screen(width, ascii, color)
    return screen.write(verdict_lines(diagnosis, run, screen))


def render_diagnosis(
    diagnosis: Diagnosis,
    run: Run,
    width: int = 80,
    ascii: bool = False,  # noqa: A002
    color: bool = False,
) -> str:
    """The verdict, then layers by steps around where it began, then how much was measured."""
    screen = Screen(width, ascii, color)
    return screen.write(diagnosis_lines(diagnosis, run, screen))


def render_heatmap(
    run: Run,
    kind: Kind | str | None = None,
    *,
    stat: str = "norm",
    findings: Iterable[Finding] = (),
    width: int = 80,
    ascii: bool = False,  # noqa: A002
    color: bool = False,
) -> str:
    """Layers by steps, each against its own history, rows of the findings' sites marked."""
    from stethoscope.analyse.history import history

    screen = Screen(width, ascii, color)
    shown = history(run, kind or heat_kind(run, ()), stat)
    return screen.write(heatmap_lines(shown, screen, Picture(troubled_rows(shown, findings))))


def render_layers(
    source: History,
    findings: Iterable[Finding] = (),
    *,
    width: int = 80,
    ascii: bool = False,  # noqa: A002
    color: bool = False,
) -> str:
    """The rows of a history as a table with small trends."""
    screen = Screen(width, ascii, color)
    return screen.write(layers_lines(source, screen, troubled_rows(source, findings)))


def render_finding(
    finding: Finding,
    ascii: bool = False,  # noqa: A002
    color: bool = False,
) -> str:
    """One line for one finding, as a session prints it when it appears; without a newline."""
    from stethoscope.views.common.glyphs import SEVERITY_STYLE
    from stethoscope.views.lines.verdict import since

    screen = Screen(100_000, ascii, color)
    style = SEVERITY_STYLE[Severity(finding.severity)]
    line: Line = [
        (screen.glyphs.severity[finding.severity] + " ", style),
        (screen.text(finding.message), STRONG),
        (f"  {screen.text(finding.code)}, {since(finding)}", NOTE),
    ]
    return to_text([line], color=color).rstrip("\n")
