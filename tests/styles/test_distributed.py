"""Two ranks of `torchrun` with DDP on gloo: one run folder, no collective of ours, the same losses, the same ends."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import stethoscope
from stethoscope.record import Kind
from stethoscope.store import find_runs
from tests.styles.distributed_kinds import NUM_STEPS, Launch, kind_named, run_kind

SOURCE = Path(stethoscope.__file__).parents[1]
SCRIPT = """
import os, sys
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

torch.set_num_threads(1)
count = 0
def counted(name):
    original = getattr(dist.ProcessGroup, name)
    def call(*args, **kwargs):
        global count
        count += 1
        return original(*args, **kwargs)
    setattr(dist.ProcessGroup, name, call)
for name in ("allreduce", "broadcast", "allgather", "barrier", "reduce_scatter", "send", "recv"):
    counted(name)

def main(ending):
    dist.init_process_group("gloo")
    torch.manual_seed(3)
    net = torch.nn.Sequential(torch.nn.Linear(6, 16), torch.nn.Tanh(), torch.nn.Linear(16, 3))
    model = DistributedDataParallel(net)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    WATCH
    x = torch.randn(256, 6)
    data = TensorDataset(x, x[:, :3].argmax(1))
    sampler = DistributedSampler(data, shuffle=True, seed=0)
    losses = []
    for epoch in range(2):
        sampler.set_epoch(epoch)
        for a, b in DataLoader(data, batch_size=16, sampler=sampler):
            optimizer.zero_grad()
            loss = torch.nn.functional.cross_entropy(model(a), b)
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
    dist.all_reduce(torch.ones(1))
    print(f"rank {dist.get_rank()} {sum(losses):.17g} {net[0].weight.double().sum().item():.17g} {count}", flush=True)
    dist.barrier()
    dist.destroy_process_group()
    if ending == "exit":
        sys.exit(3)

main(*sys.argv[1:2] or [""])
"""
WATCH = "import stethoscope; stethoscope.watch(model, optimizer, quiet=True, companion='off')"


def launch(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(SOURCE)}
    environment = {key: value for key, value in environment.items() if not key.startswith("STETHOSCOPE")}
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", *words]
    for _ in range(4):
        shutil.rmtree(folder / ".stethoscope", ignore_errors=True)
        done = subprocess.run(command, capture_output=True, text=True, cwd=folder, env=environment, timeout=300)
        # Now and then gloo's threads outlive a process that ends on a busy machine, with us or without: that is no answer.
        if "terminate called without an active exception" not in done.stderr:
            break
    return done


def said(done: subprocess.CompletedProcess[str]) -> list[str]:
    return sorted(re.findall(r"rank \d [^\n]*?(?=rank|\n|$)", done.stdout))


@pytest.mark.slow
@pytest.mark.skipif(
    not torch.distributed.is_available() or not torch.distributed.is_gloo_available(), reason="no gloo here"
)
def test_ranks_of_one_launch(tmp_path: Path) -> None:
    scripts = {}
    for name, line in {"plain": "", "run": "", "watch": WATCH}.items():
        (tmp_path / name).mkdir()
        (tmp_path / name / "train.py").write_text(SCRIPT.replace("WATCH", line))
        scripts[name] = tmp_path / name
    run = ("-m", "stethoscope", "run", "--set", "companion=off")
    plain = launch(scripts["plain"], "train.py", "exit")
    assert plain.returncode == 1, plain.stderr
    assert "exitcode  : 3" in plain.stderr, "torchrun itself says 1 where a script exits with 3"
    expected = said(plain)
    assert len(expected) == 2
    results = {
        "run": launch(scripts["run"], *run, "train.py", "exit"),
        "watch": launch(scripts["watch"], "train.py"),
    }
    assert results["run"].returncode == 1
    assert "exitcode  : 3" in results["run"].stderr
    assert results["watch"].returncode == 0, results["watch"].stderr
    for name, done in results.items():
        assert said(done) == expected, done.stderr
        (folder,) = find_runs(scripts[name] / ".stethoscope")
        opened = stethoscope.open_run(folder)
        assert opened.ranks == (0, 1)
        assert opened.steps.tolist() == list(range(16))
        assert {event.rank for event in opened.events("batch")} == {0, 1}
        assert [event.body["num_errors"] for event in opened.events("totals")] == [0, 0]
        assert stethoscope.diagnose(opened).causes == ()


@pytest.mark.slow
@pytest.mark.skipif(
    not torch.distributed.is_available() or not torch.distributed.is_gloo_available(), reason="no gloo here"
)
@pytest.mark.parametrize(
    ("name", "how"), [("fsdp2", "run"), ("fsdp2, mixed precision", "launcher"), ("tensor parallel", "run")]
)
def test_sharded_training_is_unharmed(name: str, how: Launch, tmp_path: Path) -> None:
    kind = kind_named(name)
    plain = run_kind(kind, watched=False)
    watched = run_kind(kind, watched=True, folder=tmp_path, how=how, every=1)
    assert plain.returncode == 0, plain.stderr
    assert watched.same_training(plain), watched.stderr
    assert "nothing was watched" not in watched.stderr
    (folder,) = find_runs(tmp_path / ".stethoscope")
    opened = stethoscope.open_run(folder)
    assert opened.ranks == (0, 1)
    assert [event.body["num_errors"] for event in opened.events("totals")] == [0, 0]
    block = opened.block(0, NUM_STEPS)
    assert block.steps.tolist() == list(range(NUM_STEPS))
    at_steps = (Kind.WEIGHT, Kind.GRADIENT, Kind.UPDATE, Kind.OPTIMIZER_STATE)
    places = [place for place, info in enumerate(block.sites) if info.site.kind in at_steps]
    assert len(places) == 5 * 23, "23 parameters, each with its weight, gradient, update and two moments"
    assert block.present[:, places].all(), "the first step too"
    shards = {info.site.path for info in block.sites if info.measured == "shard" and info.site.kind is Kind.WEIGHT}
    assert len(shards) == (9 if name == "tensor parallel" else 23)
    assert stethoscope.diagnose(opened).causes == ()
