"""Facts that are not rows: what the loss is made of, modes, hooks, units, attention, averages, graphs that stay alive.

The Watcher calls one method at each moment; every method is cheap at most steps and looks closely on a schedule. All
facts go to the sink as events, metrics or vectors, so that detectors read them live and stored alike.
"""

from __future__ import annotations

import math
import numbers
import sys
import time
import weakref
from collections import defaultdict
from typing import Any, Final

import torch

from stethoscope.capture import attention, census, lossgraph, nodes, routing, units
from stethoscope.capture.averages import Averages
from stethoscope.capture.clock import Clock
from stethoscope.capture.deferred_reads import DeferredReads, StepReads, Values, can_defer
from stethoscope.capture.schedule import Schedule
from stethoscope.capture.sites import Names, Sink, SiteTable
from stethoscope.capture.step_observations import StepObservations
from stethoscope.record import Kind, Site, events, metrics
from stethoscope.record.wire import EventBody

CENSUS_EVERY: Final = 16
"""Steps between two counts of hooks and looks at averages."""
MAX_LAYERS: Final = 4096
"""Layers of one step whose units are looked at."""
MAX_UNIT_GRADIENTS: Final = 1024
"""Weights of one step whose gradients are looked at row by row: each takes 30 microseconds."""
MAX_BACKWARDS: Final = 64
"""Backward passes of one step whose weight in it is looked at."""


class Sentinel:
    """Lives in a loss's graph, so that its death tells when the graph died."""

    __slots__ = ("__weakref__", "line", "step")

    def __init__(self, line: str, step: int = 0) -> None:
        self.line, self.step = line, step


class Notes:
    """All facts about one model's training."""

    def __init__(
        self,
        names: Names,
        table: SiteTable,
        sink: Sink,
        clock: Clock,
        schedule: Schedule,
    ) -> None:
        self._names, self._table, self._sink, self._clock = names, table, sink, clock
        self._schedule = schedule
        self.spent: defaultdict[str, float] = defaultdict(float)
        """Seconds that looking at units took in this step, by where: what is under a part's name was counted there, too."""
        self.averages = Averages(names)
        self._alive: set[weakref.ref[Sentinel]] = set()
        """Graphs of losses; each goes by itself when it dies."""
        self._outputs_alive: weakref.WeakSet[Sentinel] = weakref.WeakSet()
        self._num_outputs_marked = 0
        self._num_marked_before = 0
        """Of these, the ones of earlier steps: what a step keeps for itself, an episode's outputs, is no leftover."""
        self._owned = False
        """Whether nodes of the graph under way were told whose output they are."""
        self._looked: int = -1
        self._num_looked_at = 0
        self._looked_step: float = -math.inf
        self._look_began: float = -math.inf
        """The step in which the latest look at units began; it may take several."""
        self._share, self._num_shares = 0, 1
        """Whose turn it is in the look under way, and among how many it is divided."""
        self._numbers: dict[str, int] = {}
        """Modules in the order in which they were first met, by which they are dealt out."""
        self._recording = True
        self._last_hooks = 0
        self._modes: events.Modes | None = None
        self._twins: census.Twins | None = None
        self._copies: census.Copies | None = None
        self.metrics: dict[str, float] = {}
        """Named numbers of the open step, taken by the Watcher when it closes."""
        self._reading: lossgraph.Reading | None = None
        """How the latest loss that was looked at reads the output."""
        self.reads = DeferredReads()
        self._counter: weakref.ref[torch.Tensor] | None = None
        """The optimizer's own count of its steps, where that is on a device."""
        self._observed = StepObservations()
        self._routing = routing.Routing(names.root)
        self._units = units.UnitRecord()

    def begin(self) -> None:
        """Before the first step: what must be remembered to see it change."""
        self._twins, self._copies = census.Twins(self._names), census.Copies(self._names)
        self.averages.begin()
        untrained = census.untrained(self._names)
        if untrained:
            self._sink.tell(self._clock.step, events.Untrained(sites=untrained))

    @property
    def units_due(self) -> bool:
        """Whether this step looks at units, all or a share of them: every few steps, of those whose outputs are looked at."""
        step = self._clock.step
        if step != self._looked_step:
            if self._share:
                self._looked_step = step
            elif step - self._look_began >= self._schedule.units_every():
                self._looked_step = self._look_began = step
                self._num_shares = self._schedule.unit_shares
        return step == self._looked_step

    def _is_turn_of(self, path: str) -> bool:
        """Whether this module is among those that the step under way looks at."""
        number = self._numbers.setdefault(path, len(self._numbers))
        return number % self._num_shares == self._share

    # ---- forward ----

    def forward_begins(self, *, evaluating: bool, recording: bool = True) -> None:
        """The model is called: in which mode, and whether its outputs are looked at."""
        root = self._names.root
        self._recording = recording
        if evaluating:
            modes = census.modes(root, events.EvalForward)
            if modes.in_training:
                self._sink.tell(self._clock.step, modes)
            return
        self.metrics[metrics.TRAINING_MODE] = float(root.training)
        if self._modes is None or root.training != self._modes.training:
            self._modes = census.modes(root, events.Modes)
            self._sink.tell(self._clock.step, self._modes)

    def output(self, path: str, module: Any, args: Any, tensors: list[tuple[str, torch.Tensor]], position: int) -> None:
        """A module returned, in a step whose outputs are looked at."""
        first = tensors[0][1]
        if first.grad_fn is not None:
            nodes.own(first.grad_fn, path)
            self._owned = True
            if not path:
                self._mark_output(first.grad_fn)
        if not self.units_due or not self._is_turn_of(path) or not can_defer(first):
            return
        began = time.perf_counter()
        watch = self.reads.stopwatch(first.device)
        self._look_at_units(path, module, args, first, position)
        if watch is not None:
            watch.stop(first.device)
        self.spent["modules"] += time.perf_counter() - began

    def _look_at_units(self, path: str, module: Any, args: Any, first: torch.Tensor, position: int) -> None:
        seen = self._observed
        if not path:
            numbers = units.logits(first, self._reading)
            if numbers is not None:
                self.reads.ask(numbers, seen.take_logits)
            return
        if seen.num_layers < MAX_LAYERS and not list(module.children()):
            found = units.activity(first)
            if found is not None:
                seen.num_layers += 1
                self.reads.ask(found, seen.take_activity, position, path)
        self._look_closer(path, module, args, first)

    def _mark_output(self, node: Any) -> None:
        """A prediction that somebody keeps holds its graph, although the loss is gone."""
        node.metadata["stethoscope_output"] = sentinel = Sentinel("", self._clock.step)
        self._outputs_alive.add(sentinel)
        self._num_outputs_marked += 1

    def _look_closer(self, path: str, module: Any, args: Any, output: torch.Tensor) -> None:
        given = args[0] if args and isinstance(args[0], torch.Tensor) else None
        if isinstance(module, torch.nn.modules.batchnorm._NormBase) and given is not None and module.training:
            self._observed.normalised[path] = given.numel() / max(given.shape[1] if given.dim() > 1 else 1, 1)
        for squashed in (output, given):
            # An activation written as a function is seen where the next layer takes it in.
            if squashed is not None and units.is_squashed(squashed) and can_defer(squashed):
                numbers = units.saturation(squashed)
                if numbers is not None:
                    self.reads.ask(numbers, self._observed.take_saturation, path)
        self._routing.see(path, given, output)

    # ---- backward ----

    def backward_begins(self, loss: torch.Tensor, *, first_of_step: bool, counts: bool = True) -> None:
        """A backward is about to run from this loss; `counts` where its gradient is part of the step's."""
        node = loss.grad_fn
        if node is None:
            return
        self.mark_graph(node)
        step = self._clock.step
        if first_of_step and step != self._looked and (step & (step - 1) == 0 or step % 64 == 0):
            self._looked, self._num_looked_at = step, 0
            facts = lossgraph.facts(loss)
            if facts:
                self._reading = lossgraph.reading(loss) or self._reading
                self._tell(events.LossGraph, facts)
        if counts and step == self._looked and self._num_looked_at < MAX_BACKWARDS:
            self._num_looked_at += 1
            self._tell(events.Backward, lossgraph.share_in_step(loss))
        if first_of_step and self._owned and self.units_due:
            began = time.perf_counter()
            self._look_at_attention(loss)
            self.spent["attention"] += time.perf_counter() - began
        self._owned = False

    def mark_graph(self, node: Any) -> None:
        """So that it is known how long the graph of a loss stays alive."""
        # Which line it was is asked only where graphs pile up: finding it takes longer than all else here.
        sentinel = Sentinel(_user_line() if self._alive else "")
        node.metadata["stethoscope"] = sentinel
        self._alive.add(weakref.ref(sentinel, self._alive.discard))

    def _tell(self, kind: type[EventBody], body: dict[str, Any]) -> None:
        """An event, at once or when its numbers have come."""
        positions = lossgraph.unread(body)
        for holder, key in positions:
            self.reads.ask(holder[key].clone(), _put, holder, key)
        if positions:
            self._observed.later.append(lambda: kind.from_body(body))
        else:
            self._sink.tell(self._clock.step, kind.from_body(body))

    def _look_at_attention(self, loss: torch.Tensor) -> None:
        found = {path: node for path, node in attention.find(loss).items() if self._is_turn_of(path)}
        watch = self.reads.stopwatch(loss.device)
        for path, node in found.items():
            numbers = attention.numbers_of(node)
            if numbers is not None:
                self.reads.ask(numbers, self._observed.take_attention, path)
        if watch is not None:
            watch.stop(loss.device)

    def unit_gradients(self, parameters: list[Any]) -> None:
        """Gradients as the optimizer is about to use them, row by row."""
        if not self._recording or not self.units_due:
            return
        began = time.perf_counter()
        watch, device = None, torch.device("cpu")
        num_asked = 0
        for parameter in parameters:
            gradient = parameter.grad
            if gradient is None or gradient.dim() < 2:
                continue
            site = self._names.site(parameter, Kind.GRADIENT)
            if site is None or not self._is_turn_of(site.module) or not _has_units(self._names.root, site):
                continue
            if num_asked == MAX_UNIT_GRADIENTS:
                break
            if watch is None:
                device = parameter.device
                watch = self.reads.stopwatch(device)
            rows = units.rows_with_gradient(gradient, self._bias_of(site))
            if rows is not None:
                num_asked += 1
                self.reads.ask(rows, self._observed.take_gradient, self._table.index(site, parameter), site.path)
        if watch is not None:
            watch.stop(device)  # one device's time: events of two cannot be compared
        self.spent["gradients of units"] += time.perf_counter() - began

    def _bias_of(self, site: Site) -> torch.Tensor | None:
        """The gradient of the bias whose units are the rows of this weight, also of a recurrence's or an attention's."""
        module = self._names.root.get_submodule(site.module)
        if "weight" not in site.name or isinstance(module, torch.nn.modules.conv._ConvTransposeNd):
            return None
        bias = dict(self._names.own(module)).get(site.name.replace("weight", "bias"))
        return None if bias is None else bias.grad

    # ---- the step ----

    def step_closes(self, clock: Clock) -> dict[str, float]:
        """The step is complete; returns its named numbers."""
        step = self._clock.step
        self.tell_counts(self.metrics, clock.first)
        if step == self._looked_step:
            # What is known of all of them is told once, when all had their turn.
            self._share = (self._share + 1) % self._num_shares
            self._observed.is_look = self._share == 0
        for path, candidate in self._routing.settle().items():
            self.reads.ask(candidate.count(), self._observed.take_routing, path, candidate)
        if step % CENSUS_EVERY == 0:
            self._count_hooks(step)
            self._observed.later.append(self.averages.ask(self.reads, search=step >= CENSUS_EVERY))
        if step & (step - 1) == 0 and 2 <= step <= 1024:
            self._look_again()
        if len(self._alive) > 8 and step & (step - 1) == 0:
            lines = sorted({found.line for one in list(self._alive) if (found := one()) is not None} - {""})
            self._sink.tell(step, events.GraphsAlive(count=len(self._alive), lines=tuple(lines[:5])))
        taken, self.metrics = self.metrics, {}
        return taken

    def tell_counts(self, scalars: dict[str, float], optimizer: Any) -> None:
        """What is counted in every step: graphs that stay alive, and the optimizer's own steps."""
        scalars[metrics.GRAPHS_ALIVE] = float(len(self._alive))
        if self._num_marked_before:
            step, alive = self._clock.step, self._outputs_alive
            scalars[metrics.OUTPUTS_ALIVE] = float(sum(one.step < step for one in alive)) if alive else 0.0
            scalars[metrics.OUTPUTS_MARKED] = float(self._num_marked_before)
        self._num_marked_before = self._num_outputs_marked
        self._note_count(scalars, optimizer)

    @property
    def training_mode(self) -> bool | None:
        """In which mode the model was called last to be trained; None where it was not."""
        return None if self._modes is None else self._modes.training

    def send(self) -> StepReads | None:
        """What was looked at in the step that closes, if anything was: told when its numbers are there."""
        if not self.reads.is_asked and self._observed.is_empty:
            return None
        step, seen, self._observed = self._clock.step, self._observed, StepObservations()
        return self.reads.send(lambda: seen.tell(step, self._sink, self._units))

    def _count_hooks(self, step: int) -> None:
        by_module = census.hooks_by_module(self._names.root)
        count = sum(by_module.values())
        self.metrics[metrics.NUM_HOOKS] = float(count)
        if count > self._last_hooks and step:
            most = sorted(by_module.items(), key=lambda item: -item[1])[:20]
            self._sink.tell(step, events.Hooks(modules=dict(most)))
        self._last_hooks = count

    def _note_count(self, scalars: dict[str, float], optimizer: Any) -> None:
        """How many steps the optimizer itself has counted, for its first parameter."""
        if optimizer is None or not optimizer.state:
            return
        held = next(iter(optimizer.state.values()))
        count = held.get("step") if isinstance(held, dict) else None
        if isinstance(count, torch.Tensor) and not count.is_cpu:
            self._ask_count(count)
        elif isinstance(count, (torch.Tensor, numbers.Real)):
            scalars[metrics.OPTIMIZER_STEP] = float(count)

    def _ask_count(self, count: torch.Tensor) -> None:
        """Fused and capturable optimizers count on the device: asked for now and then, and when it is another tensor than before."""
        is_new = self._counter is None or self._counter() is not count
        if count.numel() == 1 and can_defer(count) and (is_new or self._clock.step % CENSUS_EVERY == 0):
            self._counter = weakref.ref(count)
            # A copy: it counts on from here before the number is read.
            self.reads.ask(count.detach().clone(), self._observed.take_number, metrics.OPTIMIZER_STEP)

    def _look_again(self) -> None:
        if self._twins is not None and self._copies is not None:
            self._observed.later += [self._twins.ask(self.reads), self._copies.ask(self.reads)]


def _put(holder: dict[str, Any], key: str, values: Values) -> None:
    holder[key] = float(values[0])


def _has_units(root: torch.nn.Module, site: Site) -> bool:
    """Rows of an embedding are words, not units: most are rightly silent."""
    try:
        module = root.get_submodule(site.module)
    except AttributeError:
        return False
    return not isinstance(module, (torch.nn.Embedding, torch.nn.EmbeddingBag))


def _user_line() -> str:
    """Where in the user's code backward was called."""
    frame: Any = sys._getframe(2)
    while frame is not None:
        file = frame.f_code.co_filename
        if "/torch/" not in file and "/stethoscope/" not in file and not file.startswith("<frozen"):
            return f"{file}:{frame.f_lineno}"
        frame = frame.f_back
    return ""
