"""What is left behind step after step: graphs, outputs, hooks."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar, Final

import numpy as np

from stethoscope.analyse.span import Span
from stethoscope.detect.detector import Code, Detector, Reading, Rule, Streak
from stethoscope.detect.needs import Need
from stethoscope.record import Evidence, Finding, Severity, metrics, name_list
from stethoscope.record.events import GraphsAlive, Hooks

GRAPHS_NEEDED: Final = 20
GROWTH: Final = 0.8
"""Graphs that stay alive, against steps: nearly one more with every step."""
OUTPUT_STEPS: Final = 10
"""Steps over which outputs of earlier steps pile up before they are called a leak."""
FLAG_STEPS: Final = 10
RISES_NEEDED: Final = 3


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
    """Follows counts that should stay flat."""

    codes: ClassVar[tuple[Code, ...]] = (
        Code(
            "graph_retained",
            needs=(Need("counts of live graphs", "metric", (metrics.GRAPHS_ALIVE,), "watch(model, optimizer)"),),
        ),
        Code(
            "hooks_accumulate",
            needs=(Need("counts of hooks", "metric", (metrics.NUM_HOOKS,), "counted every 16 steps"),),
        ),
    )

    def __init__(self) -> None:
        self._alive, self._outputs = _Rise(), _Rise()
        self._lines: list[str] = []
        self._retain, self._create = Streak(), Streak()
        self._hooks = _Counts()
        self._hooked: list[str] = []
        self._last_step = 0

    def observe(self, span: Span) -> None:
        """Take in the counts."""
        for _, alive_now in span.events_of(GraphsAlive):
            self._lines = list(alive_now.lines)
        for _, grown in span.events_of(Hooks):
            self._hooked = list(grown.modules)
        alive, hooks = span.metric(metrics.GRAPHS_ALIVE), span.metric(metrics.NUM_HOOKS)
        retain, create = span.metric(metrics.RETAIN_GRAPH), span.metric(metrics.CREATE_GRAPH)
        backwards, grads = span.metric(metrics.NUM_BACKWARDS), span.metric(metrics.NUM_GRADS)
        outputs, marked = span.metric(metrics.OUTPUTS_ALIVE), span.metric(metrics.OUTPUTS_MARKED)
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

    def rules(self) -> Iterator[Rule]:
        """Each where it lasts."""
        yield self._alive_graphs()
        yield self._alive_outputs()
        yield self._unused_flag()
        yield self._more_hooks()

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
