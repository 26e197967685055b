"""What a notebook cell shows: static, escaped, readable on light and dark paper, and never an exception."""

from __future__ import annotations

import re
from html.parser import HTMLParser

import numpy as np
import pytest

import stethoscope
from stethoscope.explain import Diagnosis, State, Verdict
from stethoscope.explain.diagnosis import LookedAt
from stethoscope.record import Evidence, Finding, Severity
from stethoscope.store import open_run
from stethoscope.views.notebook import markup
from tests.store.run_making import write_findings
from tests.views import synthetic

NASTY = '</div></svg><script>alert(1)</script><img src=x onerror="alert(2)">\x1b[31m\u202e&lt;'
VOID = {"br", "hr", "img", "meta"}


class Checker(HTMLParser):
    """Collects tags and text, and insists that what is opened is closed."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: set[str] = set()
        self.attributes: list[tuple[str, str]] = []
        self.words = ""

    def handle_starttag(self, tag, attrs):
        self.tags.add(tag)
        self.attributes += [(name, value or "") for name, value in attrs]
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.tags.add(tag)
        self.attributes += [(name, value or "") for name, value in attrs]

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.words += data


def checked(html: str) -> Checker:
    checker = Checker()
    checker.feed(html)
    checker.close()
    assert checker.open == []
    assert checker.tags <= {
        "div",
        "span",
        "b",
        "code",
        "table",
        "tr",
        "td",
        "svg",
        "path",
        "circle",
        "details",
        "summary",
    }
    for name, value in checker.attributes:
        assert not name.startswith("on")
        assert name not in ("href", "src", "id", "class")
        assert "url(" not in value
        assert "javascript" not in value or name in ("title", "aria-label")
    return checker


@pytest.fixture
def sick(tmp_path):
    folder = synthetic.write_run(
        tmp_path / "20261116-130000-gpt-fp16-3f9a01",
        synthetic.exploding,
        name="gpt-fp16",
        metrics=synthetic.exploding_metrics,
        ended="exception",
        body={"exception": "FloatingPointError"},
    )
    write_findings(folder, [synthetic.CAUSE, *synthetic.FOLLOWED])
    return folder


def test_run_shows_verdict_evidence_loss_and_layers(sick):
    with open_run(sick) as run:
        checker = checked(run._repr_html_())
    for words in (
        "gpt-fp16",
        "crashed at step 200, FloatingPointError",
        synthetic.CAUSE.message,
        "96% sure",
        "0.406",
        "clip_grad_norm_",
        "layers.2.attn",
        "What followed",
        "sites",
    ):
        assert words in checker.words
    labels = [value for name, value in checker.attributes if name == "aria-label"]
    assert any(label.startswith("Loss, steps 102 to 200") for label in labels)
    assert any("each against its own past" in label for label in labels)


def test_hostile_names_are_text(tmp_path):
    modules = [f"{NASTY}.{n}" for n in range(3)]
    folder = synthetic.write_run(tmp_path / "r", synthetic.exploding, modules=modules, name=NASTY, steps=range(1, 40))
    evidence = Evidence(NASTY, 2.0, 1.0, unit=NASTY, site=NASTY, kind="gradient", stat="norm")
    write_findings(
        folder,
        [
            Finding(NASTY, Severity.CRITICAL, NASTY, 5, 9, (f"{NASTY}.0.weight",), (evidence,), NASTY),
            Finding("other", Severity.INFO, NASTY, 5, 9),
        ],
    )
    with open_run(folder) as run:
        html = run._repr_html_()
        found = stethoscope.diagnose(run, findings=run.findings())
    for text in (html, found._repr_html_()):
        words = checked(text).words
        assert "<script>alert(1)</script>" in words
        assert "\x1b" not in text
        assert "\u202e" not in text
    assert "\x1b" not in repr(found)
    assert "\x1b" not in found._repr_mimebundle_()["text/plain"]


def test_runs_without_findings_and_without_steps(tmp_path):
    fine = synthetic.write_run(tmp_path / "a")
    with open_run(fine) as run:
        assert "Not examined yet" in checked(run._repr_html_()).words
    write_findings(fine, [])
    with open_run(fine) as run:
        words = checked(run._repr_html_()).words
        assert "cannot tell" in words
        assert "20 of 20 tensors, 200 steps." in words
    empty = synthetic.write_run(tmp_path / "b", steps=range(0))
    with open_run(empty) as run:
        assert "The run holds no data." in checked(run._repr_html_()).words


def test_diagnosis_in_every_form():
    judged = Verdict(State.LEARNS, "The loss fell from 2.3 to 0.1.")
    healthy = Diagnosis(looked_at=LookedAt(3, 3, 10), judged=judged)
    assert repr(healthy) == "Diagnosis(learns: The loss fell from 2.3 to 0.1. 3 tensors, 10 steps)"
    words = checked(healthy._repr_html_()).words
    assert "learns" in words
    assert "The loss fell from 2.3 to 0.1." in words
    sick = Diagnosis(
        (synthetic.CAUSE,), (synthetic.CAUSE,), {synthetic.CAUSE.code: synthetic.FOLLOWED}, LookedAt(3, 3, 10)
    )
    bundle = sick._repr_mimebundle_()
    assert set(bundle) == {"text/plain", "text/html"}
    assert "\n" not in repr(sick)
    assert "◆ critical  exploding_gradients" in bundle["text/plain"]
    assert set(sick._repr_mimebundle_(include={"text/html"})) == {"text/html"}
    assert set(sick._repr_mimebundle_(exclude={"text/html"})) == {"text/plain"}


def test_what_cannot_be_drawn_is_its_line_of_text(sick, monkeypatch):
    import stethoscope.views.notebook.cells as cells

    def fails(run):
        raise ValueError("no")

    monkeypatch.setattr(cells, "run_html", fails)
    with open_run(sick) as run:
        assert checked(run._repr_html_()).words.startswith("Run(")


def test_session_and_tensors(tmp_path):
    torch = pytest.importorskip("torch")
    alone = stethoscope.DebugSession()
    assert repr(alone) == "DebugSession(no model), not watching"
    assert "no model" in checked(alone._repr_html_()).words
    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    session = stethoscope.watch(model, optimizer, dir=tmp_path, companion="off", quiet=True)
    for _ in range(3):
        model(torch.ones(2, 4)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    assert "DebugSession(Linear), watching" in checked(session._repr_html_()).words
    assert repr(session).endswith("step 3")
    session.flush()
    assert "weight" in checked(session._repr_html_()).words
    report = session.stop()
    assert "3 steps" in repr(report)
    assert repr(session).startswith("DebugSession(Linear), stopped")
    words = checked(stethoscope.inspect(np.ones(3), NASTY)._repr_html_()).words
    assert "<script>" in words


@pytest.mark.parametrize("paper", ["#ffffff", "#101315"])
def test_marks_stand_out_on_light_and_dark(paper):
    def luminance(color):
        parts = [int(color[at : at + 2], 16) / 255 for at in (1, 3, 5)]
        linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    for color in (markup.CRITICAL, markup.WARNING, markup.INFO, markup.LARGER, markup.SMALLER, "#0e8a98"):
        high, low = sorted((luminance(color), luminance(paper)), reverse=True)
        assert (high + 0.05) / (low + 0.05) >= 3.0, color


def test_no_color_is_fixed_for_text_or_paper(sick):
    with open_run(sick) as run:
        html = run._repr_html_()
    styles = ";".join(re.findall(r'style="([^"]*)"', html))
    assert set(re.findall(r"(?<!-)color:\s*([^;]+)", styles)) <= {
        "inherit",
        "currentColor",
        markup.CRITICAL,
        markup.WARNING,
    }
    assert set(re.findall(r"background:\s*([^;]+)", styles)) <= {"none"}
