"""`stethoscope checkup`: what it builds, what it says, how it ends."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from stethoscope.cli import main

SCRIPT = """
import torch
from torch import nn

def build():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(20, 32), nn.ReLU(), nn.Linear(32, 5))
    return model, (torch.randn(32, 20), torch.randint(5, (32,))), nn.CrossEntropyLoss(), torch.optim.Adam(model.parameters())

def summed():
    model, batch, _, optimizer = build()
    return {"model": model, "batch": batch, "loss_fn": nn.CrossEntropyLoss(reduction="sum"), "optimizer": optimizer}

def short():
    return 3

def strange():
    return dict(zip(("model", "batch", "loss_fn"), build()), colour="red")

def breaks():
    raise OSError("no data here")

if __name__ == "__main__":
    raise SystemExit("must not run")
"""


@pytest.fixture
def script(tmp_path: Path) -> str:
    path = tmp_path / "train_for_checkup.py"
    path.write_text(SCRIPT)
    return str(path)


def test_clean_exits_0(script: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["checkup", script]) == 0
    assert "Nothing to report" in capsys.readouterr().out


def test_a_clean_checkup_names_its_experiments(script: str, capsys: pytest.CaptureFixture[str]) -> None:
    for width in ("80", "140"):
        assert main(["checkup", script, "--width", width]) == 0
        lines = capsys.readouterr().out.splitlines()
        assert max(map(len, lines)) <= int(width)
        ticked = [line for line in lines if line.startswith("✓ ")]
        assert len(ticked) > 12
        assert any("the first loss is" in line for line in lines)
        idle = next(line for line in lines if line.startswith("not applicable here"))
        # What had nothing to look at is not said to have found nothing wrong.
        assert "causality" in idle
        assert not any("causality" in line or "future" in line for line in ticked)


def test_each_experiment_says_what_came_of_it(script: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["checkup", f"{script}:summed", "--json"]) == 1
    looked = json.loads(capsys.readouterr().out)["looked_at"]
    done = {one["name"]: one for one in looked["experiments"]}
    assert len(done) == looked["num_detectors"]
    assert done["loss: batch size"]["outcome"] == "found"
    assert done["loss: batch size"]["codes"] == ["loss_scales_with_batch"]
    assert done["frozen parts"]["outcome"] == "clear"
    assert done["frozen parts"]["looked_at"]
    assert {one["outcome"] for one in looked["experiments"]} <= {"clear", "found", "does not apply", "failed"}
    assert all(one["looked_at"] for one in looked["experiments"] if one["outcome"] == "clear")


def test_findings_exit_1(script: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["checkup", f"{script}:summed", "--width", "100"]) == 1
    out = capsys.readouterr().out
    assert "loss_scales_with_batch" in out
    assert 'reduction="mean"' in out
    assert main(["checkup", f"{script}:summed", "--fail-on", "critical"]) == 0


def test_json(script: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["checkup", f"{script}:summed", "--json"]) == 1
    body = json.loads(capsys.readouterr().out)
    assert body["schema_version"] == 1
    assert [cause["code"] for cause in body["causes"]] == ["loss_scales_with_batch"]
    assert body["looked_at"]["num_detectors"] > 20


@pytest.mark.parametrize(
    ("target", "says"),
    [
        (":short", "must return"),
        (":strange", "colour"),
        (":breaks", "no data here"),
        (":missing", "no function"),
    ],
)
def test_usage(script: str, target: str, says: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["checkup", script + target]) == 2
    assert says in capsys.readouterr().err


def test_no_file(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["checkup", "nowhere.py:build"]) == 2
    assert "no such file" in capsys.readouterr().err.lower()
