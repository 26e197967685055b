"""Kinds of distributed training on gloo, each a script of a user's: run plain and watched, and compared bit for bit.

`KINDS` lists them; `run_kind` launches one under torchrun and returns what every rank computed. Tests run the essential
ones, `benchmarks/unharmed.py` prints all of them.
"""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any, Literal

import stethoscope

SOURCE = Path(stethoscope.__file__).parents[1]
NUM_STEPS = 6
Launch = Literal["run", "launcher", "watch"]
"""How a script is watched: each worker by `-m stethoscope run`, the launcher by `stethoscope run -m`, or two lines in it."""

HEAD = """
import contextlib, hashlib, json
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh

torch.set_num_threads(1)
dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
torch.manual_seed(3)


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(16), nn.Linear(16, 32), nn.Linear(32, 16)
        self.dropout = nn.Dropout(0.1)

    def forward(self, x):
        return x + self.dropout(self.down(nn.functional.gelu(self.up(self.norm(x)))))


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.blocks = nn.Embedding(32, 16), nn.ModuleList([Block() for _ in range(3)])
        self.norm, self.head = nn.LayerNorm(16), nn.Linear(16, 32)

    def forward(self, tokens):
        x = self.embed(tokens)
        for block in self.blocks:
            x = self.run_block(block, x)
        return self.head(self.norm(x))

    def run_block(self, block, x):
        return block(x)


losses = []


def batch(step, part=None):
    generator = torch.Generator().manual_seed(100 * step + (rank if part is None else part))
    tokens = torch.randint(0, 32, (4, 9), generator=generator)
    return tokens[:, :-1], tokens[:, 1:]


def loss_of(output, targets):
    loss = nn.functional.cross_entropy(output.float().flatten(0, 1), targets.flatten())
    losses.append(loss.item().hex())
    return loss
"""

LOOP = """
for step in range(STEPS):
    tokens, targets = batch(step)
    optimizer.zero_grad()
    loss_of(model(tokens), targets).backward()
    optimizer.step()
"""

TAIL = """
def local(tensor):
    return getattr(tensor, "_local_tensor", tensor).detach().cpu().contiguous().flatten().view(torch.uint8)

digest = hashlib.sha256()
for parameter in model.parameters():
    digest.update(bytes(local(parameter).tolist()))
    for value in optimizer.state.get(parameter, {}).values():
        digest.update(bytes(local(value).tolist()))
groups = list(dist.distributed_c10d._world.pg_map)
collectives = sum(group._get_sequence_number_for_group() for group in groups)
with open(f"outcome-{rank}.json", "w") as file:
    json.dump({"losses": losses, "digest": digest.hexdigest(), "collectives": collectives}, file)
dist.barrier()
dist.destroy_process_group()
"""

ADAMW = "optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)\n"
DDP = "from torch.nn.parallel import DistributedDataParallel\nmodel = DistributedDataParallel(Net())\n" + ADAMW
FSDP2 = """
from torch.distributed.fsdp import CPUOffloadPolicy, MixedPrecisionPolicy, fully_shard

mesh = init_device_mesh("cpu", (world,))


def shard(model, **options):
    for block in model.blocks:
        fully_shard(block, mesh=mesh, **options)
    return fully_shard(model, mesh=mesh, **options)
"""
TP = """
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module


def parallelize(model, mesh):
    for block in model.blocks:
        parallelize_module(block, mesh, {"up": ColwiseParallel(), "down": RowwiseParallel()})
    return model
"""
DTENSORS = """
from torch.distributed.tensor import DTensor, Replicate, distribute_module
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

mesh = init_device_mesh("cpu", (world,))
model = Net()
for block in model.blocks:
    block.dropout.p = 0.0
    plan = {"up": ColwiseParallel(use_local_output=False), "down": RowwiseParallel(use_local_output=False)}
    parallelize_module(block, mesh, plan)
distribute_module(model, mesh)


def distributed_batch(step):
    return [DTensor.from_local(part, mesh, [Replicate()]) for part in batch(step, 0)]
"""
FSDP1 = """
import functools, warnings
warnings.simplefilter("ignore", FutureWarning)
from torch.distributed.fsdp import FullyShardedDataParallel
from torch.distributed.fsdp.wrap import ModuleWrapPolicy

def shard(model, **options):
    policy = ModuleWrapPolicy({Block})
    return FullyShardedDataParallel(model, auto_wrap_policy=policy, device_id=torch.device("cpu"), **options)
"""


@dataclasses.dataclass(frozen=True)
class DistributedKind:
    """One way to train on several processes: the whole script, and what torchrun is told beside it."""

    name: str
    script: str
    launcher: tuple[str, ...] = ("--nproc-per-node", "2")


@dataclasses.dataclass(frozen=True)
class Outcome:
    """What every rank computed, and how the launch ended."""

    losses: tuple[tuple[str, ...], ...]
    """Of each rank, in hexadecimal: every bit counts."""
    weights_digest: tuple[str, ...]
    """Of each rank: the parameters and optimizer state it holds."""
    collectives: tuple[int, ...]
    """Of each rank: collectives issued in its process groups."""
    returncode: int
    stdout: str
    stderr: str

    def same_training(self, other: Outcome) -> bool:
        """Whether both computed the same, to the last bit, with the same collectives, and no error of ours was said."""
        mine, theirs = (
            (o.losses, o.weights_digest, o.collectives, o.returncode, o.stderr.count("Traceback"))
            for o in (self, other)
        )
        return mine == theirs and "StethoscopeWarning" not in self.stderr + other.stderr


def _kind(name: str, setup: str, loop: str = LOOP, num_processes: int = 2) -> DistributedKind:
    script = "".join((HEAD, setup, "WATCH\n", loop.replace("STEPS", str(NUM_STEPS)), TAIL))
    return DistributedKind(name, script, ("--nproc-per-node", str(num_processes)))


ACCUMULATE_DDP = """
for step in range(STEPS):
    optimizer.zero_grad()
    for part in range(2):
        tokens, targets = batch(step, rank + 7 * part)
        with contextlib.nullcontext() if part else model.no_sync():
            (loss_of(model(tokens), targets) / 2).backward()
    optimizer.step()
"""
ACCUMULATE_FSDP2 = """
for step in range(STEPS):
    optimizer.zero_grad()
    for part in range(2):
        tokens, targets = batch(step, rank + 7 * part)
        model.set_requires_gradient_sync(part == 1)
        model.set_reshard_after_backward(part == 1)
        (loss_of(model(tokens), targets) / 2).backward()
    optimizer.step()
"""
AMP = """
scaler = torch.amp.GradScaler("cpu")
for step in range(STEPS):
    tokens, targets = batch(step)
    optimizer.zero_grad()
    with torch.autocast("cpu", torch.bfloat16):
        loss = loss_of(model(tokens), targets)
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
"""
CLIP = """
for step in range(STEPS):
    tokens, targets = batch(step)
    optimizer.zero_grad()
    loss_of(model(tokens), targets).backward()
    nn.utils.clip_grad_norm_(model.parameters(), 0.5)
    optimizer.step()
"""
EVALUATE = """
for step in range(STEPS):
    model.eval()
    with torch.no_grad():
        loss_of(model(batch(-step - 1, 0)[0]), batch(-step - 1, 0)[1])
    model.train()
    tokens, targets = batch(step)
    optimizer.zero_grad()
    loss_of(model(tokens), targets).backward()
    optimizer.step()
"""
SAME_BATCH = LOOP.replace("batch(step)", "batch(step, 0)")
PAIRED_BATCH = LOOP.replace("batch(step)", "batch(step, rank // 2)")
UNUSED = """
from torch.nn.parallel import DistributedDataParallel


class Picky(Net):
    num_calls = 0

    def run_block(self, block, x):
        self.num_calls += 1
        return x if self.num_calls % 3 == rank else block(x)


model = DistributedDataParallel(Picky(), find_unused_parameters=True)
"""
CHECKPOINT = """
import torch.utils.checkpoint


class Net(Net):
    def run_block(self, block, x):
        return torch.utils.checkpoint.checkpoint(block, x, use_reentrant=False)
"""
WRAPPED = """
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
model = Net()
for number, block in enumerate(model.blocks):
    model.blocks[number] = checkpoint_wrapper(block)
"""
BF16 = "MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)"
MESH_2D = 'mesh_2d = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))\n'
WITH_TP = 'mesh = mesh_2d["dp"]\nmodel = shard(parallelize(Net(), mesh_2d["tp"]))\n'
META = """
with torch.device("meta"):
    model = Net()
shard(model)
model.to_empty(device="cpu")
for module in model.modules():
    if hasattr(module, "reset_parameters"):
        module.reset_parameters()
"""

KINDS: tuple[DistributedKind, ...] = (
    _kind("ddp", DDP),
    _kind("ddp, amp with a grad scaler", DDP, AMP),
    _kind("ddp, find_unused_parameters", UNUSED + ADAMW),
    _kind("ddp, accumulation with no_sync", DDP, ACCUMULATE_DDP),
    _kind("ddp, clipped", DDP, CLIP),
    _kind("ddp, checkpointing", CHECKPOINT + DDP),
    _kind("fsdp2", FSDP2 + "model = shard(Net())\n" + ADAMW),
    _kind("fsdp2, one rank", FSDP2 + "model = shard(Net())\n" + ADAMW, num_processes=1),
    _kind("fsdp2, reshard_after_forward=False", FSDP2 + "model = shard(Net(), reshard_after_forward=False)\n" + ADAMW),
    _kind("fsdp2, mixed precision", FSDP2 + f"model = shard(Net(), mp_policy={BF16})\n" + ADAMW),
    _kind(
        "fsdp2, cpu offload",
        FSDP2 + "model = shard(Net(), offload_policy=CPUOffloadPolicy(pin_memory=False))\n" + ADAMW,
    ),
    _kind("fsdp2, torch.utils.checkpoint", FSDP2 + CHECKPOINT + "model = shard(Net())\n" + ADAMW),
    _kind("fsdp2, checkpoint_wrapper", FSDP2 + WRAPPED + "shard(model)\n" + ADAMW),
    _kind("fsdp2, accumulation without resharding", FSDP2 + "model = shard(Net())\n" + ADAMW, ACCUMULATE_FSDP2),
    _kind("fsdp2, clipped", FSDP2 + "model = shard(Net())\n" + ADAMW, CLIP),
    _kind("fsdp2, evaluation before each step", FSDP2 + "model = shard(Net())\n" + ADAMW, EVALUATE),
    _kind("fsdp2, from the meta device", FSDP2 + META + ADAMW),
    _kind("fsdp2, compiled", FSDP2 + "model = shard(Net())\nmodel.compile(backend='aot_eager')\n" + ADAMW),
    _kind(
        "tensor parallel", TP + 'model = parallelize(Net(), init_device_mesh("cpu", (world,)))\n' + ADAMW, SAME_BATCH
    ),
    _kind(
        "tensor parallel, all DTensors, clipped",
        DTENSORS + ADAMW,
        CLIP.replace("batch(step)", "distributed_batch(step)"),
    ),
    _kind("fsdp2 with tensor parallel", FSDP2 + TP + MESH_2D + WITH_TP + ADAMW, PAIRED_BATCH, num_processes=4),
    _kind("fsdp1", FSDP1 + "model = shard(Net())\n" + ADAMW),
    _kind("fsdp1, use_orig_params", FSDP1 + "model = shard(Net(), use_orig_params=True)\n" + ADAMW),
)


def kind_named(name: str) -> DistributedKind:
    """The kind of this name."""
    return next(kind for kind in KINDS if kind.name == name)


def run_kind(
    kind: DistributedKind, watched: bool, *, folder: Path | None = None, how: Launch = "run", every: int | None = None
) -> Outcome:
    """Launch a kind and wait for it; in `folder`, where its run is to be looked at afterwards, in steps that nobody's load decides."""
    with tempfile.TemporaryDirectory(prefix="stethoscope-kind-", ignore_cleanup_errors=True) as temporary:
        here = folder or Path(temporary)
        line = "import stethoscope; stethoscope.watch(model, optimizer)" if watched and how == "watch" else ""
        (here / "train.py").write_text(kind.script.replace("WATCH", line))
        torchrun = ["torch.distributed.run", "--standalone", *kind.launcher]
        words = ["-m", *torchrun, "train.py"]
        if watched and how == "run":
            words = ["-m", *torchrun, "-m", "stethoscope", "run", "train.py"]
        elif watched and how == "launcher":
            words = ["-m", "stethoscope", "run", "-m", *torchrun, "train.py"]
        return _launch(words, here, {} if every is None else {"STETHOSCOPE_EVERY": str(every)})


def _launch(words: list[str], folder: Path, settings: dict[str, str]) -> Outcome:
    environment = {key: value for key, value in os.environ.items() if not key.startswith("STETHOSCOPE")}
    environment |= {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(SOURCE), **settings}
    for _ in range(4):
        shutil.rmtree(folder / ".stethoscope", ignore_errors=True)
        done = subprocess.run(
            [sys.executable, *words], capture_output=True, text=True, cwd=folder, env=environment, timeout=300
        )
        # Now and then gloo's threads outlive a process that ends on a busy machine, with us or without: that is no answer.
        if "terminate called without an active exception" not in done.stderr:
            break
    ranks: list[Any] = [json.loads(path.read_text()) for path in sorted(folder.glob("outcome-*.json"))]
    return Outcome(
        losses=tuple(tuple(rank["losses"]) for rank in ranks),
        weights_digest=tuple(rank["digest"] for rank in ranks),
        collectives=tuple(rank["collectives"] for rank in ranks),
        returncode=done.returncode,
        stdout=done.stdout,
        stderr=done.stderr,
    )
