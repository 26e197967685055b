"""The page in Chromium: every screen, the keyboard, the address, themes, phone, hostile names, live, the report."""

from __future__ import annotations

import csv
import io
import re
import shutil
from pathlib import Path

import pytest

from stethoscope.cli import main
from stethoscope.views.pagedata.screens import screens
from stethoscope.views.server.run_cache import opaque_id
from tests.page.conftest import HEALTHY, HOSTILE, LIVE, SICK, STALE, Watched, run_hash
from tests.views import synthetic

SCREENS = tuple(one.name for one in screens())
"""All of them: one that is added is held to what holds for the others."""


@pytest.mark.parametrize("name", [SICK, HEALTHY, LIVE])
@pytest.mark.parametrize("screen", SCREENS)
def test_every_screen_opens_without_a_violation_or_a_foreign_request(watched, name, screen):
    watched.open(run_hash(name, screen))
    assert watched.page.locator("main#main").count() == 1
    watched.until(lambda: watched.page.locator("main#main").inner_text().strip())
    watched.check()


def test_the_verdict_stands_first(watched):
    watched.open(run_hash(SICK))
    assert watched.page.locator("h1").inner_text() == "The gradient of layers.2.attn grew without bound from step 150."
    assert watched.page.locator(".overline").first.inner_text().startswith("Critical")
    evidence = watched.page.locator("table.evidence tbody tr")
    assert evidence.count() == 3
    assert evidence.nth(2).locator("td").last.inner_text() == "NaN"
    steps = watched.page.locator(".followed ol li b").all_inner_texts()
    assert steps == sorted(steps, key=lambda word: int(word.replace(",", "")))
    watched.check()


def test_a_journey_by_keyboard_from_the_list_to_the_cause(watched):
    watched.open("#/", ready=".runrow:not(.head)")
    page = watched.page
    num_rows = page.locator(".runrow:not(.head)").count()
    for _ in range(2 * num_rows):  # as one does who looks where the mark is: a live run may change the order meanwhile
        page.keyboard.press("j")
        marked = page.locator(".runrow.here .who b")
        if marked.count() and marked.inner_text() == "gpt-fp16":
            break
    page.keyboard.press("Enter")
    page.wait_for_selector("[data-ready] .heat .row")
    assert "gpt-fp16" in page.locator(".bar .title").inner_text()
    for _ in range(40):
        page.keyboard.press("j")
        chosen = page.locator(".heat .row.chosen")
        if "attn" in chosen.locator(".label").inner_text() and chosen.locator(".sign").count():
            break
    page.keyboard.press("]")
    said = page.locator("[aria-live=polite]").inner_text()
    assert "layers.2.attn" in said
    assert "step 150" in said
    page.keyboard.press("Enter")
    page.wait_for_selector(".layerhead h1")
    assert page.locator(".layerhead h1").inner_text() == "layers.2.attn"
    assert "The cause." in page.locator(".finds").inner_text()
    page.keyboard.press("Escape")
    page.wait_for_selector(".verdict h1")
    page.keyboard.press("f")
    page.wait_for_selector(".graph .node")
    page.keyboard.press("g")
    page.keyboard.press("r")
    page.wait_for_selector(".runlist")
    watched.check()


def test_the_view_is_in_the_address_and_comes_back_from_it(watched):
    watched.open(run_hash(SICK, words="step=160&at=layers.2.attn&kind=weight&stat=abs_max&raw=1&from=120&to=199"))
    page = watched.page
    assert page.locator(".axis .gutter").inner_text() == "Steps 120 to 199"
    assert page.locator(".segments button.on").first.inner_text() == "Weight"
    assert page.locator("select[aria-label=Statistic]").input_value() == "abs_max"
    page.keyboard.press("v")
    page.keyboard.press("+")
    # The address follows a moment after the last key.
    watched.until(lambda: "from=120&to=199" not in page.evaluate("location.hash"))
    address = page.evaluate("location.hash")
    assert "raw=1" not in address
    first, last = (int(re.search(rf"{word}=(\d+)", address)[1]) for word in ("from", "to"))
    assert 30 <= last - first <= 50
    page.reload()
    page.wait_for_selector("[data-ready]")
    assert page.locator(".axis .gutter").inner_text() == f"Steps {first} to {last}"
    watched.check()


def test_the_token_leaves_the_address(watched):
    watched.open("#/", ready=".runlist")
    assert "token" not in watched.page.evaluate("location.href")


def test_the_tree_opens_filters_and_reads_values(watched):
    watched.open(run_hash(HEALTHY, words="step=100"))
    watched.settle()
    page = watched.page
    before = page.locator(".heat .row").count()
    page.locator(".heat .label", has_text="layers.3").click()
    watched.settle()
    assert page.locator(".heat .row").count() > before
    page.keyboard.press("/")
    page.keyboard.type("attn")
    watched.settle()
    labels = page.locator(".heat .row .label .mono").all_inner_texts()
    assert "mlp" not in labels
    assert labels.count("attn") == 4
    values = page.locator(".heat .cells span").all_inner_texts()
    assert "usual" in values
    watched.check()


def test_dark_light_and_what_is_remembered(watched):
    watched.open(run_hash(SICK))
    page = watched.page
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    page.keyboard.press("t")
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(16, 19, 21)"
    page.reload()
    page.wait_for_selector("[data-ready]")
    assert page.evaluate("document.documentElement.dataset.theme") == "dark"
    watched.check()


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("where", ["runs", *SCREENS, "compare"])
def test_no_serious_accessibility_violation(browser, link, theme, where):
    pytest.importorskip("axe_playwright_python")
    from axe_playwright_python.sync_playwright import Axe

    context = browser.new_context(viewport={"width": 1440, "height": 900}, color_scheme=theme, bypass_csp=True)
    page = context.new_page()
    watched = Watched(page, link)
    pair = f"#/compare?a={opaque_id(Path(SICK))}&b={opaque_id(Path(HEALTHY))}"
    address = {"runs": "#/", "compare": pair}.get(where) or run_hash(SICK, where)
    watched.open(address, ready=".runlist" if where == "runs" else "[data-ready]")
    watched.settle()
    found = Axe().run(page).response["violations"]
    serious = [
        (one["id"], [node["html"][:160] for node in one["nodes"][:3]])
        for one in found
        if one["impact"] in ("serious", "critical")
    ]
    assert serious == []
    context.close()


@pytest.mark.parametrize("screen", SCREENS)
def test_hostile_names_are_drawn_as_text(watched, screen):
    watched.open(run_hash(HOSTILE, screen))
    watched.settle()
    page = watched.page
    assert page.evaluate("window.pwned") is None
    assert page.locator("main img").count() == 0
    assert "\u202e" not in page.locator("body").inner_text()
    assert page.evaluate("document.documentElement.scrollWidth") <= 1440
    watched.check()


def test_hostile_names_in_the_list_and_the_palette(watched):
    watched.open("#/", ready=".runlist")
    assert watched.page.evaluate("window.pwned") is None
    assert watched.page.locator(".runlist img").count() == 0
    watched.open(run_hash(HOSTILE))
    watched.page.keyboard.press("Control+k")
    watched.page.keyboard.type("img")
    watched.drawn()
    assert watched.page.locator(".hits li").count() >= 1
    assert watched.page.evaluate("window.pwned") is None
    watched.check()


def test_the_palette_goes_to_a_layer_and_a_step(watched):
    watched.open(run_hash(SICK))
    page = watched.page
    page.keyboard.press("Control+k")
    page.keyboard.type("step 123")
    page.keyboard.press("Enter")
    watched.until(lambda: "123" in page.locator(".axis").inner_text())
    page.keyboard.press("Control+k")
    page.keyboard.type("layers.1.mlp")
    page.keyboard.press("Enter")
    page.wait_for_selector(".layerhead h1")
    assert page.locator(".layerhead h1").inner_text() == "layers.1.mlp"
    watched.check()


def test_the_palette_takes_letters_typed_in_the_moment_it_opens(watched):
    watched.open(run_hash(SICK))
    where = """async () => {
      dispatchEvent(new KeyboardEvent("keydown", {key: "k", ctrlKey: true}));
      await new Promise((done) => setTimeout(done, 0));
      return document.activeElement.className; }"""
    assert watched.page.evaluate(where) == "find"
    at_once = """() => {
      const field = document.querySelector("input.find");
      field.value = "layers.1.mlp";
      field.dispatchEvent(new Event("input", {bubbles: true}));
      field.dispatchEvent(new KeyboardEvent("keydown", {key: "Enter", bubbles: true})); }"""
    watched.page.evaluate(at_once)
    watched.page.wait_for_selector(".layerhead h1")
    assert watched.page.locator(".layerhead h1").inner_text() == "layers.1.mlp"
    watched.check()


def test_a_live_run_moves_by_itself_and_pauses(watched, live):
    watched.open(run_hash(LIVE))
    page = watched.page
    shown = ".stand b"

    def step():
        return int(page.locator(shown).inner_text().replace(",", ""))

    first = step()
    for at_least in (first + 4, first + 12):  # it goes on by itself, and what is written comes to the screen
        wanted = max(at_least, live.step)
        watched.until(lambda wanted=wanted: step() >= wanted)
    page.keyboard.press(" ")
    assert "Paused" in page.locator(".status").inner_text()
    watched.settle()  # what was asked before the key may still come
    held, written = step(), live.step
    watched.until(lambda: live.step > written + 15)
    watched.settle()
    assert step() == held
    assert "Paused" in page.locator(".status").inner_text()
    watched.check()


def test_panels_can_be_saved(watched):
    watched.open(run_hash(SICK, words="step=160"))
    watched.settle()
    page = watched.page
    page.keyboard.press("s")
    row = page.locator(".choices li", has_text="Layers by step")
    assert row.locator("button").all_inner_texts() == ["PNG", "SVG", "CSV"]
    with page.expect_download() as waiting:
        row.locator("button", has_text="CSV").click()
    table = list(csv.reader(io.StringIO(Path(waiting.value.path()).read_text())))
    assert table[0][:3] == ["layer", "kind", "statistic"]
    assert len(table) > 500
    for form in ("PNG", "SVG"):
        page.keyboard.press("s")
        with page.expect_download() as waiting:
            page.locator(".choices li", has_text="Loss").locator("button", has_text=form).click()
        assert Path(waiting.value.path()).read_bytes()[:4] == {"PNG": b"\x89PNG", "SVG": b"<svg"}[form]
    watched.check()


def test_a_phone_sees_it_too(browser, link):
    context = browser.new_context(viewport={"width": 390, "height": 844})
    watched = Watched(context.new_page(), link)
    for screen in SCREENS[:4]:
        watched.open(run_hash(SICK, screen))
        watched.settle()
        assert watched.page.locator(".phonetabs a").count() == 5
        assert watched.page.evaluate("document.documentElement.scrollWidth") <= 390
    watched.check()
    context.close()


def test_without_motion_nothing_runs(browser, link):
    context = browser.new_context(viewport={"width": 1440, "height": 900}, reduced_motion="reduce")
    watched = Watched(context.new_page(), link)
    watched.open(run_hash(SICK, "flow", "step=160"))
    watched.page.wait_for_selector(".graph .node")
    assert watched.page.locator(".particles circle").count() == 0
    watched.check()
    context.close()


def test_flow_plays_and_stops(watched):
    watched.open(run_hash(SICK, "flow", "step=140"))
    page = watched.page
    page.wait_for_selector(".graph .node")
    # As soon as a step after 145 is drawn the page itself presses the key that stops: it does not wait for us to see it.
    page.evaluate("""() => { window.stopped = new Promise((done) => {
      const step = document.querySelector(".scrubber .count b");
      new MutationObserver((_, self) => {
        if (Number(step.textContent) <= 145) return;
        self.disconnect();
        dispatchEvent(new KeyboardEvent("keydown", {key: " "}));
        done(Number(step.textContent)); }).observe(step, {characterData: true, childList: true, subtree: true}); }); }""")
    page.keyboard.press(" ")
    held = page.evaluate("window.stopped")
    page.wait_for_timeout(300)
    assert page.locator(".scrubber .count").inner_text().split() == [str(held), "paused"]
    watched.check()


def test_two_runs_are_compared_from_the_list(watched):
    watched.open("#/", ready=".runlist")
    page = watched.page
    for name in ("gpt-fp16", "gpt-small"):
        page.locator(".runrow", has_text=name).locator("input").check()
    page.keyboard.press("c")
    page.wait_for_selector(".compare h1")
    assert page.locator("h1").inner_text() == "Identical for 150 steps, then they diverge at layers.2.attn at step 151."
    page.keyboard.press("d")
    watched.check()


def test_what_is_not_there_is_said_in_a_sentence(watched):
    watched.open("#/run/0000000000000000/overview", ready=".trouble h1")
    assert watched.page.locator(".trouble h1").inner_text() == "There is no such run"
    assert watched.page.locator(".trouble code").inner_text().startswith("stethoscope list")
    watched.check()


def test_a_wrong_token_gets_one_sentence_and_one_command(browser, link):
    page = browser.new_context().new_page()
    answer = page.goto(link.split("?")[0] + "?token=wrong")
    assert answer.status == 401
    assert "token" in page.locator("h1").inner_text()
    assert page.locator("code").inner_text() == "stethoscope ui"


@pytest.mark.parametrize("name", [SICK, HEALTHY, HOSTILE])
def test_the_report_opens_from_a_file_and_asks_for_nothing(browser, base, tmp_path, name):
    out = tmp_path / "report.html"
    assert main(["report", str(base / name), "-o", str(out)]) == 0
    context = browser.new_context(viewport={"width": 1440, "height": 900}, offline=True)
    watched = Watched(context.new_page(), "file://")
    watched.page.goto(out.as_uri())
    watched.page.wait_for_selector("html[data-ready] h1", timeout=60_000)
    watched.drawn()
    assert watched.page.evaluate("window.pwned") is None
    assert watched.page.locator("figure").count() >= 2
    watched.check()
    context.close()


def test_a_stale_run_says_since_when_and_keeps_its_data(watched):
    watched.open(run_hash(STALE))
    badge = watched.page.locator(".bar .stand.stale")
    assert re.fullmatch(r"Stale since \d\d:\d\d", badge.inner_text().strip())
    assert watched.page.locator(".heat .row").count() > 3
    watched.page.goto(f"{watched.link}#/")
    watched.page.wait_for_selector(".runrow:not(.head)")
    row = watched.page.locator(".runrow", has_text="gpt-quiet")
    assert "Stale since" in row.inner_text()
    watched.check()


def test_heads_and_units_are_shown_where_they_were_recorded(watched):
    watched.open(run_hash(HEALTHY, "layers", "at=layers.1.attn&step=100"))
    watched.page.wait_for_selector("[data-panel=heads]")
    assert "head 2 is lowest" in watched.page.locator("[data-panel=heads]").get_attribute("aria-label")
    assert "1 of 8 without a gradient" in watched.page.locator("[data-panel=units]").get_attribute("aria-label")
    watched.open(run_hash(SICK, "layers", "at=layers.1.attn&step=100"))
    watched.page.wait_for_selector(".layerhead h1")
    assert watched.page.locator("[data-panel=heads]").count() == 0
    watched.check()


def test_compare_shows_directions_where_both_runs_have_sketches(watched):
    watched.open(f"#/compare?a={opaque_id(Path(SICK))}&b={opaque_id(Path(HEALTHY))}")
    watched.settle()
    watched.page.get_by_role("radio", name="Cosine").click()
    watched.drawn()
    cells = watched.page.locator(".heat .row .cells span:last-child").all_inner_texts()
    assert any(re.fullmatch(r"-?[01]\.\d\d", words) for words in cells)
    watched.check()


def test_a_run_that_vanishes_while_open_is_said_to_be_gone_and_its_picture_stays(watched, base):
    gone = base / "20261116-090000-gone-eeeeee"
    synthetic.write_run(gone, name="gone", steps=range(1, 20), ended=None)
    watched.open(run_hash(gone.name))
    shutil.rmtree(gone)
    watched.page.locator(".notice", has_text="gone").wait_for(timeout=60_000)
    assert watched.page.locator(".heat .row").count() > 3
    assert watched.violations == []
    assert watched.foreign == []


def test_a_damaged_run_opens_and_says_what_is_left_out(watched, base):
    folder = base / "20261116-080000-harmed-ffffff"
    synthetic.write_run(folder, name="harmed", steps=range(1, 60))
    journal = next(folder.glob("rank-0/*.stj"))
    data = bytearray(journal.read_bytes())
    data[len(data) // 2] ^= 0xFF
    journal.write_bytes(data)
    watched.open(run_hash(folder.name))
    assert "Damaged" in watched.page.locator(".bar .stand").inner_text()
    watched.page.goto(f"{watched.link}{run_hash(folder.name, 'log')}")
    watched.page.get_by_text("rank-0/").first.wait_for(timeout=60_000)
    watched.check()
