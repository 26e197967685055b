"""What a session adds to a watched model beside the recording: hooks that run, leaks that are watched, layers that are timed.

Everything here runs behind the watcher's guard, and everything is taken off by `close`.
"""

from __future__ import annotations

import contextlib
import time
from collections import deque
from typing import TYPE_CHECKING, Final

from stethoscope.hooks.memory import memory_in_use_bytes
from stethoscope.record import StopTraining
from stethoscope.record.events import Leak
from stethoscope.record.metrics import MEMORY_IN_USE
from stethoscope.session.first_batch import FirstBatch
from stethoscope.session.layer_hooks import LayerRules
from stethoscope.session.layer_times import LayerTimes
from stethoscope.session.leak_watch import LeakWatch
from stethoscope.session.step_facts import StepFacts, StepFactsSink

if TYPE_CHECKING:
    from stethoscope.capture.watcher import Watcher
    from stethoscope.hooks import HookManager
    from stethoscope.session.instruments import Instruments

MEMORY_EVERY: Final = 16
"""Steps between two looks at how much memory is in use."""


class Attachment:
    """The instruments' end of a watcher."""

    def __init__(self, instruments: Instruments, watcher: Watcher) -> None:
        self._instruments, self._watcher, self._sink = instruments, watcher, watcher.sink
        self.several_models = len(watcher.names.roots) > 1
        self.first_batch = FirstBatch(watcher.names.root, watcher.guard)
        self._hooks: HookManager | None = None
        self._rules: LayerRules | None = None
        self._leak_watch: LeakWatch | None = None
        self._facts: StepFactsSink | None = None
        """Where Steps arrive for the hooks, while there are any."""
        self.layer_times = LayerTimes(watcher, instruments.model) if instruments.config.enable_profiling else None
        watcher.after_step = self._after_step
        self._choose_pace()
        if instruments.used("hooks"):
            self.listen(instruments.hooks)
        if instruments.config.leaks_every:
            self.watch_leaks(instruments.config.leaks_every)

    def listen(self, hooks: HookManager) -> None:
        """Run these hooks at every Step, and at the layers they speak of."""
        self._hooks = hooks
        hooks.pauser.run_folder = self._instruments.run_folder
        self._rules = LayerRules(self._watcher, hooks)
        hooks.on_change = self._hooks_changed
        self._hear_steps()

    def _hooks_changed(self) -> None:
        if self._rules is not None:
            self._rules.refresh()
        self._hear_steps()

    def _hear_steps(self) -> None:
        """Have the facts of each Step made while there are hooks, and no longer."""
        has_hooks = self._hooks is not None and not self._hooks.is_idle
        if has_hooks and self._facts is None:
            self._facts = StepFactsSink(self._sink, self._watcher.table)
            self._watcher.ring.send_to(self._facts, at_once=True)
        elif not has_hooks and self._facts is not None:
            self._watcher.ring.send_to(self._sink, at_once=False)
            self._facts = None
        self._choose_pace()

    def _choose_pace(self) -> None:
        """Whether every Step is told of as soon as it ends, or only those that are looked at."""
        self._watcher.plain.is_allowed = self._facts is None and self._leak_watch is None

    def watch_leaks(self, every: int) -> None:
        """Watch every n-th Step for tensors that outlive it."""
        if self._leak_watch is not None:
            self._leak_watch.every = max(int(every), 1)
            return
        self._leak_watch = LeakWatch(self._instruments.tensor_inspector.leak_detector, every)
        self._choose_pace()

    def let_go(self) -> None:
        """Take everything off at once, and ask nothing of what was seen."""
        self._watcher.after_step = None
        self.first_batch.close()
        if self.layer_times is not None:
            self.layer_times.close()
        if self._hooks is not None:
            self._hooks.on_change = None
        if self._rules is not None:
            self._rules.close()
        if self._leak_watch is not None:
            self._leak_watch.stop()

    def close(self, timeout_s: float) -> None:
        """Take everything off; the last Steps of a device are waited for no longer than this."""
        self._watcher.after_step = None
        self.first_batch.close()
        if self.layer_times is not None:
            self.layer_times.finish()
        self._finish_hooks(timeout_s)
        self.let_go()
        if self._leak_watch is not None:
            step = self._watcher.clock.step
            for leak in self._instruments.tensor_inspector.detect_leaks():
                location = f"{leak.file}:{leak.line}"
                self._sink.tell(step, Leak(location=location, text=str(leak), severity=str(leak.severity)))

    def _finish_hooks(self, timeout_s: float) -> None:
        """The last Steps of a device may arrive after training: their hooks run, and there is nothing left to stop."""
        if self._hooks is None or self._hooks.is_idle:
            return
        self._watcher.ring.drain(timeout_s)
        with contextlib.suppress(StopTraining):
            self._watcher.guard(self._run_hooks, self._hooks)

    def _after_step(self) -> None:
        step = self._watcher.clock.step
        if self.layer_times is not None:
            self.layer_times.step_ends(step)
        if step % MEMORY_EVERY == 0 or step == 1:
            self._look_at_memory(step - 1)
        if self._leak_watch is not None:
            self._leak_watch.step_ends(step)
        if self._hooks is not None:
            self._hear_steps()
            self._run_hooks(self._hooks)

    def _look_at_memory(self, step: int) -> None:
        """A file of the system's is read, or a counter of the device's: no more than some ten µs."""
        used = memory_in_use_bytes()
        if used is not None:
            self._sink.scalars(step, {MEMORY_IN_USE: used / 1e6})

    def _run_hooks(self, hooks: HookManager) -> None:
        """Every Step whose numbers are there: on a CPU the one that just ended, on a device perhaps one before."""
        step = self._watcher.clock.step
        if self._rules is not None and step & (step - 1) == 0:
            self._rules.refresh()  # modules may have been added or replaced
        arrived = self._facts.arrived if self._facts is not None else deque[StepFacts]()
        while arrived:
            facts = arrived.popleft()
            used = memory_in_use_bytes()
            began = time.perf_counter()
            hooks.execute_step(
                facts.step,
                loss=facts.loss,
                gradient_norm=facts.gradient_norm,
                memory_mb=None if used is None else used / 1e6,
                metrics=facts.metrics,
            )
            self._watcher.guard.entered += time.perf_counter() - began  # the user's own time
