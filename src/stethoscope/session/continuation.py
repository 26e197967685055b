"""What it means that a run folder is already there: a run that is resumed, a new training in it, or another process that writes now.

Told by facts: a process that is alive; an optimizer that brought its state; weights that are among those that were recorded.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from stethoscope.record import Kind, RunError

if TYPE_CHECKING:
    from stethoscope.store import Run

_MOST_TENSORS: Final = 8
_MOST_ELEMENTS: Final = 10_000_000
_SAME: Final = 1e-5
"""Relative difference of two norms of the same weights, one of them read from the run."""
_NEAR: Final = 2.0
"""Times the way that weights can go in as many steps as are not recorded there, at the fastest they ever went."""


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
    """Whether the model's weights are those of a step of this run; also where nothing can be compared.

    Weights are recorded at some steps only, fewer on a busy machine, and the last of these may lie long before `last_step`.
    """
    recorded, now = [], []
    for name, norm in _norms(model).items():
        found = list(run.series(name, Kind.WEIGHT, "norm", rank=rank).values())
        if len(found) == 1 and len(found[0]):
            recorded.append(dict(zip(found[0].steps.tolist(), found[0].values.tolist(), strict=True)))
            now.append(norm)
    steps = sorted(set.intersection(*(set(one) for one in recorded))) if recorded else []
    if not steps:
        return True

    def apart(first: list[float], second: list[float]) -> float:
        return math.dist(first, second) / max(math.hypot(*second), 1e-300)

    ways = {step: [one[step] for one in recorded] for step in steps}
    nearest = min(steps, key=lambda step: apart(now, ways[step]))
    if apart(now, ways[nearest]) <= _SAME:
        return True
    if nearest == steps[0]:
        return False  # a new training begins near where the old one began
    pairs = list(itertools.pairwise(steps))
    fastest = max(apart(ways[a], ways[b]) / (b - a) for a, b in pairs)
    gaps = [b - a for a, b in pairs if nearest in (a, b)]
    behind = last_step + 1 - nearest if nearest == steps[-1] else 0
    return bool(apart(now, ways[nearest]) <= _NEAR * fastest * max(*gaps, behind))


def _norms(model: Any) -> dict[str, float]:
    """By name, the norms of some plain weights, the largest that are quickly read."""
    import torch

    from stethoscope.capture.sites import unwrap

    plain = {
        name: p.detach()
        for name, p in unwrap(model).named_parameters()
        if type(p.data) is torch.Tensor
        and p.is_floating_point()
        and not p.is_meta
        and p.dim() > 1
        and p.numel() <= _MOST_ELEMENTS
    }
    chosen = sorted(plain, key=lambda name: -plain[name].numel())[:_MOST_TENSORS]
    return {name: float(plain[name].double().norm()) for name in chosen}
