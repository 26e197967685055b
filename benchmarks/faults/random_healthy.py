"""`python -m benchmarks.faults.random_healthy`: healthy trainings drawn at random, and which of them alarm.

Architecture, optimizer, rate (within a factor of three of a good one for the pair), batch, data, precision, schedule,
clipping, dropout and accumulation are drawn; the draw of a number never changes. A training whose loss does not fall is
not healthy, and is reported as such instead of counted.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import json
import math
import os
import random
import sys
import tempfile
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import torch
from benchmarks.faults.architectures import ARCHITECTURES, Task
from benchmarks.faults.catalogue import Outcome, Program, finished
from benchmarks.faults.judging import Verdict, examine

import stethoscope

GOOD_RATE: Final = {
    "SGD": 0.05,
    "momentum": 0.01,
    "Adam": 1.5e-3,
    "AdamW": 1.5e-3,
    "RMSprop": 1e-3,
    "Adagrad": 2e-2,
    "NAdam": 1.5e-3,
    "RAdam": 3e-3,
}
PRECISIONS: Final = ("fp32", "fp32", "fp32", "bf16 autocast", "bf16 weights", "fp16 scaler")
SCHEDULES: Final = ("none", "none", "cosine", "warm-up", "step")
STEPS: Final = 150


@dataclasses.dataclass(frozen=True, slots=True)
class Draw:
    """One training, in words."""

    number: int
    architecture: str
    optimizer: str
    rate: float
    size: int
    precision: str
    schedule: str
    clip: float | None
    dropout: float
    accumulate: int
    logs: str

    def __str__(self) -> str:
        extras = [self.precision, self.schedule, f"clip {self.clip}", f"dropout {self.dropout}"]
        return (
            f"{self.architecture}, {self.optimizer} at {self.rate:.2g}, batch {self.size} x {self.accumulate}, "
            + ", ".join(extras)
        )


def draw(number: int) -> Draw:
    """The training of this number; always the same."""
    dice = random.Random(number * 7919 + 13)
    architecture = dice.choice(sorted(ARCHITECTURES))
    optimizer = dice.choice(sorted(GOOD_RATE))
    rate = GOOD_RATE[optimizer] * ARCHITECTURES[architecture].rate * 3 ** dice.uniform(-1, 1)
    return Draw(
        number,
        architecture,
        optimizer,
        rate,
        dice.choice((16, 32, 64, 128)),
        dice.choice(PRECISIONS),
        dice.choice(SCHEDULES),
        dice.choice((None, None, 1.0, 5.0)),
        dice.choice((0.0, 0.0, 0.1, 0.3)),
        dice.choice((1, 1, 1, 2, 4)),
        dice.choice(("", "L", "LB", "LBV")),
    )


def train(chosen: Draw, seed: int) -> Outcome:
    """The training itself."""
    torch.manual_seed(chosen.number * 1000 + seed)
    task = ARCHITECTURES[chosen.architecture].build(chosen.dropout, chosen.size, STEPS * chosen.accumulate, seed)
    model = _in_bf16(task.model) if chosen.precision == "bf16 weights" else task.model
    optimizer = make_optimizer(chosen, model)
    scheduler = _scheduler(chosen.schedule, optimizer)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**14, enabled=chosen.precision == "fp16 scaler")
    session = stethoscope.watch(model, optimizer)
    for number, (x, y) in enumerate(task.batches):
        if "B" in chosen.logs:
            session.log_batch(x, y)
        with _precision(chosen.precision):
            loss = task.loss(model, _cast(x, chosen.precision), y)
        scaler.scale(loss / chosen.accumulate).backward()
        if (number + 1) % chosen.accumulate:
            continue
        scaler.unscale_(optimizer)
        if chosen.clip is not None:
            torch.nn.utils.clip_grad_norm_(model.parameters(), chosen.clip)
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
        if scheduler is not None:
            scheduler.step()
        if "L" in chosen.logs:
            session.log(loss=loss)
        if "V" in chosen.logs and (number // chosen.accumulate) % 25 == 24:
            validate(session, task, model, chosen.precision)
    return finished(session)


def validate(session: Any, task: Task, model: torch.nn.Module, precision: str) -> None:
    """The loss of what was held out, logged as validation."""
    model.eval()
    with session.evaluating(), torch.no_grad(), _precision(precision):
        session.log(loss=task.loss(model, _cast(task.held_out[0], precision), task.held_out[1]).float().item())
    model.train()


def _precision(precision: str) -> contextlib.AbstractContextManager[Any]:
    if precision == "bf16 autocast":
        return torch.autocast("cpu", dtype=torch.bfloat16)
    if precision == "fp16 scaler":
        return torch.autocast("cpu", dtype=torch.float16)
    return contextlib.nullcontext()


def _in_bf16(model: torch.nn.Module) -> torch.nn.Module:
    """Weights in bf16, norms in float32 as is the custom: beside 1.0 a bf16 step must be above 0.004 to count."""
    model.to(torch.bfloat16)
    for module in model.modules():
        if isinstance(module, (torch.nn.LayerNorm, torch.nn.BatchNorm2d)):
            module.float()
    return model


def _cast(x: torch.Tensor, precision: str) -> torch.Tensor:
    return x.bfloat16() if precision == "bf16 weights" and x.is_floating_point() else x


def make_optimizer(chosen: Draw, model: torch.nn.Module) -> torch.optim.Optimizer:
    """The drawn optimizer at the drawn rate."""
    # In bf16 weights only steps above a weight's last digit count: rates below that are a fault, not a choice.
    rate = max(chosen.rate, GOOD_RATE[chosen.optimizer]) if chosen.precision == "bf16 weights" else chosen.rate
    if chosen.optimizer == "momentum":
        return torch.optim.SGD(model.parameters(), lr=rate, momentum=0.9)
    make: Callable[..., torch.optim.Optimizer] = getattr(torch.optim, chosen.optimizer)
    return make(model.parameters(), lr=rate)


def _scheduler(name: str, optimizer: torch.optim.Optimizer) -> Any:
    if name == "cosine":
        return torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=STEPS)
    if name == "warm-up":
        return torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min(1.0, (step + 1) / 30))
    if name == "step":
        return torch.optim.lr_scheduler.StepLR(optimizer, step_size=60, gamma=0.3)
    return None


def learned(verdict: Verdict) -> bool:
    """Whether the loss fell, by what the run recorded."""
    if verdict.loss is None:
        return False
    first, last = verdict.loss
    return math.isfinite(last) and last < first - 0.02 * abs(first)


def main() -> int:
    """Draw, train, count the alarms."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.faults.random_healthy", description=__doc__)
    parser.add_argument("--number", type=int, default=50, help="how many trainings")
    parser.add_argument("--first", type=int, default=0, help="the first draw")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--every", type=int, default=0, help="measure every Nth step; 0 leaves it to the governor")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    os.environ["STETHOSCOPE_EVERY"] = str(options.every)
    numbers = range(options.first, options.first + options.number)
    with tempfile.TemporaryDirectory(prefix="stethoscope-healthy-") as scratch:
        results = [_one(draw(number), Path(scratch).resolve()) for number in numbers]
    _tell(results)
    if options.json is not None:
        body = [{"draw": dataclasses.asdict(d), "verdict": dataclasses.asdict(v)} for d, v in results]
        options.json.write_text(json.dumps(body, indent=1) + "\n", encoding="utf-8")
    return 1 if any(v.error for _, v in results) else 0


def _one(chosen: Draw, scratch: Path) -> tuple[Draw, Verdict]:
    folder = scratch / str(chosen.number)
    folder.mkdir()
    program = Program(f"R{chosen.number}", "random", lambda seed: train(chosen, seed))
    verdict = examine(program, 0, folder)
    loss = "-" if verdict.loss is None else f"{verdict.loss[0]:.3g} to {verdict.loss[1]:.3g}"
    said = ", ".join(f"{c.code}@{c.first_step} {c.sites[:2]}" for c in verdict.causes) or "silent"
    if verdict.error:
        said = "FAILED " + verdict.error.strip().splitlines()[-1]
    print(f"{chosen.number:4} {verdict.seconds:5.1f}s  loss {loss:20} {said}  ({chosen})", flush=True)
    return chosen, verdict


def _tell(results: list[tuple[Draw, Verdict]]) -> None:
    healthy = [(d, v) for d, v in results if learned(v)]
    alarmed = [(d, v) for d, v in healthy if v.causes]
    codes = Counter(cause.code for _, v in alarmed for cause in v.causes)
    print(f"\n{len(results)} trainings, {len(healthy)} learned, {len(alarmed)} of those alarm.")
    for code, times in codes.most_common():
        print(f"  {code}: {times}")
    for d, v in results:
        if not learned(v):
            print(f"  did not learn: {d.number} ({d}), said: {', '.join(c.code for c in v.causes) or 'nothing'}")
        for trouble in dict.fromkeys(v.troubles):
            print(f"  trouble: {d.number}: {trouble}")


if __name__ == "__main__":
    sys.exit(main())
