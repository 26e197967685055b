"""The animation's page in a real browser: it plays, scrubs, keeps still for who asks, and asks nobody for anything."""

from __future__ import annotations

import numpy as np
import pytest

from stethoscope.instruments.animator import GradientFlowAnimator

NASTY = '<img src=x onerror="window.pwned=1"></script><script>window.pwned=2</script>'


@pytest.fixture(scope="module")
def flow(tmp_path_factory):
    animator = GradientFlowAnimator()
    for step in range(40):
        gradients = {f"layers.{n}.weight": np.full(4, 1.0 + (step % 5)) for n in range(6)} | {NASTY: np.ones(4)}
        if step >= 30:
            gradients["layers.3.weight"] = np.full(4, np.nan)
        animator.record_step(step, gradients)
    return animator.export_html(tmp_path_factory.mktemp("flow") / "flow.html", title=NASTY)


@pytest.fixture
def opened(browser, flow):
    def open_page(**options):
        context = browser.new_context(viewport={"width": 1000, "height": 700}, **options)
        page = context.new_page()
        page.trouble = []
        page.on("console", lambda message: page.trouble.append(message.text))
        page.on("pageerror", lambda error: page.trouble.append(str(error)))
        page.on("request", lambda request: page.trouble.append(request.url) if "flow.html" not in request.url else None)
        page.goto(flow.as_uri())
        contexts.append(context)
        return page

    contexts: list = []
    yield open_page
    for context in contexts:
        context.close()


def test_plays_scrubs_and_reads_out(opened):
    from playwright.sync_api import expect

    page = opened()
    assert page.text_content("#step") == "30"
    assert page.text_content("#said") == "layers.3.weight, step 30: NaN"
    page.keyboard.press("ArrowLeft")
    assert page.text_content("#said").startswith("layers.3.weight, step 29: ")
    page.keyboard.press("Shift+ArrowLeft")
    assert page.text_content("#step") == "19"
    page.keyboard.press("k")
    assert page.text_content("#said").startswith("layers.2.weight, step 19")
    page.keyboard.press("Home")
    assert page.text_content("#step") == "0"
    page.select_option("#speed", "30")
    page.click("#play")
    expect(page.locator("#step")).not_to_have_text("0")
    page.click("#play")
    assert page.text_content("#play") == "Play"
    box = page.locator("#cells").bounding_box()
    page.mouse.click(box["x"] + 200, box["y"] + 30)
    assert page.text_content("#step") in ("0", "1")
    page.evaluate(
        "() => { const s = document.getElementById('scrub'); s.value = '12'; s.dispatchEvent(new Event('input')); }"
    )
    assert page.text_content("#step") == "12"
    assert page.evaluate("window.pwned") is None
    assert page.trouble == []


def test_less_motion_and_dark_are_heeded(opened):
    page = opened(reduced_motion="reduce", color_scheme="dark")
    page.evaluate("() => { window.pauses = []; window.setInterval = (_, ms) => window.pauses.push(ms); }")
    page.keyboard.press("Home")
    page.click("#play")
    assert page.evaluate("window.pauses") == [500]
    page.click("#play")
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(16, 19, 21)"
    assert page.trouble == []


def test_without_scripts_there_is_the_heatmap_as_text(opened):
    page = opened(java_script_enabled=False)
    assert "layers.3.weight" in page.text_content("noscript")
