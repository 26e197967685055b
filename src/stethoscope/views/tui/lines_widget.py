"""The one widget: lines of styled text, put on the terminal as they are, no markup read in them."""

from __future__ import annotations

from rich.segment import Segment
from rich.style import Style
from textual.strip import Strip
from textual.widget import Widget

from stethoscope.views.common.styled_text import Line, fit_line, to_text

_COLORS = frozenset({"red", "yellow", "blue", "cyan", "bright_black"})


class LinesWidget(Widget):
    """A page of lines."""

    can_focus = True
    DEFAULT_CSS = "LinesWidget { width: 1fr; height: 1fr; }"

    def __init__(self) -> None:
        super().__init__()
        self.lines: list[Line] = []
        self.with_color = True

    def show(self, lines: list[Line], with_color: bool) -> None:
        """Puts these lines in place of those shown."""
        if lines != self.lines or with_color != self.with_color:
            self.lines, self.with_color = lines, with_color
            self.refresh()

    def render_line(self, y: int) -> Strip:
        """One line, none longer than the terminal is wide."""
        line = fit_line(self.lines[y], self.size.width) if y < len(self.lines) else []
        parts = [Segment(text, Style.parse(self._terminal_style(style))) for text, style in line]
        return Strip(parts).adjust_cell_length(self.size.width)

    def _terminal_style(self, style: str) -> str:
        if self.with_color:
            return style or "none"
        return " ".join(word for word in style.split() if word not in _COLORS) or "none"

    def text(self) -> str:
        """What is shown, as plain text."""
        return to_text(self.lines)
