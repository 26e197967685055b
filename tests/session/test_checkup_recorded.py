"""A checkup from before the run is recorded with it, and the page shows it."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import nn
from torch.nn import functional as F

import stethoscope
from stethoscope.views.common.open_run import OpenRun
from stethoscope.views.pagedata.overview import run_data


def train(model: nn.Module, optimizer: torch.optim.Optimizer, folder: Path) -> None:
    x, y = torch.randn(16, 6), torch.randint(0, 3, (16,))
    with stethoscope.watch(model, optimizer, run=folder, companion="off", quiet=True):
        for _ in range(3):
            optimizer.zero_grad()
            F.cross_entropy(model(x), y).backward()
            optimizer.step()


def test_what_a_checkup_found_stands_with_the_run(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3), nn.Softmax(-1))
    optimizer = torch.optim.SGD(list(model[0].parameters()), 0.1)
    batch = (torch.randn(16, 6), torch.randint(0, 3, (16,)))
    found = stethoscope.checkup(model, batch, F.cross_entropy, optimizer)
    train(model, optimizer, tmp_path / "run")
    shown = run_data(OpenRun(tmp_path / "run"))["checkup"]
    assert {row["code"] for row in shown["findings"]} == {finding.code for finding in found.findings}
    assert "double_softmax" in {row["code"] for row in shown["findings"]}
    assert shown["numExperiments"] == found.looked_at.num_detectors > 0
    assert shown["seconds"] > 0


def test_without_one_the_page_says_so(tmp_path: Path) -> None:
    model = nn.Linear(6, 3)
    train(model, torch.optim.SGD(model.parameters(), 0.1), tmp_path / "run")
    assert run_data(OpenRun(tmp_path / "run"))["checkup"] is None
