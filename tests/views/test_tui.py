"""The terminal screens: driven by keys through Textual's pilot, read as the text they show."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Awaitable, Callable
from pathlib import Path

import numpy as np
import pytest

from stethoscope.analyse.bins import Bins
from stethoscope.record import Series
from stethoscope.views.common.glyphs import Screen as Paper
from stethoscope.views.common.styled_text import cell_width, fit_line, line_width, to_text
from stethoscope.views.pagedata import OpenRun
from stethoscope.views.tui import run_screen, screens
from stethoscope.views.tui.app import Names, RunsScreen, TuiApp
from stethoscope.views.tui.chart import Frame, chart_lines
from stethoscope.views.tui.compare_page import compare_page
from stethoscope.views.tui.flow_page import flow_page
from stethoscope.views.tui.layer_page import layer_page
from stethoscope.views.tui.run_page import run_page
from stethoscope.views.tui.run_screen import CompareScreen, FlowScreen, LayerScreen, RunScreen, TextScreen
from stethoscope.views.tui.runs_page import RunList
from stethoscope.views.tui.screens import PageScreen
from stethoscope.views.tui.view import View
from tests.store.run_making import write_findings
from tests.views import synthetic


def sick(base: Path, name: str = "20261116-130000-gpt-fp16-3f9a01", **more) -> Path:
    """A crashed run with what was found while it ran."""
    folder = synthetic.write_run(
        base / name,
        synthetic.exploding,
        name="gpt-fp16",
        metrics=synthetic.exploding_metrics,
        ended="exception",
        body={"exception": "FloatingPointError"},
        **more,
    )
    write_findings(folder, [synthetic.CAUSE, *synthetic.FOLLOWED])
    return folder


def healthy(base: Path, name: str = "20261116-120000-gpt-small-aaaaaa", **more) -> Path:
    folder = synthetic.write_run(base / name, **more)
    write_findings(folder, [])
    (folder / "findings").mkdir(exist_ok=True)
    return folder


class Driver:
    """A pilot that waits for the drawing after each key, never for a clock."""

    def __init__(self, app: TuiApp, pilot) -> None:
        self.app, self.pilot = app, pilot

    @property
    def screen(self) -> PageScreen:
        assert isinstance(self.app.screen, PageScreen)
        return self.app.screen

    async def settle(self) -> None:
        await self.pilot.pause()
        await self.handed_on()
        await asyncio.wait_for(self.screen.settled(), 60)

    async def press(self, *keys: str) -> str:
        for key in keys:
            await self.pilot.press(key)
            await self.handed_on()
            await asyncio.wait_for(self.screen.settled(), 60)
        return self.text

    async def handed_on(self) -> None:
        """Turns of the loop, more than a key needs from the app to the widget and back: Textual's pilot goes by the time
        that the process was idle, which on a busy machine may be over before the key was looked at."""
        for _ in range(100):
            await asyncio.sleep(0)

    @property
    def text(self) -> str:
        return self.screen.lines_widget.text()


def drive(
    story: Callable[[Driver], Awaitable[None]], base: Path, folder: Path | None = None, size=(80, 24), **options
) -> None:
    async def play() -> None:
        app = TuiApp(base, folder, **options)
        async with app.run_test(size=size) as pilot:
            driver = Driver(app, pilot)
            await driver.settle()
            await story(driver)

    asyncio.run(play())


@pytest.fixture(autouse=True)
def _no_clock(monkeypatch):
    """Screens look again when a test says so."""
    monkeypatch.setattr(screens, "TICK_S", 3600.0)
    monkeypatch.setattr(run_screen, "PLAY_S", 3600.0)


@pytest.fixture(scope="module")
def sick_desk(tmp_path_factory):
    return OpenRun(sick(tmp_path_factory.mktemp("runs")))


@pytest.mark.parametrize("size", [(80, 24), (200, 60), (60, 15), (120, 40), (40, 12), (100, 24)])
@pytest.mark.parametrize("is_ascii", [False, True])
def test_run_opens_with_the_whole_verdict_and_fits(sick_desk, size, is_ascii):
    page = run_page(sick_desk, View(), Paper(size[0], is_ascii, True), size[1] - 1)
    text = to_text(page.lines)
    flat = " ".join(text.split())
    assert "grew without bound from step 150" in flat
    assert "crashed at step 200" in flat or size[0] < 80
    lines = text.splitlines()
    assert len(lines) <= size[1] - 1
    assert max(map(len, lines)) <= size[0]
    assert "loss" in flat
    assert "attn" in flat
    assert text.isascii() or not is_ascii


def test_cursor_stands_where_the_cause_began_and_moves(tmp_path):
    folder = sick(tmp_path)

    async def story(driver):
        assert "step 150" in driver.text.splitlines()[-4] or "steps 150" in driver.text.splitlines()[-4]
        await driver.press("home")
        assert driver.screen.page.column == 0
        await driver.press("right", "right")
        assert driver.screen.page.column == 2
        await driver.press("shift+right")
        assert driver.screen.page.column == 12
        await driver.press("end")
        assert driver.screen.page.column == len(driver.screen.page.columns) - 1
        await driver.press("left_square_bracket")
        assert driver.screen.view.cursor == 190
        await driver.press("left_square_bracket")
        assert driver.screen.view.cursor == 150
        assert "No event" in await driver.press("left_square_bracket")

    drive(story, tmp_path, folder, (120, 40))


def test_keys_pressed_faster_than_drawing_are_not_lost(tmp_path):
    folder = healthy(tmp_path)

    async def story(driver):
        await driver.press("home")
        await driver.pilot.press("right", "right", "right", "j", "j")
        await driver.settle()
        assert driver.screen.page.column == 3
        assert driver.screen.page.rows.index(driver.screen.page.row) == 2

    drive(story, tmp_path, folder, (120, 40))


def test_rows_branches_filter_kind_and_value(tmp_path):
    folder = sick(tmp_path)

    async def story(driver):
        rows = driver.screen.page.rows
        assert "layers.2.attn" in rows
        assert driver.screen.page.row == "layers.2.attn"
        await driver.press("o")
        assert "layers.2.attn" not in driver.screen.page.rows
        await driver.press("o")
        assert "layers.2.attn" in driver.screen.page.rows
        await driver.press("slash", *"mlp")
        assert driver.screen.page.rows == tuple(f"layers.{n}.mlp" for n in range(4))
        await driver.press("enter", "j")
        assert driver.screen.page.row == "layers.1.mlp"
        assert "No layer matches" in await driver.press("slash", *"zzz")
        await driver.press("escape")
        assert len(driver.screen.page.rows) > 4
        assert "weight" in (await driver.press("2"))
        assert "was recorded" in await driver.press("6")
        assert "log scale" in await driver.press("1", "v") or "larger" not in driver.text

    drive(story, tmp_path, folder, (120, 40))


def test_zoom_fit_and_play(tmp_path):
    folder = sick(tmp_path)

    async def story(driver):
        await driver.press("0")
        whole = driver.screen.page.window
        assert whole == (1, 200)
        await driver.press("plus")
        first, last = driver.screen.page.window
        assert last - first < 199
        assert first <= 150 <= last
        await driver.press("minus", "minus")
        assert driver.screen.page.window == whole
        await driver.press("home", "space")
        driver.screen._play_on()
        await driver.settle()
        assert driver.screen.page.column >= 1
        await driver.press("space")
        assert driver.screen._playing is None

    drive(story, tmp_path, folder, (100, 30))


def test_layer_screen_and_back(tmp_path):
    folder = sick(tmp_path)

    async def story(driver):
        text = await driver.press("enter")
        assert isinstance(driver.screen, LayerScreen)
        assert text.startswith("layers.2.attn")
        assert "Gradient norm" in text
        assert "found here" in text
        await driver.press("left", "plus", "j", "escape")
        assert isinstance(driver.screen, RunScreen)

    drive(story, tmp_path, folder, (140, 44))


def test_causes_in_full_and_the_keys(tmp_path):
    folder = sick(tmp_path)

    async def story(driver):
        text = await driver.press("w")
        assert isinstance(driver.screen, TextScreen)
        assert "what followed" in text
        await driver.press("escape")
        text = await driver.press("question_mark")
        assert "zoom in around the cursor" in text
        text = await driver.press("j", "j", "end")
        assert "A click chooses" in text
        await driver.press("escape")
        assert isinstance(driver.screen, RunScreen)

    drive(story, tmp_path, folder, (80, 24))


def test_list_opens_runs_and_keys_go_back(tmp_path):
    healthy(tmp_path)
    sick(tmp_path)

    async def story(driver):
        assert isinstance(driver.screen, RunsScreen)
        assert driver.text.index("gpt-fp16") < driver.text.index("gpt-small")
        await driver.press("j", "enter")
        assert isinstance(driver.screen, RunScreen)
        assert "? cannot tell" in driver.text
        await driver.press("g", "r")
        assert isinstance(driver.screen, RunsScreen)
        await driver.press("slash", *"fp16", "enter")
        assert "gpt-small" not in driver.text
        await driver.press("enter")
        assert "grew without bound" in driver.text

    drive(story, tmp_path)


def test_live_run_shows_what_comes_and_can_be_held_still(tmp_path):
    folder = healthy(tmp_path, steps=range(1, 11), ended=None)
    writer = synthetic._OPEN[-1]

    def add(step: int) -> None:
        writer.scalars(step, {"loss": 1.0})
        infos = synthetic.sites_of(synthetic.MODULES)
        table = np.array([synthetic.healthy(info.site, step) for info in infos])
        writer.rows(step, np.arange(len(infos), dtype=np.uint32), table)
        assert writer.flush()

    async def look(driver):
        driver.screen.holder.viewed._looked_at = 0.0  # not to wait until a live run may be looked at again
        driver.screen.tick()
        await driver.settle()

    async def story(driver):
        assert "live, step 10" in driver.text
        add(11)
        await look(driver)
        assert "live, step 11" in driver.text
        assert driver.screen.page.column == len(driver.screen.page.columns) - 1
        await driver.press("space")
        add(12)
        await look(driver)
        assert "live, step 11" in driver.text
        await driver.press("space")
        await look(driver)
        assert "live, step 12" in driver.text

    drive(story, tmp_path, folder)
    writer.close("finished")


def test_list_follows_a_live_run_to_its_end(tmp_path):
    folder = healthy(tmp_path, steps=range(1, 4), ended=None)
    writer = synthetic._OPEN[-1]
    runs = RunList(tmp_path)
    ((_, row),) = runs.rows()
    assert (row.state, row.last_step) == ("live", 3)
    infos = synthetic.sites_of(synthetic.MODULES)
    table = np.array([synthetic.healthy(info.site, 4) for info in infos])
    writer.rows(4, np.arange(len(infos), dtype=np.uint32), table)
    assert writer.flush()
    ((_, row),) = runs.rows()
    assert (row.state, row.last_step) == ("live", 4)
    writer.close("finished")
    ((_, row),) = runs.rows()
    assert (row.state, row.last_step) == ("finished", 4)
    assert runs.rows()[0][1] is row, "what does not change is not read again"
    shutil.rmtree(folder)
    assert runs.rows() == []


def test_run_that_vanishes_and_comes_back(tmp_path):
    folder = sick(tmp_path)
    aside = tmp_path / "aside"

    async def look(driver):
        if driver.screen.holder.viewed is not None:
            driver.screen.holder.viewed._looked_at = 0.0
        driver.screen.tick()
        await driver.settle()

    async def story(driver):
        assert "grew without bound" in driver.text
        shutil.move(folder, aside)
        await look(driver)
        assert "gone" in driver.text
        assert "stethoscope list" in driver.text
        await look(driver)
        assert "no run here" in driver.text.lower()
        shutil.move(aside, folder)
        await look(driver)
        assert "grew without bound" in driver.text

    drive(story, tmp_path, folder)


def test_damage_is_said(tmp_path):
    folder = sick(tmp_path)
    journal = next(folder.glob("rank-0/*.stj"))
    bytes_ = bytearray(journal.read_bytes())
    for place in range(len(bytes_) // 2, len(bytes_) // 2 + 64):
        bytes_[place] ^= 0xFF
    journal.write_bytes(bytes_)
    broken = healthy(tmp_path)
    (broken / "run.json").write_text("{")

    async def story(driver):
        assert "damaged" in driver.text
        await driver.press("g", "r")
        assert "checksum" in driver.text
        await driver.press("end", "enter")
        assert "stethoscope doctor" in driver.text

    drive(story, tmp_path, folder)


def test_no_run_yet_says_what_to_do_and_a_new_one_appears(tmp_path):
    async def story(driver):
        assert "stethoscope demo" in driver.text
        healthy(tmp_path)
        driver.screen.tick()
        await driver.settle()
        assert "gpt-small" in driver.text

    drive(story, tmp_path)


def test_run_without_a_step(tmp_path):
    folder = healthy(tmp_path, steps=range(0), ended=None)

    async def story(driver):
        assert "no step yet" in driver.text
        await driver.press("right", "j", "plus", "o", "enter", "left_square_bracket", "space", "end")

    drive(story, tmp_path, folder)
    synthetic._OPEN[-1].close("finished")


def test_ascii_is_ascii_and_hostile_names_are_text(tmp_path):
    modules = ["a[red]b[/red]", "\x1b[2Jevil", "\u202eback", "層"]
    folder = synthetic.write_run(tmp_path / "20261116-120000-x-bbbbbb", modules=modules, name="[bold]\x1b]0;t\x07")
    (folder / "findings").mkdir(exist_ok=True)

    async def ascii_story(driver):
        assert driver.text.isascii()
        assert "\\x1b[2Jevil" in driver.text
        await driver.press("enter")
        assert driver.text.isascii()
        await driver.press("escape", "question_mark")
        assert driver.text.isascii()

    async def story(driver):
        assert "a[red]b[/red]" in driver.text
        assert "\x1b" not in driver.text
        assert "\u202e" not in driver.text

    drive(ascii_story, tmp_path, folder, (110, 30), ascii_only=True)
    drive(story, tmp_path, folder, (110, 30))


def test_no_color_keeps_the_signs(tmp_path):
    folder = sick(tmp_path)

    async def story(driver):
        sheet = driver.screen.lines_widget
        styles = {str(part.style) for y in range(24) for part in sheet.render_line(y)}
        assert not any(color in style for style in styles for color in ("red", "yellow", "blue", "bright_black"))
        assert "◆" in driver.text
        assert "╳" in driver.text
        await driver.press("t")
        styles = {str(part.style) for y in range(24) for part in sheet.render_line(y)}
        assert any("red" in style for style in styles)

    drive(story, tmp_path, folder, color=False)


def test_a_click_chooses_row_and_step(tmp_path):
    folder = healthy(tmp_path)

    async def story(driver):
        top, left, _ = driver.screen.page.cells_at
        await driver.pilot.click(offset=(left + driver.screen.page.frame.edge(5), top + 1))
        await driver.settle()
        assert driver.screen.page.column == 5
        assert driver.screen.page.row == driver.screen.page.rows[1]

    drive(story, tmp_path, folder, (120, 40))


def test_screen_is_saved_as_text_and_never_over_a_file(tmp_path, monkeypatch):
    folder = sick(tmp_path)
    monkeypatch.chdir(tmp_path)

    async def story(driver):
        assert "Saved as" in await driver.press("s")
        await driver.press("s")
        saved = sorted(tmp_path.glob("stethoscope-*.txt"))
        assert len(saved) == 2
        assert "grew without bound" in saved[0].read_text()

    drive(story, tmp_path, folder)


def test_flow_shows_every_layer_at_the_cursor(tmp_path):
    folder = sick(tmp_path)

    async def story(driver):
        text = await driver.press("f")
        assert isinstance(driver.screen, FlowScreen)
        assert "Gradient flow at step 150" in text or "Gradient flow at step 151" in text
        assert "┃" in text
        await driver.press("end")
        assert "╳╳╳╳" in driver.text
        await driver.press("f")
        assert isinstance(driver.screen, RunScreen)

    drive(story, tmp_path, folder, (120, 36))


def test_two_marked_runs_are_compared(tmp_path):
    sick(tmp_path)
    healthy(tmp_path)

    async def story(driver):
        assert "Mark two runs" in await driver.press("c")
        text = await driver.press("x", "j", "x", "c")
        assert isinstance(driver.screen, CompareScreen)
        assert "They first differ at step 151, in layers.2.attn" in text
        assert "=" in text
        assert text.index("gpt-small") < text.index("gpt-fp16")
        await driver.press("end", "d")
        assert driver.screen.view.cursor == 151
        await driver.press("2", "j", "plus")
        await driver.press("escape")
        assert isinstance(driver.screen, RunsScreen)

    drive(story, tmp_path, size=(120, 40))


def test_compared_runs_are_examined_where_nobody_has(tmp_path):
    names = ("20261116-120000-a-aaaaaa", "20261116-120001-b-bbbbbb")
    a, b = (OpenRun(synthetic.write_run(tmp_path / name, steps=range(1, 41))) for name in names)
    assert not a.was_examined
    first = to_text(compare_page(a, b, View(), Paper(120, False, True), 40).lines)
    assert "Nobody has examined this run yet" in first or a.was_examined
    for viewed in (a, b):
        viewed._examination.join()
        assert viewed.was_examined
    assert "Nobody has examined" not in to_text(compare_page(a, b, View(), Paper(120, False, True), 40).lines)


@pytest.mark.parametrize("is_ascii", [False, True])
def test_every_page_fits_any_size(sick_desk, tmp_path, is_ascii):
    other = OpenRun(healthy(tmp_path))
    for size in ((80, 24), (200, 60), (50, 14)):
        paper = Paper(size[0], is_ascii, True)
        for page in (
            flow_page(sick_desk, View(), paper, size[1] - 1),
            compare_page(sick_desk, other, View(), paper, size[1] - 1),
            layer_page(sick_desk, "layers.2.attn", View(), paper, size[1] - 1),
        ):
            text = to_text([fit_line(line, size[0]) for line in page.lines])
            assert "NaN" in text or "Inf" in text or page.column >= 0
            assert text.isascii() or not is_ascii


def test_names_of_charts_never_move_their_cells():
    frame = Frame(Bins(np.arange(10), 1), 20, 12, 3)
    series = Series(np.arange(10), np.logspace(-6, 6, 10))
    for label in ("loss", "a very long name of a very long track"):
        lines = chart_lines(label, series, frame, Paper(60), 3, note="of self_attn.q_proj.weight")
        cells = {sum(cell_width(text) for text, _ in line[:2]) for line in lines}
        assert cells == {frame.gutter + 4}


def test_cells_fill_the_room_and_are_found_again():
    for count, room in ((31, 56), (5, 56), (56, 56), (1, 8)):
        frame = Frame(Bins(np.arange(count), 1), room, 10, 0)
        assert frame.width == min(room, 3 * count)
        line = frame.spread([("x", "")] * count)
        assert line_width(line) == frame.width
        assert [frame.column(frame.edge(at)) for at in range(count)] == list(range(count))
        assert frame.column(frame.width) is None


def test_palette_goes_to_a_layer(tmp_path):
    folder = healthy(tmp_path)

    async def story(driver):
        assert "layers.3.mlp" not in driver.screen.page.rows
        await driver.pilot.press("ctrl+k")
        await driver.pilot.pause()
        await driver.handed_on()
        assert not isinstance(driver.app.screen, PageScreen)
        names = [hit.text async for hit in Names(driver.app.screen_stack[-2]).search("layers.3.mlp")]
        assert names[0] == "layers.3.mlp"
        await driver.pilot.press("escape")
        await driver.settle()
        driver.screen.choose("layers.3.mlp")
        await driver.settle()
        assert driver.screen.page.row == "layers.3.mlp"

    drive(story, tmp_path, folder)


def test_a_screen_that_is_still_empty_says_why(tmp_path):
    folder = sick(tmp_path)

    async def story(driver: Driver) -> None:
        shown = driver.text
        driver.screen.be_patient()
        assert driver.text == shown
        driver.screen.lines_widget.show([], True)
        driver.screen.be_patient()
        assert driver.text.strip() == screens.READING

    drive(story, tmp_path, folder)
