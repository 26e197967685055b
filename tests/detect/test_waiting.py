"""Waiting for data: a fault where something stands still until a loader has a batch, else a note."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset

from stethoscope.record import Severity, metrics
from tests.detect.trainings import Net, watch
from tests.detect.written import find, write_run


@pytest.mark.parametrize(
    ("idle", "loaded", "severity"),
    [
        (18.0, True, Severity.WARNING),
        (2.0, True, Severity.INFO),
        (None, True, Severity.WARNING),
        (18.0, False, Severity.INFO),
        (None, False, Severity.INFO),
    ],
    ids=["asleep", "at work", "a device waits", "a pause", "a pause beside a device"],
)
def test_who_waits_and_for_what_decides(idle: float | None, loaded: bool, severity: Severity, tmp_path: Path) -> None:
    steps = range(60)
    curves = {"step_ms": dict.fromkeys(steps, 25.0), "data_ms": dict.fromkeys(steps, 20.0)}
    if loaded:
        curves["loader_ms"] = curves["data_ms"]
    if idle is not None:
        curves["idle_ms"] = dict.fromkeys(steps, idle)
    (found,) = [f for f in find(write_run(tmp_path, curves)) if f.code == "data_bound"]
    assert found.severity is severity
    assert "80%" in found.message
    assert ("the processor works" in found.message) is (idle == 2.0)
    assert ("in a pause" in found.message) is not loaded


class Items(Dataset[torch.Tensor]):
    """Of whom each keeps the processor busy."""

    def __len__(self) -> int:
        return 30

    def __getitem__(self, index: int) -> torch.Tensor:
        until = time.process_time() + 0.002
        while time.process_time() < until:
            pass
        return torch.randn(4, 10)


class Called(nn.Module):
    """Is never called itself: a method of its own gives the loss."""

    def __init__(self) -> None:
        super().__init__()
        self.net = Net()

    def loss_of(self, x: torch.Tensor) -> torch.Tensor:
        return F.cross_entropy(self.net(x), torch.zeros(len(x), dtype=torch.long))


def test_the_processor_is_seen_to_work_though_the_model_is_not_called(tmp_path: Path) -> None:
    model = Called()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    session = watch(model, optimizer, tmp_path)
    for x in DataLoader(Items(), batch_size=None):
        optimizer.zero_grad()
        model.loss_of(x).backward()
        optimizer.step()
    session.stop()
    idle, waited = (session.run.metric(name) for name in (metrics.IDLE_MS, metrics.LOADER_MS))
    assert len(idle.values) >= 25
    assert float(idle.values[5:].sum()) < float(waited.values[5:].sum())
