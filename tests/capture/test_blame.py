"""Warnings blame the line that they blame without us, whichever of our wrappers is on the stack."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset

import stethoscope
from stethoscope.kernels.frameless import call_and_show
from stethoscope.session import running

pytestmark = pytest.mark.skipif(
    call_and_show(object()) is None, reason="the C library is missing or older than its source: python build_kernels.py"
)


class Talking(nn.Module):
    """Warns from Python, from torch's Python and from C++."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(4, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        warnings.warn("of the forward", stacklevel=1)
        x = self.inner(x)
        torch.add(x.detach(), x.detach(), out=torch.empty(2))
        torch.Tensor.add(x.detach(), 1)
        return F.log_softmax(F.softmax(x))


class Rows(Dataset[Any]):
    """Warns of whoever asked for a batch."""

    def __len__(self) -> int:
        return 6

    def __getitem__(self, position: int) -> torch.Tensor:
        for level in (1, 3, 5, 6):
            warnings.warn(f"of a sample, {level}", stacklevel=level)
        return torch.ones(4) * position


class Doubled(torch.autograd.Function):
    """Warns of whoever called backward."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x * 2

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
        for level in (1, 2, 3, 4, 5, 6):
            warnings.warn(f"of a backward, {level}", stacklevel=level)
        return grad * 2


def _rate(step: int) -> float:
    for level in (1, 2, 3, 4, 5, 6, 7):
        warnings.warn(f"of a schedule, {level}", stacklevel=level)
    return 0.9**step


def _train(folder: Path | None, model: Talking | None = None) -> Iterator[None]:
    torch.manual_seed(0)
    model = model or Talking()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cpu")
    session = None
    if folder is not None:
        session = stethoscope.watch(model, optimizer, dir=str(folder), quiet=True, companion="off")
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, _rate)
    scheduler.step()
    for x in DataLoader(Rows(), 2):
        loss = F.mse_loss(Doubled.apply(model(x)), torch.zeros(3))
        scaler.scale(loss).backward(create_graph=True)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        model.zero_grad()
        scheduler.step(1)
        yield
    if session is not None:
        session.stop()
        assert not session._watcher.guard.errors, session._watcher.guard.last_traceback
        assert session.run.events("graph")[0].body["status"] != "unknown"


def _warned(folder: Path | None, action: Any) -> list[tuple[str, str, int]]:
    __import__("sys").modules[__name__].__dict__.pop("__warningregistry__", None)
    with warnings.catch_warnings(record=True) as heard:
        warnings.simplefilter(action)
        for _ in _train(folder):
            pass
    return [(str(one.message)[:60], one.filename, one.lineno) for one in heard]


@pytest.mark.parametrize("action", ["always", "default"])
def test_warnings_blame_the_same_lines(action: str, tmp_path: Path) -> None:
    """Every one of them, and with a filter that shows each line once: as often."""
    before = warnings.warn
    _warned(None, action)  # some of torch's warn once in a process
    plain, watched = _warned(None, action), _warned(tmp_path, action)
    assert watched == plain
    assert len({line for _, file, line in plain if file == __file__}) > 6
    assert warnings.warn is before


def test_a_filter_by_module_applies(tmp_path: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        warnings.filterwarnings("error", "Implicit dimension", module=__name__.replace(".", r"\."))
        trained = Talking()
        with pytest.raises(UserWarning, match="Implicit dimension"):
            list(_train(tmp_path, trained))
    running.stop_those_of([trained])
