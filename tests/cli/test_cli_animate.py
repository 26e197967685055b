"""animate and resume: what they write, what they say, and what they exit with."""

import json
import os
import xml.etree.ElementTree as ET

import pytest

from stethoscope.hooks.pause import PAUSED_FILE, RESUME_FILE


@pytest.mark.parametrize("kind", ["svg", "png", "txt", "json", "csv"])
def test_a_file_of_each_kind_holds_the_runs_gradients(cli, healthy, tmp_path, kind):
    target = tmp_path / f"flow.{kind}"
    code, out, _ = cli("animate", healthy, "-o", target, "--steps", "0:20")
    assert code == 0
    assert "layers by" in out
    data = target.read_bytes()
    if kind == "svg":
        assert ET.fromstring(data).tag.endswith("svg")
    elif kind == "png":
        assert data.startswith(b"\x89PNG")
    elif kind == "json":
        assert [frame["step"] for frame in json.loads(data)] == list(range(1, 21))
    else:
        assert len(data.splitlines()) > 3


def test_a_moving_picture(cli, healthy, tmp_path):
    image = pytest.importorskip("PIL.Image")
    assert cli("animate", healthy, "-o", tmp_path / "flow.gif", "--steps", "0:5")[0] == 0
    with image.open(tmp_path / "flow.gif") as picture:
        assert picture.n_frames > 1


def test_without_a_file_it_is_played_or_told(cli, sick):
    code, out, _ = cli("animate", sick)
    assert code == 0
    assert out.startswith("Gradient flow  step")
    body = json.loads(cli("animate", sick, "--json")[1])
    assert body["schema_version"] == 1
    assert body["overall_health"] == "Critical"


def test_what_cannot_be_drawn_is_refused(cli, healthy, base):
    assert cli("animate", healthy, "-o", "flow.avi")[0] == 2
    assert cli("animate", healthy, "--fps", "0")[0] == 2
    assert cli("animate", healthy, "--steps", "100000:")[0] == 3
    assert cli("animate", "nothing-like-it")[0] == 2


def test_resume_leaves_the_file_that_a_paused_run_waits_for(cli, healthy):
    code, out, err = cli("resume", healthy)
    assert (code, out) == (2, "")
    assert "not paused" in err
    (healthy / PAUSED_FILE).write_text("hook 'halt' at step 3\n")
    code, out, _ = cli("resume", healthy)
    assert code == 0
    assert "hook 'halt' at step 3" in out
    assert (healthy / RESUME_FILE).exists()
    body = json.loads(cli("resume", healthy, "--json")[1])
    assert body["resumed"] is True


def test_resume_follows_nothing_out_of_the_run(cli, healthy, tmp_path):
    """A run may come from anybody: neither file is read or made where a link leads."""
    outside = tmp_path / "outside"
    outside.write_text("a secret")
    (healthy / PAUSED_FILE).symlink_to(outside)
    code, out, err = cli("resume", healthy)
    assert (code, out) == (2, "")
    assert "a secret" not in err
    (healthy / PAUSED_FILE).unlink()
    os.mkfifo(healthy / PAUSED_FILE)
    assert cli("resume", healthy)[0] == 2, "and nobody waits for a FIFO"
    (healthy / PAUSED_FILE).unlink()
    (healthy / PAUSED_FILE).write_text("hook 'halt' at step 3")
    (healthy / RESUME_FILE).symlink_to(tmp_path / "made")
    assert cli("resume", healthy)[0] == 0
    assert not (tmp_path / "made").exists()
    assert (healthy / RESUME_FILE).is_file()
    assert not (healthy / RESUME_FILE).is_symlink()
    (healthy / RESUME_FILE).unlink()
    (healthy / RESUME_FILE).mkdir()
    code, _, err = cli("resume", healthy)
    assert code == 2
    assert "Traceback" not in err
