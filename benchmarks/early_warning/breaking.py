"""Where a loss breaks, by the loss alone and the same for all: decided before any finding is looked at.

The loss is smoothed by a median over `WIDTH` steps. It breaks at the first step from which on it stays, until the end, above twice its
own best so far and above everything that the healthy twin has from that step on; or at the step after its last finite value.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
import numpy.typing as npt

WIDTH: Final = 5
TIMES: Final = 2.0
LASTS: Final = 50
"""Steps until the end: less may be a spike."""
EARLIEST: Final = 60
"""A loss that breaks before has no history: those trainings do not count as divergences of their own late in the run."""


def smoothed(losses: Sequence[float]) -> npt.NDArray[np.float64]:
    """The median of each step and the ones before it; what is not finite counts as larger than all numbers."""
    values = np.nan_to_num(np.asarray(losses, dtype=np.float64), nan=np.inf, posinf=np.inf, neginf=np.inf)
    padded = np.concatenate([np.full(WIDTH - 1, values[0]), values])
    return np.median(np.lib.stride_tricks.sliding_window_view(padded, WIDTH), axis=1)


def break_step(losses: Sequence[float], healthy: Sequence[float]) -> int | None:
    """The step at which the loss breaks for good, None where it does not, or too early to count."""
    own, twin = smoothed(losses), smoothed(healthy)
    best = np.minimum.accumulate(own)
    # Of a loss below zero twice the best says nothing: it must have risen by the size of that best.
    limit = best + (TIMES - 1.0) * np.abs(best)
    ahead = np.maximum.accumulate(twin[::-1])[::-1]
    is_over = own > np.maximum(limit, ahead)
    if not is_over[-1]:
        return None
    fine = np.flatnonzero(~is_over)
    step = int(fine[-1]) + 1 if len(fine) else 0
    finite = np.flatnonzero(np.isfinite(np.asarray(losses)))
    if len(finite) and finite[-1] + 1 < len(losses):
        step = min(step, int(finite[-1]) + 1)
    return step if EARLIEST <= step <= len(losses) - LASTS else None
