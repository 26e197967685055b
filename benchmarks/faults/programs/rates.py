"""Settings of the optimizer: rates, schedules, clipping, decay, epsilon."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from benchmarks.faults.catalogue import Outcome, finished, program
from benchmarks.faults.data import batches, cancer, cancer_regression, digits, text, windows
from benchmarks.faults.models import CharModel, mlp, next_letter_loss
from benchmarks.faults.training import fit
from torch import nn

import stethoscope


@program(step=0)
def f10_rate_times_100(seed: int) -> Outcome:
    """0.3 where 0.003 is right: every step throws the weights about."""
    torch.manual_seed(seed)
    _, vocabulary = text()
    model = CharModel(vocabulary)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.3)
    session = stethoscope.watch(model, optimizer)
    fit(session, model, optimizer, windows(steps=120, seed=seed), next_letter_loss)
    return finished(session)


@program(step=0)
def f11_rate_divided_by_1000(seed: int) -> Outcome:
    """3e-7 where 3e-4 is right: nothing is learned."""
    torch.manual_seed(seed)
    data, model = digits(), mlp(64, 64, 10)
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-7)
    session = stethoscope.watch(model, optimizer)
    fit(session, model, optimizer, batches(data.x, data.y, steps=150, seed=seed))
    return finished(session)


@program()
def f12_scheduler_stepped_per_batch(seed: int) -> Outcome:
    """Halve every 5 epochs became halve every 5 batches: the rate is nothing after a third of the run."""
    torch.manual_seed(seed)
    data, model = digits(), mlp(64, 64, 10)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=5, gamma=0.5)
    session = stethoscope.watch(model, optimizer)
    for x, y in batches(data.x, data.y, steps=250, seed=seed):
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        optimizer.step()
        scheduler.step()
    return finished(session)


@program()
def f13_scheduler_never_stepped(seed: int) -> Outcome:
    """A cosine schedule was made, and `scheduler.step()` forgotten."""
    torch.manual_seed(seed)
    data, model = digits(), mlp(64, 64, 10)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=200)  # noqa: F841 - the bug
    session = stethoscope.watch(model, optimizer)
    for x, y in batches(data.x, data.y, steps=200, seed=seed):
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        optimizer.step()
    return finished(session)


@program(step=0)
def f14_clip_at_1e_4(seed: int) -> Outcome:
    """A clip of 1e-4 instead of 1: every gradient is shortened ten thousand times."""
    torch.manual_seed(seed)
    data, model = digits(), mlp(64, 64, 10)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    session = stethoscope.watch(model, optimizer)
    fit(session, model, optimizer, batches(data.x, data.y, steps=150, seed=seed), clip=1e-4)
    return finished(session)


@program(step=0)
def f16_weight_decay_of_one(seed: int) -> Outcome:
    """1.0 where 1e-4 was meant: the weights shrink to nothing."""
    torch.manual_seed(seed)
    data, model = digits(), mlp(64, 64, 10)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, weight_decay=1.0)
    session = stethoscope.watch(model, optimizer)
    fit(session, model, optimizer, batches(data.x, data.y, steps=150, seed=seed))
    return finished(session)


@program(step=0)
def f17_adam_eps_too_large(seed: int) -> Outcome:
    """eps=1.0: it stands above every gradient, and Adam becomes a very slow SGD."""
    torch.manual_seed(seed)
    data, model = digits(), mlp(64, 64, 10)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3, eps=1.0)
    session = stethoscope.watch(model, optimizer)
    fit(session, model, optimizer, batches(data.x, data.y, steps=150, seed=seed))
    return finished(session)


class LocalExpert(nn.Module):
    """A base model and an expert that speaks only near its own centre."""

    def __init__(self) -> None:
        super().__init__()
        self.base = mlp(30, 32, 2)
        self.expert = nn.Linear(30, 2)
        self.register_buffer("centre", torch.full((30,), 6.0))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Logits."""
        nearness = torch.exp(-(x - self.centre).square().sum(1, keepdim=True) / 4)
        return self.base(x) + nearness * self.expert(x)


@program(site="expert*", step=100, sudden=True)
def f18_adam_eps_near_zero(seed: int) -> Outcome:
    """The expert sees its first, faint gradient at step 100; its square is 0 in float32, and with eps=1e-30 so is the brake."""
    torch.manual_seed(seed)
    data, model = cancer(), LocalExpert()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3, eps=1e-30)
    session = stethoscope.watch(model, optimizer)
    for number, (x, y) in enumerate(batches(data.x, data.y, size=32, steps=200, seed=seed)):
        if number == 100:
            x[0], y[0] = 6.0 - (4 * 48 / 30) ** 0.5, 1  # nearness e^-48, and mislabelled
        if number > 140:
            x[0] = 5.9
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        optimizer.step()
    return finished(session)


@program(step=0)
def f75_oscillation(seed: int) -> Outcome:
    """Full-batch descent at exactly twice the largest stable rate: from one wall of the valley to the other."""
    torch.manual_seed(seed)
    data, model = cancer_regression(), nn.Linear(29, 1)
    largest = torch.linalg.eigvalsh(2 * data.x.T @ data.x / len(data.x))[-1].item()
    nn.init.normal_(model.weight, std=0.5)
    optimizer = torch.optim.SGD(model.parameters(), lr=2.0 / largest)
    session = stethoscope.watch(model, optimizer)
    for _ in range(200):
        optimizer.zero_grad()
        loss = F.mse_loss(model(data.x).squeeze(1), data.y)
        loss.backward()
        optimizer.step()
        session.log(loss=loss)
    return finished(session)
