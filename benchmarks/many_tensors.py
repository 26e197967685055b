"""Ten thousand small tensors in one model: what watching costs per tensor and step.

    PYTHONPATH=src python -m benchmarks.many_tensors [cpu|cuda] [--tensors 10000] [--elements 256] [--seconds 100]

Plain and watched steps take turns; the difference of the medians, divided by the number of tensors. Each turn is told as it ends,
and has its share of the seconds: one that takes longer stops after the step it is at and says so. Beginning and ending a session are
timed apart: they happen once in a run.
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import torch

import stethoscope

STEPS = 10
WARM_UP = 3


class Many(torch.nn.Module):
    def __init__(self, tensors: int, elements: int) -> None:
        super().__init__()
        self.parts = torch.nn.ParameterList(torch.randn(elements) for _ in range(tensors))

    def forward(self) -> torch.Tensor:
        return torch.cat(list(self.parts)).square().mean()


VARIANTS: dict[str, dict[str, Any] | None] = {
    "plain": None,
    "gradients": {"weights": False, "updates": False, "optimizer_state": False, "every": 1},
    "gradients, weights, updates, optimizer state": {"every": 1},
}


def watch(model: torch.nn.Module, optimizer: Any, settings: dict[str, Any]) -> Any:
    folder = Path(tempfile.mkdtemp()) / "run"
    return stethoscope.watch(
        model,
        optimizer,
        run=folder,
        quiet=True,
        companion="off",
        activations=False,
        graph=False,
        buffers=False,
        histogram_every=0,
        **settings,
    )


def turn(step: Any, device: str, seconds: float) -> list[float]:
    """The times of a few steps, of those after the first ones; fewer where time runs out."""
    found: list[float] = []
    until = time.perf_counter() + seconds
    for number in range(STEPS):
        if device == "cuda":
            torch.cuda.synchronize()
        began = time.perf_counter()
        step()
        if device == "cuda":
            torch.cuda.synchronize()
        if number >= WARM_UP:
            found.append(time.perf_counter() - began)
        if time.perf_counter() > until and found:
            print(f"    out of time after {number + 1} steps", flush=True)
            break
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("device", nargs="?", default="cpu", choices=["cpu", "cuda"])
    parser.add_argument("--tensors", type=int, default=10_000)
    parser.add_argument("--elements", type=int, default=256)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=100.0, help="for all turns together")
    asked = parser.parse_args()
    torch.set_num_threads(1)
    model = Many(asked.tensors, asked.elements).to(asked.device)
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)

    def step() -> None:
        optimizer.zero_grad()
        model().backward()
        optimizer.step()

    share = asked.seconds / asked.rounds / len(VARIANTS)
    times: dict[str, list[float]] = {name: [] for name in VARIANTS}
    around: dict[str, list[float]] = {name: [] for name in VARIANTS}
    for number in range(asked.rounds):
        for name, settings in VARIANTS.items():
            began = time.perf_counter()
            session = watch(model, optimizer, settings) if settings is not None else None
            begin = time.perf_counter() - began
            found = turn(step, asked.device, share)
            times[name] += found
            began = time.perf_counter()
            if session is not None:
                assert not session._watcher.guard.errors, session._watcher.guard.last_traceback
                session.stop()
            around[name].append(begin + time.perf_counter() - began)
            middle = statistics.median(found) * 1e3
            print(
                f"round {number + 1}, {name}: {middle:.1f} ms a step, {around[name][-1]:.2f} s to begin and end",
                flush=True,
            )
    tell(asked, times, around)


def tell(asked: argparse.Namespace, times: dict[str, list[float]], around: dict[str, list[float]]) -> None:
    base = statistics.median(times["plain"])
    where = torch.cuda.get_device_name() if asked.device == "cuda" else f"CPU, load {os.getloadavg()[0]:.1f}"
    print(f"\n{asked.tensors:,} tensors of {asked.elements} elements, {where}, torch {torch.__version__}")
    print(
        "\n| watched | step, ms | more, µs per tensor | steps timed | begin and end, s |\n| --- | --- | --- | --- | --- |"
    )
    for name, found in times.items():
        middle = statistics.median(found)
        more = (middle - base) / asked.tensors * 1e6
        print(f"| {name} | {middle * 1e3:.1f} | {more:.2f} | {len(found)} | {statistics.median(around[name]):.2f} |")


if __name__ == "__main__":
    main()
