"""What is counted over a whole run: backward passes, gradients that came to nothing, steps that a scaler skipped."""

from __future__ import annotations

from typing import Any

from stethoscope.capture.ring import StepRows
from stethoscope.capture.sites import Sink


class Totals:
    """Counts of one watched model."""

    def __init__(self, sink: Sink) -> None:
        self._sink = sink
        self.num_backwards = 0
        self.num_discarded = 0
        self.num_skipped = 0
        self.num_scheduler_steps = 0

    def discarded(self, step: int) -> None:
        """Gradients were cleared without a step; said at powers of two, so that a long run stays small."""
        self.num_discarded += 1
        if self.num_discarded & (self.num_discarded - 1) == 0:
            body = {"times": self.num_discarded, "num_backwards": self.num_backwards}
            self._sink.event(step, "gradients_discarded", body)

    def skipped(self, step: int, scale: float | None) -> None:
        """A scaler let the optimizer's step out."""
        self.num_skipped += 1
        self._sink.event(step, "skipped_step", {"times": self.num_skipped, "scale": scale})
        self._sink.scalars(step, {"skipped_steps": float(self.num_skipped)})

    def close_step(self, rows: StepRows) -> None:
        """What was counted so far and is followed step by step."""
        if self.num_scheduler_steps:
            rows.scalars["scheduler_steps"] = float(self.num_scheduler_steps)

    def counts(self) -> dict[str, Any]:
        """All of them, by name."""
        return {
            "num_backwards": self.num_backwards,
            "num_discarded": self.num_discarded,
            "num_skipped": self.num_skipped,
            "num_scheduler_steps": self.num_scheduler_steps,
        }
