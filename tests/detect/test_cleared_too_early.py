"""Gradients that are cleared before the step: nothing is left to read of them, and no graph is cut."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch.nn import functional as F

from tests.detect.trainings import Net, batches, watch


@pytest.mark.parametrize("fault", ["cleared", "cut"])
def test_what_is_missing_everywhere_was_cleared_or_never_came(tmp_path: Path, fault: str) -> None:
    torch.manual_seed(0)
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    session = watch(model, optimizer, tmp_path)
    for x, y in batches(30):
        optimizer.zero_grad()
        out = model(x)
        loss = F.cross_entropy(out.detach().requires_grad_() if fault == "cut" else out, y)
        loss.backward()
        if fault == "cleared":
            optimizer.zero_grad()
        optimizer.step()
    session.stop()
    expected = {"cleared": "gradients_cleared_before_step", "cut": "detached_graph"}
    codes = {finding.code for finding in session.diagnosis.findings}
    assert codes & set(expected.values()) == {expected[fault]}
