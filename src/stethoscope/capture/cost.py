"""What looking costs: gathered by part while a Step is open, told to the schedule when it closes."""

from __future__ import annotations

import time
from typing import Final

from stethoscope.capture.batch_tracking import BatchTracker
from stethoscope.capture.notes import Notes
from stethoscope.capture.ring import StepRows
from stethoscope.capture.schedule import Schedule
from stethoscope.capture.sites import Sink
from stethoscope.capture.taps import Taps
from stethoscope.record import events, metrics

OWN_PARTS: Final = ("gradients", "boundary", "ledger")
"""The parts that the watcher looks at itself; taps, batches and units keep their own account."""


class Cost:
    """Seconds spent in the open Step."""

    def __init__(self, schedule: Schedule, taps: Taps, batch_tracker: BatchTracker, notes: Notes) -> None:
        self._schedule, self._taps, self._batch_tracker, self._notes = schedule, taps, batch_tracker, notes
        self._spent = dict.fromkeys(OWN_PARTS, 0.0)
        self.step_began = time.perf_counter()

    def add(self, part: str, began: float) -> float:
        """What has passed since `began` was spent on this part; returns the time it is now."""
        now = time.perf_counter()
        self._spent[part] += now - began
        return now

    def begin(self) -> None:
        """A Step begins: nothing is spent yet."""
        self._spent = dict.fromkeys(OWN_PARTS, 0.0)
        self._taps.spent = self._batch_tracker.spent = 0.0
        if self._notes.spent:
            self._notes.spent.clear()

    def close(self, step: int, rows: StepRows, sink: Sink, *, is_ready: bool, is_noted: bool = True) -> None:
        """A Step is over: note what it cost among its numbers, and where it `is_noted` let the governor learn by part.

        `is_ready`: whether no device works on its numbers any more.
        """
        spent, schedule = self._spent, self._schedule
        spent["modules"], spent["batches"], spent["units"] = self._taps.spent, self._batch_tracker.spent, 0.0
        for part, seconds in self._notes.spent.items():
            spent[part] -= seconds
            spent["units"] += seconds
        rows.scalars[metrics.OVERHEAD_MS] = sum(spent.values()) * 1e3
        if schedule.has_device and (on_device := schedule.device_ms(step)):
            rows.scalars[metrics.OVERHEAD_DEVICE_MS] = on_device
        # A device that has not come this far yet is the slower one: what the host does meanwhile costs nothing.
        schedule.behind = not is_ready
        if is_noted:
            schedule.step_cost(step, {part: seconds * 1e3 for part, seconds in spent.items()})
        if schedule.step_took(rows.scalars[metrics.STEP_MS]):
            sink.tell(step, events.Governor(every=schedule.periods()))
