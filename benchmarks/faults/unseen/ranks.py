"""Unseen: two ranks (F69, F70, F83)."""

from __future__ import annotations

import torch
import torch.distributed as dist
import torch.nn.functional as F
from benchmarks.faults.catalogue import Outcome, program
from benchmarks.faults.data import batches, cancer, digit_images
from benchmarks.faults.models import ConvNet, mlp
from benchmarks.faults.programs.ranks import launch, share
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import stethoscope


def head_outside_worker(rank: int, seed: int, folder: str) -> None:
    """Only the body is wrapped; the head differs from rank to rank."""
    data = cancer()
    model = nn.ModuleDict({"body": mlp(30, 32, 16), "head": nn.Linear(16, 2)})
    body = DistributedDataParallel(model["body"])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    session = stethoscope.watch(model, optimizer, run=folder)
    for x, y in batches(*share(data.x, data.y, rank), size=16, steps=60, seed=seed):
        optimizer.zero_grad()
        F.cross_entropy(model["head"](F.relu(body(x))), y).backward()
        optimizer.step()
    session.stop()


@program(site="head*", step=0)
def u69_head_outside_ddp(seed: int) -> Outcome:
    """The head's gradients are never averaged: the replicas' heads part, their bodies do not."""
    return launch(head_outside_worker, seed)


def same_seed_worker(rank: int, seed: int, folder: str) -> None:
    """Shuffles the whole data with the same seed on each rank."""
    data, model = digit_images(), ConvNet(width=8)
    replica = DistributedDataParallel(model)
    optimizer = torch.optim.Adam(replica.parameters(), lr=1e-3)
    session = stethoscope.watch(replica, optimizer, run=folder)
    for x, y in batches(data.x, data.y, size=16, steps=40, seed=7):
        session.log_batch(x, y)
        optimizer.zero_grad()
        F.cross_entropy(replica(x), y).backward()
        optimizer.step()
    session.stop()


@program(step=0)
def u70_same_shuffle_on_every_rank(seed: int) -> Outcome:
    """A CNN; nobody splits the data by rank."""
    return launch(same_seed_worker, seed)


def summing_adam_worker(rank: int, seed: int, folder: str) -> None:
    """all_reduce over one flat buffer, with the default operation."""
    data, model = cancer(), mlp(30, 32, 2)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    session = stethoscope.watch(model, optimizer, run=folder)
    for x, y in batches(*share(data.x, data.y, rank), size=32, steps=60, seed=seed):
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        flat = torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None])
        dist.all_reduce(flat)
        place = 0
        for p in model.parameters():
            assert p.grad is not None
            p.grad.copy_(flat[place : place + p.numel()].view_as(p))
            place += p.numel()
        optimizer.step()
    session.stop()


@program(step=0)
def u83_flat_buffer_summed(seed: int) -> Outcome:
    """The default of all_reduce is a sum."""
    return launch(summing_adam_worker, seed)
