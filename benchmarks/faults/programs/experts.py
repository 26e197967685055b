"""A mixture of experts, and how its router collapses."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from benchmarks.faults.catalogue import Outcome, finished, program
from benchmarks.faults.data import batches, digits
from torch import nn

import stethoscope


class Mixture(nn.Module):
    """Each sample goes to the one expert that the router likes best."""

    def __init__(self, num_inputs: int = 64, width: int = 32, num_experts: int = 4, num_classes: int = 10) -> None:
        super().__init__()
        self.stem = nn.Linear(num_inputs, width)
        self.router = nn.Linear(width, num_experts)
        self.experts = nn.ModuleList(
            nn.Sequential(nn.Linear(width, width), nn.ReLU(), nn.Linear(width, width)) for _ in range(num_experts)
        )
        self.head = nn.Linear(width, num_classes)
        self.share = torch.zeros(num_experts)
        self.balance = torch.zeros(())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Logits; `share` and `balance` keep what the router did."""
        x = F.relu(self.stem(x))
        odds = self.router(x).softmax(-1)
        chosen = odds.argmax(-1)
        out = torch.zeros_like(x)
        for number, expert in enumerate(self.experts):
            rows = (chosen == number).nonzero().squeeze(1)
            if len(rows):
                out = out.index_add(0, rows, odds[rows, number, None] * expert(x[rows]))
        self.share = F.one_hot(chosen, len(self.experts)).float().mean(0)
        self.balance = len(self.experts) * (self.share * odds.mean(0)).sum()
        return self.head(x + out)


@program(site="router*|experts*")
def f52_router_collapse(seed: int) -> Outcome:
    """The balance loss is subtracted: the router learns to send everything to one expert."""
    torch.manual_seed(seed)
    data, model = digits(), Mixture()
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    session = stethoscope.watch(model, optimizer)
    for x, y in batches(data.x, data.y, steps=200, seed=seed):
        optimizer.zero_grad()
        logits = model(x)
        loss = F.cross_entropy(logits, y) - 0.1 * model.balance
        loss.backward()
        optimizer.step()
    return finished(session)
