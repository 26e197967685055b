"""The folder that a script runs in: it may be changed, be deleted, or lie below what we may not read."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import stethoscope
from stethoscope.config import DebugConfig
from stethoscope.record import ConfigError
from stethoscope.session.location import locate_run
from stethoscope.store import find_runs, open_run

SETTINGS = {"quiet": True, "companion": "off"}


def train(model: torch.nn.Module, optimizer: torch.optim.Optimizer, steps: int) -> None:
    for _ in range(steps):
        optimizer.zero_grad()
        model(torch.randn(8, 4)).square().mean().backward()
        optimizer.step()


def test_a_script_that_changes_its_folder_keeps_its_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    begun_in, elsewhere = tmp_path / "begun", tmp_path / "elsewhere"
    begun_in.mkdir()
    elsewhere.mkdir()
    monkeypatch.chdir(begun_in)
    model = torch.nn.Linear(4, 2)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    session = stethoscope.watch(model, optimizer, **SETTINGS)
    train(model, optimizer, 3)
    monkeypatch.chdir(elsewhere)
    train(model, optimizer, 3)
    assert len(session.run.steps) == 6, "read while it goes on"
    session.stop()
    (folder,) = find_runs(begun_in / ".stethoscope")
    run = open_run(folder)
    assert run.state == "finished"
    assert run.steps.tolist() == list(range(6))
    assert not any(run.losses.values())
    assert not list(elsewhere.iterdir())


DELETED = """
import os, tempfile, torch, torch._dynamo, stethoscope
gone = tempfile.mkdtemp()
os.chdir(gone)
os.rmdir(gone)
model = torch.nn.Linear(4, 2)
optimizer = torch.optim.SGD(model.parameters(), 0.1)
session = stethoscope.watch(model, optimizer, companion="off")
for _ in range(4):
    optimizer.zero_grad()
    model(torch.randn(8, 4)).square().mean().backward()
    optimizer.step()
session.stop()
print("steps", len(session.run.steps))
"""


def test_a_training_in_a_deleted_folder_is_recorded_among_the_temporary_files(tmp_path: Path) -> None:
    environment = os.environ | {"TMPDIR": str(tmp_path), "PYTHONPATH": str(Path(stethoscope.__file__).parents[1])}
    done = subprocess.run(
        [sys.executable, "-c", DELETED], capture_output=True, text=True, env=environment, timeout=120, cwd=tmp_path
    )
    assert done.returncode == 0, done.stderr
    assert "steps 4" in done.stdout
    assert "the run cannot be written" in done.stderr
    assert "Traceback" not in done.stderr
    assert len(find_runs(next(tmp_path.glob("stethoscope-*")))) == 1


def test_the_folder_of_a_run_is_absolute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert locate_run(DebugConfig(dir="here"), Path("named")).folder == tmp_path / "here" / "named"
    assert locate_run(DebugConfig(dir="here"), None).folder.is_relative_to(tmp_path / "here")


def test_a_project_file_that_may_not_be_read_holds_no_settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    inner = tmp_path / "inner"
    inner.mkdir()
    (tmp_path / "pyproject.toml").write_text("[tool.stethoscope]\nevery = 7\n")
    monkeypatch.chdir(inner)
    assert DebugConfig.load().every == 7
    (inner / "pyproject.toml").symlink_to("/proc/self/mem")  # a file that nobody can read as text, root neither
    assert DebugConfig.load().every == 7


@pytest.mark.parametrize("text", ["tool = 3", "[tool]\nstethoscope = 'all'", "[tool", "[tool.stethoscope]\nevry = 1"])
def test_a_broken_project_file_is_told_as_one(text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "pyproject.toml").write_text(text)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match=r"pyproject\.toml"):
        DebugConfig.load()
