"""What finding the models of an unchanged script costs, once and per step.

Models of 10 to 5,000 modules; the rest of the process holds as many objects as torch, numpy and half a million of the
user's bring with them. Prints a table: python -m benchmarks.discovery > benchmarks/results/discovery.md
"""

from __future__ import annotations

import gc
import platform
import statistics
import tempfile
import time
from typing import Any

import torch
from torch import nn

import stethoscope
from stethoscope.capture import discovery
from stethoscope.capture.sites import Names

SIZES = (10, 100, 1_000, 3_000)
STEPS = 24
SETTLED = 96
"""Watched steps: the governor chooses its rates at the sixteenth and learns them in the next few."""


class Wide(nn.Module):
    """Many small modules, a few of which run, so that a step is short and our own time shows."""

    def __init__(self, num_modules: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(4, 4) for _ in range(num_modules - 2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = x + 0.01 * layer(x)
        return x


def look(model: nn.Module, loss: torch.Tensor) -> tuple[float, float]:
    """Milliseconds of the walk over the loss's graph and of the look through live objects."""
    began = time.thread_time()
    leaves = {id(p) for p in discovery.leaves(loss)}
    walked = time.thread_time()
    found = discovery.roots(leaves)
    done = time.thread_time()
    assert found == [model], "the right root"
    return (walked - began) * 1e3, (done - walked) * 1e3


def step_ms(model: nn.Module, optimizer: Any, x: torch.Tensor, num_steps: int = STEPS) -> float:
    times = []
    for _ in range(num_steps):
        began = time.thread_time()
        optimizer.zero_grad()
        model(x).square().mean().backward()
        optimizer.step()
        times.append((time.thread_time() - began) * 1e3)
    return statistics.median(times[num_steps // 2 :])


def measure(num_modules: int) -> str:
    model = Wide(num_modules)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, foreach=True)
    x = torch.randn(8, 4)
    loss = model(x).square().mean()
    walks, looks = zip(*(look(model, loss) for _ in range(5)), strict=True)
    plain = step_ms(model, optimizer, x)
    watcher = discovery.Discovery(lambda models, optimizers: None)
    watcher.start()
    discovery.SEAMS.join(watcher)
    listening = step_ms(model, optimizer, x)
    watcher.stop()
    names = Names(model)
    began = time.thread_time()
    names.refresh()
    refresh = (time.thread_time() - began) * 1e3
    with tempfile.TemporaryDirectory() as folder:
        session = stethoscope.watch(model, optimizer, dir=folder, quiet=True, companion="off")
        watched = step_ms(model, optimizer, x, SETTLED)
        session.stop()
    return (
        f"| {num_modules:,} | {statistics.median(walks):.1f} | {statistics.median(looks):.0f} | {refresh:.2f} "
        f"| {plain:.2f} | {listening - plain:+.2f} | {watched - plain:+.2f} |"
    )


def main() -> None:
    torch.set_num_threads(1)
    ballast = [[n, []] for n in range(250_000)]
    print("# Discovery: what finding the models of an unchanged script costs\n")
    print(
        f"{platform.processor() or platform.machine()}, torch {torch.__version__}, one thread, "
        "milliseconds of this thread's CPU time, medians;"
    )
    print(f"{len(gc.get_objects()):,} live objects in the process ({2 * len(ballast):,} of them made for this).\n")
    print(
        "| modules | graph walk, once | look, once | model read again | plain step | + listening | + watched, default |"
    )
    print("| ---: | ---: | ---: | ---: | ---: | ---: | ---: |")
    for num_modules in SIZES:
        print(measure(num_modules), flush=True)
    print(
        "\nThe walk and the look happen once, at the first backward pass. After that discovery listens to optimizers' steps"
    )
    print(
        "(the sixth column is within the noise of this machine); the model is read again at powers of two and every 256th step."
    )


if __name__ == "__main__":
    main()
