"""Optimizers made to be captured: on a device where there is one, else where torch permits them on the CPU."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn import functional as F

from tests.styles.bench import Bench, judge
from tests.styles.test_optimizing import STEPS, batch, net, one_thread  # noqa: F401 - the fixture

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
KINDS = ("Adam", "AdamW", "NAdam", "RAdam", "Adamax", "RMSprop", "Adadelta", "ASGD", "Rprop")


def make(kind: str, parameters: Any, foreach: bool) -> Any:
    return getattr(torch.optim, kind)(parameters, lr=0.005, capturable=True, foreach=foreach)


def permits(kind: str, foreach: bool) -> bool:
    """Whether torch takes such a step here at all."""
    weight = torch.nn.Parameter(torch.ones(3, device=DEVICE))
    weight.grad = torch.ones_like(weight)
    try:
        make(kind, [weight], foreach).step()
    except (AssertionError, RuntimeError):
        return False
    return True


@pytest.mark.parametrize("foreach", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_capturable_optimizers(kind: str, foreach: bool, tmp_path: Path) -> None:
    if not permits(kind, foreach):
        pytest.skip(f"torch {torch.__version__} takes no capturable {kind} on the {DEVICE}")

    def style(bench: Bench) -> None:
        model = net().to(DEVICE)
        optimizer = make(kind, model.parameters(), foreach)
        bench.watch(model, optimizer)
        for step in range(STEPS):
            x, y = (value.to(DEVICE) for value in batch(step))
            optimizer.zero_grad()
            loss = F.cross_entropy(model(x), y)
            loss.backward()
            optimizer.step()
            bench.tick(loss)

    judge(style, tmp_path)


@pytest.mark.filterwarnings("ignore::UserWarning:torch.*")
@pytest.mark.parametrize("kind", ["Adam", "RMSprop"])
def test_a_compiled_step_of_a_capturable_optimizer(kind: str, tmp_path: Path) -> None:
    """While torch compiles it permits them everywhere."""

    def style(bench: Bench) -> None:
        torch._dynamo.reset()
        model = net()
        optimizer = make(kind, model.parameters(), foreach=True)
        bench.watch(model, optimizer)
        step_fn = torch.compile(optimizer.step, backend="aot_eager")
        for step in range(STEPS):
            x, y = batch(step)
            optimizer.zero_grad()
            loss = F.cross_entropy(model(x), y)
            loss.backward()
            step_fn()
            bench.tick(loss)
        torch._dynamo.reset()

    judge(style, tmp_path)
