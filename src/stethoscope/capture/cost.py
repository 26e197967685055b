"""What looking costs: gathered by part while a Step is open, told to the schedule when it closes."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

from stethoscope.capture.batch_tracking import BatchTracker
from stethoscope.capture.notes import Notes
from stethoscope.capture.ring import StepRows
from stethoscope.capture.schedule import Schedule, StepPlan
from stethoscope.capture.sites import Sink
from stethoscope.capture.taps import Taps
from stethoscope.record import events, metrics

NOTED_EVERY: Final = 8
"""Of steps in which nothing special is measured, one in so many tells the governor what its parts cost."""
BACKGROUND_SECONDS: Final = 0.5
"""Over which the work of other threads is divided among the steps."""
OWN_PARTS: Final = ("gradients", "boundary")
"""The parts that the watcher looks at itself; taps, batches and units keep their own account."""


class Cost:
    """Seconds spent in the open Step: all of them by the guard's clock, and of these what each part took."""

    def __init__(self, schedule: Schedule, taps: Taps, batch_tracker: BatchTracker, notes: Notes) -> None:
        self._schedule, self._taps, self._batch_tracker, self._notes = schedule, taps, batch_tracker, notes
        self._guard = taps.guard
        self._spent = dict.fromkeys(OWN_PARTS, 0.0)
        self.background_s: Callable[[], float] = lambda: 0.0
        """Seconds that other threads of ours have had the processor, and with it mostly the interpreter."""
        self._background_mark: tuple[float, float, int] | None = None
        self.waited: tuple[float, float] | None = None
        """Seconds from the beginning of the Step to the model's first call, and those of them that the processor worked."""
        self.step_begins()

    def step_begins(self) -> None:
        """From here on time counts for the next Step."""
        self.waited = None
        self.worked, self.step_began = time.process_time(), time.perf_counter()

    def model_is_called(self) -> float:
        """Milliseconds since the Step began; asked at its first call of the model."""
        if self.waited is None:
            self.waited = time.perf_counter() - self.step_began, time.process_time() - self.worked
        return self.waited[0] * 1e3

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

    def close(self, step: int, rows: StepRows, sink: Sink, plan: StepPlan, *, is_ready: bool) -> bool:
        """A Step is over: note how long it took and what of that was ours, and let the governor learn from it.

        True where that changed what is looked at when.
        `is_ready`: whether no device works on its numbers any more. What the guard's clock counted and no part did is the
        fixed cost of every step; outputs are looked at outside of it, in the model's own forward pass.
        """
        took, total = self._tell_times(rows, is_ready)
        if step % NOTED_EVERY == 0 or not plan.is_ordinary:
            self._schedule.step_cost(step, self._by_part(total))
            self._note_background(step)
        return self._tell_change(step, sink) if self._schedule.step_took(took, plan) else False

    def close_plain(self, rows: StepRows, sink: Sink, *, is_ready: bool) -> bool:
        """As `close`, after a step in which nothing but gradients may have been measured."""
        took, total = self._tell_times(rows, is_ready)
        has_changed = self._schedule.plain_step_took(took, (total - self._spent["gradients"]) * 1e3)
        return self._tell_change(rows.step, sink) if has_changed else False

    def _tell_change(self, step: int, sink: Sink) -> bool:
        sink.tell(step, events.Governor(every=self._schedule.periods()))
        return True

    def _tell_times(self, rows: StepRows, is_ready: bool) -> tuple[float, float]:
        """Milliseconds that the step took, and seconds of them that were ours."""
        now, guard, costs, scalars = time.perf_counter(), self._guard, self._schedule.costs, rows.scalars
        total = guard.spent + (now - guard.entered) + self._taps.spent
        guard.spent, guard.entered = 0.0, now
        took = (now - self.step_began) * 1e3
        scalars[metrics.STEP_MS], scalars[metrics.OVERHEAD_MS] = took, total * 1e3
        if not costs.has_device:
            if self.waited is not None:
                scalars[metrics.IDLE_MS] = self._idle_ms(*self.waited, took)
        elif on_device := self._schedule.device_ms(rows.step):
            scalars[metrics.OVERHEAD_DEVICE_MS] = on_device
        # A device that has not come this far yet is the slower one: what the host does meanwhile costs nothing.
        costs.behind = not is_ready
        return took, total

    def _note_background(self, step: int) -> None:
        """What a step makes other threads do: written later and many together, so it is known over a while only."""
        now = time.perf_counter()
        if self._background_mark is None:
            self._background_mark = now, self.background_s(), step
            return
        began, spent, first = self._background_mark
        if now - began >= BACKGROUND_SECONDS and step > first:
            spent_now = self.background_s()
            self._schedule.costs.note_background((spent_now - spent) / (step - first) * 1e3)
            self._background_mark = now, spent_now, step

    def _idle_ms(self, waited: float, worked: float, took: float) -> float:
        """What of the wait the processor slept; where others use it too, work takes as much longer as it does in the rest."""
        rest, work_of_rest = took / 1e3 - waited, time.process_time() - self.worked - worked
        slower = max(rest / work_of_rest, 1.0) if rest > 0 and work_of_rest > 0 else 1.0
        return max(waited - worked * slower, 0.0) * 1e3

    def _by_part(self, total: float) -> dict[str, float]:
        """Milliseconds by part; the ledger's are those of no other."""
        spent = self._spent | {"modules": self._taps.spent, "batches": self._batch_tracker.spent, "units": 0.0}
        for part, seconds in self._notes.spent.items():
            spent["units"] += seconds
            if part in spent:
                spent[part] -= seconds
        spent["ledger"] = max(total - sum(spent.values()), 0.0)
        return {part: seconds * 1e3 for part, seconds in spent.items()}
