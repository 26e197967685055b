"""What it means that a run folder is already there: a run that is resumed, a new training in it, or another process that writes now.

Told by facts: a process that is alive; an optimizer that brought its state; weights that are among those that were recorded.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from stethoscope.record import Kind, RunError

if TYPE_CHECKING:
    from stethoscope.store import Run

_MOST_TENSORS: Final = 8
_MOST_ELEMENTS: Final = 10_000_000
_COMPARED: Final = ("rms", "mean", "min", "max")
"""By which weights are told from other weights; a norm alone is nearly the same for any that are initialized alike."""
_SAME: Final = 1e-5
"""Difference of two such numbers of the same weights, one of them read from the run, as a share of the weights' size."""
_NEAR: Final = 2.0
"""Times the way that weights can go in as many steps as are not recorded there, at the fastest they ever went."""
_MOST: Final = 0.75
"""Of these numbers, how many must be that near: a smallest or largest value may jump."""


@dataclasses.dataclass(frozen=True, slots=True)
class Continuation:
    """How this process goes on with what is in the folder."""

    how: str = ""
    """"" (there is nothing), "resumed", "fresh" or "beside"."""
    last_step: int | None = None
    """The last step that this rank has recorded."""
    other: str = ""
    """Of "beside": the process that writes as well."""

    def in_words(self, folder: str, first_step: int) -> str:
        """What the user should know before training begins, "" where all is as it should be."""
        if self.how == "beside":
            return f"{self.other} is writing to {folder} now: both are recorded, and their steps mix. Give each a run of its own"
        if self.how == "fresh":
            return (
                f"{folder} holds another training up to step {self.last_step:,}. This one starts anew, with other weights, and is "
                f"recorded from step {first_step:,} on; give it a run of its own to keep them apart"
            )
        return ""


def next_step(recorded: int | None, optimizers: Sequence[Any]) -> int:
    """Where a continued run goes on: at the optimizer's own count where it kept one, else after the last recorded step."""
    if recorded is None:
        return 0
    for optimizer in optimizers:
        for held in optimizer.state.values():
            count = held.get("step") if isinstance(held, dict) else None
            if count is not None and not (hasattr(count, "device") and count.device.type != "cpu"):
                return int(count)
    return recorded + 1


def find_continuation(folder: Path, rank: int, model: Any, optimizers: Sequence[Any]) -> Continuation:
    """Looks into the folder before this process writes to it."""
    from stethoscope.store import open_run

    try:
        with open_run(folder) as run:
            # Only this rank's own: another may be some steps ahead already, in the same launch.
            starts = [start for start in run.starts if start.rank == rank]
            last = max((start.last_step for start in starts if start.last_step is not None), default=None)
            live = next((start for start in starts if start.how == "live"), None)
            if live is not None:
                return Continuation("beside", last, f"another process ({live.pid} on {live.host})")
            if last is None:
                return Continuation()
            has_state = any(optimizer.state for optimizer in optimizers)
            return Continuation("resumed" if has_state or are_weights_of(run, rank, model, last) else "fresh", last)
    except RunError:
        return Continuation()


def are_weights_of(run: Run, rank: int, model: Any, last_step: int) -> bool:
    """Whether the model's weights are those of a step of this run, and not those that it began with; also where nothing can be compared.

    Weights are recorded at some steps only, fewer on a busy machine, and the last of these may lie long before `last_step`.
    """
    recorded, now, sizes = [], [], []
    for name, (size, numbers) in _portraits(model).items():
        of_name = []
        for statistic in _COMPARED:
            found = list(run.series(name, Kind.WEIGHT, statistic, rank=rank).values())
            if len(found) == 1 and len(found[0]):
                of_name.append(dict(zip(found[0].steps.tolist(), found[0].values.tolist(), strict=True)))
        if len(of_name) == len(_COMPARED):
            recorded += of_name
            now += numbers
            sizes += [size] * len(numbers)
    steps = sorted(set.intersection(*(set(one) for one in recorded))) if recorded else []
    if not steps:
        return True
    portrait, scale = np.array(now), np.array(sizes)
    path = np.array([[one[step] for one in recorded] for step in steps])
    apart = np.abs(portrait - path) / scale
    same = np.flatnonzero((apart <= _SAME).all(axis=1))
    if len(same):
        return True
    gaps = np.diff(steps)
    moves = np.abs(np.diff(path, axis=0)) / scale / gaps[:, None] if len(gaps) else np.zeros((1, len(now)))
    fastest = moves.max(axis=0)

    def is_near(row: int, num_steps: int) -> bool:
        return bool((apart[row] <= _NEAR * fastest * num_steps + _SAME).mean() >= _MOST)

    # A new training begins where the old one began, a step before the first that was recorded.
    if is_near(0, steps[0] + 1):
        return False
    nearest = int(np.argmin(apart.sum(axis=1)))
    if nearest == 0:
        return False
    behind = last_step + 1 - steps[-1] if nearest == len(steps) - 1 else 0
    return is_near(nearest, max(behind, *gaps[max(nearest - 1, 0) : nearest + 1].tolist()))


def _portraits(model: Any) -> dict[str, tuple[float, list[float]]]:
    """By name, the size of some plain weights' values and what they look like: the largest that are quickly read."""
    import torch

    from stethoscope.capture.sites import unwrap

    plain = {
        name: p.detach()
        for name, p in unwrap(model).named_parameters()
        if type(p.data) is torch.Tensor
        and p.is_floating_point()
        and not p.is_meta
        and p.dim() > 1
        and 0 < p.numel() <= _MOST_ELEMENTS
    }
    chosen = sorted(plain, key=lambda name: -plain[name].numel())[:_MOST_TENSORS]
    found = {}
    for name in chosen:
        values = plain[name].double()
        size = float(values.norm()) / math.sqrt(values.numel())
        numbers = [size, float(values.mean()), float(values.min()), float(values.max())]
        found[name] = (max(size, 1e-300), numbers)
    return found
