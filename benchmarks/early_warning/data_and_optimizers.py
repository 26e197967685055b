"""What comes with the data and with the optimizer's memory: drifting targets, rare gradients, routers."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from benchmarks.early_warning.training import Training, diverging
from benchmarks.faults.data import batches, digits
from benchmarks.faults.models import mlp
from torch import nn


@diverging("bad data in shards that come late: targets on another scale", steps=800, bad=4.0, good=0.0)
def targets_drift(seed: int, powers: float) -> Training:
    """A sensor's gain drifts from shard to shard, over `powers` powers of ten by the last one."""
    generator = torch.Generator().manual_seed(seed)
    truth = torch.randn(10, generator=generator)
    model = mlp(10, 64, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02)

    def loss(step: int) -> torch.Tensor:
        shard = step // 50
        x = torch.randn(32, 10, generator=generator)
        gain = 10.0 ** (powers * (shard / 16.0) ** 2)
        y = gain * (torch.tanh(x @ truth) + 0.1 * torch.randn(32, generator=generator))
        return F.mse_loss(model(x).squeeze(1), y)

    return Training(model, optimizer, loss)


@diverging("bad data in shards that come late: inputs on another scale", steps=800, bad=3.0, good=0.0)
def inputs_drift(seed: int, powers: float) -> Training:
    data = digits()
    model = mlp(64, 64, 10)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    source = iter(batches(data.x, data.y, size=64, steps=800, seed=seed))

    def loss(step: int) -> torch.Tensor:
        x, y = next(source)
        return F.cross_entropy(model(x * 10.0 ** (powers * (step // 50) / 16.0)), y)

    return Training(model, optimizer, loss)


@diverging("mixture of experts: the router collapses", steps=1000, bad=2.0, good=0.1)
def router_collapse(seed: int, rate: float) -> Training:
    """Top-1 routing without balancing; the rate rises, the router's logits grow, and experts get what they never saw."""

    class Mixture(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.router = nn.Linear(64, 4)
            self.experts = nn.ModuleList(mlp(64, 32, 64) for _ in range(4))
            self.head = nn.Linear(64, 10)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            weights = F.softmax(self.router(x), dim=-1)
            top, chosen = weights.max(-1)
            out = torch.zeros_like(x)
            for number, expert in enumerate(self.experts):
                rows = chosen == number
                if rows.any():
                    out[rows] = expert(x[rows]) * top[rows].unsqueeze(1)
            return self.head(x + out)

    data = digits()
    model = Mixture()
    optimizer = torch.optim.SGD(model.parameters(), lr=rate, momentum=0.9)
    source = iter(batches(data.x, data.y, size=64, steps=1000, seed=seed))

    def loss(step: int) -> torch.Tensor:
        x, y = next(source)
        return F.cross_entropy(model(x), y)

    def warm_up(step: int) -> None:
        optimizer.param_groups[0]["lr"] = rate * (step + 1) / 1000

    return Training(model, optimizer, loss, before=warm_up)
