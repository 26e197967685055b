"""The application: which screen is on top, what we draw with, everything by name in the palette."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import ClassVar

from textual.app import App
from textual.command import DiscoveryHit, Hit, Hits, Provider
from textual.content import Content
from textual.screen import Screen as TextualScreen

from stethoscope.record import printable
from stethoscope.views.common.glyphs import Screen as Paper
from stethoscope.views.common.open_run import HEAT_KINDS
from stethoscope.views.tui.keys import help_lines
from stethoscope.views.tui.run_screen import CompareScreen, Holder, RunScreen, TextScreen
from stethoscope.views.tui.runs_page import RunList, runs_page
from stethoscope.views.tui.screens import PageScreen
from stethoscope.views.tui.view import Page, View

MIN_WIDTH = 40


class RunsScreen(PageScreen):
    """The list of runs."""

    hints: ClassVar[str] = "runs"

    def __init__(self, runs: RunList, view: View) -> None:
        super().__init__(view)
        self.runs = runs
        self.marked: frozenset[str] = frozenset()

    def draw(self, view: View, paper: Paper, height: int) -> Page | None:
        """The list."""
        return runs_page(self.runs, view, paper, height, self.marked)

    def action_open(self) -> None:
        """The run under the cursor."""
        row = self.page.row_of(self.view)
        if row:
            self.app.push_screen(RunScreen(Holder(Path(row)), View(color=self.view.color)))

    def action_select(self) -> None:
        """Marks the run, or takes the mark away."""
        row = self.page.row_of(self.view)
        if row:
            self.marked ^= {row}
            self.redraw()

    def action_compare(self) -> None:
        """The two marked runs, the older one first; with one marked, that one and the one under the cursor."""
        chosen = self.marked | ({self.page.row_of(self.view)} if len(self.marked) == 1 else set())
        a, b, *more = [*sorted(path for path in chosen if path), "", ""]
        if not b or any(more):
            self.say(
                "Mark two runs with x first"
                if len(self.marked) < 2
                else f"{len(self.marked)} runs are marked; c takes two"
            )
            return
        self.app.push_screen(CompareScreen(Holder(Path(a)), Holder(Path(b)), View(color=self.view.color)))


class Names(Provider):
    """Everything by name: layers of the run, kinds, screens."""

    def _known(self) -> list[tuple[str, str, str]]:
        """Name, what it does, the action."""
        out = [("runs", "the list of runs", "app.runs"), ("keys", "every key", "app.help")]
        screen = self.screen
        if isinstance(screen, RunScreen):
            for index, kind in enumerate(HEAT_KINDS):
                if kind in screen.page.kinds:
                    out.append((str(kind).replace("_", " "), "show this kind", f"screen.kind({index})"))
            out += [("causes", "every cause in full", "screen.why"), ("whole run", "fit", "screen.fit")]
        return out

    async def discover(self) -> Hits:
        """What there is before anything is typed."""
        for name, words, action in self._known():
            yield DiscoveryHit(name, partial(self.app.run_action, action), help=words)

    async def search(self, query: str) -> Hits:
        """What matches."""
        matcher = self.matcher(query)
        for name, words, action in self._known():
            score = matcher.match(name)
            if score > 0:
                yield Hit(score, matcher.highlight(name), partial(self.app.run_action, action), help=words)
        screen = self.screen
        if isinstance(screen, RunScreen):
            for path in screen.page.known:
                name = printable(path)
                score = matcher.match(name)
                if score > 0:
                    # A name is text, whatever brackets it has.
                    yield Hit(score, Content(name), partial(screen.choose, path), text=name, help="go to this layer")


class TuiApp(App[None]):
    """`stethoscope tui`."""

    TITLE = "stethoscope"
    COMMANDS: ClassVar[set[type[Provider]]] = {Names}  # type: ignore[assignment]
    CSS = """
    Screen { background: ansi_default; }
    SearchIcon { display: none; }
    CommandPalette > Vertical, CommandPalette #--input, CommandPalette CommandList { border: none; padding: 0; }
    """

    def __init__(self, base: Path, folder: Path | None = None, *, ascii_only: bool = False, color: bool = True) -> None:
        super().__init__(ansi_color=True)
        self.theme = "ansi-dark"
        self.runs = RunList(base)
        self._folder, self._ascii, self._color = folder, ascii_only, color

    def paper(self, width: int, color: bool) -> Paper:
        """What pages are drawn on; in a narrower window their right side is cut off."""
        return Paper(max(MIN_WIDTH, width), self._ascii, color)

    def on_mount(self) -> None:
        """The run that was named, or the list."""
        if self._folder is not None:
            self.push_screen(RunScreen(Holder(self._folder), View(color=self._color)))
        else:
            self.show_runs()

    def get_default_screen(self) -> TextualScreen[None]:
        """An empty screen under all others."""
        return TextualScreen(id="_default")

    def show_runs(self) -> None:
        """Down to the list of runs, or up to a new one."""
        for screen in self.screen_stack[::-1]:
            if isinstance(screen, RunsScreen):
                while self.screen is not screen:
                    self.pop_screen()
                return
        view = View(color=self._color, row=str(self._folder) if self._folder else "")
        self.push_screen(RunsScreen(self.runs, view))

    def show_help(self) -> None:
        """Every key."""
        self.push_screen(TextScreen(help_lines, color=self._color))

    def action_runs(self) -> None:
        """The list of runs."""
        self.show_runs()

    def action_help(self) -> None:
        """Every key."""
        self.show_help()
