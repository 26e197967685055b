"""What is counted over a whole run: backward passes, gradients that came to nothing, steps that a scaler skipped."""

from __future__ import annotations

from stethoscope.capture.ring import StepRows
from stethoscope.capture.sites import Sink
from stethoscope.record import events, metrics


class Totals:
    """Counts of one watched model."""

    def __init__(self, sink: Sink) -> None:
        self._sink = sink
        self.num_backwards = 0
        self.num_discarded = 0
        self.num_skipped = 0
        self.num_scheduler_steps = 0

    def discarded(self) -> events.GradientsDiscarded | None:
        """Gradients were cleared without a step; what is said of it, at powers of two, so that a long run stays small."""
        self.num_discarded += 1
        if self.num_discarded & (self.num_discarded - 1):
            return None
        return events.GradientsDiscarded(times=self.num_discarded, num_backwards=self.num_backwards)

    def skipped(self, step: int, scale: float | None) -> None:
        """A scaler let the optimizer's step out."""
        self.num_skipped += 1
        self._sink.tell(step, events.SkippedStep(times=self.num_skipped, scale=scale))
        self._sink.scalars(step, {metrics.SKIPPED_STEPS: float(self.num_skipped)})

    def close_step(self, rows: StepRows) -> None:
        """What was counted so far and is followed step by step."""
        if self.num_scheduler_steps:
            rows.scalars[metrics.SCHEDULER_STEPS] = float(self.num_scheduler_steps)
