"""A folder that is used again: a resume, a resume that lost its optimizer, a new training, another process at the same time."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import stethoscope
from stethoscope.cli import main
from stethoscope.explain import diagnose
from stethoscope.store import open_run


def net(seed: int) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 4))


def train(model: nn.Module, optimizer: Any, steps: int, folder: Path, **settings: Any) -> stethoscope.DebugSession:
    session = stethoscope.watch(model, optimizer, run=folder, companion="off", **settings)
    generator = torch.Generator().manual_seed(0)
    for _ in range(steps):
        x = torch.randn(32, 16, generator=generator)
        optimizer.zero_grad()
        F.cross_entropy(model(x), x[:, :4].argmax(1)).backward()
        optimizer.step()
    return session


@pytest.fixture
def first(tmp_path: Path) -> tuple[Path, dict[str, Any], dict[str, Any]]:
    """A run of forty steps, and what a checkpoint would hold."""
    model = net(0)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    train(model, optimizer, 40, tmp_path / "run", quiet=True).stop()
    return tmp_path / "run", model.state_dict(), optimizer.state_dict()


def codes(folder: Path) -> list[str]:
    return [finding.code for finding in diagnose(folder).findings]


@pytest.mark.parametrize("seed", [0, 1])
def test_a_new_training_in_an_old_folder_is_no_resume(
    first: Any, seed: int, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = first[0]
    model = net(seed)
    train(model, torch.optim.Adam(model.parameters(), lr=1e-3), 20, folder).stop()
    said = capsys.readouterr().err
    assert "holds another training up to step 39" in said
    assert "from step 40 on" in said
    assert "optimizer_state_lost" not in codes(folder)
    run = open_run(folder)
    assert list(run.steps) == list(range(60)), "both stay readable"
    assert "Step 40 starts another training" in str(diagnose(run).to_json())
    assert main(["doctor", str(folder)]) == 0
    assert "Step 40 starts another training" in " ".join(capsys.readouterr().out.split())


@pytest.mark.parametrize("every", [4, 16])
def test_a_checkpoint_behind_the_last_recorded_weights_is_a_resume(
    every: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """On a busy machine weights are recorded at few steps; the last of them may lie long before the checkpoint."""
    model = net(0)
    train(model, torch.optim.Adam(model.parameters(), lr=1e-3), 46, tmp_path / "run", quiet=True, every=every).stop()
    (weights,) = open_run(tmp_path / "run").series("0.weight", "weight", "norm").values()
    assert weights.steps[-1] < 45
    again = net(5)
    again.load_state_dict(model.state_dict())
    train(again, torch.optim.Adam(again.parameters(), lr=1e-3), 5, tmp_path / "run").stop()
    assert "another training" not in capsys.readouterr().err


@pytest.mark.parametrize("keeps_optimizer", [True, False])
def test_a_resume_is_told_and_so_is_a_lost_optimizer(
    first: Any, keeps_optimizer: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    folder, weights, state = first
    model = net(5)
    model.load_state_dict(weights)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    if keeps_optimizer:
        optimizer.load_state_dict(state)
    train(model, optimizer, 20, folder).stop()
    assert "another training" not in capsys.readouterr().err
    assert ("optimizer_state_lost" in codes(folder)) != keeps_optimizer
    assert not diagnose(folder).looked_at.mixtures


def test_weights_between_two_recorded_steps_are_of_the_run(tmp_path: Path) -> None:
    folder, model = tmp_path / "run", net(0)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    train(model, optimizer, 37, folder, every=10, quiet=True).stop()
    train(model, torch.optim.Adam(model.parameters(), lr=1e-2), 10, folder, every=10, quiet=True).stop()
    assert [event.body["how"] for event in open_run(folder).events("continuation")] == ["resumed"]
    assert "optimizer_state_lost" in codes(folder)


def test_two_processes_in_one_run_are_both_kept_and_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "run"
    script = f"""
        import sys, torch
        from pathlib import Path
        from tests.session.test_continuation import net, train
        model = net(0)
        session = train(model, torch.optim.Adam(model.parameters()), 30, Path({str(folder)!r}), quiet=True)
        session.flush()
        print("ready", flush=True)
        sys.stdin.readline()
        session.stop()
    """
    other = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(script)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert other.stdout is not None
    assert other.stdout.readline() == "ready\n"
    model = net(1)
    session = train(model, torch.optim.Adam(model.parameters()), 20, folder)
    said = capsys.readouterr().err
    assert f"another process ({other.pid} on " in said
    session.stop()
    other.communicate("\n", timeout=60)
    run = open_run(folder)
    assert sorted(start.last_step for start in run.starts) == [29, 49]
    assert "optimizer_state_lost" not in codes(folder)
    assert main(["doctor", str(folder)]) == 0
    assert f"another process ({other.pid} on " in " ".join(capsys.readouterr().out.split())
    assert main(["show", str(folder)]) == 0
    assert f"another process ({other.pid} on " in " ".join(capsys.readouterr().out.split())
