"""Steps that pass while device code is compiled are left out and named; training itself is not touched."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import stethoscope
from stethoscope import kernels
from stethoscope.record.events import NotMeasured
from stethoscope.store import open_run


class Compiler:
    """Has the needed kernels from one call of `can_measure` for a step on, and all of them from a later one."""

    def __init__(self, rows_from: int, all_from: int) -> None:
        self.rows_from, self.all_from, self.step = rows_from, all_from, 0

    def can_measure(self, *, everything: bool = False) -> bool:
        return self.step >= (self.all_from if everything else self.rows_from)


def train(folder: Path, compiler: Compiler, steps: int) -> tuple[list[float], stethoscope.DebugSession]:
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.ReLU(), torch.nn.Linear(8, 1))
    optimizer = torch.optim.Adam(model.parameters(), 1e-2)
    session = stethoscope.watch(model, optimizer, run=folder, quiet=True, companion="off", every=1)
    losses = []
    for step in range(steps):
        compiler.step = step + 1  # what the step after this one is planned with
        loss = model(torch.randn(16, 8)).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(float(loss.detach()))
    session.stop()
    return losses, session


def test_steps_before_the_kernels_are_there_are_not_measured_and_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiler = Compiler(rows_from=3, all_from=5)
    monkeypatch.setattr(kernels, "uses_devices", lambda: True)
    monkeypatch.setattr(kernels, "can_measure", compiler.can_measure)
    losses, session = train(tmp_path / "late", compiler, 8)
    with open_run(tmp_path / "late") as run:
        assert [said for _, said in run.events_of(NotMeasured)] == [NotMeasured(first=0, rows_until=3, outputs_until=5)]
        norms = run.matrix(None, "norm")
        kinds = [str(info.site.kind) for info in norms.sites]
        for kind, first in (("gradient", 3), ("weight", 3), ("update", 3), ("activation", 5)):
            measured = ~norms.missing[:, [name == kind for name in kinds]]
            assert measured.any(axis=1).tolist() == [step >= first for step in norms.steps], kind
        assert "loss" in run.metrics()
    assert (
        "Not measured while the kernels were compiled: steps 0–2, module outputs and histograms of steps 0–4."
        in session.diagnosis.verdict.reservations
    )
    monkeypatch.undo()
    assert losses == train(tmp_path / "at_once", Compiler(0, 0), 8)[0]


def test_a_run_that_ends_before_says_so_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    compiler = Compiler(rows_from=100, all_from=100)
    monkeypatch.setattr(kernels, "uses_devices", lambda: True)
    monkeypatch.setattr(kernels, "can_measure", compiler.can_measure)
    _, session = train(tmp_path / "run", compiler, 4)
    assert "Not measured while the kernels were compiled: steps 0–3." in session.diagnosis.verdict.reservations


def test_a_run_without_a_device_waits_for_nothing(tmp_path: Path) -> None:
    _, session = train(tmp_path / "run", Compiler(0, 0), 3)
    with open_run(tmp_path / "run") as run:
        assert not run.events_of(NotMeasured)
    assert not session.diagnosis.looked_at.unmeasured
