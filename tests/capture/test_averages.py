"""Averaged models are known whether they were made before watching began or after, without a search in a step."""

from __future__ import annotations

import copy
import gc
from pathlib import Path

import pytest
import torch
from torch.optim.swa_utils import AveragedModel

import stethoscope
from stethoscope.record.events import Averages
from stethoscope.store import open_run

STEPS = 34


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("updated", [False, True])
def test_an_average_is_told_and_whether_it_moves(
    when: str, updated: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = torch.nn.Linear(4, 4)
    other = AveragedModel(torch.nn.Conv1d(1, 1, 1))
    average = AveragedModel(model) if when == "before" else None
    session = stethoscope.watch(model, torch.optim.SGD(model.parameters(), 0.1), run=tmp_path / "run", quiet=True)
    average = average or AveragedModel(model)
    monkeypatch.setattr(gc, "get_objects", lambda **_: pytest.fail("a step must not search"))
    for _ in range(STEPS):
        model(torch.randn(8, 4)).square().mean().backward()
        session._optimizers[0].step()
        session._optimizers[0].zero_grad()
        if updated:
            average.update_parameters(model)
            other.update_parameters(other.module)
    monkeypatch.undo()
    session.stop()
    with open_run(tmp_path / "run") as run:
        told = [said for _, said in run.events_of(Averages)]
    assert all([one.type for one in said.averages] == ["AveragedModel"] for said in told)
    # One that differs from our first weights is nobody's business until it moves.
    assert [one.moved for said in told for one in said.averages] == ([True] if updated else [False, False])


def test_the_class_is_as_it_was_after_stop(tmp_path: Path) -> None:
    before = AveragedModel.__dict__["__init__"]
    model = torch.nn.Linear(2, 2)
    session = stethoscope.watch(model, run=tmp_path / "run", quiet=True)
    assert AveragedModel.__dict__["__init__"] is not before
    copy.deepcopy(AveragedModel(model))
    session.stop()
    assert AveragedModel.__dict__["__init__"] is before


@pytest.mark.parametrize("collected", [False, True])
def test_an_average_of_an_earlier_training_is_not_this_ones(collected: bool, tmp_path: Path) -> None:
    def made() -> torch.nn.Linear:
        torch.manual_seed(0)
        return torch.nn.Linear(4, 4)

    earlier = AveragedModel(made())
    if collected:
        gc.collect()
    model = made()
    session = stethoscope.watch(model, torch.optim.SGD(model.parameters(), 0.1), run=tmp_path / "run", quiet=True)
    for _ in range(STEPS):
        model(torch.randn(8, 4)).square().mean().backward()
        session._optimizers[0].step()
        session._optimizers[0].zero_grad()
    session.stop()
    with open_run(tmp_path / "run") as run:
        assert not list(run.events_of(Averages))
    assert torch.equal(earlier.module.weight, made().weight)
