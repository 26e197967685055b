"""The screens of one run: the run itself, and texts about it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

from textual import events
from textual.timer import Timer

from stethoscope.views.common.glyphs import Screen as Paper
from stethoscope.views.common.open_run import HEAT_KINDS, OpenRun
from stethoscope.views.common.styled_text import Line
from stethoscope.views.lines.verdict import verdict_lines
from stethoscope.views.tui import view as moves
from stethoscope.views.tui.compare_page import compare_page
from stethoscope.views.tui.flow_page import flow_page
from stethoscope.views.tui.layer_page import layer_page
from stethoscope.views.tui.run_page import run_page
from stethoscope.views.tui.screens import PageScreen
from stethoscope.views.tui.view import Page, View

PLAY_S = 0.125


class Holder:
    """A run, opened by the thread that draws, and opened again where the run went away and came back."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.viewed: OpenRun | None = None
        self.is_paused = False

    def fresh(self) -> OpenRun:
        """The run, brought up to date unless it is held still."""
        if self.viewed is None:
            self.viewed = OpenRun(self.folder)
        elif not self.is_paused:
            try:
                self.viewed.refresh()
            except FileNotFoundError:
                self.viewed = None
                raise
        return self.viewed


class OpenRunScreen(PageScreen):
    """A screen over a run: cursor, window, zoom."""

    def __init__(self, holder: Holder, view: View | None = None) -> None:
        super().__init__(view)
        self.holder = holder
        self.folder = holder.folder
        self._drawn_of: Any = None
        self._playing: Timer | None = None

    def paint(self, viewed: OpenRun, view: View, paper: Paper, height: int) -> Page:
        """The page of a run that is up to date."""
        raise NotImplementedError

    def draw(self, view: View, paper: Paper, height: int) -> Page | None:
        """Draws only where run, view or size changed."""
        try:
            viewed = self.holder.fresh()
            with viewed.lock:
                seen = (
                    id(viewed),
                    viewed.version,
                    viewed.trouble,
                    viewed.was_examined,
                    view,
                    paper,
                    height,
                    self.holder.is_paused,
                )
                if seen == self._drawn_of:
                    return None
                page = self.paint(viewed, view, paper, height)
        except Exception:
            self._drawn_of = None
            raise
        self._drawn_of = seen
        return page

    def action_step(self, by: int) -> None:
        """The cursor some cells on."""
        moves.move_step(self.view, self.page, by)
        self.redraw()

    def action_event(self, by: int) -> None:
        """The next or previous numbered event."""
        if not moves.move_event(self.view, self.page, by):
            self.say("No event there" if self.page.events else "No events: nothing was found")
        self.redraw()

    def action_end(self, side: int) -> None:
        """The first step, or the last one, which is followed."""
        if not self.page.is_drawn:
            super().action_end(side)
            return
        self.view.cursor = self.page.window[0] if side < 0 else "last"
        if side > 0 and isinstance(self.view.window, tuple) and self.page.window[1] < self.page.span[1]:
            width = self.page.window[1] - self.page.window[0]
            self.view.window = (self.page.span[1] - width, self.page.span[1])
        self.redraw()

    def action_zoom(self, factor: float) -> None:
        """A narrower or wider window."""
        moves.zoom(self.view, self.page, factor)
        self.redraw()

    def action_fit(self) -> None:
        """The whole run; again, what is around the cause."""
        self.view.window = "cause" if self.view.window == "all" else "all"
        self.redraw()

    def action_play(self) -> None:
        """Live: holds still or goes on. Over: plays the steps."""
        viewed = self.holder.viewed
        if viewed is not None and viewed.run.state == "live":
            self.holder.is_paused = not self.holder.is_paused
            self.say("Held still; space goes on" if self.holder.is_paused else "Live again")
        elif self._playing is not None:
            self._stop_playing()
        elif self.page.is_drawn:
            if self.page.column_of(self.view) == len(self.page.columns) - 1:
                self.view.cursor = int(self.page.columns[0])
            self._playing = self.set_interval(PLAY_S, self._play_on)

    def _play_on(self) -> None:
        if self.page.column_of(self.view) >= len(self.page.columns) - 1:
            self._stop_playing()
        else:
            self.action_step(1)

    def _stop_playing(self) -> None:
        if self._playing is not None:
            self._playing.stop()
            self._playing = None


class RunScreen(OpenRunScreen):
    """One run: verdict, loss, layers by steps."""

    hints: ClassVar[str] = "run"

    def paint(self, viewed: OpenRun, view: View, paper: Paper, height: int) -> Page:
        """The run's page."""
        return run_page(viewed, view, paper, height)

    def action_branch(self) -> None:
        """The branch under the cursor opened or closed."""
        moves.toggle(self.view, self.page)
        self.redraw()

    def action_kind(self, index: int) -> None:
        """Another kind of tensor, where it was recorded."""
        kind = HEAT_KINDS[index]
        if kind in self.page.kinds:
            self.view.kind, self.view.opened = kind, None
            self.redraw()
        else:
            self.say(f"Nothing of kind {str(kind).replace('_', ' ')} was recorded")

    def action_value(self) -> None:
        """Values or ratios."""
        self.view.raw = not self.view.raw
        self.redraw()

    def action_why(self) -> None:
        """Every cause in full, on a screen of its own."""

        def lines(paper: Paper) -> list[Line]:
            viewed = self.holder.fresh()
            return verdict_lines(viewed.diagnosis, viewed.run, paper, full=True)

        self.app.push_screen(TextScreen(lines, self.folder, self.view.color))

    def action_open(self) -> None:
        """The layer under the cursor."""
        row = self.page.row_of(self.view)
        if row:
            view = View(window=self.view.window, cursor=self.view.cursor, color=self.view.color)
            self.app.push_screen(LayerScreen(self.holder, row, view))

    def action_flow(self) -> None:
        """The gradient of every layer at the cursor."""
        view = View(window=self.view.window, cursor=self.view.cursor, row=self.view.row, color=self.view.color)
        self.app.push_screen(FlowScreen(self.holder, view))

    def choose(self, path: str) -> None:
        """Goes to a layer by name, and opens what holds it."""
        parts = path.split(".")
        holders = {".".join(parts[:cut]) for cut in range(1, len(parts))}
        self.view.opened = (self.page.opened if self.view.opened is None else self.view.opened) | holders
        self.view.row, self.view.pattern = path, ""
        self.redraw()

    def on_click(self, event: events.Click) -> None:
        """Chooses the row and the step under the pointer."""
        top, left, first = self.page.cells_at
        row = event.y - top + first
        if not self.page.is_drawn or event.y < top or row >= len(self.page.rows):
            return
        self.view.row = self.page.rows[row]
        column = self.page.frame.column(event.x - left) if self.page.frame is not None else None
        if column is not None:
            self.view.cursor = int(self.page.columns[column])
        self.redraw()


class LayerScreen(OpenRunScreen):
    """One layer."""

    hints: ClassVar[str] = "layer"

    def __init__(self, holder: Holder, path: str, view: View) -> None:
        super().__init__(holder, view)
        self._path = path

    def paint(self, viewed: OpenRun, view: View, paper: Paper, height: int) -> Page:
        """The layer's page."""
        page = layer_page(viewed, self._path, view, paper, height)
        self.view.scroll = min(self.view.scroll, page.cells_at[2])
        return page


class FlowScreen(RunScreen):
    """The gradient of every layer at one step, to walk and play through."""

    hints: ClassVar[str] = "flow"

    def paint(self, viewed: OpenRun, view: View, paper: Paper, height: int) -> Page:
        """The flow's page."""
        return flow_page(viewed, view, paper, height)

    def action_flow(self) -> None:
        """Back to the run."""
        self.action_up()


class CompareScreen(OpenRunScreen):
    """Two runs beside each other."""

    hints: ClassVar[str] = "compare"

    def __init__(self, a: Holder, b: Holder, view: View) -> None:
        super().__init__(a, view)
        self._other = b

    def draw(self, view: View, paper: Paper, height: int) -> Page | None:
        """Draws where either run, the view or the size changed."""
        a, b = self.holder.fresh(), self._other.fresh()
        seen = (id(a), id(b), a.version, b.version, a.trouble, b.trouble, view, paper, height)
        if seen == self._drawn_of:
            return None
        page = compare_page(a, b, view, paper, height)
        self._drawn_of = seen
        return page

    def action_difference(self) -> None:
        """The cursor to the first step where they differ."""
        if self.page.events:
            self.view.cursor, self.view.window, self.view.row = self.page.events[0], "cause", ""
            self.redraw()
        else:
            self.say("The two runs do not differ where both recorded")

    def action_kind(self, index: int) -> None:
        """Another kind of tensor, where both recorded it."""
        if HEAT_KINDS[index] in self.page.kinds:
            self.view.kind = HEAT_KINDS[index]
            self.redraw()


class TextScreen(PageScreen):
    """A text to scroll through: the causes in full, the keys."""

    hints: ClassVar[str] = "text"

    def __init__(self, lines: Callable[[Paper], list[Line]], folder: Path | None = None, color: bool = True) -> None:
        super().__init__(View(color=color))
        self._lines, self.folder = lines, folder

    def draw(self, view: View, paper: Paper, height: int) -> Page | None:
        """The part of the text that is scrolled to."""
        whole = self._lines(paper)
        first = min(view.scroll, max(0, len(whole) - height))
        self.view.scroll = min(self.view.scroll, first)
        return Page(whole[first : first + height])
