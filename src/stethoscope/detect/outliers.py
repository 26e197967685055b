"""One batch with a value far beyond all others, and the spike that it caused.

Seen from the whole run: the few batches whose largest value stands apart from every other batch's by a wide gap. Long tails
fill such gaps. A spike of the loss or of the gradient in the same step makes it a warning.
"""

from __future__ import annotations

import dataclasses
import heapq
from collections import deque
from collections.abc import Iterator
from typing import ClassVar, Final

import numpy as np

from stethoscope.analyse.span import Span
from stethoscope.detect.detector import Code, Detector, Reading, Rule, median, ratio
from stethoscope.detect.effects import BLOW_UP, LEARNING_TROUBLE, UNIT_TROUBLE
from stethoscope.detect.needs import BATCHES, GRADIENTS, INPUTS, LOSS, optional
from stethoscope.detect.tracks import Track
from stethoscope.kernels.columns import INDEX
from stethoscope.record import Evidence, Finding, Kind, Severity, metrics
from stethoscope.record.events import Batch, LargestSample

BATCHES_NEEDED: Final = 20
FAR: Final = 30.0
"""Times the usual largest value of a batch."""
GAP: Final = 5.0
"""Times the largest value of any ordinary batch."""
RARE: Final = 0.02
SPIKE: Final = 4.0
"""Times the loss or gradient of the steps before."""
BEFORE: Final = 20
TOP: Final = 512
"""Batches that are remembered one by one."""


@dataclasses.dataclass(frozen=True, slots=True, order=True)
class _Batch:
    """A batch with a large value."""

    value: float
    number: int
    step: int
    spike: tuple[str, float, float]
    """What jumped most in its step, to what, and the most of the steps before."""


class Outliers(Detector):
    """Keeps the largest value of every step that has a logged batch, and of the largest what went before."""

    codes: ClassVar[tuple[Code, ...]] = (
        Code(
            "outlier_batch",
            needs=(INPUTS, optional(BATCHES), optional(LOSS), optional(GRADIENTS)),
            leads_to=(*LEARNING_TROUBLE, *UNIT_TROUBLE, *BLOW_UP, "adam_update_spike", "output_logit_drift"),
            through_updates=True,
        ),
    )

    def __init__(self) -> None:
        self._largest = Track(ends=1)
        self._num_batches = 0
        self._top: list[_Batch] = []
        """The batches with the largest values, as a heap: the least of them first."""
        self._before: deque[tuple[float, float]] = deque(maxlen=BEFORE)
        self._samples: dict[int, LargestSample] = {}
        self._name = ""
        self._peak = 0.0

    def observe(self, span: Span) -> None:
        """Append; remember the index of samples that were the largest so far."""
        for event, batch in span.events_of(Batch):
            found = batch.largest if not event.rank else None
            if found is not None and found.value > 2.0 * self._peak:
                self._samples[event.step] = found
                self._peak = found.value
        inputs = span.inputs()
        if not inputs or "float" not in span.sites[inputs[0]].dtype:
            return
        self._name = span.sites[inputs[0]].site.path
        there = np.flatnonzero(span.present[:, inputs[0]])
        gradients = span.site_indices(Kind.GRADIENT)
        norms = np.sqrt(np.nansum(span.stat("norm")[:, gradients] ** 2, axis=1)) if len(gradients) else None
        largest, losses = span.rows[:, inputs[0], INDEX["abs_max"]], span.metric(metrics.LOSS)
        for row in there:
            size = float(norms[row]) if norms is not None else float("nan")
            self._note_batch(int(span.steps[row]), float(largest[row]), float(losses[row]), size)

    def _note_batch(self, step: int, value: float, loss: float, gradient: float) -> None:
        """Of every batch its largest value; of those with the largest also what went before."""
        if np.isfinite(value):
            self._largest.add(value)
            if len(self._top) < TOP or value > self._top[0].value:
                batch = _Batch(value, self._num_batches, step, self._largest_jump(loss, gradient))
                (heapq.heappush if len(self._top) < TOP else heapq.heappushpop)(self._top, batch)
        self._before.append((abs(loss), abs(gradient)))
        self._num_batches += 1

    def rules(self) -> Iterator[Rule]:
        """A few batches that stand apart from all others."""
        usual = median(self._largest.values)
        far = sorted((batch for batch in self._top if batch.value > FAR * usual), key=lambda batch: batch.number)
        ordinary = [batch.value for batch in self._top if batch.value <= FAR * usual]
        top = max((batch.value for batch in self._top), default=np.nan)
        gap = ratio(min((batch.value for batch in far), default=np.nan), max(ordinary, default=np.nan))
        # So many batches may stand apart and still be few.
        most = min(max(2, int(RARE * self._num_batches)), TOP - 1)
        yield Rule(
            "outlier_batch",
            (
                Reading("batches of floats that were logged", len(self._largest), ">=", BATCHES_NEEDED),
                Reading("largest value of any batch", top, ">", FAR * usual, self._name),
                Reading("batches as far from the usual largest value", len(far), "<=", most),
                Reading("the least of them, against the largest of all others", gap, ">=", GAP, self._name),
            ),
            lambda: self._tell(far, usual),
        )

    def _tell(self, far: list[_Batch], usual: float) -> Finding:
        worst = max(far, key=lambda batch: batch.spike[1] / max(batch.spike[2], 1e-300))
        harmful = worst.spike[1] > SPIKE * worst.spike[2]
        batch = next(one for one in far if one.spike[1] > SPIKE * one.spike[2]) if harmful else far[0]
        what, value, before = batch.spike if harmful else worst.spike
        step = batch.step
        largest = self._samples.get(step)
        who = f"sample {largest.sample} of the batch" if largest is not None else "a sample of the batch"
        effect = f"; the {what} went from {before:.3g} to {value:.3g}" if harmful else ""
        indexed = [Evidence("index in the batch", float(largest.sample))] if largest is not None else []
        return Finding(
            "outlier_batch",
            Severity.WARNING if harmful else Severity.INFO,
            f"{who.capitalize()} of step {step:,} holds a value of {batch.value:,.4g} where the largest of a batch is "
            f"usually {usual:,.3g}{effect}.".replace("batch of step", "batch at step"),
            step,
            far[-1].step,
            (self._name,),
            (
                Evidence(
                    "largest value in the batch", batch.value, usual, site=self._name, kind="input", stat="abs_max"
                ),
                *indexed,
                Evidence(what, value, before),
            ),
            "inputs = inputs.clamp(low, high)  # with limits from the training set, or drop the sample",
        )

    def _largest_jump(self, loss: float, gradient: float) -> tuple[str, float, float]:
        """What jumped most in this step against the steps before it: loss or gradient."""
        best = ("loss", 0.0, 1.0)
        for index, (what, value) in enumerate((("loss", abs(loss)), ("gradient norm", abs(gradient)))):
            window = [pair[index] for pair in self._before if np.isfinite(pair[index])]
            if len(window) < 3 or not np.isfinite(value):
                continue
            # Above the largest of the steps before, not their middle: losses of single batches are noisy.
            before = max(window)
            if before > 0 and value / before > best[1] / best[2]:
                best = (what, value, before)
        return best
