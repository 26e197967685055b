"""One rank of a training with DistributedDataParallel: prints its losses and how many collectives were called."""

import json
import os
import sys

import torch
import torch.distributed as dist
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel

from tests.robustness.train import batches, make_model

num_calls = 0


def count_calls(name: str) -> None:
    original = getattr(dist.ProcessGroup, name)

    def call(*args, **kwargs):
        global num_calls
        num_calls += 1
        return original(*args, **kwargs)

    setattr(dist.ProcessGroup, name, call)


def main(given: dict) -> None:
    for name in (
        "allreduce",
        "allgather",
        "broadcast",
        "barrier",
        "reduce",
        "reduce_scatter",
        "send",
        "recv",
        "gather",
        "scatter",
    ):
        count_calls(name)
    torch.set_num_threads(1)
    dist.init_process_group("gloo", f"file://{given['gloo']}", rank=int(os.environ["RANK"]), world_size=2)
    model = DistributedDataParallel(make_model(given))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    if given["watch"] is not None:
        import stethoscope

        stethoscope.watch(model, optimizer, **given["watch"])
    for step, (x, y) in enumerate(batches(given)):
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x + dist.get_rank()), y)
        loss.backward()
        optimizer.step()
        print(f"{step} {loss.item().hex()}")
    dist.barrier()
    print(f"collectives {num_calls}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
