"""Steps in which little is measured, which are nearly all of them: heard in as few calls as can be.

By the time that a function of ours runs again the training has pushed it out of the processor's caches, so the cost of a
step on the host is the number of functions that it touches. Here the plain case is done and no other: one optimizer, one
forward pass, one backward pass, gradients that were cleared before. The Watcher's way is the one that knows everything. At
the first thing that is otherwise it gets all that was heard of the step so far, and goes on from there.
"""

from __future__ import annotations

import operator
from threading import get_ident
from time import perf_counter, process_time
from typing import TYPE_CHECKING, Any, Final
from weakref import ref

import torch
from torch import Tensor

from stethoscope import kernels
from stethoscope.capture.ledger import ABSENT, States, states_of
from stethoscope.capture.optimizer_registry import is_same, parameters_of
from stethoscope.capture.ring import NotedLoss, StepRows, number_of
from stethoscope.capture.schedule import StepPlan
from stethoscope.kernels import Pending
from stethoscope.record import metrics

if TYPE_CHECKING:
    from stethoscope.capture.taps import InputTap
    from stethoscope.capture.watcher import Watcher

MOST_AHEAD: Final = 15
"""Plain steps between two of the others: what is counted now and then is counted at numbers divisible by 16."""
MOST_LEFT: Final = 4
"""Plain steps in a row that turned out not to be, after which for some time none is begun."""
REST: Final = 64

FRESH_STEPS: Final = 8
"""Steps in a row with gradients that were written once and cleared by being dropped, after which that is their way."""
NAMES: Final = (
    metrics.DATA_MS,
    metrics.FORWARD_MS,
    metrics.BACKWARD_MS,
    metrics.OPTIMIZER_MS,
    metrics.TRAINING_MODE,
    metrics.NUM_BACKWARDS,
    metrics.LEDGER_BACKWARDS,
    metrics.LEDGER_LOOKED_AT,
    metrics.LEDGER_ARRIVED,
    metrics.LEDGER_KEPT,
    metrics.LEDGER_VANISHED,
    metrics.LEDGER_TOUCHED,
)
"""What is told of every plain step, as the Watcher's way tells it."""
NOTHING, FORWARD, BACKWARD, ARRIVED, STEPPING = range(5)
CLOSED: Final = -1


class PlainSteps:
    """What was heard of the step under way, while it is a plain one."""

    def __init__(self, watcher: Watcher) -> None:
        self._watcher = watcher
        self.is_allowed = True
        """Whether nobody asks to be told of every step at once."""
        self._has_failed = False
        self._heard = CLOSED
        self._ahead: list[StepPlan] = []
        """The plans of the plain steps that follow, the next one last."""
        self._num_left = 0
        self._rests_until = 0
        self._mode: bool | None = None
        self._training = 0.0
        self._absent: list[int] = []
        self._value: float | Pending = 0.0
        self._began = self._turned = self._arrived = self._stepping = 0.0
        """When the forward pass began, and the backward pass; when that had ended, and the optimizer began."""
        self._trusts = False
        """Whether gradients are known to be cleared by how often they were written once they have arrived."""
        self._states: States = [], []
        self._at_step: States = [], []

    # ---- which steps ----

    def look_ahead(self) -> None:
        """A step begins in the Watcher's way: whether this one, and those after it, may be plain."""
        self._heard, watcher = CLOSED, self._watcher
        step = watcher.clock.step
        if step < self._rests_until or not self._may_be_plain():
            return
        ahead = watcher.schedule.plain_ahead(step, MOST_AHEAD)
        if ahead and not step <= watcher.registry.rescan_at < step + MOST_AHEAD:
            self._ahead = ahead[:0:-1]
            self._heard = NOTHING

    def _may_be_plain(self) -> bool:
        watcher = self._watcher
        registry, clock = watcher.registry, watcher.clock
        optimizer = clock.first
        if (
            not self.is_allowed
            or self._has_failed
            or optimizer is None
            or clock.has_several
            or watcher.evaluating
            or watcher.names.lazy
        ):
            return False
        probe = registry.probe(optimizer)
        if probe is None or probe.used_closure or len(registry.ledgers) != 1 or registry.orphans is not None:
            return False
        if not (watcher.lineage.done or not watcher.config.graph) or watcher.taps.graphs is not None:
            return False
        if watcher.scaling.is_at_work or watcher.batch_tracker.holds_any or not registry.ledgers[0].is_settled:
            return False
        if kernels.uses_devices() and not kernels.can_measure(everything=True):
            return False
        self._optimizer, self._probe, self._ledger = ref(optimizer), probe, registry.ledgers[0]
        self._absent = [ABSENT] * len(self._ledger.parameters)
        self._trusts = self._ledger.num_fresh >= FRESH_STEPS
        self._mode = watcher.notes.training_mode
        self._training = float(bool(self._mode))
        return True

    # ---- the seams; each says whether it has done all that there is to do ----

    def called(self, tap: InputTap, module: Any, args: Any, kwargs: Any, *, is_compiled: bool) -> bool:
        """A root is called."""
        if self._heard < NOTHING:
            return False
        watcher = self._watcher
        try:
            taps, tracker = watcher.taps, watcher.batch_tracker
            if (
                self._heard
                or is_compiled
                or taps.evaluating
                or module.training is not self._mode
                or not torch.is_grad_enabled()
                or tracker.holds_any
            ):
                if torch._C._current_graph_task_id() == -1:  # else checkpointing computes again
                    self.leave()
                return False
            cost, self._began = watcher.cost, perf_counter()
            cost.waited = self._began - cost.step_began, process_time() - cost.worked
            tracker.thread = thread = get_ident()
            taps.kept.clear()
            taps.inside.add(thread)
            if taps.keeping:
                tap.keep((*args, dict(kwargs)) if kwargs else args)
            self._heard = FORWARD
        except BaseException as error:
            if not self._has_kept(error):
                raise
            return False
        return True

    def backward_begins(self, loss: Any, *, asks_more: bool) -> bool:
        """A backward pass is about to start; `asks_more` where its graph is kept, or a graph of it made."""
        if self._heard < NOTHING:
            return False
        watcher = self._watcher
        try:
            if self._heard != FORWARD or asks_more or type(loss) is not Tensor or not self._is_plain_loss(loss):
                self.leave()
                return False
            value = number_of(loss.detach())
            if type(value) is float:
                is_plain = watcher.is_loss_here and not watcher.loss_watch.is_unlike(value, watcher.clock.step)
            else:
                is_plain = not watcher.is_loss_here
            if not is_plain:
                self.leave()
                return False
            self._value = value
            if type(value) is float:
                watcher.loss_watch.take(value)
            watcher.notes.mark_graph(loss.grad_fn)
            taps = watcher.taps
            taps.inside.clear()
            taps.kept.clear()
            taps.keeping = False  # checkpointing computes again: its outputs were there before
            self._turned, self._heard = perf_counter(), BACKWARD
        except BaseException as error:
            if not self._has_kept(error):
                raise
            return False
        return True

    def backward_ends(self) -> bool:
        """The backward pass returned."""
        if self._heard < NOTHING:
            return False
        if self._heard != BACKWARD:
            self.leave()
            return False
        self._arrived, watcher = perf_counter(), self._watcher
        try:
            watcher.taps.keeping = watcher.is_loss_here
            self._states = states_of(self._ledger.parameters)
            watcher.assembly.rows.num_backwards += 1
            watcher.counts.num_backwards += 1
            self._heard = ARRIVED
            if self._trusts and max(self._states[1]) > 0:
                self._ledger.lose_count()  # not cleared, or in another way than so far
                self.leave()
        except BaseException as error:
            if not self._has_kept(error):
                raise
            return False
        return True

    def step_begins(self, optimizer: Any, args: Any, kwargs: Any) -> bool:
        """An optimizer's step starts."""
        if self._heard < NOTHING:
            return False
        try:
            if self._heard != ARRIVED or len(args) > 1 or kwargs or optimizer is not self._optimizer():
                self.leave()
                return False
            now = states_of(self._ledger.parameters)
            if now[0] != self._states[0] or not is_same(parameters_of(optimizer), self._probe.all_parameters):
                self.leave()
                return False
            self._at_step, watcher = now, self._watcher
            if watcher.assembly.plan.gradients:
                watcher.take_gradients(self._probe, optimizer)
            self._stepping, self._heard = perf_counter(), STEPPING
        except BaseException as error:
            if not self._has_kept(error):
                raise
            return False
        return True

    def step_ends(self, optimizer: Any) -> bool:
        """An optimizer's step returned."""
        if self._heard < NOTHING:
            return False
        ended = perf_counter()
        try:
            if self._heard != STEPPING or optimizer is not self._optimizer():
                self.leave()
                return False
            self._heard, self._num_left = CLOSED, 0
            self._close(optimizer, ended)
        except BaseException as error:
            if not self._has_kept(error):
                raise
            return False
        return True

    def leave(self) -> None:
        """What was heard so far goes the Watcher's way, which takes over from here."""
        heard, self._heard = self._heard, CLOSED
        if heard <= NOTHING:
            return
        watcher = self._watcher
        self._num_left += 1
        if self._num_left >= MOST_LEFT:
            self._num_left, self._rests_until = 0, watcher.clock.step + REST
        rows, phases, ledger = watcher.assembly.rows, watcher.phases, self._ledger
        rows.scalars[metrics.DATA_MS] = watcher.cost.model_is_called()
        watcher.notes.forward_begins(evaluating=False, recording=False)
        phases.begin(metrics.FORWARD_MS, self._began)
        if heard >= BACKWARD:
            phases.end(metrics.FORWARD_MS, rows.scalars, self._turned)
            rows.losses.append(NotedLoss(metrics.LOSS, self._value, 1.0))
            ledger.backward_begins((self._absent, [-1] * len(self._absent)))
            phases.begin(metrics.BACKWARD_MS, self._turned)
        if heard >= ARRIVED:
            phases.end(metrics.BACKWARD_MS, rows.scalars, self._arrived)
            ledger.backward_ends(self._states)
        if heard >= STEPPING:
            rows.account(ledger.step_begins(self._at_step))
            phases.begin(metrics.OPTIMIZER_MS, self._stepping)

    # ---- how ----

    def _is_plain_loss(self, loss: Tensor) -> bool:
        """Whether it is no part of a sum, scaled by nobody, and comes after gradients that were all cleared."""
        watcher = self._watcher
        if loss.grad_fn is None or loss.is_meta or watcher.batch_tracker.holds_any or watcher.scaling.is_at_work:
            return False
        if not self._trusts and list(map(id, map(_gradient_of, self._ledger.parameters))) != self._absent:
            return False
        return watcher.scaling.divisor_of(loss) == 1.0

    def _close(self, optimizer: Any, ended: float) -> None:
        watcher = self._watcher
        assembly, clock, cost = watcher.assembly, watcher.clock, watcher.cost
        rows = assembly.rows
        at_step, arrived = self._at_step, self._states
        rows.scalars.update(
            zip(
                NAMES,
                (
                    cost.model_is_called(),
                    (self._turned - self._began) * 1e3,
                    (self._arrived - self._turned) * 1e3,
                    (ended - self._stepping) * 1e3,
                    self._training,
                    1.0,
                    1.0,
                    float(len(at_step[0])),
                    float(len(at_step[0]) - at_step[0].count(ABSENT)),
                    0.0,
                    0.0,
                    0.0 if at_step == arrived else float(sum(map(operator.ne, at_step[1], arrived[1]))),
                ),
                strict=True,
            )
        )
        watcher.batch_tracker.tell_wait(rows.scalars)
        watcher.notes.tell_counts(rows.scalars, optimizer)
        watcher.registry.note_rates(optimizer, rows)
        watcher.counts.close_step(rows)
        rows.losses.append(NotedLoss(metrics.LOSS, self._value, 1.0))
        rows.has_vectors = False
        self._ledger.stepped_plainly(at_step)
        watcher.trained_in = get_ident()
        is_here = type(self._value) is float and not rows.batches and not rows.pending_scalars
        is_ready = is_here or rows.ready()
        has_changed = cost.close_plain(rows, watcher.sink, is_ready=is_ready)
        clock.own_counts[id(optimizer)] += 1
        clock.step = following = rows.step + 1
        assembly.rows = StepRows(following, has_vectors=False)
        watcher.ring.put(rows, is_ready=is_ready)
        if has_changed or not self._ahead or not self.is_allowed:
            watcher.prepare_step()
            return
        assembly.plan = self._ahead.pop()
        cost.begin()
        cost.step_begins()
        watcher.taps.keeping = watcher.is_loss_here
        self._heard = NOTHING

    def _has_kept(self, error: BaseException) -> bool:
        """An error of ours: from now on every step goes the Watcher's way, this one from here."""
        self._has_failed, guard = True, self._watcher.guard
        if not guard.has_kept(self.leave, error):
            return False
        guard(self.leave)
        return True


_gradient_of: Final = operator.attrgetter("grad")
