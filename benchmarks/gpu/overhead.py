"""What watching costs a training step on a GPU, beside today's tools, in one run.

    PYTHONPATH=src python benchmarks/gpu/overhead.py 124M eager [--rounds 3] [--steps 8] [--peers]

bf16 autocast, fused AdamW, random tokens. Variants take turns, `--steps` timed steps at a time; of all a
variant's steps the median counts, against the plain step's. Time is the device's, from CUDA events at the ends of
steps, and the wall's over a turn. The companion process, which runs beside training on another core, is off here.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import itertools
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from gpt import GPT, SIZES

import stethoscope

if folder := os.environ.get("PEERS"):  # where other tools were unpacked
    sys.path.append(folder)

Variant = Callable[[Any, Any], contextlib.AbstractContextManager[Callable[[], None] | None]]
BARE: dict[str, Any] = {
    "weights": False, "updates": False, "optimizer_state": False, "buffers": False, "activations": False,
    "histogram_every": 0, "graph": False, "every": 1,
}  # fmt: skip
BOUNDARY: dict[str, Any] = {"activations": False, "histogram_every": 0, "every": 1}
PLAIN_LONG = "plain, in turns as long as the next"
DEFAULT = "Stethoscope, default settings"
"""The governor needs some steps to learn, and a device that works longer clocks lower: so the plain turn is as long."""


def ours(**settings: Any) -> Variant:
    @contextlib.contextmanager
    def variant(model: Any, optimizer: Any) -> Iterator[None]:
        folder = Path(tempfile.mkdtemp()) / "run"
        session = stethoscope.watch(model, optimizer, run=folder, companion="off", quiet=True, **settings)
        try:
            yield None
        finally:
            watcher = session._watcher
            errors, dropped = dict(watcher.guard.errors), watcher.ring.num_dropped
            if errors or dropped:
                print("ERRORS", errors, "dropped", dropped, watcher.guard.last_traceback[-800:])
            if settings == {}:
                cost = {
                    part: round(sorted(v)[len(v) // 2], 3) for part, v in watcher.schedule._device.items()
                }
                print(f"governor: every {watcher.schedule.periods()}; device, ms: {cost}", flush=True)
            session.stop()

    return variant


@contextlib.contextmanager
def plain(model: Any, optimizer: Any) -> Iterator[None]:
    yield None


@contextlib.contextmanager
def anomaly(model: Any, optimizer: Any) -> Iterator[None]:
    with torch.autograd.set_detect_anomaly(True):
        yield None


def norm_item(every: int) -> Variant:
    @contextlib.contextmanager
    def variant(model: Any, optimizer: Any) -> Iterator[Callable[[], None]]:
        parameters = list(model.parameters())
        count = 0

        def before_step() -> None:
            nonlocal count
            count += 1
            norm = torch.nn.utils.clip_grad_norm_(parameters, float("inf"))
            if count % every == 0:
                norm.item()

        yield before_step

    return variant


@contextlib.contextmanager
def underflow_overflow(model: Any, optimizer: Any) -> Iterator[None]:
    from transformers.debug_utils import DebugUnderflowOverflow

    root = getattr(model, "_orig_mod", model)
    before = {module: set(module._forward_hooks) for module in root.modules()}
    DebugUnderflowOverflow(root)
    try:
        yield None
    finally:
        for module, known in before.items():
            for key in set(module._forward_hooks) - known:
                del module._forward_hooks[key]


def wandb_hooks(every: int) -> Variant:
    @contextlib.contextmanager
    def variant(model: Any, optimizer: Any) -> Iterator[Callable[[], None]]:
        import wandb

        run = wandb.init(mode="offline", dir=tempfile.mkdtemp(), settings=wandb.Settings(console="off"))
        root = getattr(model, "_orig_mod", model)
        run.watch(root, log="gradients", log_freq=every)
        try:
            yield lambda: run.log({"step": 1})
        finally:
            run.unwatch(root)
            run.finish()

    return variant


class Training:
    """One model, trained step by step."""

    def __init__(self, name: str, compiled: bool, batch: int) -> None:
        size = dataclasses.replace(SIZES[name], batch=batch) if batch else SIZES[name]
        self.size = size
        torch.manual_seed(0)
        with torch.device("cuda"):
            self.model = GPT(size)
            self.tokens = torch.randint(0, size.vocabulary, (8, size.batch, size.context + 1))
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-4, fused=True)
        self.run: Any = torch.compile(self.model) if compiled else self.model
        self.turn = 0

    def step(self, before_step: Callable[[], None] | None = None) -> torch.Tensor:
        batch = self.tokens[self.turn % len(self.tokens)]
        self.turn += 1
        self.optimizer.zero_grad(set_to_none=True)
        with torch.autocast("cuda", dtype=torch.bfloat16):
            loss = self.run(batch[:, :-1], batch[:, 1:])
        loss.backward()
        if before_step is not None:
            before_step()
        self.optimizer.step()
        return loss

    def timed(self, steps: int, before_step: Callable[[], None] | None) -> tuple[list[float], float]:
        """Milliseconds of each step on the device, and of a step by the wall."""
        marks = [torch.cuda.Event(enable_timing=True) for _ in range(steps + 1)]
        torch.cuda.synchronize()
        began = time.perf_counter()
        marks[0].record()
        for mark in marks[1:]:
            self.step(before_step)
            mark.record()
        torch.cuda.synchronize()
        wall = (time.perf_counter() - began) / steps * 1e3
        # The first step begins with an idle device, which no step of a training does.
        return [a.elapsed_time(b) for a, b in itertools.pairwise(marks)][1:], wall


def variants(compiled: bool, peers: bool) -> dict[str, tuple[Variant, int]]:
    """By name: how it attaches, and how many steps it needs before it is itself."""
    found: dict[str, tuple[Variant, int]] = {
        "plain": (plain, 2),
        "Stethoscope, gradients every step": (ours(**BARE), 4),
        "Stethoscope, + weights, updates, optimizer state every step": (ours(**BOUNDARY), 4),
    }
    if not compiled:
        found["Stethoscope, + module outputs and their gradients every step"] = (
            ours(**{**BOUNDARY, "activations": True}), 4,
        )  # fmt: skip
    found[PLAIN_LONG] = (plain, 40)
    found[DEFAULT] = (ours(), 40)
    if peers:
        found["clip_grad_norm_().item(), every step"] = (norm_item(1), 2)
        found["wandb 0.31 watch(gradients), its default: every 1,000th"] = (wandb_hooks(1000), 2)
        found["wandb 0.31 watch(gradients), every step"] = (wandb_hooks(1), 1)
        if not compiled:
            found["torch.autograd.set_detect_anomaly"] = (anomaly, 2)
            found["transformers DebugUnderflowOverflow"] = (underflow_overflow, 1)
    return found


def measure(
    training: Training, asked: dict[str, tuple[Variant, int]], rounds: int, steps: int
) -> dict[str, Any]:
    device: dict[str, list[float]] = {name: [] for name in asked}
    wall: dict[str, list[float]] = {name: [] for name in asked}
    peak: dict[str, float] = {}
    failed: dict[str, str] = {}
    for turn in range(rounds):
        for name, (variant, warm_up) in asked.items():
            if name in failed or (turn and name.startswith(("torch.autograd", "transformers", "wandb"))):
                continue
            try:
                with variant(training.run, training.optimizer) as before_step:
                    for _ in range(warm_up):
                        training.step(before_step)
                    torch.cuda.synchronize()
                    torch.cuda.reset_peak_memory_stats()
                    count = steps if warm_up > 1 else max(steps // 2, 2)
                    found, clock = training.timed(4 * count if warm_up > 4 else count, before_step)
                    peak[name] = torch.cuda.max_memory_allocated()
                device[name] += found
                wall[name].append(clock)
            except Exception as problem:  # a peer that does not run here is said, and the rest goes on
                failed[name] = repr(problem)[:300]
                print("FAILED", name, failed[name], flush=True)
    return {"device": device, "wall": wall, "peak": peak, "failed": failed}


def print_table(found: dict[str, Any]) -> None:
    spread = sorted(found["device"]["plain"])
    middle = statistics.median(spread)
    low, high = spread[len(spread) // 10] / middle - 1, spread[-1 - len(spread) // 10] / middle - 1
    print("| what | step, ms | more | mean, more | by the wall | more memory, MB |")
    print("| --- | --- | --- | --- | --- | --- |")
    for name, times in found["device"].items():
        if not times:
            continue
        against = PLAIN_LONG if name == DEFAULT else "plain"
        base, mean = statistics.median(found["device"][against]), statistics.fmean(found["device"][against])
        base_wall = statistics.median(found["wall"][against])
        middle, clock = statistics.median(times), statistics.median(found["wall"][name])
        extra = (found["peak"][name] - found["peak"]["plain"]) / 1e6
        print(
            f"| {name} | {middle:.2f} | {middle / base - 1:+.2%} | "
            f"{statistics.fmean(times) / mean - 1:+.2%} | "
            f"{clock / base_wall - 1:+.2%} | {extra:.1f} |"
        )
    print(f"\nplain steps: 10th and 90th percentile {low:+.2%}, {high:+.2%} of the median", flush=True)


def check_no_synchronisation(training: Training, steps: int) -> None:
    for name, settings in {"default settings": {}, "everything, every step": {"every": 1}}.items():
        with ours(**settings)(training.run, training.optimizer):
            for _ in range(12):
                training.step()
            torch.cuda.synchronize()
            torch.cuda.set_sync_debug_mode("error")
            try:
                for _ in range(steps):
                    training.step()
            finally:
                torch.cuda.set_sync_debug_mode("default")
        print(f"no synchronisation in {steps} watched steps, {name}", flush=True)


def check_graphs(training: Training) -> dict[str, int]:
    from torch._dynamo.utils import counters

    return {
        "graphs": counters["stats"].get("unique_graphs", 0),
        "breaks": sum(counters["graph_break"].values()),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("model", choices=list(SIZES))
    parser.add_argument("how", choices=["eager", "compiled"])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--peers", action="store_true")
    parser.add_argument("--batch", type=int, default=0)
    parser.add_argument("--sync-steps", type=int, default=100)
    asked = parser.parse_args()
    compiled = asked.how == "compiled"
    training = Training(asked.model, compiled, asked.batch)
    shape = f"{training.size.batch} x {training.size.context} tokens"
    print(
        f"\n### {asked.model}, {asked.how}, {shape}: {torch.cuda.get_device_name()}, torch {torch.__version__}"
    )
    weights = sum(p.nbytes for p in training.model.parameters())
    for _ in range(5):
        training.step()
    torch.cuda.synchronize()
    before = check_graphs(training)
    found = measure(training, variants(compiled, asked.peers), asked.rounds, asked.steps)
    print_table(found)
    print(f"weights {weights / 1e6:.0f} MB")
    if compiled:
        print(f"graphs and breaks before watching {before}, after {check_graphs(training)}")
    if asked.sync_steps:
        check_no_synchronisation(training, asked.sync_steps)
    if out := os.environ.get("OUT"):
        Path(out, f"{asked.model}-{asked.how}-{training.size.batch}.json").write_text(json.dumps(found))


if __name__ == "__main__":
    main()
