"""Steps that pass before device code is compiled are not measured, and the run says which.

Only the first training of a machine waits so; compiling on the training thread would hold it up for seconds.
"""

from __future__ import annotations

import dataclasses

from stethoscope import kernels
from stethoscope.capture.schedule import StepPlan
from stethoscope.capture.sites import Sink
from stethoscope.record.events import NotMeasured


class KernelWait:
    """Takes out of each step's plan what cannot be measured yet."""

    def __init__(self, sink: Sink) -> None:
        self._sink = sink
        self._first: int | None = None
        self._first_measured: int | None = None
        """The first step of which gradients, weights and updates were measured, though not yet all else."""

    def reduce(self, plan: StepPlan, step: int) -> StepPlan:
        """What of this plan can be measured in a step that begins."""
        if kernels.can_measure(everything=True):
            self.end(step)
            return plan
        if self._first is None:
            self._first = step
        if not kernels.can_measure():
            return dataclasses.replace(plan, gradients=False, boundary=False, modules=False, histogram=False)
        if self._first_measured is None:
            self._first_measured = step
        return dataclasses.replace(plan, modules=False, histogram=False)

    def end(self, step: int) -> None:
        """From this step on everything is measured, or nothing more comes."""
        if self._first is None or self._first == step:
            return
        rows_until = step if self._first_measured is None else self._first_measured
        self._sink.tell(step, NotMeasured(first=self._first, rows_until=rows_until, outputs_until=step))
        self._first = self._first_measured = None
