"""Weights of few bits whose steps are mostly rounded away, while nothing is learned.

A coordinate whose change is under half a unit in its last place does not change at all. Some always are so; where most are, at the
highest rate that the run has had, and the loss stays where it was, the steps are too fine for the weights.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from stethoscope.analyse.span import Span
from stethoscope.detect.detector import is_matrix
from stethoscope.detect.tracks import Track
from stethoscope.kernels.columns import stat
from stethoscope.record import Kind, metrics

FEW_BITS: Final = ("bfloat16", "float16")
LOOKS_NEEDED: Final = 20
RESTING: Final = 0.75
"""Of the coordinates with a gradient, those that did not change: where three of four do not, the step is lost."""
MOST: Final = 0.5
FALL: Final = 0.05
"""Of the loss: less than that is not learned."""
KEPT: Final = 1024


class Rounding:
    """Follows which share of each such weight does not change, and the loss beside it, since the rate was last raised."""

    def __init__(self) -> None:
        self._highest = 0.0
        self._start_anew(0)
        self.last_step = 0

    def _start_anew(self, step: int) -> None:
        self.since = step
        self.shares: dict[str, Track] = {}
        self._losses = Track(limit=KEPT)

    def observe(self, span: Span) -> None:
        """One share of every weight of few bits at every measured step."""
        pairs = _update_gradient_pairs(span)
        if not pairs:
            return
        names = [name for name in span.metrics if metrics.is_learning_rate(name)]
        rates = (
            np.nan_to_num(np.array([span.metric(name) for name in names])).max(axis=0)
            if names
            else np.zeros(len(span.steps))
        )
        raised = np.flatnonzero(rates > np.maximum.accumulate([self._highest, *rates])[:-1])
        if len(raised):
            self._highest = float(rates.max())
            self._start_anew(int(span.steps[raised[-1]]))
        first = int(raised[-1]) if len(raised) else 0
        losses = span.metric(metrics.LOSS)[first:]
        for loss in losses[np.isfinite(losses)]:
            self._losses.add(float(loss))
        stepped = np.nan_to_num(span.metric(metrics.FOUND_INF)[first:]) == 0
        for path, (update, gradient) in pairs.items():
            still, without = (stat(span.rows[first:, index], "zero_fraction") for index in (update, gradient))
            shares = (still - without) / np.maximum(1.0 - without, 1e-12)
            for share in shares[np.isfinite(shares) & (without < 1) & stepped]:
                self.shares.setdefault(path, Track(limit=KEPT, ends=1)).add(float(share))
        self.last_step = int(span.steps[-1]) if len(span.steps) else self.last_step

    @property
    def middles(self) -> dict[str, float]:
        """From a weight that was measured often enough to the share of it that usually does not change."""
        return {path: float(np.median(v.values)) for path, v in self.shares.items() if len(v) >= LOOKS_NEEDED}

    @property
    def fall(self) -> float:
        """By which share of its size the loss fell, NaN where there are too few."""
        if len(self._losses) < LOOKS_NEEDED:
            return float("nan")
        values = self._losses.values
        fifth = max(1, len(values) // 5)
        first, last = float(np.median(values[:fifth])), float(np.median(values[-fifth:]))
        return (first - last) / abs(first) if first else 0.0


def _update_gradient_pairs(span: Span) -> dict[str, tuple[int, int]]:
    """From a matrix of few bits to the indices of its update and its gradient."""
    few = {
        info.site.path
        for info in span.sites
        if info.site.kind is Kind.WEIGHT and info.dtype in FEW_BITS and is_matrix(info)
    }
    indices: dict[Kind, dict[str, int]] = {Kind.UPDATE: {}, Kind.GRADIENT: {}}
    for index, info in enumerate(span.sites):
        if info.site.kind in indices and info.site.path in few:
            indices[info.site.kind][info.site.path] = index
    updates, gradients = indices[Kind.UPDATE], indices[Kind.GRADIENT]
    return {path: (updates[path], gradients[path]) for path in updates if path in gradients}
