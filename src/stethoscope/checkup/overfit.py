"""Can the model learn this one batch? A note where it does not: many reasons are innocent."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Final

import torch

from stethoscope.checkup.examination import Examination
from stethoscope.checkup.findings import INFO, found
from stethoscope.record import Finding, plural

NUM_STEPS: Final = 60
MAX_SECONDS: Final = 8.0
MIN_FALL: Final = 0.005


def examine(exam: Examination) -> Iterator[Finding]:
    """batch_not_learned."""
    if not exam.finite or not any(g is not None for g in exam.first.gradients.values()):
        return
    twin = exam.subject.twin(train=exam.first.trains)
    learning = [p for p in twin.parameters().values() if p.requires_grad]
    optimizers = twin.optimizers() if exam.subject.optimizers else [torch.optim.Adam(learning, lr=1e-3)]
    if not any(float(group.get("lr", 1.0)) for o in optimizers for group in o.param_groups):
        return
    held = {id(p) for o in optimizers for group in o.param_groups for p in group["params"]}
    if not any(id(p) in held for p in learning) or any(isinstance(o, torch.optim.LBFGS) for o in optimizers):
        return
    losses: list[float] = []
    ends = time.monotonic() + MAX_SECONDS
    while len(losses) < NUM_STEPS and time.monotonic() < ends:
        loss = twin.loss(twin.forward())
        losses.append(float(loss.detach()))
        grads = torch.autograd.grad(loss, learning, allow_unused=True)
        for p, g in zip(learning, grads, strict=True):
            p.grad = g
        for optimizer in optimizers:
            optimizer.step()
    last = sorted(losses[-5:])[len(losses[-5:]) // 2]
    exam.saw(f"in {plural(len(losses), 'step')} on this batch the loss went from {losses[0]:.3g} to {last:.3g}")
    if len(losses) >= 20 and not last < losses[0] - MIN_FALL * abs(losses[0]):
        yield found(
            "batch_not_learned",
            INFO,
            f"After {len(losses)} steps on this one batch the loss went from {losses[0]:.3g} to {last:.3g}.",
            numbers={"first loss": losses[0], "loss after": last, "steps": len(losses)},
            remedy="# try ten times the learning rate, and a tenth of it, on one batch first",
        )
