"""What watching costs a training step on the CPU, beside wandb.watch and TensorBoard histograms, in one run.

    PYTHONPATH=src python -m benchmarks.cpu_overhead [--rounds 5] [--steps 20] [--threads 1]

A small transformer, a conv net and an LSTM. Variants take turns, with plain steps before and after each: what a
variant costs is the median of its steps against those plain ones, and of all rounds the middle one counts, beside the
lowest and the highest (a machine's speed drifts by more than what is measured). The companion is off: it is a process
of its own, and this is about the training thread.
The C library keeps freed memory (M_TRIM_THRESHOLD, M_MMAP_THRESHOLD): left to itself it hands large blocks back and takes
them again, thousands of page faults a step or half of that as it happens to stand, and a conv net's step moves by a third.
wandb (offline) and TensorBoard are real packages, at equal cadence: every step, gradients and weights.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import itertools
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

import stethoscope


class Transformer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.tokens, self.positions = nn.Embedding(1000, 192), nn.Embedding(128, 192)
        self.blocks = nn.ModuleList(
            nn.TransformerEncoderLayer(192, 6, 768, dropout=0.0, batch_first=True, norm_first=True) for _ in range(4)
        )
        self.head = nn.Linear(192, 1000)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.tokens(tokens) + self.positions.weight[: tokens.shape[1]]
        for block in self.blocks:
            x = block(x)
        return self.head(x)


class ConvNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        widths = [3, 32, 64, 64, 128]
        self.layers = nn.Sequential(
            *(
                nn.Sequential(nn.Conv2d(a, b, 3, stride=2, padding=1), nn.BatchNorm2d(b), nn.ReLU(inplace=True))
                for a, b in itertools.pairwise(widths)
            )
        )
        self.head = nn.Linear(128, 10)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return self.head(self.layers(images).mean((2, 3)))


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.tokens, self.lstm, self.head = (
            nn.Embedding(1000, 128),
            nn.LSTM(128, 256, 2, batch_first=True),
            nn.Linear(256, 1000),
        )

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.head(self.lstm(self.tokens(tokens))[0])


def workloads() -> dict[str, tuple[nn.Module, torch.Tensor, torch.Tensor]]:
    torch.manual_seed(0)
    text, label = torch.randint(0, 1000, (8, 128)), torch.randint(0, 10, (32,))
    short = torch.randint(0, 1000, (16, 32))
    return {
        "transformer": (Transformer(), text, text),
        "conv net": (ConvNet(), torch.randn(32, 3, 64, 64), label),
        "LSTM": (Recurrent(), short, short),
    }


Times = tuple[float, float, float]
"""Of a step: by the wall, of the training thread's processor, of the whole process's. On a machine that others use
too the wall says little; the processors' times do not count what was taken away."""
Attach = Callable[[nn.Module, Any], contextlib.AbstractContextManager[Callable[[], None] | None]]


def ours(**settings: Any) -> Attach:
    @contextlib.contextmanager
    def attach(model: nn.Module, optimizer: Any) -> Iterator[None]:
        folder = Path(tempfile.mkdtemp()) / "run"
        session = stethoscope.watch(model, optimizer, run=folder, companion="off", quiet=True, **settings)
        try:
            yield None
        finally:
            errors = session._watcher.guard.errors  # type: ignore[union-attr]
            assert not errors, session._watcher.guard.last_traceback  # type: ignore[union-attr]
            session.stop()

    return attach


@contextlib.contextmanager
def plain(model: nn.Module, optimizer: Any) -> Iterator[None]:
    yield None


@contextlib.contextmanager
def wandb_watch(model: nn.Module, optimizer: Any) -> Iterator[Callable[[], None]]:
    import wandb

    run = wandb.init(mode="offline", dir=tempfile.mkdtemp(), settings=wandb.Settings(console="off"))
    run.watch(model, log="all", log_freq=1)
    try:
        yield lambda: run.log({"step": 1})
    finally:
        run.unwatch(model)
        run.finish()


@contextlib.contextmanager
def tensorboard(model: nn.Module, optimizer: Any) -> Iterator[Callable[[], None]]:
    from torch.utils.tensorboard import SummaryWriter

    writer = SummaryWriter(tempfile.mkdtemp())
    count = 0

    def before_step() -> None:
        nonlocal count
        count += 1
        for name, parameter in model.named_parameters():
            writer.add_histogram(f"weight/{name}", parameter, count)
            writer.add_histogram(f"gradient/{name}", parameter.grad, count)

    try:
        yield before_step
    finally:
        writer.close()


BASE: dict[str, Any] = {"activations": False, "histogram_every": 0, "graph": False, "every": 1}
VARIANTS: dict[str, tuple[Attach, int]] = {
    "plain": (plain, 3),
    "gradients and weights, every step": (
        ours(**BASE, updates=False, optimizer_state=False, buffers=False),
        5,
    ),
    "+ updates, optimizer state, buffers": (ours(**BASE), 5),
    "+ module outputs and their gradients": (ours(**{**BASE, "activations": True}), 5),
    "default settings": (ours(), 40),
    "wandb.watch(log='all'), every step": (wandb_watch, 1),
    "TensorBoard add_histogram, every step": (tensorboard, 1),
}


def measure(
    model: nn.Module, x: torch.Tensor, y: torch.Tensor, rounds: int, steps: int
) -> dict[str, list[tuple[Times, Times]]]:
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    found: dict[str, list[tuple[Times, Times]]] = {name: [] for name in VARIANTS}

    def step(before_step: Callable[[], None] | None) -> Times:
        began = time.perf_counter(), time.thread_time(), time.process_time()
        optimizer.zero_grad()
        out = model(x)
        F.cross_entropy(out.flatten(0, -2), y.flatten()).backward()
        if before_step is not None:
            before_step()
        optimizer.step()
        ended = time.perf_counter(), time.thread_time(), time.process_time()
        return ended[0] - began[0], ended[1] - began[1], ended[2] - began[2]

    def middle(amount: int, before_step: Callable[[], None] | None = None) -> Times:
        return middle_of([step(before_step) for _ in range(amount)])

    for _ in range(3):
        step(None)
    for _ in range(rounds):
        before = middle(steps)
        for name, (attach, warm_up) in VARIANTS.items():
            with attach(model, optimizer) as before_step:
                for _ in range(warm_up):
                    step(before_step)
                own = middle(steps if warm_up > 1 else max(steps // 4, 2), before_step)
            step(None)
            after = middle(steps)
            found[name].append((own, middle_of([before, after], statistics.mean)))
            before = after
    return found


def middle_of(times: list[Times], how: Callable[[tuple[float, ...]], float] = statistics.median) -> Times:
    wall, thread, process = (how(kind) for kind in zip(*times, strict=True))
    return wall, thread, process


def line(name: str, found: list[tuple[Times, Times]]) -> str:
    """A row: the step, and by each clock how much more than the plain steps around it, middle and range."""
    cells = [name, f"{1e3 * statistics.median(own[0] for own, _ in found):.2f}"]
    for clock in range(3):
        more = sorted(own[clock] / plain[clock] - 1 for own, plain in found)
        cells.append(f"{statistics.median(more):+.1%} ({more[0]:+.1%} to {more[-1]:+.1%})")
    return "| " + " | ".join(cells) + " |"


def keep_freed_memory() -> None:
    """The same allocator for every variant: nothing freed goes back to the system."""
    with contextlib.suppress(OSError, AttributeError):
        libc = ctypes.CDLL(None)
        libc.mallopt(-3, 1 << 30)  # M_MMAP_THRESHOLD
        libc.mallopt(-1, (1 << 31) - 1)  # M_TRIM_THRESHOLD


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--only", default="")
    asked = parser.parse_args()
    os.environ.setdefault("WANDB_SILENT", "true")
    torch.set_num_threads(asked.threads)
    keep_freed_memory()
    print(f"torch {torch.__version__}, {asked.threads} thread(s); load when begun {os.getloadavg()[0]:.1f}")
    for name, (model, x, y) in workloads().items():
        if asked.only not in name:
            continue
        found = measure(model, x, y, asked.rounds, asked.steps)
        print(f"\n| {name} | step, ms | more | training thread's CPU time, more | process's CPU time, more |")
        print("| --- | --- | --- | --- | --- |")
        for variant, times in found.items():
            print(line(variant, times))
        print(f"\nload when done {os.getloadavg()[0]:.1f}", flush=True)


if __name__ == "__main__":
    main()
