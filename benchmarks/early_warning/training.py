"""A training that diverges by itself where its setting is the bad one, and its healthy twin with another number there."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Final

import torch
from torch import nn

Forward = Callable[[int], torch.Tensor]
"""From a step to its loss."""


def _nothing(step: int) -> None:
    """After a step nothing else happens."""


@dataclasses.dataclass
class Training:
    """What a program sets up; the loop is the same for all."""

    model: nn.Module
    optimizer: torch.optim.Optimizer
    loss: Forward
    """Forward of one step, up to the loss."""
    before: Callable[[int], None] = _nothing
    """What happens before a step: a schedule, or the other network's turn."""
    after: Callable[[int], None] = _nothing
    others: tuple[torch.optim.Optimizer, ...] = ()
    """Further optimizers, stepped by `before`."""


Builder = Callable[[int, float], Training]


@dataclasses.dataclass(frozen=True)
class Program:
    """One mechanism by which trainings diverge."""

    name: str
    mechanism: str
    steps: int
    bad: float
    good: float
    build: Builder

    def start(self, seed: int, *, is_bad: bool) -> Training:
        """A fresh training, the same for the same seed."""
        torch.manual_seed(seed)
        return self.build(seed, self.bad if is_bad else self.good)


PROGRAMS: Final[dict[str, Program]] = {}
SEEDS: Final = (0, 1)


def diverging(mechanism: str, *, steps: int, bad: float, good: float) -> Callable[[Builder], Builder]:
    """Add a program: the number it gets is `bad` in the one that diverges, `good` in its twin."""

    def add(build: Builder) -> Builder:
        PROGRAMS[build.__name__] = Program(build.__name__, mechanism, steps, bad, good, build)
        return build

    return add


def walk(training: Training, steps: int, each: Callable[[int, float], None] = lambda step, loss: None) -> list[float]:
    """Train; `each` hears the loss between backward and the optimizer's step. The losses, step by step."""
    losses = []
    for step in range(steps):
        training.before(step)
        training.optimizer.zero_grad()
        loss = training.loss(step)
        loss.backward()
        losses.append(loss.item())
        each(step, losses[-1])
        training.optimizer.step()
        training.after(step)
    return losses
