"""Close looks on a device against the same looks on the CPU: what they say, and that none of them waits.

    PYTHONPATH=src python -m benchmarks.gpu.looks [--device cuda]

One model with attention written out and fused, a router, bounded outputs and a head, trained for a few steps from the same weights
on the same batches, on both. Every number of the events `units` and `attention`, of the vectors of units and of the output is compared;
on a CUDA device everything runs with `set_sync_debug_mode("error")`.
"""

from __future__ import annotations

import argparse
import contextlib
import copy
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

import stethoscope

STEPS = 33


class Attention(nn.Module):
    def __init__(self, *, fused: bool) -> None:
        super().__init__()
        self.fused, self.qkv, self.out = fused, nn.Linear(64, 192), nn.Linear(64, 64)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = self.qkv(x).view(*x.shape[:2], 3, 4, 16).permute(2, 0, 3, 1, 4)
        if self.fused:
            mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        else:
            mixed = (q @ k.transpose(-1, -2) / 4).softmax(-1) @ v
        return self.out(mixed.transpose(1, 2).reshape(x.shape))


class Experts(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.router, self.experts = nn.Linear(64, 4), nn.ModuleList(nn.Linear(64, 64) for _ in range(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        share = self.router(x).softmax(-1)
        return sum(share[..., n, None] * expert(x) for n, expert in enumerate(self.experts))  # type: ignore[return-value]


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(50, 64)
        self.written, self.fused, self.experts = Attention(fused=False), Attention(fused=True), Experts()
        self.bounded, self.head = nn.Tanh(), nn.Linear(64, 50)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.words(tokens)
        for part in (self.written, self.fused, self.experts):
            x = x + part(x)
        return self.head(self.bounded(x))


@contextlib.contextmanager
def no_waiting(device: torch.device) -> Iterator[None]:
    if device.type != "cuda":
        yield
        return
    torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode("default")


def looked(
    model: nn.Module, device: torch.device, batches: list[torch.Tensor]
) -> tuple[dict[str, float], dict[str, int]]:
    """Every number that was told, by name, and our own errors."""
    model = model.to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    held = [batch.to(device) for batch in batches]
    folder = Path(tempfile.mkdtemp()) / "run"
    with stethoscope.watch(model, optimizer, run=folder, companion="off", quiet=True, every=1) as session:
        for step, tokens in enumerate(held):
            with no_waiting(device) if step > 2 else contextlib.nullcontext():
                loss = F.cross_entropy(model(tokens).flatten(0, 1), tokens.flatten())
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
        session.flush()
        errors = dict(session._watcher.guard.errors)  # type: ignore[union-attr]
    run = stethoscope.open_run(folder)
    found: dict[str, float] = {}
    for event in run.events():
        if event.kind in ("units", "attention"):
            found |= flat(event.body, f"{event.kind}@{event.step}")
    for name in run.metrics():
        if name.startswith("output/"):
            series = run.metric(name)
            found |= {f"{name}@{s}": float(v) for s, v in zip(series.steps, series.values, strict=True)}
    for vector in ("unit_activity", "unit_gradient"):
        for info in run.sites:
            steps, values = run.vectors(vector, info.site)
            found |= {
                f"{vector}/{info.site}@{s}[{n}]": float(x)
                for s, v in zip(steps, values, strict=True)
                for n, x in enumerate(v)
            }
    return found, errors


def flat(body: Any, name: str) -> dict[str, float]:
    items = body.items() if isinstance(body, dict) else enumerate(body) if isinstance(body, (list, tuple)) else ()
    if isinstance(body, (int, float)):
        return {name: float(body)}
    return {key: value for part, inside in items for key, value in flat(inside, f"{name}/{part}").items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--device", default="cuda")
    device = torch.device(parser.parse_args().device)
    torch.manual_seed(0)
    model = Model()
    batches = [torch.randint(0, 50, (8, 32)) for _ in range(STEPS)]
    here, _ = looked(copy.deepcopy(model), torch.device("cpu"), batches)
    there, errors = looked(copy.deepcopy(model), device, batches)
    print(f"torch {torch.__version__}, {device}; {STEPS} steps, errors of ours: {errors or 'none'}\n")
    print("| what | numbers | told on the device too | worst difference, of the largest of its kind |")
    print("| --- | ---: | ---: | ---: |")
    for kind in sorted({name.partition("@")[0].partition("/")[0] for name in here}):
        names = [name for name in here if name.partition("@")[0].partition("/")[0] == kind]
        both = [name for name in names if name in there]
        a, b = (np.array([found[name] for name in both]) for found in (here, there))
        worst = float(np.abs(a - b).max() / max(np.abs(a).max(), 1e-30)) if both else float("nan")
        print(f"| {kind} | {len(names)} | {len(both)} | {worst:.1e} |")
    assert not errors, "our own code failed on the device"
    assert set(here) == set(there), "the device told something else"


if __name__ == "__main__":
    main()
