"""Steps in bins by powers of two, and what a cell is where it is not a plain number.

Promises: bins begin at multiples of their size, so two runs share them; no spike, NaN or Inf is averaged
away.
"""

from __future__ import annotations

import dataclasses
from enum import IntEnum

import numpy as np
import numpy.typing as npt

from stethoscope.record import FloatArray, IntArray

MarkArray = npt.NDArray[np.uint8]


class Mark(IntEnum):
    """What a cell is where it is not a plain number."""

    PLAIN = 0
    MISSING = 1
    SKIPPED = 2
    FROZEN = 3
    DEAD = 4
    INF = 5
    NAN = 6


@dataclasses.dataclass(frozen=True, eq=False, slots=True)
class Bins:
    """Neighboring steps taken together: bin i holds the steps from starts[i] to starts[i] + size - 1.

    `size` is a power of two and bins begin at its multiples, so two runs share their bins.
    """

    starts: IntArray
    size: int

    def __len__(self) -> int:
        return len(self.starts)

    def index(self, steps: IntArray) -> IntArray:
        """The bin of each step."""
        if not len(self):
            return np.zeros(len(steps), dtype=np.int64)
        indices: IntArray = (np.asarray(steps, dtype=np.int64) - self.starts[0]) // self.size
        return indices

    def column(self, step: int) -> int | None:
        """The bin of one step, None where it lies outside."""
        index = int(self.index(np.array([step]))[0]) if len(self) else -1
        return index if 0 <= index < len(self) else None


def bins_over(steps: IntArray, width: int, finest: int = 1) -> Bins:
    """At most `width` bins over these steps, none finer than the usual gap between them or than `finest` steps."""
    if not len(steps) or width < 1:
        return Bins(np.zeros(0, dtype=np.int64), 1)
    first, last = int(steps[0]), int(steps[-1])
    every_step = last - first + 1 == len(steps)
    gap = 1 if every_step or len(steps) < 2 else int(np.median(np.diff(steps)))
    power = max(gap, finest, 1).bit_length() - 1
    while (last >> power) - (first >> power) + 1 > width:
        power += 1
    size = 1 << power
    return Bins(np.arange((first >> power) * size, last + 1, size, dtype=np.int64), size)


def trend(steps: IntArray, values: FloatArray, bins: Bins) -> tuple[FloatArray, MarkArray]:
    """One series in bins: the mean, or the farthest value where it stands out, so that no spike is lost."""
    out = np.full(len(bins), np.nan)
    marks = np.full(len(bins), Mark.MISSING, dtype=np.uint8)
    at = bins.index(steps)
    everywhere = values[np.isfinite(values)]
    middle = float(np.median(everywhere)) if len(everywhere) else 0.0
    for index in range(len(bins)):
        inside = values[at == index]
        if not len(inside):
            continue
        finite = inside[np.isfinite(inside)]
        if np.isnan(inside).any():
            marks[index] = Mark.NAN
        elif len(finite) < len(inside):
            marks[index] = Mark.INF
        else:
            marks[index] = Mark.PLAIN
        if len(finite):
            out[index] = _mean_or_spike(finite, middle)
    return out, marks


def _mean_or_spike(values: FloatArray, usual: float) -> float:
    """The mean; but where some values stand apart from the others, the one farthest from usual."""
    middle = float(np.median(values))
    distance = np.abs(values - middle)
    if len(values) > 2 and distance.max() > 6 * float(np.median(distance)) + 1e-3 * abs(middle):
        return float(values[int(np.abs(values - usual).argmax())])
    return float(values.mean())
