"""The autograd graph and hooks: what is kept alive, and what piles up."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from benchmarks.faults.catalogue import Outcome, finished, program
from benchmarks.faults.data import batches, digits
from benchmarks.faults.models import Classifier, mlp
from benchmarks.faults.training import fit

import stethoscope


@program()
def f71_total_loss_keeps_graphs(seed: int) -> Outcome:
    """`total += loss` instead of `loss.item()`: the sum holds every graph of the epoch."""
    torch.manual_seed(seed)
    data, model = digits(), mlp(64, 64, 10)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    session = stethoscope.watch(model, optimizer)
    total = torch.zeros(())
    for x, y in batches(data.x, data.y, steps=150, seed=seed):
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        total = total + loss
    return finished(session)


@program(site="middle*", step=15)
def f72_hooks_registered_every_epoch(seed: int) -> Outcome:
    """A statistics hook is registered at the start of every epoch and never removed."""
    torch.manual_seed(seed)
    data, model = digits(), Classifier()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    session = stethoscope.watch(model, optimizer)
    means: list[float] = []
    for epoch in range(10):
        model.middle.register_forward_hook(lambda module, args, output: means.append(output.mean().item()))
        fit(session, model, optimizer, batches(data.x, data.y, steps=15, seed=seed + epoch))
    return finished(session)


@program(step=0)
def f81_retain_graph_left_on(seed: int) -> Outcome:
    """`retain_graph=True` was put in to silence an error, and stayed."""
    torch.manual_seed(seed)
    data, model = digits(), mlp(64, 64, 10)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    session = stethoscope.watch(model, optimizer)
    for x, y in batches(data.x, data.y, steps=100, seed=seed):
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward(retain_graph=True)
        optimizer.step()
    return finished(session)
