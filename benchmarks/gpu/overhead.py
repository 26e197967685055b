"""What watching costs a training step on a GPU, beside today's tools, in one run.

    PYTHONPATH=src python -m benchmarks.gpu.overhead 124M eager [--rounds 3] [--steps 8] [--peers]

bf16 autocast, fused AdamW, random tokens. Every variant's turn stands between two plain turns, and counts against both: a
card that has worked for seconds clocks lower than one that rested while something attached. A turn begins with steps that are
not timed, for `SETTLE` seconds at least. Time is the device's, from CUDA events at the ends of steps, and the wall's over a
turn. What two plain turns differ by, one variant's turn between them, is printed: nothing smaller than that is resolved.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import importlib.util
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
from benchmarks.gpu.gpt import GPT, SIZES, alone

import stethoscope

if folder := os.environ.get("PEERS"):  # where other tools were unpacked
    sys.path.append(folder)
COMPANION = "process" if importlib.util.find_spec("pyarrow") else "off"
"""The process beside training, at default settings, where what it needs is installed."""

Variant = Callable[[Any, Any], contextlib.AbstractContextManager[Callable[[], None] | None]]
BARE: dict[str, Any] = {
    "weights": False,
    "updates": False,
    "optimizer_state": False,
    "buffers": False,
    "activations": False,
    "histogram_every": 0,
    "graph": False,
    "every": 1,
}
BOUNDARY: dict[str, Any] = {"activations": False, "histogram_every": 0, "every": 1}
DEFAULT = "Stethoscope, default settings"
BETWEEN, LOOKED_AT = (
    "Stethoscope, module outputs asked for, steps between looks",
    "Stethoscope, module outputs asked for, steps that are looked at",
)
EVERY_FOURTH: dict[str, Any] = {**BOUNDARY, "activations": True, "every": 4, "graph": False}
PEERS = ("clip_grad", "torch.autograd", "transformers", "wandb")
SETTLE = 2.0
LEARNING = 64
"""Steps that the governor is given before it is timed."""
WHOLE_ROUND = 128


def ours(**settings: Any) -> Variant:
    @contextlib.contextmanager
    def variant(model: Any, optimizer: Any) -> Iterator[None]:
        folder = Path(tempfile.mkdtemp()) / "run"
        companion = "off" if settings else COMPANION
        session = stethoscope.watch(model, optimizer, run=folder, companion=companion, quiet=True, **settings)
        try:
            yield None
        finally:
            watcher = session._watcher
            errors, dropped = dict(watcher.guard.errors), watcher.ring.num_dropped
            if errors or dropped:
                print("ERRORS", errors, "dropped", dropped, watcher.guard.last_traceback[-800:])
            if settings == {}:
                cost = {part: round(sorted(v)[len(v) // 2], 3) for part, v in watcher.schedule._device.items()}
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

    def settle(self, least: int, before_step: Callable[[], None] | None) -> float:
        """Steps that are not timed, so many at least and for so long; seconds of one."""
        began, count = time.perf_counter(), 0
        while count < least or time.perf_counter() - began < SETTLE:
            for _ in range(4):
                self.step(before_step)
            torch.cuda.synchronize()
            count += 4
        return (time.perf_counter() - began) / count

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


@dataclasses.dataclass
class Turn:
    """What one variant did between two plain turns; milliseconds."""

    name: str
    device: list[float]
    wall: float
    peak: int


def variants(compiled: bool, peers: bool) -> dict[str, tuple[Variant, int]]:
    """By name: how it attaches, and how many steps it needs before it is itself."""
    found: dict[str, tuple[Variant, int]] = {
        "Stethoscope, gradients every step": (ours(**BARE), 4),
        "Stethoscope, + weights, updates, optimizer state every step": (ours(**BOUNDARY), 4),
    }
    if not compiled:
        found["Stethoscope, + module outputs and their gradients every step"] = (
            ours(**{**BOUNDARY, "activations": True}),
            4,
        )
    found[DEFAULT] = (ours(), LEARNING)
    if peers:
        found["clip_grad_norm_().item(), every step"] = (norm_item(1), 4)
        found["wandb 0.31 watch(gradients), its default: every 1,000th"] = (wandb_hooks(1000), 4)
        found["wandb 0.31 watch(gradients), every step"] = (wandb_hooks(1), 1)
        if not compiled:
            found["torch.autograd.set_detect_anomaly"] = (anomaly, 1)
            found["transformers DebugUnderflowOverflow"] = (underflow_overflow, 1)
    return found


def take_turn(training: Training, name: str, variant: Variant, least: int) -> Turn:
    with variant(training.run, training.optimizer) as before_step:
        seconds = training.settle(least, before_step)
        torch.cuda.reset_peak_memory_stats()
        # At default settings one step in many does more than the others: the mean is over one such round.
        steps = WHOLE_ROUND if name == DEFAULT else min(max(int(SETTLE / seconds), 8), 48)
        device, wall = training.timed(steps, before_step)
        return Turn(name, device, wall, torch.cuda.max_memory_allocated())


def measure(training: Training, asked: dict[str, tuple[Variant, int]], rounds: int) -> list[Turn]:
    """Plain, a variant, plain, the next one, ..., plain. Peers take one turn each."""
    turns = [take_turn(training, "plain", plain, 4)]
    failed: set[str] = set()
    for number in range(rounds):
        for name, (variant, least) in asked.items():
            if name in failed or (number and name.startswith(PEERS)):
                continue
            try:
                turns.append(take_turn(training, name, variant, least))
            except Exception as problem:  # a peer that does not run here is said, and the rest goes on
                failed.add(name)
                print("FAILED", name, repr(problem)[:300], flush=True)
            else:
                turns.append(take_turn(training, "plain", plain, 4))
    return turns


def print_table(turns: list[Turn]) -> None:
    """Each turn against the plain ones on both sides of it; of several turns the middle one counts."""
    print("| what | step, ms | more | of each turn | mean, more | by the wall | more memory, MB |")
    print("| --- | --- | --- | --- | --- | --- | --- |")
    plains = [statistics.median(turn.device) for turn in turns if turn.name == "plain"]
    print(f"| plain | {statistics.median(plains):.2f} | | | | | |")
    for name in dict.fromkeys(turn.name for turn in turns if turn.name != "plain"):
        positions = [position for position, turn in enumerate(turns) if turn.name == name]
        more = [ratio(turns, position, lambda turn: statistics.median(turn.device)) for position in positions]
        mean = [ratio(turns, position, lambda turn: statistics.fmean(turn.device)) for position in positions]
        wall = [ratio(turns, position, lambda turn: turn.wall) for position in positions]
        extra = max(turns[position].peak - turns[position - 1].peak for position in positions) / 1e6
        each = ", ".join(f"{value:+.2%}" for value in more)
        print(
            f"| {name} | {statistics.median(statistics.median(turns[position].device) for position in positions):.2f} "
            f"| {statistics.median(more):+.2%} | {each} | {statistics.median(mean):+.2%} "
            f"| {statistics.median(wall):+.2%} | {extra:.1f} |"
        )
    apart = sorted(abs(b / a - 1) for a, b in itertools.pairwise(plains))
    spread = [
        value / statistics.median(turn.device) - 1 for turn in turns if turn.name == "plain" for value in turn.device
    ]
    low, high = statistics.quantiles(spread, n=10)[0], statistics.quantiles(spread, n=10)[-1]
    print(
        f"\nplain turns differ from the next plain one by {statistics.median(apart):.2%} (middle), {apart[-1]:.2%} (most);"
    )
    print(f"plain steps: 10th and 90th percentile {low:+.2%}, {high:+.2%} of their turn's median", flush=True)


def ratio(turns: list[Turn], position: int, value: Callable[[Turn], float]) -> float:
    """How much more than the mean of its neighbours."""
    return value(turns[position]) / statistics.fmean((value(turns[position - 1]), value(turns[position + 1]))) - 1


def measure_inside(training: Training, before: Turn) -> None:
    """Module outputs inside of compiled graphs: one session, every fourth step looked at, between two plain turns."""
    graphs = check_graphs()
    with ours(**EVERY_FOURTH)(training.run, training.optimizer):
        training.settle(12, None)  # compiles
        with alone():
            seconds = training.settle(12, None)
            both = check_graphs()
            count = min(max(int(2 * SETTLE / seconds), 16), 96) // 4 * 4
            # Steps come in fours up to here, so the first of the next is looked at; `timed` leaves it out.
            times, _wall = training.timed(count + 1, None)
            later = check_graphs()
    training.settle(4, None)  # compiles
    with alone():
        after = take_turn(training, "plain", plain, 4)
    base = statistics.fmean(statistics.median(turn.device) for turn in (before, after))
    print(f"| plain, before and after | {base:.2f} | |")
    found = {LOOKED_AT: times[3::4], BETWEEN: [value for position, value in enumerate(times) if position % 4 != 3]}
    for name, values in found.items():
        print(f"| {name} | {statistics.median(values):.2f} | {statistics.median(values) / base - 1:+.2%} |")
    print(f"graphs and breaks: plain {graphs}, with both graphs {both}, after {count} more steps {later}", flush=True)


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


def check_graphs() -> dict[str, int]:
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
    parser.add_argument("--peers", action="store_true")
    parser.add_argument("--batch", type=int, default=0)
    parser.add_argument("--sync-steps", type=int, default=100)
    parser.add_argument("--inside", action="store_true", help="module outputs inside of compiled graphs too")
    asked = parser.parse_args()
    compiled = asked.how == "compiled"
    training = Training(asked.model, compiled, asked.batch)
    shape = f"{training.size.batch} x {training.size.context} tokens"
    print(f"\n### {asked.model}, {asked.how}, {shape}: {torch.cuda.get_device_name()}, torch {torch.__version__}")
    weights = sum(p.nbytes for p in training.model.parameters())
    for _ in range(5):
        training.step()
    torch.cuda.synchronize()
    with alone():
        before = check_graphs()
        turns = measure(training, variants(compiled, asked.peers), asked.rounds)
        print_table(turns)
        print(f"weights {weights / 1e6:.0f} MB; the companion of the default settings: {COMPANION}")
        if compiled:
            print(f"graphs and breaks before watching {before}, after {check_graphs()}", flush=True)
        if asked.sync_steps:
            check_no_synchronisation(training, asked.sync_steps)
    if asked.inside:
        measure_inside(training, turns[-1])
    if out := os.environ.get("OUT"):
        told = [dataclasses.asdict(turn) for turn in turns]
        Path(out, f"{asked.model}-{asked.how}-{training.size.batch}.json").write_text(json.dumps(told))


if __name__ == "__main__":
    main()
