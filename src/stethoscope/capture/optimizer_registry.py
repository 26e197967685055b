"""Who belongs to whom: which optimizer holds which of the model's parameters, and which nobody holds.

An optimizer is ours when the user gave it or when it holds a parameter of the model. Models change while they train:
layers are added and replaced, materialised from the meta device, unfrozen. The model is read again when an optimizer comes
with parameters that were not known, at steps that are powers of two, and now and then.
"""

from __future__ import annotations

import numbers
import operator
import weakref
from collections.abc import Callable
from typing import Any, Final

import torch

from stethoscope.capture.clock import Clock
from stethoscope.capture.gradient_arrivals import GradientArrivals
from stethoscope.capture.ledger import Ledger
from stethoscope.capture.optimizer_probe import OptimizerProbe, buffers
from stethoscope.capture.ring import MeasuredGroup, StepRows
from stethoscope.capture.schedule import StepPlan
from stethoscope.capture.sites import Names, Sink, SiteTable
from stethoscope.config import DebugConfig
from stethoscope.kernels import measure_async
from stethoscope.record import Kind, events, metrics

RESCAN_EVERY: Final = 256
"""Steps after which the model is read again, beside those that are powers of two."""
UNDONE_TIMES: Final = 5
"""Steps in a row after which a weight was put back, before that is called a habit."""


class OptimizerRegistry:
    """The optimizers of one model, each with its boundary and its ledger."""

    def __init__(
        self,
        optimizers: list[torch.optim.Optimizer],
        names: Names,
        table: SiteTable,
        config: DebugConfig,
        sink: Sink,
        clock: Clock,
    ) -> None:
        self._names, self._table, self._config, self._sink, self._clock = names, table, config, sink, clock
        self._given = [weakref.ref(optimizer) for optimizer in optimizers]
        self._boundaries: dict[int, OptimizerProbe] = {}
        self._ledgers: dict[int, Ledger] = {}
        self._said_undone = False
        self._replaced: list[weakref.ref[Any]] = []
        self._arrivals = GradientArrivals()
        self._foreign: dict[int, weakref.ref[Any]] = {}
        """Optimizers that hold nothing of this model, as far as was known when they were met."""
        self.repeats_parameters = False
        """Whether one that was met took the place of one that had stepped in the open Step already: so a new Step begins."""
        self.orphans: OptimizerProbe | None = None
        """Parameters of the model that no optimizer holds."""
        self.on_change: Callable[[], None] = lambda: None
        """Called when the model's modules or parameters are not the ones known before."""
        for optimizer in optimizers:
            self.meet(optimizer)
        self.ledgers = list(self._ledgers.values()) or [Ledger(list(names.tensors))]
        """One for each optimizer; where there is none, one for the whole model."""

    @property
    def probes(self) -> list[OptimizerProbe]:
        """Of all optimizers that are alive."""
        return [probe for probe in self._boundaries.values() if probe.optimizer is not None]

    def probe(self, optimizer: Any) -> OptimizerProbe | None:
        """The boundary of an optimizer that was met."""
        probe = self._boundaries.get(id(optimizer))
        return probe if probe is not None and probe.is_of(optimizer) else None

    def ledger(self, optimizer: Any) -> Ledger:
        """The ledger of an optimizer that is ours."""
        return self._ledgers[id(optimizer)]

    def meet(self, optimizer: torch.optim.Optimizer) -> OptimizerProbe | None:
        """The boundary of an optimizer that is about to step; None where it trains something else."""
        if self._names.lazy and self._names.has_materialised:
            self._refresh()
        probe = self.probe(optimizer)
        parameters = parameters_of(optimizer)
        if probe is not None and is_same(parameters, probe.all_parameters):
            return probe
        known = self._names.parameters
        if probe is None and self._is_foreign(optimizer):
            return None
        if any(id(p) not in known for p in parameters):
            self._refresh()
            known = self._names.parameters
        given = any(ref() is optimizer for ref in self._given)
        if probe is None and not given and not any(id(p) in known for p in parameters):
            self._foreign[id(optimizer)] = weakref.ref(optimizer)
            return None
        return self._take(optimizer, parameters)

    def settle_accounts(self, optimizer: torch.optim.Optimizer, rows: StepRows) -> None:
        """The ledger's counts of this step; at steps that are powers of two, whose gradients were kept where not all were."""
        ledger, step = self.ledger(optimizer), self._clock.step
        rows.account(ledger.step_begins())
        if ledger.kept and step & (step - 1) == 0:
            sites = [site.path for p in ledger.kept if (site := self._names.site(p, Kind.GRADIENT)) is not None]
            self._sink.tell(step, events.GradientsKept(sites=tuple(sites)))

    def note_undone(self, probe: OptimizerProbe) -> None:
        """Weights that somebody puts back after every step: said once it is a habit, and again at powers of two."""
        step, sites = self._clock.step, probe.undone(UNDONE_TIMES)
        if sites and (step & (step - 1) == 0 or not self._said_undone):
            self._said_undone = True
            self._sink.tell(step, events.UndoneUpdates(sites=tuple(sites), times=UNDONE_TIMES))

    def note_rates(self, optimizer: torch.optim.Optimizer, rows: StepRows) -> None:
        """The learning rate of each of its groups, numbered over all optimizers."""
        first = 0
        for other in self._clock.optimizers if self._clock.has_several else ():
            if other is optimizer:
                break
            first += len(other.param_groups)
        for number, group in enumerate(optimizer.param_groups, start=first):
            name = metrics.learning_rate(number)
            rate = group.get("lr")
            if type(rate) is float:
                rows.scalars[name] = rate
            elif isinstance(rate, torch.Tensor):
                rows.pending_scalars.append((name, measure_async([rate.detach()])))
            elif isinstance(rate, numbers.Real):
                rows.scalars[name] = float(rate)

    def measure_unowned(self, plan: StepPlan) -> list[MeasuredGroup]:
        """What belongs to no optimizer: buffers; parameters that none holds, whose gradients would be lost."""
        orphans = self.orphans
        if orphans is None and not plan.boundary:
            return []
        found: list[MeasuredGroup | None] = []
        if orphans is not None and orphans.parameters and plan.gradients:
            found.append(orphans.gradients(None))
        if plan.boundary:
            if orphans is not None:
                found.append(orphans.weights(None))
            if self._config.buffers:
                found.append(buffers(self._names, self._table, self._config.layers))
        return [group for group in found if group is not None]

    def close_step(self, rows: StepRows) -> None:
        """The cosine between this step's updates and the last step's; of several optimizers' the mean."""
        cosines = [cosine for probe in self.probes if (cosine := probe.take_cosine()) is not None]
        if not cosines:
            return
        here = [cosine for cosine in cosines if isinstance(cosine, float)]
        if here:
            rows.scalars[metrics.UPDATE_COSINE] = sum(here) / len(here)
        there = [cosine for cosine in cosines if isinstance(cosine, torch.Tensor)]
        if there and not here:  # of several optimizers on devices, the first one's
            rows.pending_scalars.append((metrics.UPDATE_COSINE, measure_async(there[:1])))

    @property
    def rescan_at(self) -> int:
        """A step after which the model is read again out of turn; -1 where there is none."""
        return self._arrivals.check_at

    def is_due(self, step: int) -> bool:
        """Whether the model is to be read again after this step."""
        return step & (step - 1) == 0 or step % RESCAN_EVERY == 0 or step == self._arrivals.check_at

    def rescan(self, step: int) -> None:
        """Read the model again."""
        self._refresh()
        for probe in self.probes:
            # What was frozen when the ledger began may be trained by now.
            if probe.optimizer is not None and self.ledger(probe.optimizer).is_outdated(probe.all_parameters):
                self._ledgers[id(probe.optimizer)] = Ledger(probe.all_parameters)
                self.ledgers = list(self._ledgers.values())
        self.say(step)

    def say(self, step: int, *, replaces: bool = False) -> None:
        """Record the lists as they are now; `replaces` where a new optimizer took the place of an older one."""
        owned = {id(p) for probe in self.probes for p in probe.all_parameters}
        orphans = [p for p in self._names.tensors if id(p) not in owned]
        self.orphans = self._bound(None, orphans) if orphans else None
        at_work = [probe for probe in self.probes if not self._clock.rests(probe.optimizer)]
        foreign_params = [p for probe in at_work for p in probe.foreign_params]
        self._sink.tell(
            step,
            events.Ownership(
                replaces=replaces,
                optimizers=tuple(type(o).__name__ for o in self._clock.optimizers),
                groups=tuple(self._group(o, g) for o in self._clock.optimizers for g in o.param_groups),
                not_in_optimizer=tuple(self._describe(p, step) for p in orphans),
                not_in_model=tuple(
                    # One that was there before says nothing yet: nobody is accused of holding what the model does not use.
                    events.ForeignParameter(
                        shape=tuple(p.shape), has_gradient=self._arrivals.has_arrived(p, step) is not False
                    )
                    for p in foreign_params
                ),
            ),
        )

    # ---- how ----

    def _take(self, optimizer: torch.optim.Optimizer, parameters: list[Any]) -> OptimizerProbe:
        is_new = all(known is not optimizer for known in self._clock.optimizers)
        gone = [key for key, probe in self._boundaries.items() if probe.optimizer is None]
        for key in gone:
            del self._boundaries[key], self._ledgers[key]
        replaces = is_new and (self._replace_older(optimizer, parameters) or bool(gone))
        probe = self._boundaries[id(optimizer)] = self._bound(optimizer, parameters)
        self._ledgers[id(optimizer)] = Ledger(parameters)
        self.ledgers = list(self._ledgers.values())
        self._clock.know(optimizer)
        self.say(self._clock.step, replaces=replaces)
        return probe

    def _replace_older(self, optimizer: Any, parameters: list[Any]) -> bool:
        """A new optimizer for all that an older one holds takes its place, though nobody has collected that one yet.

        One that was replaced and steps again replaces nobody: two take turns on the same parameters.
        """
        if any(ref() is optimizer for ref in self._replaced):
            return False
        held = {id(p) for p in parameters}
        older = [
            (key, probe.optimizer)
            for key, probe in self._boundaries.items()
            if self._clock.own_counts.get(key) and held.issuperset(id(p) for p in probe.all_parameters)
        ]
        self.repeats_parameters |= any(self._clock.repeats(other) for _, other in older)
        for key, other in older:
            del self._boundaries[key], self._ledgers[key]
            self._clock.forget(other)
            self._replaced.append(weakref.ref(other))
        return bool(older)

    def _is_foreign(self, optimizer: Any) -> bool:
        ref = self._foreign.get(id(optimizer))
        return ref is not None and ref() is optimizer

    def _refresh(self) -> None:
        if not self._names.refresh():
            return
        self._foreign.clear()
        for probe in self.probes:
            self._boundaries[id(probe.optimizer)] = self._bound(probe.optimizer, probe.all_parameters)
        self.on_change()

    def _bound(self, optimizer: Any, parameters: list[Any]) -> OptimizerProbe:
        return OptimizerProbe(optimizer, parameters, self._names, self._table, self._config)

    def _describe(self, parameter: Any, step: int) -> events.OrphanParameter:
        module, name = self._names.parameters[id(parameter)]
        return events.OrphanParameter(
            site=f"{module}.{name}" if module else name,
            trainable=bool(parameter.requires_grad),
            has_gradient=self._arrivals.has_arrived(parameter, step) is True,
        )

    def _group(self, optimizer: Any, group: dict[str, Any]) -> events.ParameterGroup:
        kept = {
            key: value
            for key, value in group.items()
            if key != "params" and isinstance(value, (int, float, bool, str, tuple, type(None)))
        }
        names = [self._names.parameters.get(id(p)) for p in group["params"]]
        sites = tuple(f"{n[0]}.{n[1]}" if n[0] else n[1] for n in names if n is not None)
        return events.ParameterGroup(optimizer=type(optimizer).__name__, sites=sites, settings=kept)


def parameters_of(optimizer: Any) -> list[Any]:
    """All that it trains, group by group."""
    groups = optimizer.param_groups
    if len(groups) == 1:
        return list(groups[0]["params"])
    return [parameter for group in groups for parameter in group["params"]]


def is_same(first: list[Any], second: list[Any]) -> bool:
    """Whether both hold the same objects, in this order."""
    return len(first) == len(second) and all(map(operator.is_, first, second))
