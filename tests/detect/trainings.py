"""Short trainings with one mistake each, written as people write them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

import stethoscope
from stethoscope.session import DebugSession


class Net(nn.Module):
    def __init__(self, activation: Callable[[torch.Tensor], torch.Tensor] = torch.relu) -> None:
        super().__init__()
        self.body, self.mid, self.head = nn.Linear(10, 32), nn.Linear(32, 32), nn.Linear(32, 3)
        self.activation = activation

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.activation(self.mid(self.activation(self.body(x)))))


def batches(num_steps: int, seed: int = 0) -> Any:
    generator = torch.Generator().manual_seed(seed)
    truth = torch.randn(10, 3, generator=generator)
    for _ in range(num_steps):
        x = torch.randn(32, 10, generator=generator)
        yield x, (x @ truth).argmax(1)


def watch(model: nn.Module, optimizer: Any, folder: Path, **settings: Any) -> DebugSession:
    settings = {"quiet": True, "companion": "off", "every": 1} | settings
    return stethoscope.watch(model, optimizer, dir=str(folder), **settings)


def train(
    model: nn.Module,
    optimizer: Any,
    folder: Path,
    *,
    num_steps: int = 40,
    before_step: Callable[[int], None] | None = None,
    lose: Callable[[torch.Tensor, torch.Tensor], torch.Tensor] = F.cross_entropy,
    **settings: Any,
) -> DebugSession:
    session = watch(model, optimizer, folder, **settings)
    for step, (x, y) in enumerate(batches(num_steps)):
        optimizer.zero_grad()
        lose(model(x), y).backward()
        if before_step is not None:
            before_step(step)
        optimizer.step()
    session.stop()
    return session
