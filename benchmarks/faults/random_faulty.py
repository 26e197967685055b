"""`python -m benchmarks.faults.random_faulty`: a healthy training drawn at random, one fault put into it, and what was said.

The draw is that of `random_healthy`; the fault is drawn among those that the training can have (inputs that are letters cannot be
scaled). A fault that the training shrugs off, a rate a hundred times too high that still learns, say, counts as missed all the
same: the losses are told beside it.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import random
import sys
import tempfile
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import torch
from benchmarks.faults.architectures import ARCHITECTURES, Task
from benchmarks.faults.catalogue import Outcome, Program, finished
from benchmarks.faults.judging import Verdict, examine
from benchmarks.faults.random_healthy import Draw, draw, make_optimizer, validate
from torch import nn

import stethoscope

STEPS: Final = 150
WHEN: Final = 60
"""The step of a fault that comes suddenly."""


@dataclasses.dataclass(slots=True)
class Case:
    """A training about to run, for a fault to change."""

    task: Task
    optimizer: torch.optim.Optimizer
    rate: float
    scheduler: Any = None
    clip: float | None = None
    accumulate: int = 1
    clears: str = "after"
    """When gradients are cleared: "after" the step, "before" it, or "never"."""
    steps: bool = True
    change: Callable[[int, torch.Tensor, torch.Tensor], tuple[torch.Tensor, torch.Tensor]] | None = None


def _rate(case: Case, factor: float) -> None:
    for group in case.optimizer.param_groups:
        group["lr"] *= factor


def _inputs(case: Case, change: Callable[[int, torch.Tensor], torch.Tensor]) -> None:
    case.change = lambda number, x, y: (change(number, x), y)


def _one_sample(x: torch.Tensor, value: float) -> torch.Tensor:
    x = x.clone()
    x.view(len(x), -1)[1, 3] = value
    return x


def _matrices(model: nn.Module) -> list[tuple[str, nn.Parameter]]:
    return [(name, p) for name, p in model.named_parameters() if p.dim() >= 2]


def _scale_weights(case: Case) -> None:
    with torch.no_grad():
        for _, p in _matrices(case.task.model):
            p *= 10


def _loud_head(case: Case) -> None:
    with torch.no_grad():
        _matrices(case.task.model)[-1][1].mul_(60)


def _silence_units(case: Case) -> None:
    layers = [m for m in case.task.model.modules() if isinstance(m, (nn.Linear, nn.Conv2d)) and m.bias is not None]
    nn.init.constant_(layers[0].bias, -30.0)


def _forget_half(case: Case) -> None:
    group = case.optimizer.param_groups[0]
    group["params"] = group["params"][: len(group["params"]) // 2]


def _decay(case: Case) -> None:
    case.scheduler = torch.optim.lr_scheduler.ExponentialLR(case.optimizer, 0.85)


def _setting(name: str, value: float) -> Callable[[Case], None]:
    def change(case: Case) -> None:
        case.optimizer.param_groups[0][name] = value

    return change


def _attribute(name: str, value: Any) -> Callable[[Case], None]:
    return lambda case: setattr(case, name, value)


@dataclasses.dataclass(frozen=True, slots=True)
class Injection:
    """One fault: which codes are right for it, what it does, and which trainings can have it."""

    codes: tuple[str, ...]
    put: Callable[[Case], None]
    fits: Callable[[Draw], bool] = lambda _: True
    step: int = 0


def _takes_numbers(chosen: Draw) -> bool:
    return chosen.architecture in ("MLP", "tabular MLP", "CNN", "autoencoder", "ResNet", "ViT", "VAE")


def _is_adam(chosen: Draw) -> bool:
    return chosen.optimizer in ("Adam", "AdamW")


LARGE: Final = ("update_too_large", "bad_init_scale", "unscaled_inputs")
INJECTIONS: Final[dict[str, Injection]] = {
    "rate x 100": Injection(LARGE, lambda case: _rate(case, 100)),
    "rate / 10,000": Injection(("update_too_small",), lambda case: _rate(case, 1e-4), lambda d: d.precision == "fp32"),
    "not cleared": Injection(("gradients_not_cleared",), _attribute("clears", "never")),
    "cleared too early": Injection(("gradients_cleared_before_step",), _attribute("clears", "before")),
    "never steps": Injection(("optimizer_never_steps",), _attribute("steps", False)),
    "clip at 1e-4": Injection(
        ("clipping_always_on",), _attribute("clip", 1e-4), lambda d: d.optimizer in ("SGD", "momentum")
    ),
    "not averaged": Injection(
        ("accumulation_not_averaged",), _attribute("accumulate", 4), lambda d: d.architecture != "VAE"
    ),
    "rate decays by the batch": Injection(("lr_decays_too_early",), _decay),
    "eps of 1": Injection(("adam_eps_dominates",), _setting("eps", 1.0), _is_adam),
    "decay of 3": Injection(
        ("weight_decay_dominates",), _setting("weight_decay", 3.0), lambda d: d.optimizer in ("SGD", "momentum", "Adam")
    ),
    "weights x 10": Injection(
        ("bad_init_scale", "update_too_large", "bad_initial_loss"), _scale_weights, _takes_numbers
    ),
    "head x 60": Injection(
        ("bad_initial_loss", "bad_init_scale"), _loud_head, lambda d: d.architecture in ("MLP", "CNN", "ResNet", "ViT")
    ),
    "bias of -30": Injection(("dead_units",), _silence_units, lambda d: d.architecture in ("MLP", "autoencoder")),
    "half forgotten": Injection(("trainable_params_not_in_optimizer",), _forget_half),
    "inputs x 1,000": Injection(
        LARGE,
        lambda case: _inputs(case, lambda _, x: 1000 * x),
        lambda d: d.architecture in ("MLP", "tabular MLP", "autoencoder"),
    ),
    "inputs / 1,000": Injection(
        ("inputs_too_small",),
        lambda case: _inputs(case, lambda _, x: x / 1000),
        lambda d: d.architecture in ("MLP", "tabular MLP"),
    ),
    "inputs of zero": Injection(
        ("inputs_ignored", "dead_units"), lambda case: _inputs(case, lambda _, x: 0 * x), _takes_numbers
    ),
    "Inf in a batch": Injection(
        ("nonfinite_batch", "nonfinite_origin"),
        lambda case: _inputs(case, lambda n, x: _one_sample(x, float("inf")) if n == WHEN else x),
        _takes_numbers,
        WHEN,
    ),
    "an outlier": Injection(
        ("outlier_batch",),
        lambda case: _inputs(case, lambda n, x: _one_sample(x, 1e4) if n == WHEN else x),
        lambda d: d.architecture in ("MLP", "autoencoder") and d.precision == "fp32",
        WHEN,
    ),
}


def inject(number: int) -> tuple[Draw, str]:
    """The training and the fault of this number; always the same."""
    dice = random.Random(number * 104729 + 7)
    names = sorted(INJECTIONS)
    name = names[number % len(names)]
    for _ in range(1000):
        plain = dataclasses.replace(draw(dice.randrange(10**6)), schedule="none", accumulate=1, clip=None)
        if plain.precision != "bf16 weights" and plain.precision != "fp16 scaler" and INJECTIONS[name].fits(plain):
            return plain, name
    raise AssertionError(f"no training can have {name}")


def train(chosen: Draw, name: str, seed: int) -> Outcome:
    """The training with its fault."""
    torch.manual_seed(chosen.number * 1000 + seed)
    build = ARCHITECTURES[chosen.architecture].build
    task = build(chosen.dropout, chosen.size, STEPS * (4 if name == "not averaged" else 1), seed)
    case = Case(task, make_optimizer(chosen, task.model), chosen.rate)
    INJECTIONS[name].put(case)
    session = stethoscope.watch(task.model, case.optimizer)
    for number, (x, y) in _batches(case):
        session.log_batch(x, y)
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=chosen.precision == "bf16 autocast"):
            loss = task.loss(task.model, x, y)
        loss.backward()
        if (number + 1) % case.accumulate:
            continue
        _step(case)
        session.log(loss=loss)
        if number // case.accumulate % 15 == 14:
            validate(session, task, task.model, chosen.precision)
    return finished(session)


def _batches(case: Case) -> Iterator[tuple[int, tuple[torch.Tensor, torch.Tensor]]]:
    for number, (x, y) in enumerate(case.task.batches):
        yield number, case.change(number, x, y) if case.change is not None else (x, y)


def _step(case: Case) -> None:
    if case.clip is not None:
        nn.utils.clip_grad_norm_(case.task.model.parameters(), case.clip)
    if case.clears == "before":
        case.optimizer.zero_grad()
    if case.steps:
        case.optimizer.step()
    if case.clears == "after":
        case.optimizer.zero_grad()
    if case.scheduler is not None:
        case.scheduler.step()


def main() -> int:
    """Draw, break, train, count what was found."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.faults.random_faulty", description=__doc__)
    parser.add_argument("--number", type=int, default=3 * len(INJECTIONS), help="how many trainings")
    parser.add_argument("--first", type=int, default=0, help="the first draw")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--every", type=int, default=0, help="measure every Nth step; 0 leaves it to the governor")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--keep", type=Path, help="keep the run folders here")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    os.environ["STETHOSCOPE_EVERY"] = str(options.every)
    with tempfile.TemporaryDirectory(prefix="stethoscope-faulty-") as scratch:
        folder = (options.keep or Path(scratch)).resolve()
        results = [_one(number, folder) for number in range(options.first, options.first + options.number)]
    _tell(results)
    if options.json is not None:
        body = [
            {"draw": dataclasses.asdict(d), "fault": name, "verdict": dataclasses.asdict(v)} for d, name, v in results
        ]
        options.json.write_text(json.dumps(body, indent=1) + "\n", encoding="utf-8")
    return 1 if any(v.error for _, _, v in results) else 0


def is_found(name: str, verdict: Verdict) -> bool:
    """Whether a right code is the first or second cause, or advice that was said."""
    said = [cause.code for cause in verdict.causes][:2]
    return bool(
        {*said, *(code for code in verdict.infos if code.startswith("accumulation"))} & set(INJECTIONS[name].codes)
    )


def _one(number: int, scratch: Path) -> tuple[Draw, str, Verdict]:
    chosen, name = inject(number)
    folder = scratch / f"R{number}-0"
    folder.mkdir(parents=True)
    verdict = examine(Program(f"R{number}", "random", lambda seed: train(chosen, name, seed)), 0, folder)
    loss = "-" if verdict.loss is None else f"{verdict.loss[0]:.3g} to {verdict.loss[1]:.3g}"
    said = ", ".join(f"{c.code}@{c.first_step}" for c in verdict.causes) or "silent"
    if verdict.error:
        said = "FAILED " + verdict.error.strip().splitlines()[-1]
    mark = "found " if is_found(name, verdict) else "MISSED"
    print(f"{number:4} {verdict.seconds:5.1f}s  {mark} {name:25} loss {loss:20} {said}  ({chosen})", flush=True)
    return chosen, name, verdict


def _tell(results: list[tuple[Draw, str, Verdict]]) -> None:
    counts: dict[str, list[bool]] = defaultdict(list)
    for _, name, verdict in results:
        counts[name].append(is_found(name, verdict))
    total = sum(sum(found) for found in counts.values())
    print(f"\n{len(results)} trainings with a fault, {total} found as first or second cause.\n")
    print("| fault | found |\n| --- | --- |")
    for name, found in sorted(counts.items()):
        print(f"| {name} | {sum(found)}/{len(found)} |")


if __name__ == "__main__":
    sys.exit(main())
