"""What a person reads on the page: the numbers of a verdict, the log, the checkup, where two runs part; on a phone too."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from stethoscope.record import Evidence, Finding, Severity
from stethoscope.views.server.run_cache import opaque_id
from tests.page.conftest import HEALTHY, SICK, Watched, run_hash
from tests.store.run_making import write_findings
from tests.views import synthetic

ALONE = "20261116-070000-alone-abcabc"
CHECKED = "20261116-070100-checked-abcabd"
PHONE = {"width": 390, "height": 844}


@pytest.fixture(scope="module")
def alone(base):
    """A run with one cause, which names one number and which nothing followed."""
    folder = base / ALONE

    def story(site, step):
        return synthetic.row(9.0) if site.module == "layers.1.attn" and step >= 150 else synthetic.healthy(site, step)

    def metrics(step):
        return synthetic.default_metrics(step) | {"clip_norm": 1.0}

    synthetic.write_run(folder, story, name="alone", metrics=metrics)
    cause = Finding(
        "attention_logit_growth",
        Severity.WARNING,
        "Attention in layers.1.attn narrows from step 150.",
        150,
        200,
        ("layers.1.attn.weight",),
        (Evidence("share of the first place", 0.9, 0.1),),
        "q, k = rms_norm(q), rms_norm(k)",
    )
    write_findings(folder, [cause])
    return folder


@pytest.fixture(scope="module")
def checked(base):
    """A run whose checkup found nothing, did not look at everything, and failed once."""
    folder = base / CHECKED
    synthetic.write_run(folder, name="checked", steps=range(1, 20), ended=None)
    writer = synthetic._OPEN.pop()
    experiments = [
        {"name": f"e{n}", "question": f"Is it so, {n}?", "outcome": outcome, "looked_at": looked, "codes": []}
        for n, (outcome, looked) in enumerate(
            [("clear", "12 weights"), ("does not apply", ""), ("failed", "TypeError: no")]
        )
    ]
    body = {
        "findings": [],
        "num_experiments": 3,
        "experiments": experiments,
        "not_examined": [],
        "seconds": 1.5,
        "time": 1.8e9,
    }
    writer.event(0, "checkup", body)
    assert writer.flush()
    writer.close("finished")
    write_findings(folder, [])
    return folder


def test_a_verdict_with_one_number_has_more_beside_it(watched, alone):
    watched.open(run_hash(alone.name))
    page = watched.page
    labels = page.locator("table.evidence tbody th[scope=row]").all_inner_texts()
    assert labels == [
        "Share of the first place",
        "Gradient L2, attn",
        "Gradient before clipping",
        "Clip coefficient",
        "Loss",
    ]
    assert page.locator("table.evidence .spark").count() == 4
    told = page.locator(".followed li").all_inner_texts()
    assert "Started in layers.1.attn.weight" in told[0]
    assert any("Lasts to the end, 51 steps" in words for words in told)
    assert any("The loss is not affected" in words for words in told)
    assert "The loss does not show it" in page.locator(".why").inner_text()
    watched.check()


def test_a_healthy_run_says_how_it_went(watched):
    watched.open(run_hash(HEALTHY))
    rows = watched.page.locator(".calm table.evidence tbody tr")
    assert rows.first.inner_text().split("\t")[0].strip() == "Training loss"
    assert rows.count() >= 3
    watched.check()


def test_the_log_is_sentences_from_the_beginning_to_the_end(watched):
    watched.open(run_hash(SICK, "log"))
    page = watched.page
    page.wait_for_selector(".log li")
    told = page.locator(".log li").all_inner_texts()
    assert "Recording begins" in told[0]
    assert "FloatingPointError" in told[-1]
    assert "{" not in "".join(told)
    page.locator(".log button.stepno", has_text="150").click()
    page.wait_for_selector(".verdict h1")
    assert "step=150" in page.evaluate("location.hash")
    watched.check()


def test_a_checkup_names_its_experiments(watched, checked):
    watched.open(run_hash(checked.name, "checkup"))
    page = watched.page
    assert page.locator("h1").inner_text() == "The checkup before training found nothing wrong."
    rows = page.locator(".asked tbody tr").all_inner_texts()
    assert [row.split("\t")[-1].strip() for row in rows] == ["12 weights", "It failed: TypeError: no"]
    assert "Is it so, 1?" in page.locator(".idle").inner_text()
    watched.check()


def test_two_runs_say_where_they_part_and_in_what(watched):
    watched.open(f"#/compare?a={opaque_id(Path(SICK))}&b={opaque_id(Path(HEALTHY))}")
    watched.settle()
    page = watched.page
    assert "151, they diverge" in page.locator(".axis").text_content()
    assert "A is NaN, 190" in page.locator(".axis").text_content()
    assert page.locator("[data-panel=parted]").count() == 1
    assert page.locator("text.band").text_content() == "bit for bit the same"
    watched.check()


def test_the_list_says_what_the_runs_take(watched):
    watched.open("#/", ready=".runlist")
    assert re.search(r"\d+ runs, [\d.]+ [kM]B", watched.page.locator(".status").inner_text())
    assert re.search(r"[\d.]+ [kM]B", watched.page.locator(".runrow .who small").first.inner_text())


def test_the_words_of_the_flow_lie_on_no_node(watched):
    watched.open(run_hash(SICK, "flow", "step=185"))
    page = watched.page
    page.wait_for_selector(".graph .node")
    crossed = page.evaluate("""() => {
      const boxes = [...document.querySelectorAll(".graph .node rect")].map((one) => one.getBoundingClientRect());
      return [...document.querySelectorAll(".graph text.halo2")].filter((text) => { const a = text.getBoundingClientRect();
        return boxes.some((b) => a.left < b.right - 1 && a.right > b.left + 1 && a.top + 3 < b.bottom && a.bottom - 3 > b.top);
      }).length; }""")
    assert crossed == 0
    watched.check()


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_a_phone_reads_every_screen(browser, link, checked, theme):
    pytest.importorskip("axe_playwright_python")
    from axe_playwright_python.sync_playwright import Axe

    context = browser.new_context(viewport=PHONE, color_scheme=theme, bypass_csp=True)
    watched = Watched(context.new_page(), link)
    page = watched.page
    screens = [
        *(run_hash(SICK, name) for name in ("overview", "layers", "flow", "log", "profile", "ranks")),
        run_hash(CHECKED, "checkup"),
    ]
    for address in (*screens, "#/"):
        watched.open(address, ready=".runlist, [data-ready]")
        watched.settle()
        assert page.evaluate("document.documentElement.scrollWidth") <= PHONE["width"]
        assert page.evaluate("document.querySelector('main').scrollWidth") <= PHONE["width"] + 8, address
        found = Axe().run(page).response["violations"]
        serious = [
            (one["id"], one["nodes"][0]["html"][:160]) for one in found if one["impact"] in ("serious", "critical")
        ]
        assert serious == [], address
    page.locator(".runlist").wait_for()
    watched.open(run_hash(SICK, "profile"))
    page.get_by_role("navigation", name="More screens").get_by_text("Checkup").click()
    page.get_by_text("No checkup was recorded").wait_for()
    context.close()
