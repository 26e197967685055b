"""Healthy: schedules, accumulation, clipping, turns, resuming. Each may look odd and each is right."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from benchmarks.faults.catalogue import Outcome, finished, program
from benchmarks.faults.data import batches, cancer, digits, moons, text, windows
from benchmarks.faults.models import CharModel, mlp, next_letter_loss
from benchmarks.faults.programs.stepping import train_in_two_parts
from benchmarks.faults.training import fit, score
from torch import nn

import stethoscope


@program()
def h01_warmup_and_cyclic_bumps(seed: int) -> Outcome:
    """A warm-up from almost 0, then a saw-tooth: the loss goes up with every new tooth."""
    torch.manual_seed(seed)
    data, model = digits(), mlp(64, 64, 10)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.2, momentum=0.9)
    warmup = torch.optim.lr_scheduler.LinearLR(optimizer, start_factor=1e-3, total_iters=40)
    cycles = torch.optim.lr_scheduler.CosineAnnealingWarmRestarts(optimizer, T_0=40)
    scheduler = torch.optim.lr_scheduler.SequentialLR(optimizer, [warmup, cycles], milestones=[40])
    session = stethoscope.watch(model, optimizer)
    fit(
        session,
        model,
        optimizer,
        batches(data.x, data.y, steps=240, seed=seed),
        log_loss=True,
        log_batches=True,
        validate=lambda: score(model, data.val_x, data.val_y),
        scheduler=scheduler,
    )
    return finished(session)


@program()
def h08_tiny_gradients_after_convergence(seed: int) -> Outcome:
    """Learned by heart early on: the loss is 1e-5 and the gradients with it."""
    torch.manual_seed(seed)
    data, model = moons(200, noise=0.02), mlp(2, 64, 64, 2)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    session = stethoscope.watch(model, optimizer)
    fit(
        session,
        model,
        optimizer,
        batches(data.x, data.y, size=160, steps=300, seed=seed),
        log_loss=True,
        log_batches=True,
        validate=lambda: score(model, data.val_x, data.val_y),
    )
    return finished(session)


@program()
def h15_proper_accumulation(seed: int) -> Outcome:
    """Four micro-batches, each divided by four."""
    torch.manual_seed(seed)
    data, model = digits(), mlp(64, 64, 10)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    session = stethoscope.watch(model, optimizer)
    for number, (x, y) in enumerate(batches(data.x, data.y, size=16, steps=400, seed=seed)):
        session.log_batch(x, y)
        loss = F.cross_entropy(model(x), y) / 4
        loss.backward()
        if (number + 1) % 4 == 0:
            optimizer.step()
            optimizer.zero_grad()
            session.log(loss=loss * 4)
    return finished(session)


class TwoPart(nn.Module):
    """A body and a head that are trained in turns."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(64, 64), nn.ReLU())
        self.head = nn.Linear(64, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Logits."""
        return self.head(self.body(x))


@program()
def h16_two_optimizers_in_turns(seed: int) -> Outcome:
    """Five steps for the body, then five for the head."""
    torch.manual_seed(seed)
    data, model = digits(), TwoPart()
    optimizers = [
        torch.optim.Adam(model.body.parameters(), lr=1e-3),
        torch.optim.SGD(model.head.parameters(), lr=0.1),
    ]
    session = stethoscope.watch(model, optimizers)
    for number, (x, y) in enumerate(batches(data.x, data.y, steps=200, seed=seed)):
        session.log_batch(x, y)
        optimizer = optimizers[number // 5 % 2]
        model.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        session.log(loss=loss)
    return finished(session)


@program()
def h18_edge_of_stability(seed: int) -> Outcome:
    """Full-batch descent at a rate where sharpness settles at 2/lr: the loss wobbles and falls all the same."""
    torch.manual_seed(seed)
    data, model = digits(), mlp(64, 64, 10, activation=nn.Tanh)
    x, y = data.x[:256], F.one_hot(data.y[:256], 10).float()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.08)
    session = stethoscope.watch(model, optimizer)
    for _ in range(300):
        optimizer.zero_grad()
        loss = (model(x) - y).square().sum(1).mean()
        loss.backward()
        optimizer.step()
        session.log(loss=loss)
    return finished(session)


@program()
def h26_clipping_that_bites_now_and_then(seed: int) -> Outcome:
    """A clip near the usual norm."""
    torch.manual_seed(seed)
    _, vocabulary = text()
    model = CharModel(vocabulary)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    session = stethoscope.watch(model, optimizer)
    fit(
        session,
        model,
        optimizer,
        windows(steps=200, seed=seed),
        next_letter_loss,
        log_loss=True,
        log_batches=True,
        clip=1.2,
    )
    return finished(session)


@program()
def h29_batch_size_one(seed: int) -> Outcome:
    """One sample a step, no BatchNorm: noisy, and right."""
    torch.manual_seed(seed)
    data, model = cancer(), mlp(30, 32, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    session = stethoscope.watch(model, optimizer)
    fit(
        session,
        model,
        optimizer,
        batches(data.x, data.y, size=1, steps=300, seed=seed),
        log_loss=True,
        log_batches=True,
        validate=lambda: score(model, data.val_x, data.val_y),
        validate_every=50,
    )
    return finished(session)


@program()
def h30_resume_done_right(seed: int) -> Outcome:
    """Model and optimizer both come from the checkpoint."""
    return finished(train_in_two_parts(seed, keep_optimizer=True))
