"""What is left behind step after step: graphs, hooks; and what should move along but does not: averages, optimizer state."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar, Final

import numpy as np

from stethoscope.analyse.span import Span
from stethoscope.detect.detector import Code, Detector, Reading, Rule, Streak
from stethoscope.detect.groups import Group, groups_by_site
from stethoscope.detect.needs import STATE, Need, optional
from stethoscope.record import Evidence, Finding, Kind, Severity, metrics, name_list
from stethoscope.record.events import Average, Averages, Continuation, GraphsAlive, Hooks, Ownership, Totals

GRAPHS_NEEDED: Final = 20
GROWTH: Final = 0.8
"""Graphs that stay alive, against steps: nearly one more with every step."""
OUTPUT_STEPS: Final = 10
"""Steps over which outputs of earlier steps pile up before they are called a leak."""
FLAG_STEPS: Final = 10
RISES_NEEDED: Final = 3
AVERAGE_LOOKS: Final = 3
TENSORS_NEEDED: Final = 4
"""With momentum: fewer could equal their gradients by accident."""


class _Rise:
    """A count since the last time it fell: growth until the end, or until an epoch's sum was dropped."""

    def __init__(self) -> None:
        self.num = 0
        self.start = self.now = np.nan
        self.first_step = self.last_step = 0
        self.num_since = self.num_rises = 0
        """Counts since the last fall, and how many of them were higher than the one before."""
        self._measure = (0.0, 0.0)

    def see(self, step: int, count: float, measure: float) -> None:
        """One more count, and by what its growth is measured."""
        if self.num == 0 or count < self.now:
            self.start, self.first_step, self._measure = count, step, (measure, measure)
            self.num_since = self.num_rises = 0
        else:
            self.num_since += 1
            self.num_rises += int(count > self.now)
        self.now, self.last_step, self._measure = count, step, (self._measure[0], measure)
        self.num += 1

    @property
    def length(self) -> float:
        """By how much the measure grew since then."""
        return self._measure[1] - self._measure[0]


class _Counts:
    """How a count stands: the first, the largest, the latest, and how often it rose."""

    def __init__(self) -> None:
        self.first = self.most = self.now = np.nan
        self.num_rises = 0
        self.before_rise = 0
        """The last step before it rose for the first time."""
        self._step = 0

    def see(self, step: int, count: float) -> None:
        """One more count."""
        if np.isnan(self.first):
            self.first = self.most = count
        elif count > self.now:
            self.num_rises += 1
            self.before_rise = self._step if self.num_rises == 1 else self.before_rise
        self.now, self.most, self._step = count, max(self.most, count), step


class Leftovers(Detector):
    """Follows counts that should stay flat, and copies that should not."""

    codes: ClassVar[tuple[Code, ...]] = (
        Code(
            "graph_retained",
            needs=(Need("counts of live graphs", "metric", (metrics.GRAPHS_ALIVE,), "watch(model, optimizer)"),),
        ),
        Code(
            "hooks_accumulate",
            needs=(Need("counts of hooks", "metric", (metrics.NUM_HOOKS,), "counted every 16 steps"),),
        ),
        Code(
            "ema_frozen",
            needs=(Need("looks at averaged weights", "event", (Averages.KIND,), "watch(model, optimizer, ema=ema)"),),
        ),
        Code(
            "optimizer_state_lost",
            needs=(
                Need(
                    "the optimizer's own step count",
                    "metric",
                    (metrics.OPTIMIZER_STEP,),
                    "kept by Adam and its kin",
                    is_optional=True,
                ),
                optional(STATE),
            ),
        ),
    )

    def __init__(self) -> None:
        self._alive, self._outputs = _Rise(), _Rise()
        self._lines: list[str] = []
        self._retain, self._create = Streak(), Streak()
        self._hooks = _Counts()
        self._hooked: list[str] = []
        self._averages: tuple[int, tuple[Average, ...]] = (0, ())
        self._num_averages = 0
        self._averages_moved = False
        self._ended = False
        self._replaced: list[int] = []
        """Steps at which the script made a new optimizer, which rightly begins with nothing."""
        self._num_starts = 0
        self._first_start: int | None = None
        self._is_momentum_lost = False
        """Whether it is momentum by which the first of them was seen."""
        self._lost_count = 0.0
        self._count: tuple[int, float] | None = None
        self._groups: dict[str, Group] = {}
        self._momentum_seen = 0
        self._last_step = 0

    def observe(self, span: Span) -> None:
        """Take in the counts."""
        for _, alive_now in span.events_of(GraphsAlive):
            self._lines = list(alive_now.lines)
        for _, grown in span.events_of(Hooks):
            self._hooked = list(grown.modules)
        for event, said in span.events_of(Averages):
            self._averages = (event.step, said.averages)
            self._num_averages += 1
            self._averages_moved = self._averages_moved or any(a.moved for a in said.averages)
        self._replaced += [event.step for event, ownership in span.events_of(Ownership) if ownership.replaces]
        # A new training in an old folder, or one beside another: nothing was lost.
        self._replaced += [event.step for event, said in span.events_of(Continuation) if said.how != "resumed"]
        self._ended = self._ended or bool(span.events_of(Totals))
        alive, hooks = span.metric(metrics.GRAPHS_ALIVE), span.metric(metrics.NUM_HOOKS)
        retain, create = span.metric(metrics.RETAIN_GRAPH), span.metric(metrics.CREATE_GRAPH)
        backwards, counts = span.metric(metrics.NUM_BACKWARDS), span.metric(metrics.OPTIMIZER_STEP)
        grads = span.metric(metrics.NUM_GRADS)
        outputs, marked = span.metric(metrics.OUTPUTS_ALIVE), span.metric(metrics.OUTPUTS_MARKED)
        self._see_momentum(span)
        for index, step in enumerate(span.steps):
            self._last_step = int(step)
            if np.isfinite(alive[index]):
                self._alive.see(int(step), float(alive[index]), float(step))
            if np.isfinite(outputs[index]):
                self._outputs.see(int(step), float(outputs[index]), float(marked[index]))
            if np.isfinite(hooks[index]):
                self._hooks.see(int(step), float(hooks[index]))
            if np.isfinite(backwards[index]):
                self._retain.see(int(step), bool(retain[index] == 1.0 and backwards[index] == 1))
                # A second backward, or torch.autograd.grad, is what a graph of gradients is for.
                unused = backwards[index] == 1 and not grads[index] > 0
                self._create.see(int(step), bool(create[index] == 1.0 and unused))
            if np.isfinite(counts[index]):
                self._see_count(int(step), float(counts[index]))

    def _see_count(self, step: int, count: float) -> None:
        """Adam counts its own steps: the count of a continued run goes on, or begins again at 1."""
        before, self._count = self._count, (step, count)
        if (
            before is not None
            and step > before[0]
            and count < before[1]
            and count <= 1.0
            and not self._was_replaced(before[0], step)
        ):
            self._note_start(step, is_momentum=False, lost=before[1])

    def _was_replaced(self, after: int, until: int) -> bool:
        return any(after < step <= until for step in self._replaced)

    def _note_start(self, step: int, *, is_momentum: bool, lost: float = 0.0) -> None:
        self._num_starts += 1
        if self._first_start is None:
            self._first_start, self._is_momentum_lost, self._lost_count = step, is_momentum, lost

    def _see_momentum(self, span: Span) -> None:
        """SGD's first step after a loss of its state has a momentum that is the gradient itself, in every tensor."""
        self._groups = groups_by_site(span, self._groups)
        gradients = {span.sites[n].site.path: int(n) for n in span.site_indices(Kind.GRADIENT)}
        pairs = []
        for n in span.site_indices(Kind.OPTIMIZER_STATE):
            path = span.sites[n].site.path.removesuffix(".momentum_buffer")
            group = self._groups.get(path)
            plain = group is not None and group.number("momentum", 0.0) >= 0.5 and not group.number("weight_decay", 0.0)
            if path in gradients and path != span.sites[n].site.path and plain:
                pairs.append((int(n), gradients[path]))
        if len(pairs) < TENSORS_NEEDED:
            return
        norms, indices = span.stat("norm"), np.array(pairs).T
        momentum, gradient = norms[:, indices[0]], norms[:, indices[1]]
        for row in np.flatnonzero(np.isfinite(momentum).all(axis=1) & (gradient > 0).all(axis=1)):
            equal = bool((np.abs(momentum[row] - gradient[row]) <= 1e-5 * gradient[row]).all())
            step = int(span.steps[row])
            if (
                equal
                and self._momentum_seen
                and step > self._momentum_seen
                and not self._was_replaced(self._momentum_seen, step)
            ):
                self._note_start(step, is_momentum=True)
            self._momentum_seen = max(self._momentum_seen, step)

    def rules(self) -> Iterator[Rule]:
        """Each where it lasts."""
        yield self._alive_graphs()
        yield self._alive_outputs()
        yield self._unused_flag()
        yield self._more_hooks()
        yield self._still_average()
        yield self._lost_state()

    def _alive_graphs(self) -> Rule:
        alive = self._alive
        where = f" (backward is called at {name_list(self._lines, 1)})" if self._lines else ""
        return Rule(
            "graph_retained",
            (
                Reading("steps at which live graphs were counted", alive.num, ">=", GRAPHS_NEEDED),
                Reading("graphs of earlier steps alive", alive.now, ">=", GRAPHS_NEEDED),
                Reading("steps since their number last fell", alive.length, ">=", GRAPHS_NEEDED),
                Reading("graphs that came in that time", alive.now - alive.start, ">=", GROWTH * alive.length),
            ),
            lambda: Finding(
                "graph_retained",
                Severity.WARNING,
                f"{int(alive.now):,} graphs of earlier steps are still alive, one more with each step{where}: something keeps the "
                "loss, such as total += loss.",
                alive.first_step,
                alive.last_step,
                (),
                (Evidence("graphs alive", alive.now, alive.start),),
                "total += loss.item()  # or loss.detach()",
            ),
            "kept alive",
        )

    def _alive_outputs(self) -> Rule:
        """Predictions whose graphs stay: nearly every one that was marked since the last time that any were let go."""
        outputs = self._outputs
        rise = outputs.now - outputs.start
        return Rule(
            "graph_retained",
            (
                Reading(
                    "outputs of earlier steps that stayed alive since their number last fell", rise, ">=", GRAPHS_NEEDED
                ),
                Reading("the same, against all outputs of that time", rise, ">=", GROWTH * outputs.length),
                # What is kept of a rollout comes at once and stays level; what leaks comes with every step.
                Reading("steps in that time", outputs.num_since, ">=", OUTPUT_STEPS),
                Reading("of which added to them", outputs.num_rises, ">=", GROWTH * outputs.num_since),
            ),
            lambda: Finding(
                "graph_retained",
                Severity.WARNING,
                f"{int(outputs.now):,} outputs of earlier steps are still alive with their graphs, one more with each step: something "
                "keeps the model's predictions, such as a list for a plot.",
                outputs.first_step,
                outputs.last_step,
                (),
                (Evidence("outputs alive", outputs.now, outputs.start),),
                "history.append(output.detach())",
            ),
            "outputs",
            is_otherwise=True,
        )

    def _unused_flag(self) -> Rule:
        creates = self._create.longest >= min(FLAG_STEPS, self._retain.longest)
        name, streak = ("create_graph", self._create) if creates else ("retain_graph", self._retain)
        return Rule(
            "graph_retained",
            (Reading(f"steps in a row with {name} and no use of it", streak.longest, ">=", FLAG_STEPS),),
            lambda: Finding(
                "graph_retained",
                Severity.WARNING,
                f"backward({name}=True) on every step since {streak.start_of_longest:,}, with no second backward that would need it: "
                "memory that is never used.",
                streak.start_of_longest,
                streak.last_step,
                (),
                (Evidence("steps with the flag", float(streak.longest)),),
                "loss.backward()  # without the flag",
            ),
            "flags",
        )

    def _more_hooks(self) -> Rule:
        hooks = self._hooks
        return Rule(
            "hooks_accumulate",
            (
                Reading("hooks at the start", hooks.first),
                Reading("times their number rose", hooks.num_rises, ">=", RISES_NEEDED),
                Reading("hooks now, against the most there were", hooks.now, ">=", hooks.most),
            ),
            lambda: Finding(
                "hooks_accumulate",
                Severity.WARNING,
                f"The model's hooks grew from {hooks.first:.0f} to {hooks.now:.0f} since step {hooks.before_rise:,}: they are "
                "registered again and never removed.",
                hooks.before_rise,
                self._last_step,
                tuple(self._hooked),
                (Evidence("hooks", hooks.now, hooks.first),),
                "handle = module.register_forward_hook(hook); handle.remove()",
            ),
        )

    def _still_average(self) -> Rule:
        step, latest = self._averages
        still = [average.type for average in latest if not average.moved and (average.given or self._ended)]
        return Rule(
            "ema_frozen",
            (
                Reading("looks at averaged weights", self._num_averages, ">=", AVERAGE_LOOKS),
                Reading("the average moved at least once", self._averages_moved, "=", 0),
                Reading("averages that were given to watch(), or of a run that ended", len(still), ">", 0),
            ),
            lambda: Finding(
                "ema_frozen",
                Severity.CRITICAL,
                f"The average of the weights ({still[0]}) has not moved in {step:,} steps: it is never updated.",
                0,
                self._last_step,
                (),
                (Evidence("looks without a change", float(self._num_averages)),),
                "ema.update_parameters(model)  # after optimizer.step()",
            ),
        )

    def _lost_state(self) -> Rule:
        step = self._first_start or 0
        shown = (
            Evidence("momentum, against the gradient", 1.0)
            if self._is_momentum_lost
            else Evidence("the optimizer's own step count", 1.0, self._lost_count or None)
        )
        return Rule(
            "optimizer_state_lost",
            (Reading("times the optimizer's own count or momentum began again", self._num_starts, ">", 0),),
            lambda: Finding(
                "optimizer_state_lost",
                Severity.CRITICAL,
                f"The run was continued at step {step:,} with an empty optimizer: its moments begin again at zero.",
                step,
                self._last_step,
                (),
                (shown,),
                'optimizer.load_state_dict(checkpoint["optimizer"])',
            ),
        )
