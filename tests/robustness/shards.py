"""One of two ranks that trains a weight sharded as DTensor; leaves its own shard in a file."""

import json
import os
import sys

import numpy as np
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard, distribute_tensor

import stethoscope

given = json.loads(sys.argv[1])
torch.set_num_threads(1)
dist.init_process_group("gloo", f"file://{given['gloo']}", rank=int(os.environ["RANK"]), world_size=2)
mesh = init_device_mesh("cpu", (2,))
model = torch.nn.Module()
torch.manual_seed(0)
model.weight = torch.nn.Parameter(distribute_tensor(torch.randn(8, 6), mesh, [Shard(0)]))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
session = stethoscope.watch(model, optimizer, **given["watch"])
for _ in range(given["steps"]):
    optimizer.zero_grad()
    model.weight.square().sum().backward()
    optimizer.step()
np.save(f"shard-{dist.get_rank()}.npy", model.weight.to_local().detach().numpy())
dist.barrier()
session.stop()
dist.destroy_process_group()
