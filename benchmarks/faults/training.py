"""The right training loop, for programs whose bug is somewhere else."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

Batches = Iterable[tuple[torch.Tensor, torch.Tensor]]
LossFunction = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


def fit(
    session: Any,
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    batches: Batches,
    loss_fn: LossFunction = F.cross_entropy,
    *,
    log_loss: bool = False,
    log_batches: bool = False,
    validate: Callable[[], dict[str, float]] | None = None,
    validate_every: int = 20,
    scheduler: Any = None,
    clip: float | None = None,
) -> None:
    """Train as one should; log only what is asked for."""
    for number, (x, y) in enumerate(batches):
        if log_batches:
            session.log_batch(x, y)
        optimizer.zero_grad()
        loss = loss_fn(model(x), y)
        loss.backward()
        if clip is not None:
            nn.utils.clip_grad_norm_(model.parameters(), clip)
        optimizer.step()
        if scheduler is not None:
            scheduler.step()
        if log_loss:
            session.log(loss=loss)
        if validate is not None and (number + 1) % validate_every == 0:
            model.eval()
            with session.evaluating(), torch.no_grad():
                session.log(**validate())
            model.train()


def score(
    model: nn.Module, x: torch.Tensor, y: torch.Tensor, loss_fn: LossFunction = F.cross_entropy
) -> dict[str, float]:
    """Loss and accuracy of a classifier."""
    logits = model(x)
    return {"loss": loss_fn(logits, y).item(), "accuracy": (logits.argmax(-1) == y).float().mean().item()}
