"""A small training that sessions are tried on: what it did is known step by step."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch.nn import functional as F

import stethoscope
from tests.models import MODELS, make_batch


@dataclass
class Trained:
    """The session and the truth about its steps."""

    session: stethoscope.DebugSession
    model: torch.nn.Module
    optimizer: torch.optim.Optimizer
    losses: list[float] = field(default_factory=list)
    gradients: list[dict[str, torch.Tensor]] = field(default_factory=list)

    def norms(self, name: str) -> list[float]:
        return [float(gradients[name].double().norm()) for gradients in self.gradients]

    @property
    def gradient_norms(self) -> list[float]:
        return [sum(float(g.double().square().sum()) for g in one.values()) ** 0.5 for one in self.gradients]


def begin(folder: Path, name: str = "mlp", **settings: Any) -> Trained:
    torch.manual_seed(7)
    model = MODELS[name][0]()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    given: dict[str, Any] = {"dir": str(folder), "quiet": True, "companion": "off", "every": 1, **settings}
    return Trained(stethoscope.watch(model, optimizer, **given), model, optimizer)


def await_companion(session: stethoscope.DebugSession) -> int:
    """Until the companion has finished alone; its exit code."""
    assert session._recording is not None
    process = session._recording.companion._process
    assert process is not None
    return process.wait(60.0)


def go_on(trained: Trained, steps: int, name: str = "mlp", after: Callable[[int], None] = lambda step: None) -> Trained:
    generator = torch.Generator().manual_seed(1)
    for step in range(steps):
        x, y = make_batch(name, generator)
        trained.optimizer.zero_grad()
        loss = F.cross_entropy(trained.model(x), y)
        trained.losses.append(loss.item())
        loss.backward()
        trained.gradients.append({n: p.grad.clone() for n, p in trained.model.named_parameters() if p.grad is not None})
        trained.optimizer.step()
        after(step)
    return trained
