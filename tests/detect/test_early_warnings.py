"""What is suspected before a loss breaks: said in time, as a note, withdrawn where nothing follows, silent over the healthy twin."""

from __future__ import annotations

import copy
import statistics
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from stethoscope.analyse.span import spans
from stethoscope.detect import Detection
from stethoscope.detect.overflow_ahead import LARGEST, Doublings
from stethoscope.detect.overshooting import Overshooting
from stethoscope.record import Finding, Severity
from stethoscope.session import DebugSession
from tests.detect.trainings import Net, batches, watch
from tests.detect.written import find


@pytest.fixture(autouse=True)
def seeded() -> None:
    torch.manual_seed(0)


def said(session: DebugSession, code: str) -> list[Finding]:
    session.stop()
    assert sum(session._watcher.guard.errors.values()) == 0, session._watcher.guard.last_traceback
    assert repr(find(session.run, 9)) == repr(find(session.run)), "findings depend on how the run is cut"
    return [finding for finding in find(session.run) if finding.code == code]


def warm_up(rate: float, folder: Path, num_steps: int) -> tuple[DebugSession, list[float]]:
    """The rate rises all the time; by step, what the step would take away by its slope against the loss."""
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=rate, momentum=0.9)
    session = watch(model, optimizer, folder)
    promised = []
    for step, (x, y) in enumerate(batches(num_steps)):
        optimizer.param_groups[0]["lr"] = rate * (step + 1) / num_steps
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        squares = sum(float(p.grad.square().sum()) for p in model.parameters() if p.grad is not None)
        promised.append(optimizer.param_groups[0]["lr"] * squares / loss.item())
        optimizer.step()
    return session, promised


def test_a_rate_that_rises_too_far_is_suspected_and_then_the_cause(tmp_path: Path) -> None:
    session, _ = warm_up(4.0, tmp_path, 600)
    found = said(session, "lr_too_high")
    assert [finding.severity for finding in found] == [Severity.CRITICAL]
    assert "the loss broke at step" in found[0].message
    assert "lr=" in found[0].remedy
    then = [finding for finding in find_upto(session, found[0].first_step) if finding.code == "lr_too_high"]
    assert [finding.severity for finding in then] == [Severity.INFO], "before it broke"


def test_one_that_the_model_bears_is_not(tmp_path: Path) -> None:
    session, _ = warm_up(0.2, tmp_path, 200)
    assert said(session, "lr_too_high") == said(session, "divergence_ahead") == []


def test_what_a_step_promises_is_the_rate_times_the_squared_gradient(tmp_path: Path) -> None:
    session, promised = warm_up(0.5, tmp_path, 40)
    session.stop()
    detector = Overshooting()
    for span in spans(session.run):
        detector.observe(span)
    told = next(r.value for r in detector.readings()["lr_too_high"] if "slope" in r.label)
    assert told == pytest.approx(statistics.median(promised[-20:]), rel=1e-4)


def follow_a_teacher(gain: float, folder: Path) -> DebugSession:
    """The targets are the student's own outputs, times a gain: above one a loop without an end."""
    student = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 8))
    teacher = copy.deepcopy(student).requires_grad_(False)
    optimizer = torch.optim.SGD(student.parameters(), lr=0.1)
    session = watch(student, optimizer, folder)
    for _ in range(160):
        x = torch.randn(64, 8)
        optimizer.zero_grad()
        F.mse_loss(student(x), gain * teacher(x) + 0.1 * x).backward()
        optimizer.step()
        with torch.no_grad():
            for mine, own in zip(teacher.parameters(), student.parameters(), strict=True):
                mine.lerp_(own, 0.3)
    return session


def test_outputs_that_grow_while_the_loss_rises(tmp_path: Path) -> None:
    found = said(follow_a_teacher(1.15, tmp_path), "divergence_ahead")
    assert [finding.severity for finding in found] == [Severity.INFO]
    loss, size = found[0].evidence
    assert (loss.value or 0) > 1.25 * (loss.before or 0)
    assert (size.value or 0) > 2 * (size.before or 0)


def test_outputs_that_settle_while_the_loss_falls(tmp_path: Path) -> None:
    assert said(follow_a_teacher(0.8, tmp_path), "divergence_ahead") == []


def test_a_loss_that_comes_back_is_no_longer_suspected(tmp_path: Path) -> None:
    """For sixty steps the targets are ten times as large; then they are what they were."""
    model = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02)
    truth = torch.randn(8)
    session = watch(model, optimizer, tmp_path)
    for step in range(500):
        x = torch.randn(64, 8)
        y = x @ truth * (10.0 if 100 <= step < 160 else 1.0)
        optimizer.zero_grad()
        F.mse_loss(model(x).squeeze(1), y).backward()
        optimizer.step()
    session.stop()
    upto = [f.code for f in find_upto(session, 150)]
    assert "divergence_ahead" in upto
    assert said(session, "divergence_ahead") == []


def find_upto(session: DebugSession, step: int) -> list[Finding]:
    detection = Detection()
    detection.observe(spans(session.run, upto=step))
    return detection.findings()


class Half(nn.Module):
    """Its output in float16 is as large as it is told."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(8))
        self.size = 1.0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (x * self.weight * self.size).half()


@pytest.mark.parametrize(("doubling", "num_steps", "found"), [(10.0, 130, True), (10.0, 90, False), (1e9, 130, False)])
def test_an_output_that_doubles_up_to_the_end_of_float16(
    tmp_path: Path, doubling: float, num_steps: int, found: bool
) -> None:
    inner = Half()
    model = nn.Sequential(inner)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-9)
    session = watch(model, optimizer, tmp_path)
    for step in range(num_steps):
        inner.size = 2.0 ** (step / doubling)
        optimizer.zero_grad()
        model(torch.linspace(0.5, 1.0, 8)).float().mean().backward()
        optimizer.step()
    notes = said(session, "overflow_ahead")
    assert bool(notes) is found
    assert all(note.severity is Severity.INFO and note.sites for note in notes)


def test_the_steps_left_are_those_of_the_growth() -> None:
    known = Doublings()
    for step in range(135):
        known.see(step, 2.0 ** (step / 10.0))
    # Doubled every ten steps; the smaller of the last two is that of step 133, and 2 ** 16 comes at step 160.
    assert known.steps_left == pytest.approx(10 * (torch.tensor(LARGEST).log2().item() - 13.3), abs=0.2)


def test_growth_that_slows_down_has_no_end_in_sight() -> None:
    known = Doublings()
    for step in range(1, 4000):
        known.see(step, 5000.0 * float(torch.tensor(step / 4000.0).pow(0.25)))
    assert not known.steps_left <= 4000
