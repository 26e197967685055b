"""Two processes over gloo: replicas that part, data that is the same, gradients that are summed."""

from __future__ import annotations

import os
import socket
import tempfile
from collections.abc import Callable
from pathlib import Path

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
import torch.nn.functional as F
from benchmarks.faults.catalogue import Outcome, program
from benchmarks.faults.data import batches, digits
from benchmarks.faults.models import mlp
from torch.nn.parallel import DistributedDataParallel

import stethoscope

Worker = Callable[[int, int, str], None]


def launch(worker: Worker, seed: int) -> Outcome:
    """Run the worker on two ranks that write into one run folder."""
    base = Path(os.environ.get("STETHOSCOPE_DIR", tempfile.gettempdir()))
    folder = base.resolve() / f"{worker.__name__}-{seed}"
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    mp.spawn(_enter, args=(worker, seed, str(folder), port), nprocs=2, join=True)
    return Outcome(run=folder)


def _enter(rank: int, worker: Worker, seed: int, folder: str, port: int) -> None:
    torch.set_num_threads(1)
    os.environ |= {"RANK": str(rank), "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    dist.init_process_group("gloo")
    torch.manual_seed(seed)
    worker(rank, seed, folder)
    dist.destroy_process_group()


def share(x: torch.Tensor, y: torch.Tensor, rank: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Every second sample."""
    return x[rank::2], y[rank::2]


def bypass_worker(rank: int, seed: int, folder: str) -> None:
    """Calls the module inside, so that DDP never hears of the backward."""
    data, model = digits(), mlp(64, 64, 10)
    replica = DistributedDataParallel(model)
    optimizer = torch.optim.Adam(replica.parameters(), lr=1e-3)
    session = stethoscope.watch(replica, optimizer, run=folder)
    for x, y in batches(*share(data.x, data.y, rank), steps=60, seed=seed):
        optimizer.zero_grad()
        F.cross_entropy(replica.module(x), y).backward()
        optimizer.step()
    session.stop()


@program(step=0)
def f69_raw_module_bypasses_ddp(seed: int) -> Outcome:
    """`replica.module(x)` instead of `replica(x)`: no gradient is averaged and the replicas part."""
    return launch(bypass_worker, seed)


def same_data_worker(rank: int, seed: int, folder: str) -> None:
    """Has no DistributedSampler."""
    data, model = digits(), mlp(64, 64, 10)
    replica = DistributedDataParallel(model)
    optimizer = torch.optim.Adam(replica.parameters(), lr=1e-3)
    session = stethoscope.watch(replica, optimizer, run=folder)
    for x, y in batches(data.x, data.y, steps=60, seed=seed):
        session.log_batch(x, y)
        optimizer.zero_grad()
        F.cross_entropy(replica(x), y).backward()
        optimizer.step()
    session.stop()


@program(step=0)
def f70_same_data_on_every_rank(seed: int) -> Outcome:
    """Both ranks draw the same batches: twice the work for the same gradient."""
    return launch(same_data_worker, seed)


def summing_worker(rank: int, seed: int, folder: str) -> None:
    """Averages by hand and forgets to divide."""
    data, model = digits(), mlp(64, 64, 10)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    session = stethoscope.watch(model, optimizer, run=folder)
    for x, y in batches(*share(data.x, data.y, rank), steps=60, seed=seed):
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        for parameter in model.parameters():
            dist.all_reduce(parameter.grad, op=dist.ReduceOp.SUM)
        optimizer.step()
    session.stop()


@program(step=0)
def f83_gradients_summed_over_ranks(seed: int) -> Outcome:
    """all_reduce with SUM: the gradient, and so the rate, is multiplied by the number of ranks."""
    return launch(summing_worker, seed)
