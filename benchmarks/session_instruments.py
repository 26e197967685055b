"""What a session's instruments add to a training step: nothing asked, hooks that speak of steps, hooks at layers.

A transformer of 2 layers on the CPU, trained with the session at its defaults, with and without hooks, in turn. The
facts that hooks are told of each step are timed by themselves.

    python -m benchmarks.session_instruments [--out benchmarks/results/session_instruments.md]
"""

from __future__ import annotations

import argparse
import platform
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.nn import functional as F

import stethoscope
from stethoscope import HookAction, HookCondition
from stethoscope.kernels.columns import NUM_COLUMNS
from stethoscope.record import Kind
from stethoscope.session.step_facts import StepFactsSink

STEPS = 60


class Model(torch.nn.Module):
    """A small language model."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = torch.nn.Embedding(256, 128)
        self.blocks = torch.nn.ModuleList(
            torch.nn.TransformerEncoderLayer(128, 4, 512, dropout=0.0, batch_first=True) for _ in range(2)
        )
        self.head = torch.nn.Linear(128, 256)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.embed(x)
        for block in self.blocks:
            x = block(x)
        return self.head(x).transpose(1, 2)


class Nowhere:
    """A sink that takes everything and keeps nothing."""

    def __getattr__(self, name: str) -> Any:
        return lambda *args, **kwargs: None


class Sites:
    """A table of sites: gradient, update, weight and output of so many parameters."""

    def __init__(self, num_parameters: int) -> None:
        order = (Kind.GRADIENT, Kind.UPDATE, Kind.WEIGHT, Kind.ACTIVATION)
        self.kinds = [str(kind) for kind in order for _ in range(num_parameters)]

    def kinds_from(self, first: int) -> list[str]:
        return self.kinds[first:]


def facts_cost(num_parameters: int, steps: int = 200) -> float:
    """What the facts for hooks add to a step that measured so many parameters, in µs."""
    sites: Any = Sites(num_parameters)
    sink = StepFactsSink(Nowhere(), sites)
    index = np.arange(len(sites.kinds), dtype=np.uint32)
    table = np.random.default_rng(0).random((len(index), NUM_COLUMNS))
    began = time.thread_time()
    for step in range(steps):
        sink.rows(step, index, table)
        sink.scalars(step, {"loss": 1.0, "lr": 0.1, "step_ms": 3.0})
    return (time.thread_time() - began) / steps * 1e6


def train(folder: str, prepare: Any, watch: bool = True) -> float:
    """Median step in ms."""
    torch.manual_seed(0)
    model = Model()
    optimizer = torch.optim.AdamW(model.parameters())
    session = None
    if watch:
        session = stethoscope.watch(model, optimizer, dir=folder, quiet=True, companion="off")
        prepare(session)
    x = torch.randint(0, 256, (16, 65))
    took = []
    for _ in range(STEPS):
        began = time.thread_time()
        optimizer.zero_grad()
        F.cross_entropy(model(x[:, :-1]), x[:, 1:]).backward()
        optimizer.step()
        took.append(time.thread_time() - began)
    if session is not None:
        session.stop()
    return statistics.median(took[10:]) * 1e3


def nothing(session: Any) -> None:
    """No hooks."""


def timed_layers(rounds: int = 30) -> tuple[float, float, int]:
    """What a step costs more whose layers are timed, in ms by its median, beside a step, and the number of modules.

    Steps with and without the hooks in turn, without anything else of a session.
    """
    from types import SimpleNamespace

    from stethoscope.capture.guard import Guard
    from stethoscope.capture.phases import Phases
    from stethoscope.session.layer_times import LayerTimes

    torch.manual_seed(0)
    model = Model()
    watcher: Any = SimpleNamespace(
        names=SimpleNamespace(root=model),
        taps=SimpleNamespace(spent=0.0, made_way=False),
        guard=Guard(),
        evaluating=False,
        phases=Phases(lambda: 0.0),
    )
    times = LayerTimes(watcher, model)
    optimizer = torch.optim.AdamW(model.parameters())
    x = torch.randint(0, 256, (16, 65))
    took: dict[bool, list[float]] = {True: [], False: []}
    for number in range(2 * rounds):
        is_timed = number % 2 == 1
        began = time.thread_time()
        times.step_ends(64 if is_timed else 63)
        optimizer.zero_grad()
        F.cross_entropy(model(x[:, :-1]), x[:, 1:]).backward()
        optimizer.step()
        took[is_timed].append(time.thread_time() - began)
    times.close()
    with_hooks, without = (statistics.median(took[key][5:]) * 1e3 for key in (True, False))
    return with_hooks - without, without, sum(1 for _ in model.modules())


def step_hooks(session: Any) -> None:
    """Ten conditions that are judged at every step and never hold."""
    for number in range(10):
        session.on(HookCondition.LossThreshold(1e9 + number), HookAction.Alert("never"))


def layer_hooks(session: Any) -> None:
    """A callback at every layer's output, at every step."""
    session.on(None, lambda context: None)


CASES = {"no hooks": nothing, "ten conditions a step": step_hooks, "a callback at every layer": layer_hooks}


def main() -> None:
    """Print, or write, the table."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", type=Path)
    parser.add_argument("--rounds", type=int, default=3)
    args = parser.parse_args()
    torch.set_num_threads(1)
    found: dict[str, list[float]] = {}
    with tempfile.TemporaryDirectory() as folder:
        for _ in range(args.rounds):
            found.setdefault("not watched", []).append(train(folder, nothing, watch=False))
            for name, prepare in CASES.items():
                found.setdefault(name, []).append(train(folder, prepare))
    lines = [
        "# Instruments inside a session",
        "",
        f"{platform.machine()} CPU, 1 thread, torch {torch.__version__}, {STEPS} steps, median of {args.rounds} "
        "rounds in turn; processor time of the training thread, so that others on the machine do not count. "
        "Facts: what a step costs more while hooks are registered, by the number of parameters; instruments cost nothing "
        "until they are asked.",
        "",
        "| session | step |",
        "| --- | --- |",
    ]
    lines += [f"| {name} | {statistics.median(rounds):.2f} ms |" for name, rounds in found.items()]
    lines += ["", "| parameters | facts |", "| --- | --- |"]
    lines += [f"| {count:,} | {facts_cost(count):.0f} µs |" for count in (33, 150, 1500)]
    more, whole, modules = timed_layers()
    lines += [
        "",
        f"A step whose layers are timed (one in 64, {modules} modules): {more:.2f} ms more than the {whole:.2f} ms of one "
        f"without, {more / 64:.3f} ms a step.",
    ]
    text = "\n".join(lines) + "\n"
    print(text)
    if args.out:
        args.out.write_text(text)


if __name__ == "__main__":
    main()
