"""Unseen, healthy, a fifth draw: half of a layer falls asleep in the first steps, a choice grows sure, and all of it learns."""

from __future__ import annotations

import copy

import torch
import torch.nn.functional as F
from benchmarks.faults.catalogue import Outcome, finished, program
from benchmarks.faults.data import batches, digits_raw
from benchmarks.faults.models import mlp
from torch import nn

import stethoscope

QUANTILES = torch.tensor([0.1, 0.5, 0.9])


@program()
def uh58_quantiles_of_one_number(seed: int) -> Outcome:
    """Three quantiles by the pinball loss: with one number going in, the first steps push half of the second layer down for good."""
    torch.manual_seed(seed)
    model = mlp(1, 64, 64, 3)
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    session = stethoscope.watch(model, optimizer)
    for _ in range(200):
        x = 4 * torch.rand(128, 1) - 2
        y = torch.sin(2 * x) + 0.3 * x.abs() * torch.randn_like(x)
        optimizer.zero_grad()
        missed = y - model(x)
        loss = torch.maximum(QUANTILES * missed, (QUANTILES - 1) * missed).mean()
        loss.backward()
        optimizer.step()
        session.log(loss=loss)
    return finished(session)


class Codes(nn.Module):
    """Pixels to four codes of ten values each and back, through a straight-through Gumbel softmax."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder, self.decoder = mlp(64, 128, 40), mlp(40, 128, 64)
        self.temperature = 1.0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Logits of pixels."""
        scores = self.encoder(x).view(-1, 4, 10)
        return self.decoder(F.gumbel_softmax(scores, self.temperature, hard=True).flatten(1))


@program()
def uh59_discrete_codes(seed: int) -> Outcome:
    """A discrete autoencoder whose temperature falls: its choices end sure, and the loss has a floor far above zero."""
    torch.manual_seed(seed)
    data, model = digits_raw(), Codes()
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
    session = stethoscope.watch(model, optimizer)
    for number, (x, _) in enumerate(batches(data.x, data.y, size=64, steps=250, seed=seed)):
        model.temperature = max(0.3, 0.99**number)
        optimizer.zero_grad()
        loss = F.binary_cross_entropy_with_logits(model(x / 16), x / 16, reduction="none").sum(1).mean()
        loss.backward()
        optimizer.step()
        session.log(loss=loss)
    return finished(session)


@program()
def uh60_values_along_a_line(seed: int) -> Outcome:
    """Q-learning over eight places with hard targets: what is to be learned is soon learned, and few units are needed for it."""
    torch.manual_seed(seed)
    model = mlp(8, 64, 64, 2)
    target = copy.deepcopy(model)
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
    places = torch.eye(8)
    session = stethoscope.watch(model, optimizer)
    for number in range(300):
        here, right = torch.randint(0, 7, (64,)), torch.randint(0, 2, (64,))
        there = (here + 2 * right - 1).clamp(0, 7)
        arrived = (there == 7).float()
        with torch.no_grad():
            worth = 1.01 * arrived - 0.01 + 0.85 * (1 - arrived) * target(places[there]).amax(1)
        optimizer.zero_grad()
        loss = F.smooth_l1_loss(model(places[here]).gather(1, right[:, None]).squeeze(1), worth)
        loss.backward()
        optimizer.step()
        session.log(loss=loss)
        if number % 20 == 0:
            target.load_state_dict(model.state_dict())
    return finished(session)
