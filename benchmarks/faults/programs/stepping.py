"""What happens between backward and step: clearing, stepping, accumulating, averaging, resuming."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from benchmarks.faults.catalogue import Outcome, finished, program
from benchmarks.faults.data import batches, cancer, digits, text, windows
from benchmarks.faults.models import CharModel, mlp
from benchmarks.faults.training import fit
from torch import nn
from torch.optim.swa_utils import AveragedModel

import stethoscope


@program(step=1)
def f01_no_zero_grad(seed: int) -> Outcome:
    """Gradients of every step so far are added up."""
    torch.manual_seed(seed)
    data, model = digits(), mlp(64, 64, 10)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    session = stethoscope.watch(model, optimizer)
    for x, y in batches(data.x, data.y, steps=100, seed=seed):
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
    return finished(session)


@program(step=0)
def f02_zero_grad_before_step(seed: int) -> Outcome:
    """The gradients are gone before the optimizer sees them."""
    torch.manual_seed(seed)
    data, model = digits(), mlp(64, 64, 10)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    session = stethoscope.watch(model, optimizer)
    for x, y in batches(data.x, data.y, steps=100, seed=seed):
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        optimizer.zero_grad()
        optimizer.step()
    return finished(session)


@program()
def f03_step_never_runs(seed: int) -> Outcome:
    """`optimizer.step()` was forgotten."""
    torch.manual_seed(seed)
    data, model = digits(), mlp(64, 64, 10)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    session = stethoscope.watch(model, optimizer)
    for x, y in batches(data.x, data.y, steps=100, seed=seed):
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
    return finished(session)


@program(step=0)
def f19_accumulation_not_divided(seed: int) -> Outcome:
    """Four micro-batches are added up as if each were the whole batch."""
    torch.manual_seed(seed)
    data, model = digits(), mlp(64, 64, 10)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02)
    session = stethoscope.watch(model, optimizer)
    for number, (x, y) in enumerate(batches(data.x, data.y, size=16, steps=400, seed=seed)):
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        if (number + 1) % 4 == 0:
            optimizer.step()
            optimizer.zero_grad()
    return finished(session)


@program(step=0)
def f20_mean_of_means(seed: int) -> Outcome:
    """Micro-batches of 32 to 500 letters count the same: letters of short ones weigh fifteen times as much."""
    torch.manual_seed(seed)
    _, vocabulary = text()
    model = CharModel(vocabulary)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    session = stethoscope.watch(model, optimizer)
    lengths = torch.Generator(torch.get_default_device()).manual_seed(seed)
    for number, (x, y) in enumerate(windows(size=16, steps=240, seed=seed)):
        length = 2 if number % 4 == 0 else int(torch.randint(24, 33, (1,), generator=lengths))
        y = y.clone()
        y[:, length:] = -100
        session.log_batch(x, y)
        logits = model(x)
        loss = F.cross_entropy(logits.flatten(0, 1), y.flatten(), ignore_index=-100) / 4
        loss.backward()
        if (number + 1) % 4 == 0:
            optimizer.step()
            optimizer.zero_grad()
    return finished(session)


@program()
def f21_ema_never_updated(seed: int) -> Outcome:
    """The average is made, evaluated and saved, and nobody calls `update_parameters`."""
    torch.manual_seed(seed)
    data, model = digits(), mlp(64, 64, 10)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    average = AveragedModel(model, multi_avg_fn=torch.optim.swa_utils.get_ema_multi_avg_fn(0.99))
    session = stethoscope.watch(model, optimizer, ema=average)
    fit(session, model, optimizer, batches(data.x, data.y, steps=150, seed=seed))
    return finished(session)


def train_in_two_parts(seed: int, *, keep_optimizer: bool) -> Any:
    """Sixty steps, a checkpoint, and sixty more in the same run."""
    torch.manual_seed(seed)
    data, model = digits(), mlp(64, 64, 10)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    feed = list(batches(data.x, data.y, steps=120, seed=seed))
    session = stethoscope.watch(model, optimizer)
    fit(session, model, optimizer, feed[:60])
    checkpoint = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
    folder = Path(session.stop().path or "")

    model = mlp(64, 64, 10)
    model.load_state_dict(checkpoint["model"])
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    if keep_optimizer:
        optimizer.load_state_dict(checkpoint["optimizer"])
    session = stethoscope.watch(model, optimizer, run=folder)
    fit(session, model, optimizer, feed[60:])
    return session


@program(step=60, sudden=True)
def f22_optimizer_state_lost(seed: int) -> Outcome:
    """Only the model was loaded from the checkpoint: Adam begins again from nothing."""
    return finished(train_in_two_parts(seed, keep_optimizer=False))


class FlatSGD(torch.optim.Optimizer):
    """A home-made SGD. `reshape` copies where the memory is not in order, so the update goes into a copy."""

    def __init__(self, params: Any, lr: float) -> None:
        super().__init__(params, {"lr": lr})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        """One step."""
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is not None:
                    p.data.reshape(-1).add_(p.grad.reshape(-1), alpha=-group["lr"])


@program(site="2.weight", step=0)
def f23_update_into_a_copy(seed: int) -> Outcome:
    """The second layer's weight was loaded transposed and is not contiguous: it alone never changes."""
    torch.manual_seed(seed)
    data, model = cancer(), mlp(30, 32, 16, 2)
    model[2].weight = nn.Parameter(torch.randn(32, 16).mul(0.2).t())
    optimizer = FlatSGD(model.parameters(), lr=0.1)
    session = stethoscope.watch(model, optimizer)
    fit(session, model, optimizer, batches(data.x, data.y, size=32, steps=120, seed=seed))
    return finished(session)
