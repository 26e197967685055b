"""The report: one file, its policy by hash, its data inside; Markdown and JSON; hostile names."""

from __future__ import annotations

import base64
import gzip
import hashlib
import json
import re

import pytest

from stethoscope.cli import main
from stethoscope.views.pagedata import OpenRun
from stethoscope.views.report import report_data, report_html, report_markdown
from tests.store.run_making import write_findings
from tests.views import synthetic

NASTY = "</script><script>alert(1)</script><img src=x onerror=alert(2)>`|*_[x](javascript:alert(3))"


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


def carried(text):
    packed = re.search(r'id="carried">([^<]*)<', text)[1]
    return json.loads(gzip.decompress(base64.b64decode(packed)))


def test_the_policy_admits_exactly_what_is_inside(sick):
    text = report_html(OpenRun(sick), "0.1.0")
    policy = re.search(r'http-equiv="Content-Security-Policy" content="([^"]*)"', text)[1]
    style, script = (
        re.search(r"<style>(.*?)</style>", text, re.S)[1],
        re.search(r"<script>(.*?)</script>", text, re.S)[1],
    )
    for part in (style, script):
        digest = base64.b64encode(hashlib.sha256(part.encode()).digest()).decode()
        assert f"'sha256-{digest}'" in policy
    assert "unsafe" not in policy
    assert "default-src 'none'" in policy
    assert "style=" not in text.split("<script>")[0].split("</style>")[1]


def test_the_data_inside_is_the_pages_own_form(sick):
    body = carried(report_html(OpenRun(sick), "0.1.0"))
    assert body["run"]["verdict"]["cause"]["code"] == "exploding_gradients"
    assert body["heat"]["count"] > 20
    assert {track["key"] for track in body["whole"]} >= {"loss", "grad_norm", "lr"}
    assert body["layer"]["path"].startswith("layers.2.attn")
    assert body["flow"]["count"] == 1


def test_a_report_is_the_same_but_for_the_clock(sick):
    first, second = (report_data(OpenRun(sick), "0.1.0") for _ in range(2))
    for body in (first, second):
        body.pop("madeAt")
        body["run"].pop("readAt")
    assert first == second


def test_markdown_says_what_the_page_says(sick):
    text = report_markdown(OpenRun(sick))
    assert "## ◆ The gradient of layers.2.attn grew without bound from step 150." in text
    assert "| loss | 1.66 | **NaN** |" in text
    assert "clip\\_grad\\_norm\\_" not in text.split("```")[1]
    assert "1. **150**" in text


def test_hostile_names_stay_text(tmp_path):
    folder = synthetic.write_run(
        tmp_path / "20261116-130000-x-ffffff", name=NASTY, modules=[NASTY, "ok"], steps=range(1, 30)
    )
    write_findings(folder, [])
    text = report_html(OpenRun(folder), "0.1.0")
    assert text.count("<script>") == 1
    assert "<img" not in text
    assert carried(text)["run"]["run"]["name"].startswith("</script>")
    words = report_markdown(OpenRun(folder))
    assert "<script>" not in words.replace("\\<script\\>", "")


@pytest.mark.parametrize("form", ["html", "md", "json"])
def test_the_command_writes_the_form_that_the_name_says(sick, tmp_path, capsys, form):
    out = tmp_path / f"x.{form}"
    assert main(["report", str(sick), "-o", str(out)]) == 0
    assert str(out) in capsys.readouterr().out
    text = out.read_text("utf-8")
    assert {"html": "<!doctype html>", "md": "# gpt-fp16", "json": "{"}[form] in text[:40]
    if form == "json":
        assert json.loads(text)["schema_version"] == 1
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".")] == []


def test_the_command_to_stdout_and_where_it_cannot_write(sick, tmp_path, capsys):
    assert main(["report", str(sick), "-o", "-", "--format", "md"]) == 0
    assert "What followed" in capsys.readouterr().out
    assert main(["report", str(sick), "-o", str(tmp_path / "no" / "such" / "x.html")]) == 2
    assert "cannot be written" in capsys.readouterr().err


def test_a_run_nobody_looked_at_is_examined_first(tmp_path):
    folder = synthetic.write_run(
        tmp_path / "20261116-130000-gpt-3f9a02", synthetic.exploding, metrics=synthetic.exploding_metrics
    )
    viewed = OpenRun(folder)
    assert not viewed.was_examined
    body = report_data(viewed, "0.1.0")
    assert viewed.was_examined
    assert body["run"]["verdict"]["cause"] is not None
