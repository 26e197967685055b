"""The open Step: what was measured and counted in it so far, put together and handed over when it is complete.

The Watcher says what happens; here it is decided to which Step that belongs. With several optimizers a Step goes on
after the first of them has stepped, and may turn out to have ended there: what came after it is the next Step's.
"""

from __future__ import annotations

from collections.abc import Callable

from stethoscope import kernels
from stethoscope.capture.clock import Clock
from stethoscope.capture.cost import Cost
from stethoscope.capture.guard import Guard
from stethoscope.capture.kernel_wait import KernelWait
from stethoscope.capture.phases import Phases
from stethoscope.capture.ring import MeasuredGroup, Ring, StepRows
from stethoscope.capture.schedule import Schedule, StepPlan
from stethoscope.capture.sites import Sink
from stethoscope.record import metrics

Closer = Callable[[StepRows], None]
Leftovers = Callable[[StepPlan], list[MeasuredGroup]]


class StepAssembly:
    """Puts one Step after another together."""

    def __init__(
        self,
        clock: Clock,
        schedule: Schedule,
        cost: Cost,
        phases: Phases,
        ring: Ring,
        sink: Sink,
        guard: Guard,
        leftovers: Leftovers,
    ) -> None:
        """`leftovers` measures what belongs to no optimizer, when the last optimizer of a Step has stepped."""
        self._clock, self._schedule, self._cost, self._phases = clock, schedule, cost, phases
        self._ring, self._sink, self._guard, self._leftovers = ring, sink, guard, leftovers
        self.closers: list[Closer] = []
        """Each adds what it knows of a Step that is complete; what one of them raises costs its own facts only."""
        self.update_closer: Closer = lambda _: None
        """Likewise where updates were measured."""
        self.rows = StepRows(clock.step)
        """What belongs to the open Step, as far as is known."""
        self.settled: StepRows | None = None
        """The open Step up to its last optimizer step; what comes after may belong to the next Step."""
        self._rest: list[MeasuredGroup] = []
        self.kernel_wait = KernelWait(sink)
        self.plan = schedule.plan(clock.step)
        """What is measured in the open Step."""

    @property
    def log_step(self) -> int:
        """The Step that a metric logged right now belongs to."""
        if self.rows.num_backwards or self._clock.anything_stepped:
            return self.rows.step
        return max(self._clock.step - 1, 0)

    def collect(self, group: MeasuredGroup) -> None:
        """These measurements belong to the open Step."""
        self.rows.batches.append(group)

    def begin(self) -> None:
        """A Step begins: what it will measure is decided now."""
        step = self._clock.step
        self.plan = self._schedule.plan(step)
        if kernels.uses_devices():
            self.plan = self.kernel_wait.reduce(self.plan, step)
        self._cost.begin()
        self._phases.forget()

    def look_closer(self) -> None:
        """The loss of this Step is unlike those before: its gradients and its update are measured, too."""
        if self.plan.gradients and self.plan.boundary:
            return
        self.plan = self._schedule.closer(self.plan)
        if kernels.uses_devices():
            self.plan = self.kernel_wait.reduce(self.plan, self._clock.step)

    def drop(self) -> None:
        """What was measured belongs to an attempt that came to nothing."""
        self.rows = StepRows(self._clock.step, has_vectors=self.plan.histogram)

    def settle(self) -> None:
        """Another optimizer may follow in this Step, or this one may step again: then the next Step has begun here."""
        self._rest = self._leftovers(self.plan)
        self.settled = self.rows if self.settled is None else self.settled.absorb(self.rows)
        self.drop()

    def close(self, *, whole: bool) -> None:
        """The Step is complete; where not `whole`, what came after its last optimizer step is the next one's."""
        step = self._clock.step
        settled, self.settled = self.settled, None
        following = StepRows(step + 1, has_vectors=self.plan.histogram)
        if settled is not None and not whole:
            rows, following = settled, self.rows
        else:
            self._rest = self._leftovers(self.plan)
            rows = self.rows if settled is None else settled.absorb(self.rows)
        rows.batches += self._rest
        self._rest, self.rows = [], rows
        self._guard.each(self.closers, rows)
        if self.plan.boundary:
            self._guard(self.update_closer, rows)
        rows.scalars.update(rows.accounts)
        rows.scalars[metrics.NUM_BACKWARDS] = float(rows.num_backwards)
        rows.timed = self.plan.timed
        rows.has_vectors |= self.plan.histogram
        is_ready = rows.ready()
        self._cost.close(step, rows, self._sink, self.plan, is_ready=is_ready)
        self._clock.close()
        following.step = self._clock.step
        following.has_vectors &= bool(following.batches)
        self.rows = following
        self._ring.put(rows, is_ready=is_ready)
