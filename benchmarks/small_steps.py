"""What watching costs on small steps on the CPU, as users have them: nine programs of 0.5 to 100 ms a step.

`python -m benchmarks.small_steps [NAME ...] [--rounds 6] [--cores 1] [--settings 'every=1'] [--peers] [--parts]`

For each program two processes train the same model, one plain and one watched, and take turns: a block of steps here, the
same there, so that a machine that is busy or slow for a while is so for both. Printed: wall clock of the watched blocks over
that of the plain ones beside them (mean, and the range over rounds), the median step, the worst step as a multiple of a plain
one, the processor time of the whole process and of its companion; and the first 64 steps, which hold attaching.
`--parts` prints instead where the training thread's microseconds go in steps that are not looked at.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import torch
from torch import nn

FIRST: Final = 64
STEADY_FROM: Final = 256
BLOCK_SECONDS: Final = 1.0
PEERS: Final = ("wandb", "tensorboard", "trainscope")
HEAD: Final = (
    "| program | plain, ms | mean step | us a step | median | worst, times a plain step | training thread, us "
    "| process, us | companion, of a core | first 64 | attaching, s |"
)


class Attention(nn.Module):
    """A small encoder over a sequence."""

    def __init__(self, width: int, depth: int) -> None:
        super().__init__()
        self.embed = nn.Linear(32, width)
        layer = nn.TransformerEncoderLayer(width, 4, 2 * width, batch_first=True, dropout=0.0)
        self.encoder = nn.TransformerEncoder(layer, depth, enable_nested_tensor=False)
        self.head = nn.Linear(width, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.encoder(self.embed(x)).mean(1))


class Recurrent(nn.Module):
    """A sequence read by an LSTM."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.lstm = nn.LSTM(32, width, batch_first=True)
        self.head = nn.Linear(width, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.lstm(x)[0][:, -1])


def mlp(*widths: int) -> nn.Module:
    layers: list[nn.Module] = []
    for before, after in itertools.pairwise(widths):
        layers += [nn.Linear(before, after), nn.ReLU()]
    return nn.Sequential(*layers[:-1])


def conv(width: int, depth: int) -> nn.Module:
    layers: list[nn.Module] = [nn.Conv2d(1, width, 3, padding=1), nn.BatchNorm2d(width), nn.ReLU()]
    for _ in range(depth):
        layers += [nn.Conv2d(width, width, 3, padding=1), nn.BatchNorm2d(width), nn.ReLU()]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(width, 10))


PROGRAMS: Final[dict[str, tuple[Callable[[], nn.Module], tuple[int, ...], str]]] = {
    "logistic": (lambda: nn.Linear(64, 10), (64, 64), "SGD"),
    "mlp": (lambda: mlp(64, 256, 256, 10), (64, 64), "AdamW"),
    "deep mlp": (lambda: mlp(64, *[64] * 20, 10), (64, 64), "Adam"),
    "conv": (lambda: conv(16, 1), (32, 1, 16, 16), "AdamW"),
    "lstm": (lambda: Recurrent(96), (32, 24, 32), "Adam"),
    "transformer": (lambda: Attention(96, 3), (16, 24, 32), "AdamW"),
    "deep conv": (lambda: conv(32, 8), (32, 1, 16, 16), "SGD"),
    "wide mlp": (lambda: mlp(64, 1024, 1024, 1024, 10), (128, 64), "AdamW"),
    "large transformer": (lambda: Attention(256, 6), (16, 48, 32), "AdamW"),
}


def trained(name: str) -> tuple[nn.Module, torch.optim.Optimizer, Callable[[], torch.Tensor]]:
    """The program's model, optimizer and one step of it, which returns its loss."""
    torch.manual_seed(0)
    make, shape, optimizer_name = PROGRAMS[name]
    model = make()
    optimizer = getattr(torch.optim, optimizer_name)(model.parameters(), 1e-3)
    data = [(torch.randn(shape), torch.randint(0, 10, (shape[0],))) for _ in range(8)]
    turn = 0

    def step() -> torch.Tensor:
        nonlocal turn
        x, y = data[turn % len(data)]
        turn += 1
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        return loss

    return model, optimizer, step


def attach(how: str, model: nn.Module, optimizer: torch.optim.Optimizer, settings: dict[str, Any]) -> Any:
    """Begin to watch in this way; returns what is called after each step, or nothing."""
    folder = tempfile.mkdtemp()
    if how == "stethoscope":
        import stethoscope

        stethoscope.watch(model, optimizer, run=f"{folder}/run", quiet=True, **settings)
    elif how == "wandb":
        os.environ.update(WANDB_MODE="offline", WANDB_SILENT="true", WANDB_DIR=folder)
        import wandb

        wandb.init(project="small-steps")
        wandb.watch(model)
        return lambda loss: wandb.log({"loss": loss.item()})
    elif how == "tensorboard":
        from torch.utils.tensorboard import SummaryWriter

        writer, count = SummaryWriter(folder), iter(range(1 << 40))

        def histograms(loss: torch.Tensor) -> None:
            number = next(count)
            writer.add_scalar("loss", loss.item(), number)
            for path, parameter in model.named_parameters():
                writer.add_histogram(path, parameter.grad, number)

        return histograms
    elif how == "trainscope":
        from trainscope import TrainScope
        from trainscope.core.config import TrainScopeConfig

        scope, count = (
            TrainScope(model, optimizer, config=TrainScopeConfig(run_dir=folder)).attach(),
            iter(range(1, 1 << 40)),
        )
        return lambda loss: scope.step(loss.item(), batch_index=next(count))
    return None


def work(name: str, how: str, settings: dict[str, Any]) -> None:
    """A process that trains a block of steps whenever it is told to."""
    torch.set_num_threads(1)
    model, optimizer, step = trained(name)
    for _ in range(50):
        step()
    after: Any = None
    for line in sys.stdin:
        asked = json.loads(line)
        began = time.perf_counter()
        if asked.get("attach"):
            after = attach(how, model, optimizer, settings)
        took: list[float] = []
        attached, cpu, thread = time.perf_counter(), time.process_time(), time.thread_time()
        for _ in range(asked["steps"]):
            at = time.perf_counter()
            loss = step()
            if after is not None:
                after(loss)
            took.append(time.perf_counter() - at)
        said = {
            "attach": attached - began,
            "wall": sum(took),
            "median": statistics.median(took),
            "worst": max(took),
            "cpu": time.process_time() - cpu,
            "thread": time.thread_time() - thread,
            "others": children_seconds(),
        }
        print(json.dumps(said), flush=True)


def children_seconds() -> float:
    """Processor seconds of this process's living children so far."""
    found = 0.0
    for task in Path("/proc/self/task").iterdir():
        for child in (task / "children").read_text().split():
            fields = Path(f"/proc/{child}/stat").read_text(errors="replace").rpartition(")")[2].split()
            found += (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    return found


class Worker:
    """One of the processes that take turns."""

    def __init__(self, name: str, how: str, settings: str, cores: int) -> None:
        environment = os.environ | {"OMP_NUM_THREADS": "1"}
        command = [sys.executable, "-m", "benchmarks.small_steps", name, "--work", how, "--settings", settings]
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
        )
        os.sched_setaffinity(self._process.pid, set(list(os.sched_getaffinity(0))[:cores]))

    def run(self, steps: int, *, attach: bool = False) -> dict[str, float]:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps({"steps": steps, "attach": attach}) + "\n")
        self._process.stdin.flush()
        while True:
            line = self._process.stdout.readline()
            if not line:
                raise SystemExit(f"a worker ended: {self._process.wait()}")
            if line.startswith("{"):
                found: dict[str, float] = json.loads(line)
                return found

    def end(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()


def compare(name: str, how: str, settings: str, *, rounds: int, cores: int) -> str:
    """One row of the table."""
    plain, watched = Worker(name, "plain", "", cores), Worker(name, how, settings, cores)
    plain.run(20)
    milliseconds = plain.run(30)["wall"] / 30 * 1e3
    first_plain = plain.run(FIRST)
    first = watched.run(FIRST, attach=True)
    first_plain["wall"] = (first_plain["wall"] + plain.run(FIRST)["wall"]) / 2
    watched.run(STEADY_FROM - FIRST)
    steps = max(64, int(BLOCK_SECONDS / milliseconds * 1e3 / 64) * 64)
    watched.run(steps)
    ratios, medians, worsts, cpus, threads, others, plains = [], [], [], [], [], [], []
    for _ in range(rounds):
        before, mine, after = plain.run(steps), watched.run(steps), plain.run(steps)
        base = {key: (before[key] + after[key]) / 2 for key in before}
        ratios.append(mine["wall"] / base["wall"] - 1)
        medians.append(mine["median"] / base["median"] - 1)
        worsts.append(mine["worst"] / base["median"])
        cpus.append((mine["cpu"] - base["cpu"]) / steps * 1e6)
        threads.append((mine["thread"] - base["thread"]) / steps * 1e6)
        others.append(mine["others"])
        plains.append(base["wall"] / steps * 1e3)
    companion = (others[-1] - others[0]) / max(rounds - 1, 1) / (statistics.mean(plains) * steps / 1e3)
    plain.end()
    watched.end()
    mean = statistics.mean(ratios)
    microseconds = mean * statistics.mean(plains) * 1e3
    return (
        f"| {name} | {statistics.mean(plains):.2f} | {mean:+.1%} ({min(ratios):+.1%} to {max(ratios):+.1%}) "
        f"| {microseconds:.0f} | {statistics.mean(medians):+.1%} | {max(worsts):.1f} "
        f"| {statistics.mean(threads):.0f} | {statistics.mean(cpus):.0f} | {companion:.1%} "
        f"| {first['wall'] / first_plain['wall'] - 1:+.0%} | {first['attach']:.2f} |"
    )


def parts(name: str, settings: dict[str, Any], steps: int = 1200) -> str:
    """Median microseconds in each of our entries, of steps in which nothing is measured; asking the clock takes part of them."""
    from stethoscope.capture.plain_steps import PlainSteps
    from stethoscope.capture.ring import Ring
    from stethoscope.capture.seams import SEAMS
    from stethoscope.capture.taps import InputTap, OutputTap
    from stethoscope.capture.watcher import Watcher

    spent: dict[str, float] = {}

    def timed(owner: type, method: str, label: str) -> None:
        original = getattr(owner, method)

        def call(*args: Any, **kwargs: Any) -> Any:
            began = time.perf_counter()
            result = original(*args, **kwargs)
            spent[label] = spent.get(label, 0.0) + time.perf_counter() - began
            return result

        setattr(owner, method, call)

    for method in ("backward_begins", "backward_ends", "step_begins", "step_ends"):
        timed(Watcher, method, method.replace("_", " "))
    timed(PlainSteps, "_close", "of it, closing the step")
    timed(Ring, "release", "of it, handing over several steps")
    timed(InputTap, "__call__", "forward begins")
    timed(OutputTap, "__call__", "module outputs")
    torch.set_num_threads(1)
    model, optimizer, step = trained(name)
    attach("stethoscope", model, optimizer, settings)
    (watcher,) = SEAMS.listeners
    found: dict[str, list[float]] = {}
    for number in range(STEADY_FROM + steps):
        plan = watcher.assembly.plan
        spent.clear()
        step()
        if number >= STEADY_FROM and plan.is_ordinary and not plan.gradients:
            for label, seconds in spent.items():
                found.setdefault(label, []).append(seconds * 1e6)
    cells = ", ".join(f"{label} {statistics.median(values):.0f}" for label, values in found.items())
    return f"{name}: {cells}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", default=[])
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--cores", type=int, default=2)
    parser.add_argument("--settings", default="")
    parser.add_argument("--peers", action="store_true")
    parser.add_argument("--only-peers", default="", help="these alone: wandb,tensorboard,trainscope")
    parser.add_argument("--parts", action="store_true")
    parser.add_argument("--work", default="")
    asked = parser.parse_args()
    names = asked.names or list(PROGRAMS)
    if asked.work:
        work(names[0], asked.work, eval(f"dict({asked.settings})"))
        return
    if asked.parts:
        for name in names[1:]:  # each in a process of its own
            subprocess.run(
                [sys.executable, "-m", "benchmarks.small_steps", name, *sys.argv[1 + len(names) :]], check=False
            )
        print(parts(names[0], eval(f"dict({asked.settings})")), flush=True)
        os._exit(0)
    load = os.getloadavg()[0]
    print(
        f"torch {torch.__version__}, {asked.cores} cores, settings: {asked.settings or 'default'}; load when begun {load:.1f}\n"
    )
    kinds = ["stethoscope", *(PEERS if asked.peers else ())]
    for how in asked.only_peers.split(",") if asked.only_peers else kinds:
        print(f"{how}\n")
        print(HEAD)
        print("| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |")
        for name in names:
            print(compare(name, how, asked.settings, rounds=asked.rounds, cores=asked.cores), flush=True)
        print()


if __name__ == "__main__":
    main()
