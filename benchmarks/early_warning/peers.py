"""What others watch, over the same training: each gives the steps at which it would have warned.

They get every step's numbers, without a budget. Textbook settings: CUSUM with k = 0.5 and h = 5 standard deviations, of the 50 losses
before; a z-score of 5 over the 50 gradient norms before. Kurtosis as trainscope goes by it: three steps in a row above the median of the
first 40 plus three (robust) standard deviations, here of the mean over all layers.
"""

from __future__ import annotations

import math
import statistics
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

import torch
from benchmarks.early_warning.training import Training, walk
from torch import nn

WINDOW: Final = 50
SLACK: Final = 0.5
LIMIT: Final = 5.0
DEVIATIONS: Final = 5.0
MERGED: Final = 50
"""Alarms so close to the one before are one."""


def cusum(values: Sequence[float]) -> list[int]:
    """Page's test for a rise, standardized by a moving window; begun anew after an alarm. What is not finite is an alarm."""
    before: deque[float] = deque(maxlen=WINDOW)
    alarms, total = [], 0.0
    for step, value in enumerate(values):
        if not math.isfinite(value):
            alarms.append(step)
            continue
        if len(before) == WINDOW:
            spread = statistics.pstdev(before) or 1e-12
            total = max(0.0, total + (value - statistics.fmean(before)) / spread - SLACK)
            if total > LIMIT:
                alarms.append(step)
                total = 0.0
        before.append(value)
    return alarms


def z_score(values: Sequence[float]) -> list[int]:
    """Values so many standard deviations above the window before them."""
    before: deque[float] = deque(maxlen=WINDOW)
    alarms = []
    for step, value in enumerate(values):
        if not math.isfinite(value):
            alarms.append(step)
            continue
        if len(before) == WINDOW:
            spread = statistics.pstdev(before) or 1e-12
            if value > statistics.fmean(before) + DEVIATIONS * spread:
                alarms.append(step)
        before.append(value)
    return alarms


def kurtosis_rises(values: Sequence[float]) -> list[int]:
    """Where a run of three steps above the limit began."""
    start = sorted(values[:40])
    middle = start[len(start) // 2]
    limit = middle + 3.0 * 1.4826 * sorted(abs(v - middle) for v in start)[len(start) // 2]
    alarms, run = [], 0
    for step in range(40, len(values)):
        run = run + 1 if math.isfinite(values[step]) and values[step] > limit else 0
        if run == 3:
            alarms.append(step)  # it is known at the third
    return alarms


def onsets(alarms: Sequence[int]) -> list[int]:
    """The first of each group of alarms."""
    return [a for n, a in enumerate(alarms) if n == 0 or a - alarms[n - 1] > MERGED]


def watch_plainly(training: Training, steps: int, folder: Path) -> tuple[list[float], dict[str, list[int]]]:
    """Train once more with what peers need: the losses, and by peer the alarms."""
    norms: list[float] = []
    shapes: list[float] = []
    here: list[float] = []

    def note_output(module: nn.Module, inputs: Any, output: Any) -> None:
        value = output[0] if isinstance(output, tuple) else output
        if isinstance(value, torch.Tensor) and value.is_floating_point():
            flat = value.detach().float().flatten()
            centred = flat - flat.mean()
            spread = centred.square().mean()
            here.append(float(centred.pow(4).mean() / spread.square().clamp(min=1e-30)) - 3.0)

    hooks = [m.register_forward_hook(note_output) for m in training.model.modules() if not list(m.children())]
    scope = _trainscope(training, folder)
    spikes: list[int] = []

    def each(step: int, loss: float) -> None:
        grads = [p.grad.norm() for p in training.model.parameters() if p.grad is not None]
        norms.append(float(torch.stack(grads).norm()))
        finite = [v for v in here if math.isfinite(v)]
        shapes.append(statistics.fmean(finite) if finite else math.inf)
        here.clear()
        if scope is not None and scope(loss):
            spikes.append(step)

    losses = walk(training, steps, each)
    for hook in hooks:
        hook.remove()
    found = {
        "CUSUM of the loss": cusum(losses),
        "gradient norm, z > 5": z_score(norms),
        "activation kurtosis": kurtosis_rises(shapes),
    }
    if scope is not None:
        found["trainscope 1.8"] = spikes
    return losses, {name: onsets(alarms) for name, alarms in found.items()}


def _trainscope(training: Training, folder: Path) -> Callable[[float], bool] | None:
    """The peer itself with its defaults, where it is installed."""
    try:
        from trainscope import TrainScope
        from trainscope.core.config import TrainScopeConfig
    except ImportError:
        return None
    scope = TrainScope(training.model, training.optimizer, config=TrainScopeConfig(run_dir=str(folder))).attach()
    return lambda loss: scope.step(loss) is not None
