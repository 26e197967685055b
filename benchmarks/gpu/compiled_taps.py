"""Module outputs under torch.compile on a GPU: right with and without CUDA graphs, and what they cost.

    PYTHONPATH=src python benchmarks/gpu/compiled_taps.py [--skip check] [--mode default]

1. A small GPT in float32, compiled as usual and with "reduce-overhead" (CUDA graphs): norms of every output and its
   gradient in a step that is looked at, against hooks on a copy that runs eagerly; graphs, breaks.
2. GPT-2 124M, bf16 autocast: a plain step, a watched one between looks, and one that is looked at.
"""

from __future__ import annotations

import argparse
import copy
import itertools
import statistics
import tempfile
from pathlib import Path
from typing import Any

import torch
from gpt import GPT, SIZES, Size
from torch._dynamo.utils import counters

import stethoscope

MODES = (None, "reduce-overhead")


def watch(run: Any, optimizer: Any, every: int) -> tuple[Any, Path]:
    folder = Path(tempfile.mkdtemp()) / "run"
    session = stethoscope.watch(
        run, optimizer, run=folder, companion="off", quiet=True, activations=True, every=every,
        histogram_every=0, graph=False,
    )  # fmt: skip
    return session, folder


def truth(model: Any, batch: torch.Tensor) -> dict[tuple[str, str], float]:
    found: dict[tuple[str, str], float] = {}

    def remember(path: str, output: torch.Tensor) -> None:
        found["activation", path] = float(output.detach().double().norm())
        output.register_hook(
            lambda g: found.__setitem__(("activation_gradient", path), float(g.double().norm()))
        )

    for path, module in model.named_modules():
        if path and not isinstance(module, torch.nn.ModuleList):
            module.register_forward_hook(lambda _m, _a, out, path=path: remember(path, out))
    model(batch[:, :-1], batch[:, 1:]).backward()
    return found


def check(mode: str | None) -> None:
    torch._dynamo.reset()
    counters.clear()
    torch.manual_seed(0)
    with torch.device("cuda"):
        model = GPT(Size(layers=3, width=128, heads=4, batch=4, context=64, vocabulary=512))
        tokens = torch.randint(0, 512, (16, 4, 65))
    run = torch.compile(model, fullgraph=True, mode=mode)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)
    session, folder = watch(run, optimizer, every=2)
    graphs = 0
    for step in range(12):
        if step == 10:
            expected, graphs = truth(copy.deepcopy(model), tokens[step]), counters["stats"]["unique_graphs"]
        optimizer.zero_grad()
        run(tokens[step][:, :-1], tokens[step][:, 1:]).backward()
        optimizer.step()
    watcher = session._watcher
    print("errors", dict(watcher.guard.errors), watcher.guard.last_traceback[-600:], end=" ")
    unread = watcher.taps.graphs.num_unread
    slots = {str(kind): len(found._owned) for kind, found in watcher.taps.graphs._slots.items()}
    session.stop()
    stored = stethoscope.open_run(folder)
    found: dict[tuple[str, str], float] = {}
    for kind in ("activation", "activation_gradient"):
        table = stored.matrix(kind, "norm")
        line = table.values[list(table.steps).index(10)]
        found |= {(kind, info.site.path): value for info, value in zip(table.sites, line, strict=True)}
    missing = sorted(expected.keys() - found.keys())
    worst = max(abs(found[key] / value - 1) for key, value in expected.items() if key in found)
    print(
        f"\nmode {mode}: {len(found)} of {len(expected)} sites, missing {missing[:4]}, worst difference {worst:.1e}, "
        f"{graphs} graphs, {counters['stats']['unique_graphs'] - graphs} more after that, "
        f"{sum(counters['graph_break'].values())} breaks, slots {slots}, unread {unread}", flush=True,
    )  # fmt: skip


def steps(run: Any, optimizer: Any, tokens: torch.Tensor, count: int) -> list[float]:
    marks = [torch.cuda.Event(enable_timing=True) for _ in range(count + 1)]
    marks[0].record()
    for number, mark in enumerate(marks[1:]):
        batch = tokens[number % len(tokens)]
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast("cuda", dtype=torch.bfloat16):
            loss = run(batch[:, :-1], batch[:, 1:])
        loss.backward()
        optimizer.step()
        mark.record()
    torch.cuda.synchronize()
    return [a.elapsed_time(b) for a, b in itertools.pairwise(marks[1:])]


def cost(mode: str | None) -> None:
    torch._dynamo.reset()
    torch.manual_seed(0)
    size = SIZES["124M"]
    with torch.device("cuda"):
        model = GPT(size)
        tokens = torch.randint(0, size.vocabulary, (4, size.batch, size.context + 1))
    run = torch.compile(model, fullgraph=True, mode=mode)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    found: dict[str, list[float]] = {"plain": [], "between looks": [], "looked at": []}
    steps(run, optimizer, tokens, 6)
    for _ in range(2):
        found["plain"] += steps(run, optimizer, tokens, 12)
        for name, every in (("between looks", 1 << 20), ("looked at", 1)):
            session, _folder = watch(run, optimizer, every)
            steps(run, optimizer, tokens, 6)
            found[name] += steps(run, optimizer, tokens, 12)
            errors = dict(session._watcher.guard.errors)
            if errors:
                print("ERRORS", errors, session._watcher.guard.last_traceback[-600:])
            session.stop()
    base = statistics.median(found["plain"])
    for name, times in found.items():
        middle = statistics.median(times)
        print(f"| 124M, mode {mode} | {name} | {middle:.2f} | {middle / base - 1:+.2%} |", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--skip", choices=["check", "cost"], default="")
    parser.add_argument("--mode", choices=["all", "default", "reduce-overhead"], default="all")
    asked = parser.parse_args()
    chosen = {"all": MODES, "default": MODES[:1], "reduce-overhead": MODES[1:]}[asked.mode]
    torch.backends.cuda.matmul.allow_tf32 = False
    for mode in chosen if asked.skip != "check" else ():
        check(mode)
    for mode in chosen if asked.skip != "cost" else ():
        cost(mode)


if __name__ == "__main__":
    main()
