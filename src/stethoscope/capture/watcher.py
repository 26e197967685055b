"""The Watcher: hears the seams, asks the schedule, measures, and hands every Step to the sink.

It runs on the training thread and keeps to four rules: never raise, never synchronise a device, never touch the
RNG, never change a value.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable
from typing import Any, Final

import torch

from stethoscope.capture import batches, replicas
from stethoscope.capture.batch_tracking import BatchTracker
from stethoscope.capture.clock import Clock
from stethoscope.capture.closures import Closure, has_closure
from stethoscope.capture.cost import Cost
from stethoscope.capture.guard import Guard, guarded
from stethoscope.capture.lineage import Lineage
from stethoscope.capture.notes import Notes
from stethoscope.capture.optimizer_probe import OptimizerProbe
from stethoscope.capture.optimizer_registry import OptimizerRegistry
from stethoscope.capture.phases import Phases
from stethoscope.capture.ring import MeasuredGroup, Ring, StepRows, scalar_of
from stethoscope.capture.scaling import Scaling, host_scale, pending_scale
from stethoscope.capture.schedule import Schedule
from stethoscope.capture.seams import SEAMS
from stethoscope.capture.sites import Names, Sink, SiteTable, is_compiled
from stethoscope.capture.taps import Taps
from stethoscope.capture.totals import Totals
from stethoscope.config import DebugConfig
from stethoscope.kernels import Extras, measure_async

SKETCH_SEED: Final = 0x5E7
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
        self.guard = Guard()
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
        """Called on the training thread when a Step is complete; what it raises is kept, but for StopTraining."""
        self.trained_in = 0
        """The thread that took the last step."""
        self._rows = StepRows(first_step)
        self._batch_facts = batches.BatchFacts()
        self.batch_tracker = BatchTracker(
            self.names,
            self.table,
            sink,
            lambda: self.clock.step,
            lambda: self.schedule.due("batches", self.clock.step),
        )
        self._settled: StepRows | None = None
        """The open Step up to its last optimizer step; what comes after may belong to the next Step."""
        self._rest: list[MeasuredGroup] = []
        self.scaling = Scaling(self.names)
        self._counts = Totals(sink)
        self._num_idle = 0
        self._stepped_in_backward = False
        self._closure: Closure | None = None
        """The closure of the optimizer that is stepping right now."""
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
        self.phases = Phases(lambda: self.taps.spent)
        self.notes = Notes(self.names, self.table, sink, lambda: self.clock.step, self.schedule.units_every)
        self.cost = Cost(self.schedule, self.taps, self.batch_tracker, self.notes)
        self.taps.on_output, self.taps.on_evaluation = self.notes.output, self._evaluation_forward
        self.lineage = Lineage(self.names.root, self._note_graph, model=model, ready=lambda: not self.evaluating)
        self.registry = OptimizerRegistry(optimizers, self.names, self.table, config, sink, self.clock)
        self.registry.on_change = self._attach

    # ---- life ----

    def start(self) -> None:
        """Attach to the model and open the seams."""
        self._attach()
        if self.config.graph:
            self.guard(self.lineage.attach)
        self.guard(self.notes.begin)
        self.guard(self._note_replicas)
        self._prepare_step()
        SEAMS.join(self)

    def stop(self, timeout_s: float = 5.0) -> None:
        """Close what is open and leave nothing behind; what a device still measures is waited for no longer than this."""
        SEAMS.leave(self)
        if self.clock.anything_stepped:
            self.guard(self._close_step, whole=False)
        self.guard(self.lineage.detach)
        self.guard(self.taps.detach)
        self.guard(self.ring.stop, timeout_s)
        self.sink.event(self.clock.step, "totals", self.totals())

    def totals(self) -> dict[str, Any]:
        """What was counted over the whole run."""
        counts = self._counts.counts()
        return {
            "num_steps": self.clock.step,
            **counts,
            "num_skipped": counts["num_skipped"] + self.ring.num_skipped,
            "num_errors": sum(self.guard.errors.values()),
            "num_dropped_steps": self.ring.num_dropped,
            "num_capped": self.taps.num_capped,
            "num_lost": self.taps.waiting.num_lost,
        }

    # ---- what the session adds ----

    @property
    def log_step(self) -> int:
        """The Step that a metric logged right now belongs to."""
        return (
            self._rows.step if self._rows.num_backwards or self.clock.anything_stepped else max(self.clock.step - 1, 0)
        )

    def log(self, name: str, value: torch.Tensor) -> None:
        """A metric that is still a tensor: read when it is there, without a synchronisation."""
        rows = StepRows(self.log_step, pending_scalars=[(name, measure_async([value.detach()]))])
        self.ring.put(rows)

    def log_batch(self, inputs: Any, targets: Any) -> None:
        """Statistics and fingerprints of a batch, for the Step that is about to use it."""
        self.batch_tracker.logged(evaluating=self.evaluating)
        if not self.evaluating:
            self._rows.batches.extend(batches.rows(self.table, inputs, targets))
        step, kind = self.clock.step, "eval_batch" if self.evaluating else "batch"

        def tell(facts: dict[str, Any]) -> None:
            if facts:
                self.sink.event(step, kind, facts)

        reads = self._batch_facts.look(inputs, targets, step, tell)
        if reads is not None:
            self.ring.put(StepRows(step, reads=reads))

    def evaluation_begins(self) -> None:
        """Validation starts: which modules are in training mode is a fact worth keeping."""
        self.taps.recording = self.taps.keeping = False
        training = [path for path, module in self.names.root.named_modules() if module.training]
        self.sink.event(self.log_step, "eval_begin", {"num_training": len(training), "training": training[:20]})

    def evaluation_ends(self) -> None:
        """Validation is over."""
        self._choose_recording()
        self.sink.event(self.log_step, "eval_end", {})

    # ---- the seams ----

    @guarded
    def backward_begins(self, loss: Any, *, retain: bool, create: bool) -> None:
        """Note the loss and what became of the last gradients."""
        self.taps.inside.clear()
        self._num_idle = 0
        self.lineage.settle()
        if self.evaluating:
            return
        self.phases.end("forward_ms", self._rows.scalars)
        self.guard(self.batch_tracker.backward)
        began = time.perf_counter()
        # A line search evaluates the loss elsewhere too: the step's loss is that of the first evaluation.
        is_first = self._closure is None or self._closure.backward_begins()
        for tensor in [loss] if isinstance(loss, torch.Tensor) else list(loss):
            if tensor.is_meta:  # no number: neither finite nor not
                continue
            if is_first:
                self._note_loss(tensor)
            first_of_step = self._rows.num_backwards == 0
            self.guard(self.notes.backward_begins, tensor, first_of_step=first_of_step, counts=is_first)
        self.taps.forget()
        self.taps.keeping = False  # checkpointing computes again: its outputs were there before
        for ledger in self.registry.ledgers:
            if ledger.backward_begins() and self._closure is None:
                self._counts.discarded(self.clock.step)
                break
        if retain or create:
            self._rows.accounts["retain_graph"] = float(retain)
            self._rows.accounts["create_graph"] = float(create)
        self.cost.add("ledger", began)
        self.phases.begin("backward_ms")

    @guarded
    def backward_ends(self) -> None:
        """Note what arrived."""
        if self.evaluating:
            return
        self.phases.end("backward_ms", self._rows.scalars)
        self._flush_taps()
        if self.taps.graphs is not None:
            self.guard(self.taps.graphs.collect)
        self.taps.keeping = not self.taps.recording
        self.taps.gradient_scale = None
        self._rows.num_backwards += 1
        self._counts.num_backwards += 1
        for ledger in self.registry.ledgers:
            ledger.backward_ends()
        # Optimizers that step inside backward end their round with it.
        if self.clock.anything_stepped and self._stepped_in_backward:
            self._close_step()

    @guarded
    def gradient_asked(self) -> None:
        """Count it: a graph that was kept for it is used."""
        self._rows.scalars["num_grads"] = self._rows.scalars.get("num_grads", 0.0) + 1.0

    @guarded
    def step_begins(self, optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
        """Measure the gradients the optimizer is about to use."""
        probe = self.registry.meet(optimizer)
        if probe is None:
            return
        self._flush_taps()
        if self.clock.repeats(optimizer):
            self._close_step(whole=False)
        began = time.perf_counter()
        # With a closure the gradients at this moment are those of the last step: read them after it.
        probe.used_closure = has_closure(args, kwargs)
        self._closure = Closure(self.registry.ledger(optimizer)) if probe.used_closure else None
        if not probe.used_closure:
            self.registry.settle_accounts(optimizer, self._rows)
        self.cost.add("ledger", began)
        if not probe.used_closure:
            self._take_gradients(probe, optimizer)
        if self.schedule.due("boundary", self.clock.step):
            began = time.perf_counter()
            probe.remember()
            self.registry.note_undone(probe)
            self.cost.add("boundary", began)
        self.phases.begin("optimizer_ms")

    @guarded
    def step_ends(self, optimizer: torch.optim.Optimizer) -> None:
        """Measure what it did."""
        probe = self.registry.probe(optimizer)
        if probe is None:
            return
        self.phases.end("optimizer_ms", self._rows.scalars)
        self._closure = None
        if probe.used_closure:
            self.registry.settle_accounts(optimizer, self._rows)
            self._take_gradients(probe, optimizer)
        self.registry.ledger(optimizer).step_ends()
        if len(self.clock.optimizers) > 1:
            self._rows.own_losses(self.clock.optimizers.index(optimizer), self._settled)
        if self.schedule.due("boundary", self.clock.step):
            began = time.perf_counter()
            for batch in (probe.update(self.clock.step), probe.weights(self._extras), probe.state()):
                if batch is not None:
                    self._collect(batch)
            self.cost.add("boundary", began)
        self.registry.note_rates(optimizer, self._rows)
        found_inf = getattr(optimizer, "found_inf", None)
        if isinstance(found_inf, torch.Tensor):
            self._rows.pending_scalars.append(("found_inf", measure_async([found_inf.detach()])))
        self.trained_in = threading.get_ident()
        complete = self.clock.stepped(optimizer)
        self._stepped_in_backward = torch._C._current_graph_task_id() != -1
        if self._stepped_in_backward:
            return
        if complete:
            self._close_step()
        else:
            self._settle()

    @guarded
    def clipped_norm(self, gradients: Any, max_norm: Any, total_norm: torch.Tensor) -> None:
        """Note the norm before clipping and the limit."""
        self.scaling.clipped_norm(gradients, max_norm, total_norm, self._rows, self.clock.optimizers)

    @guarded
    def clipped_value(self, gradients: Any, clip_value: float) -> None:
        """Note the limit."""
        self.scaling.clipped_value(gradients, clip_value, self._rows)

    @guarded
    def loss_scaled(self, scaler: Any, scaled: Any) -> None:
        """Remember by how much."""
        self.scaling.loss_scaled(scaler, scaled, self._rows)

    @guarded
    def scaler_stepped(self, scaler: Any, optimizer: torch.optim.Optimizer, ran: bool) -> None:
        """Count a step that the scaler skipped."""
        if ran or self.registry.meet(optimizer) is None:
            return
        self.registry.ledger(optimizer).step_ends()
        self._counts.skipped(self.clock.step, host_scale(scaler))
        # What was measured belongs to an attempt that came to nothing.
        self._rows = StepRows(self.clock.step)

    @guarded
    def batch_arrived(self, dataset: Any, batch: Any, seconds: float) -> None:
        """Note it, until it is known whether it is trained on."""
        self.batch_tracker.arrived(dataset, batch, seconds, evaluating=self.evaluating)

    @guarded
    def scheduler_stepped(self, scheduler: Any) -> None:
        """Count it; a scheduler's first step is its own constructor's."""
        if getattr(scheduler, "_step_count", 2) > 1:
            mine = self.registry.probe(getattr(scheduler, "optimizer", None)) is not None
            self._counts.num_scheduler_steps += int(mine)

    # ---- how ----

    def _attach(self) -> None:
        compiled = self.taps.made_way or is_compiled(self._model)
        wanted = self.config.activations
        self.taps.attach(
            outputs=wanted is True or (wanted is None and not compiled),
            compiled_too=wanted is True,
            is_compiled=compiled,
        )

    def _note_replicas(self) -> None:
        facts = replicas.facts(self._model, self.names)
        if facts is not None:
            self.sink.event(self.clock.step, "replicas", facts)

    def _note_graph(self, body: dict[str, Any]) -> None:
        self.sink.event(self.clock.step, "graph", body)

    def _collect(self, batch: MeasuredGroup) -> None:
        self._rows.batches.append(batch)

    def _forward_begins(self, values: Any, mode: bool) -> None:
        # From the end of the last step to the first call of the model: what is not ours is mostly the data's.
        self._rows.scalars.setdefault("data_ms", (time.perf_counter() - self.cost.step_began) * 1e3)
        self._num_idle += 1
        self._choose_recording()
        self.guard(self.batch_tracker.called, values, training=not self.evaluating, mode=mode)
        self.taps.forget()
        self.guard(self.notes.forward_begins, evaluating=False, recording=self.taps.recording)
        self.phases.begin("forward_ms")

    def _evaluation_forward(self, values: Any, mode: bool) -> None:
        if not torch.is_grad_enabled():
            self.guard(self.batch_tracker.called, values, training=False, mode=mode)
        if self.evaluating:
            self.notes.forward_begins(evaluating=True)

    def _choose_recording(self) -> None:
        # Also where nobody calls the root itself (an agent whose actor and critic are called one by one).
        may_look = not self.evaluating and self._num_idle <= MAX_IDLE
        self.taps.recording = may_look and self.schedule.due("modules", self.clock.step)
        self.taps.keeping = may_look and not self.taps.recording
        step = self.clock.step
        due = self.schedule.due("batches", step) and self.schedule.due("gradients", step)
        self.taps.inputs_due = due and not self.evaluating

    def _note_loss(self, loss: torch.Tensor) -> None:
        divisor, scale = self.scaling.divisor_of(loss), self.scaling.scale_of(loss)
        self.taps.gradient_scale = pending_scale(scale)
        pending = measure_async([loss.detach() if scale is None else loss.detach() / scale])
        self._rows.pending_scalars.append(("loss", pending))
        self._rows.divisors[id(pending)] = divisor
        if loss.device.type == "cpu" and not math.isfinite(scalar_of(pending)):
            self.guard(self._look_back)

    def _look_back(self) -> None:
        """The loss is not finite: look at what was let pass in this step after all."""
        self.batch_tracker.suspect(self.taps.measure_kept())

    def _flush_taps(self) -> None:
        """What waits belongs to the rows that are open now."""
        began = time.perf_counter()
        self.taps.waiting.flush()
        self.taps.spent += time.perf_counter() - began

    def _take_gradients(self, probe: OptimizerProbe, optimizer: Any) -> None:
        if not self.schedule.due("gradients", self.clock.step):
            return
        began = time.perf_counter()
        batch = probe.gradients(self._extras, getattr(optimizer, "grad_scale", None))
        if batch is not None:
            self._collect(batch)
        began = self.cost.add("gradients", began)
        if self.schedule.due("boundary", self.clock.step):
            self.guard(self.notes.unit_gradients, probe.parameters)
            self.cost.add("boundary", began)

    def _settle(self) -> None:
        """Another optimizer may follow in this Step, or this one may step again: then the next Step has begun here."""
        self._rest = self.registry.rest(self.clock.step, self.schedule)
        self._settled = self._rows if self._settled is None else self._settled.absorb(self._rows)
        self._rows = StepRows(self.clock.step)

    def _close_step(self, *, whole: bool = True) -> None:
        """The Step is complete; where not `whole`, what came after its last optimizer step is the next one's."""
        self._flush_taps()
        began = time.perf_counter()
        step = self.clock.step
        self.registry.rescan(step)
        settled, self._settled = self._settled, None
        following = StepRows(step + 1)
        if settled is not None and not whole:
            self._rows, following = settled, self._rows
        else:
            self._rest = self.registry.rest(step, self.schedule)
            self._rows = self._rows if settled is None else settled.absorb(self._rows)
        rows = self._rows
        rows.batches += self._rest
        self.guard(self.scaling.undo_accumulation, rows)
        self._rest = []
        self.guard(self._close_notes)
        self.guard(self.batch_tracker.close, rows, measured=self.schedule.due("gradients", step))
        now = self.cost.add("boundary", began)
        rows.scalars.update({f"ledger/{key}": value for key, value in rows.accounts.items()})
        rows.scalars["num_backwards"] = float(rows.num_backwards)
        rows.scalars["step_ms"] = (now - self.cost.step_began) * 1e3
        self.cost.close(step, rows, self.sink)
        self.clock.close()
        following.step = self.clock.step
        self._rows = following
        self.ring.put(rows)
        self._prepare_step()
        if self.after_step is not None:
            self.guard(self.after_step)

    def _close_notes(self) -> None:
        scalars = self._rows.scalars
        scalars.update(self.notes.step_closes(self.clock.optimizers))
        self._rows.reads = self.notes.send()
        if self._counts.num_scheduler_steps:
            scalars["scheduler_steps"] = float(self._counts.num_scheduler_steps)
        cosines = [cosine for probe in self.registry.probes if (cosine := probe.take_cosine()) is not None]
        here = [cosine for cosine in cosines if isinstance(cosine, float)]
        if here:
            scalars["update_cos"] = sum(here) / len(here)
        there = [cosine for cosine in cosines if isinstance(cosine, torch.Tensor)]
        if there and not here:  # of several optimizers on devices, the first one's
            self._rows.pending_scalars.append(("update_cos", measure_async(there[:1])))

    def _prepare_step(self) -> None:
        step = self.clock.step
        self._stepped_in_backward = False
        self.cost.begin()
        self.phases.forget()
        due = self.schedule.histogram_due(step)
        self._extras = Extras(histogram=True, sketch=True, seed=SKETCH_SEED) if due else None
        self._time_device(step)
        self._choose_recording()
        self.scaling.forget()
        self.cost.step_began = time.perf_counter()

    def _time_device(self, step: int) -> None:
        """Now and then the device's own time is asked for; it is read when it has come, never waited for."""
        waiting = self.taps.waiting
        waiting.extras, waiting.timed = self._extras, self.schedule.timed(step)
        self.notes.reads.timed = waiting.timed
        for probe in self.registry.probes:
            probe.timed = waiting.timed
