"""The Watcher: hears the seams and has measured what is due at each; the StepAssembly makes Steps of it.

It runs on the training thread and keeps to four rules: never raise, never synchronise a device, never touch the
RNG, never change a value.
"""

from __future__ import annotations

import dataclasses
import math
import threading
import time
from collections.abc import Callable
from typing import Any, Final

import torch

from stethoscope import kernels
from stethoscope.capture import batches, modes, replicas
from stethoscope.capture.assembly import StepAssembly
from stethoscope.capture.batch_tracking import BatchTracker
from stethoscope.capture.clock import Clock
from stethoscope.capture.closures import Closure, has_closure
from stethoscope.capture.cost import Cost
from stethoscope.capture.deferred_reads import DeferredReads
from stethoscope.capture.guard import Guard, guarded
from stethoscope.capture.lineage import Lineage
from stethoscope.capture.loss_watch import LossWatch
from stethoscope.capture.notes import Notes
from stethoscope.capture.optimizer_probe import OptimizerProbe
from stethoscope.capture.optimizer_registry import OptimizerRegistry
from stethoscope.capture.phases import Phases
from stethoscope.capture.plain_steps import PlainSteps
from stethoscope.capture.ring import MeasuredGroup, NotedLoss, Ring, StepRows, number_of, scalar_of
from stethoscope.capture.scaling import Scaling, host_scale, pending_scale
from stethoscope.capture.schedule import Schedule
from stethoscope.capture.seams import SEAMS
from stethoscope.capture.sites import Names, Sink, SiteTable, is_compiled
from stethoscope.capture.taps import Taps
from stethoscope.capture.totals import Totals
from stethoscope.config import DebugConfig
from stethoscope.kernels import Extras, measure_async
from stethoscope.record import events, metrics

EXTRAS: Final = Extras(histogram=True, sketch=True, seed=0x5E7)
MAX_IDLE: Final = 64
"""Forward passes without a backward after which outputs are no longer looked at: nobody trains, and rows would pile up."""


class Watcher:
    """One model under observation."""

    def __init__(
        self,
        model: torch.nn.Module,
        optimizers: list[torch.optim.Optimizer],
        config: DebugConfig,
        sink: Sink,
        *,
        first_step: int = 0,
    ) -> None:
        self.guard = Guard(modes)
        self.config, self.sink = config, sink
        self._model = model
        self.names = Names(model)
        self.table = SiteTable(sink)
        self.clock = Clock(first_step)
        self.schedule = Schedule(config)
        self.ring = Ring(sink)
        self.ring.on_cost = self.schedule.step_cost_on_device
        self.evaluating = False
        self.after_step: Callable[[], None] | None = None
        """Called on the training thread when a Step is complete, but for plain ones that another follows; what it raises is
        kept, but for StopTraining."""
        self.trained_in = 0
        """The thread that took the last step."""
        self._batch_facts = batches.BatchFacts()
        self.batch_tracker = BatchTracker(self.names, self.table, sink, self.clock, lambda: self.assembly.plan.batches)
        self.scaling = Scaling(self.names)
        self.counts = Totals(sink)
        self._num_idle = 0
        self.loss_watch = LossWatch()
        self.is_loss_here = True
        """Whether losses are on the CPU, where they are known at once: only then a lost one can be looked back from."""
        self._stepped_in_backward = self._is_timed = False
        self._closure: Closure | None = None
        """The closure of the optimizer that is stepping right now."""
        self._moved: dict[str, bool] = {}
        """In the end of a run without a step, whether its weights moved all the same."""
        self._extras: Extras | None = None
        self.taps = Taps(
            self.names,
            self.table,
            layers=config.layers,
            limit=config.max_tracked_tensors,
            collect=self._collect,
            guard=self.guard,
            on_call=self._forward_begins,
        )
        self._is_last_closed = False
        self.phases = Phases(self.taps)
        self.notes = Notes(self.names, self.table, sink, self.clock, self.schedule)
        self.cost = Cost(self.schedule, self.taps, self.batch_tracker, self.notes)
        self.taps.on_output, self.taps.on_evaluation = self.notes.output, self._evaluation_forward
        self.lineage = Lineage(self.names.root, self._note_graph, model=model, ready=lambda: not self.evaluating)
        self.registry = OptimizerRegistry(optimizers, self.names, self.table, config, sink, self.clock)
        self.registry.on_change = self._attach
        self.assembly = StepAssembly(
            self.clock,
            self.schedule,
            self.cost,
            self.phases,
            self.ring,
            sink,
            self.guard,
            self.registry.measure_unowned,
        )
        self.assembly.closers = [
            self.scaling.undo_accumulation,
            self._close_notes,
            self.counts.close_step,
            self._close_batches,
        ]
        self.assembly.update_closer = self.registry.close_step
        self.plain = PlainSteps(self)
        self.taps.plain = self.plain

    # ---- life ----

    def start(self) -> None:
        """Attach to the model and open the seams."""
        self._attach()
        if self.config.graph:
            self.guard(self.lineage.attach)
        self.guard(self.notes.begin)
        self.guard(self._note_replicas)
        self.guard(self._prepare_kernels)
        self.prepare_step()
        SEAMS.join(self)

    def stop(self, timeout_s: float = 5.0) -> None:
        """Close what is open and leave nothing behind; what a device still measures is waited for no longer than this."""
        SEAMS.leave(self)
        self.guard(self.plain.leave)
        if self.clock.anything_stepped and not self._is_last_closed:
            self._is_last_closed = True
            self.guard(self._close_step, whole=False)
        self.guard(self.lineage.detach)
        self.guard(self.taps.detach)
        if not self.clock.step:
            self.guard(self._tell_weights_moved, self._moved.update)
        self.guard(self.ring.stop, timeout_s)
        self.guard(self.assembly.kernel_wait.end, self.clock.step)
        self.sink.tell(self.clock.step, self.totals())

    def let_go(self) -> None:
        """Take everything off at once where stopping was interrupted; `stop` may still be called for the rest."""
        SEAMS.leave(self)
        self.guard(self.lineage.detach)
        self.guard(self.taps.detach)

    def totals(self) -> events.Totals:
        """What was counted over the whole run."""
        counts = self.counts
        return events.Totals(
            num_steps=self.clock.step,
            num_backwards=counts.num_backwards,
            num_discarded=counts.num_discarded,
            num_skipped=counts.num_skipped + self.ring.num_skipped,
            num_scheduler_steps=counts.num_scheduler_steps,
            num_errors=sum(self.guard.errors.values()),
            num_dropped_steps=self.ring.num_dropped,
            num_capped=self.taps.num_capped,
            num_lost=self.taps.waiting.num_lost,
            weights_moved=self._moved.get("weights_moved", False),
            step_unfinished=self._closure is not None,
        )

    # ---- what the session adds ----

    @property
    def can_measure(self) -> bool:
        """Whether steps are measured from now on; not while the kernels for a device are being compiled."""
        return kernels.can_measure()

    @property
    def log_step(self) -> int:
        """The Step that a metric logged right now belongs to."""
        return self.assembly.log_step

    def log(self, name: str, value: torch.Tensor) -> None:
        """A metric that is still a tensor: read when it is there, without a synchronisation."""
        rows = StepRows(self.log_step, pending_scalars=[(name, measure_async([value.detach()]))])
        self.ring.put(rows)

    def log_batch(self, inputs: Any, targets: Any) -> None:
        """Statistics and fingerprints of a batch, for the Step that is about to use it."""
        self.batch_tracker.logged(evaluating=self.evaluating)
        if not self.evaluating:
            self.assembly.rows.batches.extend(batches.rows(self.table, inputs, targets))
        step, kind = self.clock.step, events.EvalBatch if self.evaluating else events.Batch

        def tell(facts: dict[str, Any]) -> None:
            if facts:
                self.sink.tell(step, kind(**facts))

        reads = self._batch_facts.look(inputs, targets, step, tell)
        if reads is not None:
            self.ring.put(StepRows(step, reads=reads))

    def evaluation_begins(self) -> None:
        """Validation starts: which modules are in training mode is a fact worth keeping."""
        self.plain.leave()
        self.taps.record(False)
        self.taps.keeping = False
        training = tuple(path for path, module in self.names.root.named_modules() if module.training)
        self.sink.tell(self.log_step, events.EvalBegin(num_training=len(training), training=training[:20]))

    def evaluation_ends(self) -> None:
        """Validation is over."""
        self._choose_recording()
        self.sink.tell(self.log_step, events.EvalEnd())

    # ---- the seams ----

    @guarded
    def backward_begins(self, loss: Any, *, retain: bool, create: bool) -> None:
        """Note the loss and what became of the last gradients."""
        if self.plain.backward_begins(loss, asks_more=retain or create):
            return
        self.taps.inside.clear()
        self._num_idle = 0
        if not self.lineage.done:
            self.lineage.settle()
        if self.evaluating:
            return
        rows = self.assembly.rows
        self.phases.end(metrics.FORWARD_MS, rows.scalars)
        if self.batch_tracker.holds_any:
            self.guard(self.batch_tracker.backward)
        # A line search evaluates the loss elsewhere too: the step's loss is that of the first evaluation.
        is_first = self._closure is None or self._closure.backward_begins()
        for tensor in [loss] if isinstance(loss, torch.Tensor) else list(loss):
            if tensor.is_meta:  # no number: neither finite nor not
                continue
            if is_first:
                self._note_loss(tensor)
            first_of_step = rows.num_backwards == 0
            self.guard(self.notes.backward_begins, tensor, first_of_step=first_of_step, counts=is_first)
        if self.taps.kept or self.taps.waiting.holds_any:
            self.taps.forget()
        self.taps.keeping = False  # checkpointing computes again: its outputs were there before
        for ledger in self.registry.ledgers:
            if ledger.backward_begins() and self._closure is None:
                self.guard(self._note_discarded)
                break
        if retain or create:
            rows.accounts[metrics.RETAIN_GRAPH] = float(retain)
            rows.accounts[metrics.CREATE_GRAPH] = float(create)
        self.phases.begin(metrics.BACKWARD_MS)

    @guarded
    def backward_ends(self) -> None:
        """Note what arrived."""
        if self.plain.backward_ends():
            return
        if self.evaluating:
            return
        rows = self.assembly.rows
        self.phases.end(metrics.BACKWARD_MS, rows.scalars)
        if self.taps.waiting.holds_any:
            self._flush_taps()
        if self.taps.graphs is not None:
            self.guard(self.taps.graphs.collect)
        self.taps.keeping = self.is_loss_here and not self.taps.recording
        self.taps.gradient_scale = None
        rows.num_backwards += 1
        self.counts.num_backwards += 1
        for ledger in self.registry.ledgers:
            ledger.backward_ends()
        # Optimizers that step inside backward end their round with it.
        if self._stepped_in_backward and self.clock.anything_stepped:
            self._close_step()

    @guarded
    def gradient_asked(self) -> None:
        """Count it: a graph that was kept for it is used."""
        scalars = self.assembly.rows.scalars
        scalars[metrics.NUM_GRADS] = scalars.get(metrics.NUM_GRADS, 0.0) + 1.0

    @guarded
    def step_begins(self, optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
        """Measure the gradients the optimizer is about to use."""
        if self.plain.step_begins(optimizer, args, kwargs):
            return
        probe = self.registry.meet(optimizer)
        if probe is None:
            return
        if self.taps.waiting.holds_any:
            self._flush_taps()
        if self.clock.repeats(optimizer) or self.registry.repeats_parameters:
            self.registry.repeats_parameters = False
            self._close_step(whole=False)
        # With a closure the gradients at this moment are those of the last step: read them after it.
        probe.used_closure = bool(args or kwargs) and has_closure(args, kwargs)
        self._closure = Closure(self.registry.ledger(optimizer)) if probe.used_closure else None
        if not probe.used_closure:
            self.registry.settle_accounts(optimizer, self.assembly.rows)
            self.take_gradients(probe, optimizer)
        if self.assembly.plan.boundary:
            began = time.perf_counter()
            probe.remember()
            self.registry.note_undone(probe)
            self.cost.add("boundary", began)
        self.phases.begin(metrics.OPTIMIZER_MS)

    @guarded
    def step_ends(self, optimizer: torch.optim.Optimizer) -> None:
        """Measure what it did."""
        if self.plain.step_ends(optimizer):
            return
        probe = self.registry.probe(optimizer)
        if probe is None:
            return
        assembly = self.assembly
        self.phases.end(metrics.OPTIMIZER_MS, assembly.rows.scalars)
        self._closure = None
        if probe.used_closure:
            self.registry.settle_accounts(optimizer, assembly.rows)
            self.take_gradients(probe, optimizer)
        self.registry.ledger(optimizer).step_ends()
        if self.clock.has_several and len(self.clock.optimizers) > 1:
            assembly.rows.own_losses(self.clock.optimizers.index(optimizer), assembly.settled)
        if assembly.plan.boundary:
            began = time.perf_counter()
            for batch in (probe.update(self.clock.step), probe.weights(self._extras), probe.state()):
                if batch is not None:
                    self._collect(batch)
            self.cost.add("boundary", began)
        self.registry.note_rates(optimizer, assembly.rows)
        found_inf = getattr(optimizer, "found_inf", None)
        if isinstance(found_inf, torch.Tensor):
            assembly.rows.pending_scalars.append((metrics.FOUND_INF, measure_async([found_inf.detach()])))
        self.trained_in = threading.get_ident()
        complete = self.clock.stepped(optimizer)
        self._stepped_in_backward = torch._C._current_graph_task_id() != -1
        if self._stepped_in_backward:
            return
        if complete:
            self._close_step()
        else:
            assembly.settle()

    @guarded
    def clipped_norm(self, gradients: Any, max_norm: Any, total_norm: torch.Tensor) -> None:
        """Note the norm before clipping and the limit."""
        self.scaling.clipped_norm(gradients, max_norm, total_norm, self.assembly.rows, self.clock.optimizers)

    @guarded
    def clipped_value(self, gradients: Any, clip_value: float) -> None:
        """Note the limit."""
        self.scaling.clipped_value(gradients, clip_value, self.assembly.rows)

    @guarded
    def loss_scaled(self, scaler: Any, scaled: Any) -> None:
        """Remember by how much."""
        self.scaling.loss_scaled(scaler, scaled, self.assembly.rows)

    @guarded
    def scaler_stepped(self, scaler: Any, optimizer: torch.optim.Optimizer, ran: bool) -> None:
        """Count a step that the scaler skipped."""
        self.plain.leave()
        if ran or self.registry.meet(optimizer) is None:
            return
        self.registry.ledger(optimizer).step_ends()
        self.counts.skipped(self.clock.step, host_scale(scaler))
        self.assembly.drop()

    @guarded
    def batch_arrived(self, dataset: Any, batch: Any, seconds: float) -> None:
        """Note it, until it is known whether it is trained on."""
        if self.batch_tracker.arrived(dataset, batch, seconds, evaluating=self.evaluating):
            # Here the wait ends, also for a model that is then called by a method of its own, which nobody hears.
            self.cost.model_is_called()

    @guarded
    def average_made(self, average: Any) -> None:
        """An average of some model's weights, perhaps of ours."""
        self.notes.averages.met(average)

    @guarded
    def scheduler_stepped(self, scheduler: Any) -> None:
        """Count it; a scheduler's first step is its own constructor's."""
        if getattr(scheduler, "_step_count", 2) > 1:
            mine = self.registry.probe(getattr(scheduler, "optimizer", None)) is not None
            self.counts.num_scheduler_steps += int(mine)

    # ---- how ----

    def _attach(self) -> None:
        compiled = self.taps.made_way or is_compiled(self._model)
        wanted = self.config.activations
        self.taps.attach(
            outputs=wanted is True or (wanted is None and not compiled),
            compiled_too=wanted is True,
            is_compiled=compiled,
        )

    def _prepare_kernels(self) -> None:
        kernels.prepare(self.names.tensors)
        if kernels.can_measure(everything=True):
            for probe in self.registry.probes:
                probe.rehearse(EXTRAS)

    def _note_replicas(self) -> None:
        found = replicas.facts(self._model, self.names)
        if found is not None:
            self.sink.tell(self.clock.step, found)

    def _note_graph(self, body: dict[str, Any]) -> None:
        self.sink.tell(self.clock.step, events.DataFlow.from_body(body))

    def _collect(self, group: MeasuredGroup) -> None:
        self.assembly.rows.batches.append(group)

    def _forward_begins(self, values: Any, mode: bool) -> None:
        # From the end of the last step to the first call of the model: what is not ours is mostly the data's.
        self.assembly.rows.scalars[metrics.DATA_MS] = self.cost.model_is_called()
        self._num_idle += 1
        self._choose_recording()
        tracker = self.batch_tracker
        if tracker.wants_call(training=not self.evaluating):
            self.guard(tracker.called, values, training=not self.evaluating, mode=mode)
        if self.taps.kept or self.taps.waiting.holds_any:
            self.taps.forget()
        self.guard(self.notes.forward_begins, evaluating=False, recording=self.taps.recording)
        self.phases.begin(metrics.FORWARD_MS)

    def _evaluation_forward(self, values: Any, mode: bool) -> None:
        if not torch.is_grad_enabled() and self.batch_tracker.wants_call(training=False):
            self.guard(self.batch_tracker.called, values, training=False, mode=mode)
        if self.evaluating:
            self.notes.forward_begins(evaluating=True)

    def _choose_recording(self) -> None:
        # Also where nobody calls the root itself (an agent whose actor and critic are called one by one).
        plan, may_look = self.assembly.plan, not self.evaluating and self._num_idle <= MAX_IDLE
        taps = self.taps
        taps.evaluating = self.evaluating
        is_recording = may_look and plan.modules
        if taps.recording is not is_recording:
            taps.record(is_recording)
        taps.keeping = may_look and not plan.modules and self.is_loss_here
        if is_recording or self.is_loss_here or taps.graphs is not None:
            taps.parts.wake()
        else:  # on a device nothing is kept for a loss that turns out to be lost: it is known too late
            taps.parts.rest()
        taps.inputs_due = plan.batches and plan.gradients and not self.evaluating

    def _note_loss(self, loss: torch.Tensor) -> None:
        divisor, scale = self.scaling.divisor_of(loss), self.scaling.scale_of(loss)
        self.taps.gradient_scale = None if scale is None else pending_scale(scale)
        value = number_of(loss.detach() if scale is None else loss.detach() / scale)
        self.assembly.rows.losses.append(NotedLoss(metrics.LOSS, value, divisor))
        self.is_loss_here = loss.is_cpu
        if not self.is_loss_here:
            return
        number = value if isinstance(value, float) else scalar_of(value)
        if self.loss_watch.is_unlike(number, self.clock.step):
            self.loss_watch.looked(self.clock.step)
            self.assembly.look_closer()
        self.loss_watch.take(number)
        if not math.isfinite(number):
            self.guard(self._look_back)

    def _note_discarded(self) -> None:
        """Gradients were thrown away by an optimizer that never stepped; whether weights moved all the same belongs to it."""
        said = self.counts.discarded()
        if said is not None:
            step = self.clock.step
            self._tell_weights_moved(lambda moved: self.sink.tell(step, dataclasses.replace(said, **moved)))

    def _tell_weights_moved(self, tell: Callable[[dict[str, bool]], None]) -> None:
        """Whether the weights are other ones than at the start, as soon as that is known; nothing waits for it."""
        reads, found = DeferredReads(), dict[str, bool]()
        self.notes.averages.ask_moved(reads, found)
        if not reads.is_asked:
            tell(found)
            return

        def told() -> dict[str, float]:
            tell(found)
            return {}

        self.ring.put(StepRows(self.clock.step, reads=reads.send(told)))

    def _look_back(self) -> None:
        """The loss is not finite: look at what was let pass in this step after all."""
        self.batch_tracker.suspect(self.taps.measure_kept())

    def _flush_taps(self) -> None:
        """What waits belongs to the rows that are open now."""
        began = time.perf_counter()
        self.taps.waiting.flush()
        took = time.perf_counter() - began
        self.taps.spent += took
        self.guard.entered += took  # counted once

    def take_gradients(self, probe: OptimizerProbe, optimizer: Any) -> None:
        """The gradients that this optimizer is about to use, where they are due."""
        if not self.assembly.plan.gradients:
            return
        began = time.perf_counter()
        group = probe.gradients(self._extras, getattr(optimizer, "grad_scale", None))
        if group is not None:
            self._collect(group)
        self.cost.add("gradients", began)
        if self.assembly.plan.modules:
            self.guard(self.notes.unit_gradients, probe.parameters)

    def _close_step(self, *, whole: bool = True) -> None:
        """The Step is complete; where not `whole`, what came after its last optimizer step is the next one's."""
        if self.taps.waiting.holds_any:
            self._flush_taps()
        step = self.clock.step
        if self.registry.is_due(step):
            self.registry.rescan(step)
        self.assembly.close(whole=whole)
        self.prepare_step()

    def _close_notes(self, rows: StepRows) -> None:
        rows.scalars.update(self.notes.step_closes(self.clock))
        rows.reads = self.notes.send()

    def _close_batches(self, rows: StepRows) -> None:
        self.batch_tracker.close_step(rows, measured=self.assembly.plan.gradients)

    def prepare_step(self) -> None:
        """A Step begins: what is measured in it, and how it is heard."""
        self.assembly.begin()
        self._stepped_in_backward = False
        plan = self.assembly.plan
        self._extras = EXTRAS if plan.histogram else None
        self._choose_recording()
        self.scaling.forget()
        # Now and then the device's own time is asked for; it is read when it has come, never waited for.
        self.taps.waiting.extras, self.taps.waiting.timed = self._extras, plan.timed
        self.notes.reads.timed = plan.timed
        if plan.timed is not self._is_timed:
            self._is_timed = plan.timed
            for probe in self.registry.probes:
                probe.timed = plan.timed
        self.cost.step_begins()
        if self.after_step is not None and self.clock.step:
            self.guard(self.after_step)
        self.plain.look_ahead()
