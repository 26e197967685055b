"""Adam's eps rules where gradients are smaller than it; where none arrives at all, it has nothing to rule."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from tests.detect.trainings import batches, watch


class Fed(nn.Module):
    """A layer whose input is always the same number, as a time or a step may be."""

    def __init__(self, number: float) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(1, 8), nn.Parameter(torch.zeros(3))
        self.number = number

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.first(torch.full_like(x[:, :1], self.number))[:, :3] + self.second


@pytest.mark.parametrize(("number", "eps", "is_told"), [(0.0, 1e-8, False), (1.0, 1e-8, False), (1.0, 10.0, True)])
def test_a_weight_that_gets_no_gradient_is_not_ruled_by_eps(
    tmp_path: Path, number: float, eps: float, is_told: bool
) -> None:
    torch.manual_seed(0)
    model = Fed(number)
    optimizer = torch.optim.Adam(model.parameters(), eps=eps)
    session = watch(model, optimizer, tmp_path)
    for x, y in batches(40):
        optimizer.zero_grad()
        F.cross_entropy(model(x), y % 3).backward()
        optimizer.step()
    session.stop()
    assert ("adam_eps_dominates" in [f.code for f in session.diagnosis.findings]) is is_told
