"""The animation as a page and as a film: self-contained, under its own policy, names as text."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from pathlib import Path

import numpy as np
import pytest

from stethoscope.cli import main
from stethoscope.instruments.animator import GradientFlowAnimator
from stethoscope.instruments.film import NoEncoderError
from tests.views import synthetic

NASTY = "</script><script>alert(1)</script><!--\u202e\x1b[2J"


def recorded(names=("a", "b"), steps=12, broken_from: int | None = None) -> GradientFlowAnimator:
    out = GradientFlowAnimator()
    for step in range(steps):
        bad = broken_from is not None and step >= broken_from
        value = np.full(4, np.nan if bad else 1.0 + step % 3)
        out.record_step(step, dict.fromkeys(names, value))
    return out


def parts(text: str) -> tuple[str, dict, str, str]:
    """Policy, carried data, script, style."""
    policy = re.search(r'Content-Security-Policy" content="([^"]+)"', text)[1]
    data = json.loads(re.search(r'id="carried">(.*?)</script>', text, re.S)[1])
    script = re.search(r"<script>(.*?)</script>", text, re.S)[1]
    return policy, data, script, re.search(r"<style>(.*?)</style>", text, re.S)[1]


def test_page_carries_everything_under_a_policy_by_hash(tmp_path):
    path = recorded(broken_from=9).export_html(tmp_path / "flow.html", title="Flow")
    text = path.read_text("utf-8")
    policy, data, script, style = parts(text)
    for code in (script, style):
        assert base64.b64encode(hashlib.sha256(code.encode()).digest()).decode() in policy
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    assert not re.search(r"https?://|\ssrc=|\shref=|@import|url\(|\sstyle=|\son[a-z]+=", text)
    assert data["labels"] == ["a", "b"]
    assert data["steps"] == list(range(12))
    values = np.frombuffer(base64.b64decode(data["values"]), "<f4").reshape(2, 12)
    assert values[0, :3].tolist() == [2.0, 4.0, 6.0]
    assert (data["column"], data["row"]) == (9, 0), "it opens where the first number is lost"
    assert "╳" in re.search(r"<noscript>(.*?)</noscript>", text, re.S)[1]


def test_names_cannot_leave_the_data(tmp_path):
    text = recorded((NASTY, "b")).export_html(tmp_path / "flow.html", title=NASTY).read_text("utf-8")
    assert text.count("<script") == 2
    assert "<!--" not in text
    assert "\x1b" not in text.replace("\\u001b", "")
    _, data, _, _ = parts(text)
    assert any("alert(1)" in label for label in data["labels"])


def test_many_layers_and_steps_stay_a_small_file(tmp_path):
    animator = recorded([f"layers.{n}.weight" for n in range(300)], steps=100)
    path = animator.export_html(tmp_path / "flow.html")
    _, data, _, _ = parts(path.read_text("utf-8"))
    assert len(data["labels"]) <= 200
    assert path.stat().st_size < 1_000_000


@pytest.fixture
def healthy(tmp_path):
    return synthetic.write_run(tmp_path / "20261116-120000-gpt-small-aaaaaa", steps=range(1, 13))


def fake_ffmpeg(folder: Path, monkeypatch, fails_on: str = "never") -> None:
    """A program that keeps what it is given, or refuses one encoder."""
    folder.mkdir()
    program = folder / "ffmpeg"
    program.write_text(
        "#!/bin/sh\n"
        f'case "$*" in *{fails_on}*) echo "Unknown encoder" >&2; exit 1;; esac\n'
        'for last; do :; done\necho "$*" > "$last.words.txt"\nexec cat > "$last"\n'
    )
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")


@pytest.mark.parametrize("fails_on", ["never", "libx264"])
def test_film_is_made_of_whole_even_pictures(tmp_path, monkeypatch, healthy, fails_on, capsys):
    fake_ffmpeg(tmp_path / "bin", monkeypatch, fails_on)
    target = tmp_path / "out" / "flow.mp4"
    assert main(["animate", str(healthy), "-o", str(target), "--fps", "4", "--steps", "1:3"]) == 0
    assert "layers by" in capsys.readouterr().out
    words = next(target.parent.glob(".*.words.txt")).read_text()
    width, height = map(int, re.search(r"-s (\d+)x(\d+)", words).groups())
    assert (width % 2, height % 2) == (0, 0)
    assert target.stat().st_size == width * height * 3 * 3
    assert ("libx264" in words) == (fails_on == "never")


def test_film_without_ffmpeg_says_how_to_get_it(tmp_path, monkeypatch, healthy, capsys):
    monkeypatch.setenv("PATH", str(tmp_path))
    assert main(["animate", str(healthy), "-o", str(tmp_path / "flow.mp4")]) == 2
    err = capsys.readouterr().err
    assert "needs the program ffmpeg" in err
    assert "in .html, which needs nothing more" in err
    assert not (tmp_path / "flow.mp4").exists()


def test_film_that_ffmpeg_refuses_leaves_nothing(tmp_path, monkeypatch):
    fake_ffmpeg(tmp_path / "bin", monkeypatch, "mp4")
    with pytest.raises(NoEncoderError, match="Unknown encoder"):
        recorded(steps=2).export_mp4(tmp_path / "out" / "flow.mp4")
    assert list((tmp_path / "out").iterdir()) == []


def test_command_writes_the_page(tmp_path, healthy, capsys):
    target = tmp_path / "flow.html"
    assert main(["animate", str(healthy), "-o", str(target), "--fps", "15"]) == 0
    _, data, _, _ = parts(target.read_text("utf-8"))
    assert data["speed"] == "16"
    assert "gpt-small" in target.read_text("utf-8")
