"""What every screen does: draws its page beside the event loop, keeps it fresh, and answers the keys all share."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, cast

from textual import events
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.screen import Screen as TextualScreen
from textual.widgets import Input

from stethoscope.record import printable
from stethoscope.views.common.glyphs import Screen as Paper
from stethoscope.views.common.styled_text import NOTE, STRONG, to_text
from stethoscope.views.tui import view as moves
from stethoscope.views.tui.keys import KEYS, hint_line
from stethoscope.views.tui.lines_widget import LinesWidget
from stethoscope.views.tui.trouble_page import trouble_page
from stethoscope.views.tui.view import Page, View

if TYPE_CHECKING:
    from stethoscope.views.tui.app import TuiApp

TICK_S = 0.5
"""How often a screen looks whether anything is new: a live run shows a step within a second."""
PATIENCE_S = 0.3
"""How long a new screen may stay empty before it says why."""
READING = "Reading what was recorded"
_APP_ACTIONS = ("quit", "command_palette")


def _make_binding(keys: str, action: str, words: str) -> Binding:
    return Binding(keys, f"app.{action}" if action in _APP_ACTIONS else action, words, show=False)


class PageScreen(TextualScreen[None]):
    """A screen that shows one page. Subclasses draw it, and say what they are of."""

    BINDINGS: ClassVar[list[BindingType]] = [_make_binding(key.keys, key.action, key.words) for key in KEYS]
    CSS = """
    PageScreen { background: ansi_default; layers: base; }
    Input { height: 1; border: none; padding: 0; background: ansi_default; display: none; }
    Input.open { display: block; }
    """
    hints: ClassVar[str] = "text"
    folder: Path | None = None

    def __init__(self, view: View | None = None) -> None:
        super().__init__()
        self.view = view or View()
        self.page = Page([])
        self.lines_widget = LinesWidget()
        self.note = ""
        """What the last key did, where that cannot be seen; gone with the next key."""
        self._awaits_go = False
        self._wanted, self._idle = asyncio.Event(), asyncio.Event()

    def draw(self, view: View, paper: Paper, height: int) -> Page | None:
        """The page, or None where nothing changed. Runs in a thread of its own."""
        raise NotImplementedError

    # ---- drawing ----

    def compose(self) -> ComposeResult:
        """The sheet, and the line that a filter is typed in."""
        yield self.lines_widget
        yield Input(placeholder="filter", select_on_focus=False)

    def on_mount(self) -> None:
        """Starts drawing."""
        self.lines_widget.focus()
        self.set_interval(TICK_S, self.tick)
        self.set_timer(PATIENCE_S, self.be_patient)
        self.run_worker(self._draw_forever(), exclusive=True)
        self.redraw()

    def on_resize(self) -> None:
        """Another size, another page."""
        self.redraw()

    def on_screen_resume(self) -> None:
        """Back on top: what came meanwhile is shown."""
        self.redraw()

    def tick(self) -> None:
        """Looks whether anything is new."""
        if self.is_current:
            self.redraw()

    def be_patient(self) -> None:
        """A line instead of an empty screen, where the first page takes its time."""
        if not self.lines_widget.lines:
            self.lines_widget.show([[(READING, NOTE)]], self.view.color)

    def redraw(self) -> None:
        """Asks for the page to be drawn; several requests while one is drawn are one."""
        self._idle.clear()
        self._wanted.set()

    async def settled(self) -> None:
        """Returns when everything asked for is drawn."""
        await self._idle.wait()

    async def _draw_forever(self) -> None:
        while True:
            await self._wanted.wait()
            self._wanted.clear()
            size = self.lines_widget.size
            if size.width and size.height:
                paper = cast("TuiApp", self.app).paper(size.width, self.view.color)
                page = await asyncio.to_thread(self._drawn, self.view.copy(), paper, max(8, size.height - 1))
                if page is not None:
                    self.page = page
                self.show(paper, size.height)
            if not self._wanted.is_set():
                self._idle.set()

    def _drawn(self, view: View, paper: Paper, height: int) -> Page | None:
        """The page; whatever goes wrong with a run is a page too."""
        try:
            return self.draw(view, paper, height)
        except Exception as error:  # a damaged file can fail in many ways, and none may take the screen down
            return trouble_page(error, self.folder, paper)

    def show(self, paper: Paper, height: int) -> None:
        """Puts the page and the line of keys on the sheet."""
        lines = self.page.lines[: height - 1]
        last = [(paper.name(self.note, paper.width), STRONG)] if self.note else hint_line(self.hints, paper)
        self.lines_widget.show([*lines, *([[]] * (height - 1 - len(lines))), last], self.view.color)

    def say(self, words: str) -> None:
        """A line where the keys stand, until the next key."""
        self.note = words
        self.redraw()

    # ---- keys that every screen has ----

    def on_key(self, event: events.Key) -> None:
        """`g r`, and the end of a note."""
        if self._awaits_go and event.key == "r":
            event.stop()
            self._awaits_go, self.note = False, ""
            cast("TuiApp", self.app).show_runs()
            return
        self._awaits_go = False
        if self.note:
            self.say("")

    def action_go(self) -> None:
        """The first key of `g r`."""
        self._awaits_go = True
        self.note = "g, and then r for the list of runs"
        self.redraw()

    def action_filter(self) -> None:
        """Opens the line that a filter is typed in."""
        line = self.query_one(Input)
        line.value = self.view.pattern
        line.add_class("open")
        line.focus()

    def on_input_changed(self, event: Input.Changed) -> None:
        """What matches shows while it is typed."""
        if event.input.has_class("open"):
            self.view.pattern = event.value.strip()
            self.redraw()

    def on_input_submitted(self) -> None:
        """The filter stays, the keys are keys again."""
        self._close_line()

    def _close_line(self) -> None:
        self.query_one(Input).remove_class("open")
        self.lines_widget.focus()
        self.redraw()

    def action_up(self) -> None:
        """Closes the line, clears the filter, or goes to the screen below."""
        line = self.query_one(Input)
        if line.has_class("open") or self.view.pattern:
            self.view.pattern = line.value = ""
            self._close_line()
        elif len(self.app.screen_stack) > 2:
            self.app.pop_screen()
        else:
            cast("TuiApp", self.app).show_runs()

    def action_row(self, by: int) -> None:
        """The selection moves; where there is none, the page does."""
        if self.page.rows:
            moves.move_row(self.view, self.page, by)
        else:
            self.view.scroll = max(0, self.view.scroll + by)
        self.redraw()

    def action_end(self, side: int) -> None:
        """First or last row."""
        if self.page.rows:
            self.view.row = self.page.rows[0 if side < 0 else -1]
        else:
            self.view.scroll = 0 if side < 0 else len(self.page.lines)
        self.redraw()

    def action_theme(self) -> None:
        """With or without color."""
        self.view.color = not self.view.color
        self.say("color" if self.view.color else "no color")

    def action_help(self) -> None:
        """Every key."""
        cast("TuiApp", self.app).show_help()

    def action_save(self) -> None:
        """The screen as a text file that did not exist before."""
        stem = self.folder.name if self.folder is not None else "runs"
        for number in range(1, 1000):
            path = Path(f"stethoscope-{stem}-{self.hints}-{number}.txt")
            try:
                with path.open("x", encoding="utf-8") as file:
                    file.write(to_text(self.page.lines))
            except FileExistsError:
                continue
            except OSError as error:
                self.say(f"It cannot be saved here: {error.strerror}")
                return
            self.say(f"Saved as {printable(str(path))}")
            return

    def action_copy(self) -> None:
        """The command that opens what is seen here."""
        command = f"stethoscope tui {self.folder.name}" if self.folder is not None else "stethoscope tui"
        self.app.copy_to_clipboard(command)
        self.say(f"Copied: {printable(command)}")

    def on_mouse_scroll_down(self) -> None:
        """The wheel moves the rows."""
        self.action_row(1)

    def on_mouse_scroll_up(self) -> None:
        """The wheel moves the rows."""
        self.action_row(-1)

    # ---- keys that only some screens have: elsewhere they do nothing, and say so ----

    def _say_unavailable(self, words: str) -> None:
        self.say(words)

    def action_step(self, by: int) -> None:
        """The cursor some cells on."""

    def action_event(self, by: int) -> None:
        """The next event."""

    def action_open(self) -> None:
        """What is under the cursor."""

    def action_branch(self) -> None:
        """A branch opened or closed."""

    def action_zoom(self, factor: float) -> None:
        """A narrower or wider window."""

    def action_fit(self) -> None:
        """The whole run."""

    def action_kind(self, path: int) -> None:
        """Another kind of tensor."""

    def action_value(self) -> None:
        """Values or ratios."""

    def action_play(self) -> None:
        """Play or hold still."""

    def action_why(self) -> None:
        """Every cause."""

    def action_flow(self) -> None:
        """The gradient of every layer."""

    def action_select(self) -> None:
        """Marks a run."""
        self._say_unavailable("x marks runs in the list: g r")

    def action_compare(self) -> None:
        """Compares two runs."""
        self._say_unavailable("c compares two runs marked with x in the list: g r")

    def action_difference(self) -> None:
        """The first difference."""
        self._say_unavailable("d belongs to two runs side by side: mark them with x in the list, then c")
