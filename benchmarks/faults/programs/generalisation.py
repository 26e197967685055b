"""What the finished run shows: labels without meaning, overfitting, a loss that stands still."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from benchmarks.faults.catalogue import Outcome, finished, program
from benchmarks.faults.data import batches, digits, moons
from benchmarks.faults.models import mlp
from benchmarks.faults.training import fit, score

import stethoscope


@program()
def f58_shuffled_labels(seed: int) -> Outcome:
    """Images and labels were shuffled apart: the network learns them by heart, validation stays at chance."""
    torch.manual_seed(seed)
    data, model = digits(), mlp(64, 256, 256, 10)
    x, y = data.x[:256], data.y[:256][torch.randperm(256)]
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
    session = stethoscope.watch(model, optimizer)
    fit(
        session,
        model,
        optimizer,
        batches(x, y, size=64, steps=300, seed=seed),
        log_loss=True,
        validate=lambda: score(model, data.val_x, data.val_y),
        validate_every=10,
    )
    return finished(session)


@program()
def f74_overfit(seed: int) -> Outcome:
    """A hundred noisy samples and a network of 70,000 weights: validation turns round early."""
    torch.manual_seed(seed)
    data, model = moons(1000, noise=0.5), mlp(2, 256, 256, 2)
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
    session = stethoscope.watch(model, optimizer)
    best, onset = float("inf"), 0

    def validate() -> dict[str, float]:
        nonlocal best, onset
        found = score(model, data.val_x, data.val_y)
        if found["loss"] < best:
            best, onset = found["loss"], session.step
        return found

    fit(
        session,
        model,
        optimizer,
        batches(data.x[:100], data.y[:100], size=50, steps=300, seed=seed),
        log_loss=True,
        validate=validate,
        validate_every=10,
    )
    return finished(session, step=onset)


@program()
def f76_plateau(seed: int) -> Outcome:
    """A straight line through two moons: the loss falls, then stands still for two hundred steps."""
    torch.manual_seed(seed)
    data, model = moons(), mlp(2, 2)
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-2)
    session = stethoscope.watch(model, optimizer)
    for x, y in batches(data.x, data.y, size=800, steps=300, seed=seed):
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        session.log(loss=loss)
    return finished(session)
