"""Healthy: what public repositories do that nobody here wrote, and rules of ours once blamed there."""

from __future__ import annotations

import time

import torch
import torch.nn.functional as F
from benchmarks.faults.catalogue import Outcome, finished, program
from benchmarks.faults.data import batches, digits, digits_raw
from benchmarks.faults.models import mlp
from benchmarks.faults.training import fit
from torch import nn
from torch.utils.data import DataLoader, Dataset

import stethoscope


class _Coder(nn.Module):
    """A variational autoencoder whose hidden layer is far wider than it needs to be."""

    def __init__(self) -> None:
        super().__init__()
        self.wide, self.mean, self.spread = nn.Linear(64, 300), nn.Linear(300, 6), nn.Linear(300, 6)
        self.back, self.out = nn.Linear(6, 100), nn.Linear(100, 64)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Pixels, and the mean and logarithmic variance of the code."""
        hidden = F.relu(self.wide(x))
        mean, spread = self.mean(hidden), self.spread(hidden)
        code = mean + torch.randn_like(mean) * (spread / 2).exp()
        return torch.sigmoid(self.out(F.relu(self.back(code)))), mean, spread


@program()
def h68_killed_units_of_a_wide_layer(seed: int) -> Outcome:
    """Dark pictures without negative values and a high rate kill most of a wide layer in the first steps; the loss falls on."""
    torch.manual_seed(seed)
    data, model = digits_raw(), _Coder()
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
    session = stethoscope.watch(model, optimizer)
    for x, _ in batches(data.x / 16.0, data.y, steps=160, seed=seed):
        pixels, mean, spread = model(x)
        loss = F.binary_cross_entropy(pixels, x, reduction="sum")
        loss = loss - 0.5 * (1 + spread - mean.square() - spread.exp()).sum()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return finished(session)


@program()
def h69_weights_clipped_after_each_step(seed: int) -> Outcome:
    """A Wasserstein critic: its weights are clipped to 0.01, and in time whole layers lie at that limit."""
    torch.manual_seed(seed)
    data, maker, critic = digits(), mlp(8, 64, 64), mlp(64, 64, 1)
    of_maker = torch.optim.RMSprop(maker.parameters(), lr=5e-4)
    of_critic = torch.optim.RMSprop(critic.parameters(), lr=5e-4)
    session = stethoscope.watch({"maker": maker, "critic": critic}, [of_maker, of_critic])
    for number, (x, _) in enumerate(batches(data.x, data.y, steps=200, seed=seed)):
        of_critic.zero_grad()
        made = maker(torch.randn(len(x), 8)).detach()
        (critic(made).mean() - critic(x).mean()).backward()
        of_critic.step()
        with torch.no_grad():
            for parameter in critic.parameters():
                parameter.clamp_(-0.01, 0.01)
        if number % 2:
            of_maker.zero_grad()
            (-critic(maker(torch.randn(len(x), 8))).mean()).backward()
            of_maker.step()
    return finished(session)


@program()
def h70_a_game_in_balance(seed: int) -> Outcome:
    """Two networks against each other by binary cross-entropy: a loss of ln 2 is where neither wins, not where nothing is learned."""
    torch.manual_seed(seed)
    data, maker, judge = digits(), mlp(8, 64, 64), nn.Sequential(mlp(64, 64, 1), nn.Sigmoid())
    of_maker = torch.optim.Adam(maker.parameters(), lr=1e-3, betas=(0.5, 0.999))
    of_judge = torch.optim.Adam(judge.parameters(), lr=2e-4, betas=(0.5, 0.999))
    session = stethoscope.watch({"maker": maker, "judge": judge}, [of_maker, of_judge])
    for x, _ in batches(data.x, data.y, steps=150, seed=seed):
        real, fake = torch.ones(len(x), 1), torch.zeros(len(x), 1)
        of_maker.zero_grad()
        made = maker(torch.randn(len(x), 8))
        F.binary_cross_entropy(judge(made), real).backward()
        of_maker.step()
        of_judge.zero_grad()
        judged = F.binary_cross_entropy(judge(x), real) + F.binary_cross_entropy(judge(made.detach()), fake)
        (judged / 2).backward()
        of_judge.step()
    return finished(session)


class _Prepared(Dataset[tuple[torch.Tensor, int]]):
    """Samples that the processor makes ready one by one, as decoding and augmentation do."""

    def __init__(self) -> None:
        self.data = digits()

    def __len__(self) -> int:
        return len(self.data.x)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        sample = self.data.x[index]
        for _ in range(16):
            sample = sample.view(8, 8).flip(0).reshape(-1)
        return sample, int(self.data.y[index])


@program()
def h71_a_loader_that_keeps_the_processor_busy(seed: int) -> Outcome:
    """A linear classifier on the CPU: making samples ready takes longer than the step, and nothing stands still meanwhile."""
    torch.manual_seed(seed)
    model = nn.Linear(64, 10)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    session = stethoscope.watch(model, optimizer)
    for _ in range(5):
        fit(session, model, optimizer, DataLoader(_Prepared(), batch_size=64, shuffle=True))
    return finished(session)


@program()
def h72_a_pause_for_a_plot(seed: int) -> Outcome:
    """A tutorial that shows its fit: each step it stands still for 20 ms, and waits for no data."""
    torch.manual_seed(seed)
    data, model = digits(), mlp(64, 32, 10)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    session = stethoscope.watch(model, optimizer)
    for x, y in batches(data.x, data.y, steps=80, seed=seed):
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        optimizer.step()
        time.sleep(0.02)
    return finished(session)


@program()
def h73_clipped_far_below_the_norm_under_adam(seed: int) -> Outcome:
    """A sum over pixels has a norm of thousands, the limit is 1, and Adam divides by the size that is left."""
    torch.manual_seed(seed)
    data, model = digits(), mlp(64, 32, 64)
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    session = stethoscope.watch(model, optimizer)
    for x, _ in batches(data.x, data.y, steps=160, seed=seed):
        optimizer.zero_grad()
        F.mse_loss(model(x), x, reduction="sum").backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
    return finished(session)
