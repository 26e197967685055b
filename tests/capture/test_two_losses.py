"""Two optimizers, two losses: each its own curve, one that both step for is the first one's."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import stethoscope  # noqa: E402


def _train(tmp_path: Path, *, shared: bool) -> Any:
    torch.manual_seed(0)
    model = torch.nn.ModuleDict({"first": torch.nn.Linear(3, 1), "second": torch.nn.Linear(3, 1)})
    pair = [torch.optim.SGD(part.parameters(), lr=0.01) for part in model.values()]
    session = stethoscope.watch(model, pair, dir=str(tmp_path), companion="inline", quiet=True)
    x = torch.ones(4, 3)
    for _ in range(3):
        if shared:
            (0 * model["first"](x).sum() + 0 * model["second"](x).sum() + 7.0).backward()
            pair[1].step()
            pair[0].step()
        else:
            (0 * model["second"](x).sum() + 5.0).backward()
            pair[1].step()
            (0 * model["first"](x).sum() + 2.0).backward()
            pair[0].step()
    folder = session.stop().path
    assert folder is not None
    return stethoscope.open_run(folder)


def test_each_optimizer_has_its_own_loss(tmp_path: Path) -> None:
    run = _train(tmp_path, shared=False)
    assert run.metric("loss").values.tolist() == [2.0, 2.0, 2.0]
    assert run.metric("loss.1").values.tolist() == [5.0, 5.0, 5.0]


def test_one_loss_for_both_is_the_loss(tmp_path: Path) -> None:
    run = _train(tmp_path, shared=True)
    assert run.metric("loss").values.tolist() == [7.0, 7.0, 7.0]
    assert "loss.1" not in run.metrics()
