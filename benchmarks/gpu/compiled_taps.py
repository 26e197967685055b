"""Module outputs under torch.compile on a GPU: right with and without CUDA graphs.

    PYTHONPATH=src python -m benchmarks.gpu.compiled_taps

A small GPT in float32, compiled as usual and with "reduce-overhead" (CUDA graphs): norms of every output and its gradient in a
step that is looked at, against hooks on a copy that runs eagerly; graphs, breaks. What looking costs: `overhead.py --inside`.
"""

from __future__ import annotations

import copy
import tempfile
from pathlib import Path
from typing import Any

import torch
from benchmarks.gpu.gpt import GPT, Size
from torch._dynamo.utils import counters

import stethoscope

MODES = (None, "reduce-overhead")


def watch(run: Any, optimizer: Any, every: int) -> tuple[Any, Path]:
    folder = Path(tempfile.mkdtemp()) / "run"
    session = stethoscope.watch(
        run,
        optimizer,
        run=folder,
        companion="off",
        quiet=True,
        activations=True,
        every=every,
        histogram_every=0,
        graph=False,
    )
    return session, folder


def truth(model: Any, batch: torch.Tensor) -> dict[tuple[str, str], float]:
    found: dict[tuple[str, str], float] = {}

    def remember(path: str, output: torch.Tensor) -> None:
        found["activation", path] = float(output.detach().double().norm())
        output.register_hook(lambda g: found.__setitem__(("activation_gradient", path), float(g.double().norm())))

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
        f"{sum(counters['graph_break'].values())} breaks, slots {slots}, unread {unread}",
        flush=True,
    )


def main() -> None:
    torch.backends.cuda.matmul.allow_tf32 = False
    for mode in MODES:
        check(mode)


if __name__ == "__main__":
    main()
