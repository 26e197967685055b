"""Ten thousand layers, default settings: what watching takes at the start, in the first step, on average, and at the end.

    PYTHONPATH=src python -m benchmarks.many_layers [all|few|flat] [--layers 10000] [--steps 128]

`all` runs every layer in every step, `few` only eight of them, `flat` has as many parameters and no layers. Seconds of the wall
clock, and of the training thread's own processor time, which other work on the machine does not change. The process is left
without `stop()`, so that its end is timed as a user sees it; a second process calls `stop()`.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

NUM_PLAIN = 17
"""Enough for two or three full garbage collections, which are a third of a step each at this size."""
FEW = 8


def make(kind: str, num_layers: int) -> Any:
    """A model of one of the three kinds."""
    import torch

    class Deep(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = torch.nn.ModuleList(torch.nn.Linear(32, 32) for _ in range(num_layers))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            for layer in self.layers if kind == "all" else self.layers[:FEW]:
                x = x + 0.01 * layer(x)
            return x.square().mean()

    class Flat(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.parts = torch.nn.ParameterList(torch.randn(32) for _ in range(num_layers))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.cat(list(self.parts)).square().mean() + 0 * x.sum()

    return Flat() if kind == "flat" else Deep()


def timed(work: Callable[[], Any]) -> tuple[float, float, Any]:
    """Seconds of the wall clock and of this thread's processor time, and what came out."""
    wall, own = time.perf_counter(), time.thread_time()
    result = work()
    return time.perf_counter() - wall, time.thread_time() - own, result


def train(kind: str, num_layers: int, num_steps: int, stops: bool) -> None:
    """The training that is timed; prints one row a line."""
    import torch

    import stethoscope

    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = make(kind, num_layers)
    optimizer = torch.optim.SGD(model.parameters(), 0.001)
    x = torch.randn(8, 32)

    def step() -> None:
        optimizer.zero_grad()
        model(x).backward()
        optimizer.step()

    plain = [timed(step)[:2] for _ in range(NUM_PLAIN)][1:]
    base = [statistics.fmean(column) for column in zip(*plain, strict=True)]
    folder = Path(tempfile.mkdtemp()) / "run"
    wall, own, session = timed(lambda: stethoscope.watch(model, optimizer, run=folder, quiet=True))
    row("watch()", wall, own)
    row("a plain step", *base)
    row("the first step", *timed(step)[:2])
    found = [timed(step)[:2] for _ in range(num_steps)]
    means = [statistics.fmean(column) for column in zip(*found, strict=True)]
    row(f"mean of the next {num_steps}", *means)
    late = [statistics.fmean(column) for column in zip(*found[-16:], strict=True)]
    row("mean of the last 16", *late)
    print(
        f"more than plain, by processor time: mean {means[1] / base[1] - 1:+.0%}, last 16 {late[1] / base[1] - 1:+.0%}"
    )
    if stops:
        row("stop()", *timed(session.stop)[:2])
    print(f"at {time.time():.3f}", flush=True)


def row(what: str, wall: float, own: float) -> None:
    print(f"| {what} | {wall:.2f} | {own:.2f} |", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("kind", nargs="?", default="all", choices=["all", "few", "flat"])
    parser.add_argument("--layers", type=int, default=10_000)
    parser.add_argument("--steps", type=int, default=128)
    parser.add_argument("--inside", choices=["exits", "stops"], help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.inside:
        train(asked.kind, asked.layers, asked.steps, asked.inside == "stops")
        return
    print(
        f"{asked.layers:,} layers, {asked.kind}\n\n| | wall clock, s | training thread, s |\n| --- | --- | --- |",
        flush=True,
    )
    for way, num_steps in (("exits", asked.steps), ("stops", min(asked.steps, 8))):
        command = [
            sys.executable,
            __file__,
            asked.kind,
            "--layers",
            str(asked.layers),
            "--steps",
            str(num_steps),
            "--inside",
            way,
        ]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        ended = time.time()
        *lines, last = done.stdout.splitlines()
        print("\n".join(lines if way == "exits" else [line for line in lines if line.startswith("| stop")]))
        print(f"| end of the process ({way}) | {ended - float(last.split()[1]):.2f} | |", flush=True)


if __name__ == "__main__":
    main()
