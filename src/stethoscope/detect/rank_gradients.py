"""Gradients added up over ranks instead of averaged.

The gradient of a layer's bias is the sum of the gradients of its outputs, over samples and positions. The outputs' gradients are
each rank's own; the bias's is what the ranks agreed on. So their ratio tells what was done in between: 1 over the number
of ranks where it was averaged, 1 where it was summed.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar, Final

import numpy as np

from stethoscope.analyse.span import Span
from stethoscope.detect.detector import Code, Detector, Reading, Rule, ratio
from stethoscope.detect.effects import LEARNING_TROUBLE
from stethoscope.detect.needs import FLOW, GRADIENTS, RANKS
from stethoscope.detect.tracks import Track
from stethoscope.kernels.columns import INDEX, num_finite, stat
from stethoscope.record import Evidence, Finding, FloatArray, Kind, Severity, metrics
from stethoscope.record.events import LossGraph

WITH_BIAS: Final = (
    "Linear",
    "Conv1d",
    "Conv2d",
    "Conv3d",
    "BatchNorm1d",
    "BatchNorm2d",
    "BatchNorm3d",
    "LayerNorm",
    "GroupNorm",
)
PAIRS_NEEDED: Final = 10
CLOSE: Final = 0.05
SHARE: Final = 0.9
CANCELLED: Final = 1e-2
"""Where the outputs' gradients cancel to less than this share of their size, rounding decides the sum."""
SCALING: Final = ("Div", "Mul")


class RankGradients(Detector):
    """Follows bias gradients beside the gradients of the outputs, on all ranks."""

    codes: ClassVar[tuple[Code, ...]] = (
        Code(
            "gradients_summed_across_ranks",
            needs=(RANKS, GRADIENTS, FLOW),
            leads_to=(*LEARNING_TROUBLE, "output_logit_drift"),
            through_updates=True,
        ),
    )

    def __init__(self) -> None:
        self._num_ranks = 0
        self._ratios = Track(ends=1)
        self._num_close = 0
        self._sites: dict[str, None] = {}
        self._first_step: int | None = None
        self._last_step = 0
        self._is_changed_between = False

    def observe(self, span: Span) -> None:
        """One ratio for every step and layer where all ranks show both."""
        # Clipping and scaling change one side of the ratio; a loss that was divided by hand may be meant for a sum.
        for name in (metrics.CLIP_NORM, metrics.CLIP_VALUE, metrics.LOSS_SCALE):
            self._is_changed_between = self._is_changed_between or bool(span.recorded(name).any())
        for _, graph in span.events_of(LossGraph):
            if graph.operations and graph.operations[0][0] in SCALING:
                self._is_changed_between = True
        if len(span.by_rank) < 2 or self._is_changed_between:
            return
        self._num_ranks = max(self._num_ranks, len(span.by_rank))
        tables = np.stack([rank.rows for rank in span.by_rank.values()])
        there = np.all([rank.present for rank in span.by_rank.values()], axis=0)
        found = []
        for bias, outputs in self._bias_layers(span):
            for row in np.flatnonzero(there[:, bias] & there[:, outputs]):
                times = _sum_ratio(tables[:, row, bias], tables[:, row, outputs], span.sites[bias].num_elements)
                if times is not None:
                    found.append((int(span.steps[row]), span.sites[bias].site.path, times))
        for step, path, times in sorted(found):
            self._first_step = step if self._first_step is None else self._first_step
            self._last_step = step
            self._ratios.add(times)
            self._num_close += abs(times - 1.0) < CLOSE
            self._sites[path] = None

    def rules(self) -> Iterator[Rule]:
        """Only where nearly every ratio says the same."""
        num, summed = len(self._ratios), ratio(self._num_close, len(self._ratios))
        yield Rule(
            "gradients_summed_across_ranks",
            (
                Reading("layers and steps at which all ranks show both sides", num, ">=", PAIRS_NEEDED),
                Reading("share of them that are a sum", summed, ">=", SHARE),
                Reading("clipping, scaling or a loss divided by hand", self._is_changed_between, "=", 0),
            ),
            self._tell,
        )

    def _tell(self) -> Finding:
        factor = float(np.median(self._ratios.values)) * self._num_ranks
        return Finding(
            "gradients_summed_across_ranks",
            Severity.WARNING,
            f"Gradients are added up over {self._num_ranks} ranks and not averaged: every gradient is {factor:.3g} times "
            "as large as the mean, and so is the learning rate in effect.",
            self._first_step or 0,
            self._last_step,
            tuple(self._sites),
            (
                Evidence("gradient / mean gradient of the ranks", factor, 1.0),
                Evidence("layers and steps that show it", float(len(self._ratios))),
            ),
            "dist.all_reduce(parameter.grad, op=dist.ReduceOp.AVG)  # or divide by dist.get_world_size()",
        )

    @staticmethod
    def _bias_layers(span: Span) -> list[tuple[int, int]]:
        indices = {(info.site.module, info.site.kind, info.site.name): n for n, info in enumerate(span.sites)}
        pairs = []
        for path, module in span.modules.items():
            bias = indices.get((path, Kind.GRADIENT, "bias"))
            outputs = indices.get((path, Kind.ACTIVATION_GRADIENT, ""))
            if module.get("type") in WITH_BIAS and bias is not None and outputs is not None:
                pairs.append((bias, outputs))
        return pairs


def _sum_ratio(bias: FloatArray, outputs: FloatArray, num_elements: int) -> float | None:
    """The bias's summed gradient over that of all ranks' outputs; None where it says nothing."""
    sums = bias[:, INDEX["mean"]] * num_finite(bias)
    scale = float(np.max(stat(bias, "mean_abs") * num_finite(bias)))
    agreed = bool((num_finite(bias) == num_elements).all()) and float(np.ptp(sums)) <= 1e-4 * scale
    total = float(np.sum(outputs[:, INDEX["mean"]] * num_finite(outputs)))
    size = float(np.sum(stat(outputs, "mean_abs") * num_finite(outputs)))
    if not agreed or not abs(total) > CANCELLED * size or not np.isfinite(total):
        return None
    return float(sums[0]) / total
