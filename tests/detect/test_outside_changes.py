"""Weights that other code writes to between two steps: told with the step, a cause only where the loss broke and stayed so."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from stethoscope.record import Finding, Severity
from tests.detect.trainings import Net, batches, watch
from tests.detect.written import find

CODE = "weights_changed_outside"
Act = Callable[[int, Net], None]


@pytest.fixture(autouse=True)
def seeded() -> None:
    torch.manual_seed(0)


def run(
    folder: Path, act: Act, *, every: int = 1, kind: type[torch.optim.Optimizer] = torch.optim.Adam
) -> list[Finding]:
    """What is found where `act` is called after each step."""
    model = Net()
    optimizer = kind(model.parameters(), lr=1e-2)  # type: ignore[call-arg]
    session = watch(model, optimizer, folder, every=every)
    for step, (x, y) in enumerate(batches(100)):
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        optimizer.step()
        with torch.no_grad():
            act(step, model)
    session.stop()
    assert sum(session._watcher.guard.errors.values()) == 0, session._watcher.guard.last_traceback
    found = find(session.run)
    assert repr(find(session.run, 9)) == repr(found), "findings depend on how the run is cut"
    return [finding for finding in session.diagnosis.causes if finding.code == CODE] or [
        f for f in found if f.code == CODE
    ]


def multiply(at: int, factor: float) -> Act:
    def act(step: int, model: Net) -> None:
        if step == at:
            model.head.weight.mul_(factor)

    return act


def test_a_head_that_somebody_multiplies_is_the_cause(tmp_path: Path) -> None:
    found = run(tmp_path, multiply(50, 1e4))
    assert [(f.severity, f.first_step, f.sites) for f in found] == [(Severity.CRITICAL, 51, ("head.weight",))]
    assert "between steps 50 and 51" in found[0].message


def test_any_optimizer_will_do(tmp_path: Path) -> None:
    found = run(tmp_path, multiply(50, 1e4), kind=torch.optim.SGD)
    assert [(f.first_step, f.sites) for f in found] == [(51, ("head.weight",))]


def test_it_is_seen_between_steps_that_were_not_measured_under_adam(tmp_path: Path) -> None:
    found = run(tmp_path, multiply(50, 1e4), every=8)
    assert [(f.severity, f.first_step) for f in found] == [(Severity.CRITICAL, 56)]
    assert "between steps 48 and 56" in found[0].message


def test_a_change_that_does_no_harm_is_a_note(tmp_path: Path) -> None:
    found = run(tmp_path, multiply(50, 1.5))
    assert [f.severity for f in found] == [Severity.INFO]


def clamp(step: int, model: Net) -> None:
    for p in model.parameters():
        p.clamp_(-0.05, 0.05)


def by_hand(step: int, model: Net) -> None:
    for p in model.parameters():
        p.mul_(0.9 if step % 2 else 1.1)


def average_and_back(step: int, model: Net) -> None:
    """As an evaluation with averaged weights does it."""
    kept = copy.deepcopy(model.state_dict())
    for p in model.parameters():
        p.mul_(0.1)
    model.load_state_dict(kept)


def prune(step: int, model: Net) -> None:
    if step == 50:
        w = model.mid.weight
        w[w.abs() < w.abs().median()] = 0.0


def load_saved(step: int, model: Net) -> None:
    """Back to what it was ten steps before."""
    if step == 40:
        model.saved = copy.deepcopy(dict(model.state_dict()))  # type: ignore[assignment]
    if step == 50:
        model.load_state_dict(model.saved)  # type: ignore[arg-type]


def nothing(step: int, model: Net) -> None:
    """Only trains."""


@pytest.mark.parametrize("act", [clamp, by_hand, average_and_back, prune, load_saved, nothing])
def test_what_scripts_do_on_purpose_is_no_cause(tmp_path: Path, act: Act) -> None:
    assert all(f.severity is Severity.INFO for f in run(tmp_path, act))


def test_a_normalized_weight_is_nobody_elses(tmp_path: Path) -> None:
    class Normalized(Net):
        def __init__(self) -> None:
            super().__init__()
            self.mid = nn.utils.parametrizations.weight_norm(self.mid)  # type: ignore[assignment]

    model = Normalized()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    session = watch(model, optimizer, tmp_path)
    for x, y in batches(60):
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        optimizer.step()
    session.stop()
    assert CODE not in {f.code for f in find(session.run)}
