"""What is left behind step after step: graphs, hooks; and what should move along but does not: averages, optimizer state."""

from __future__ import annotations

from typing import Any, ClassVar, Final

import numpy as np

from stethoscope.analyse.span import Span
from stethoscope.detect.detector import Reading, Streak, name_list
from stethoscope.detect.groups import Group, groups_by_site
from stethoscope.record import Evidence, Finding, Kind, Severity

GRAPHS_NEEDED: Final = 20
GROWTH: Final = 0.8
"""Graphs that stay alive, against steps: nearly one more with every step."""
FLAG_STEPS: Final = 10
RISES_NEEDED: Final = 3
AVERAGE_LOOKS: Final = 3
TENSORS_NEEDED: Final = 4
"""With momentum: fewer could equal their gradients by accident."""


class Leftovers:
    """Follows counts that should stay flat, and copies that should not."""

    codes: ClassVar[tuple[str, ...]] = (
        "graph_retained",
        "hooks_accumulate",
        "ema_frozen",
        "optimizer_state_lost",
    )

    def __init__(self) -> None:
        self._alive: list[tuple[int, float]] = []
        self._outputs: list[tuple[int, float, float]] = []
        self._lines: list[str] = []
        self._retain, self._create = Streak(), Streak()
        self._hooks: list[tuple[int, float]] = []
        self._hooked: list[str] = []
        self._averages: list[tuple[int, list[dict[str, Any]]]] = []
        self._ended = False
        self._starts: list[int] = []
        self._counts: list[tuple[int, float, float]] = []
        self._groups: dict[str, Group] = {}
        self._momentum_seen = 0
        self._lost_momentum: set[int] = set()
        self._last_step = 0

    def observe(self, span: Span) -> None:
        """Take in the counts."""
        for event in span.events:
            if event.kind == "graphs_alive":
                self._lines = [str(line) for line in event.body.get("lines", ())]
            elif event.kind == "hooks":
                self._hooked = list(event.body["modules"])
            elif event.kind == "averages":
                self._averages.append((event.step, event.body["averages"]))
            elif event.kind == "totals":
                self._ended = True
        alive, hooks = span.metric("graphs_alive"), span.metric("num_hooks")
        retain, create = span.metric("ledger/retain_graph"), span.metric("ledger/create_graph")
        backwards, counts = span.metric("num_backwards"), span.metric("optimizer_step")
        grads = span.metric("num_grads")
        outputs, marked = span.metric("outputs_alive"), span.metric("outputs_marked")
        self._see_momentum(span)
        for place, step in enumerate(span.steps):
            self._last_step = int(step)
            if np.isfinite(alive[place]):
                self._alive.append((int(step), float(alive[place])))
            if np.isfinite(outputs[place]):
                self._outputs.append((int(step), float(outputs[place]), float(marked[place])))
            if np.isfinite(hooks[place]):
                self._hooks.append((int(step), float(hooks[place])))
            if np.isfinite(backwards[place]):
                self._retain.see(int(step), bool(retain[place] == 1.0 and backwards[place] == 1))
                # A second backward, or torch.autograd.grad, is what a graph of gradients is for.
                unused = backwards[place] == 1 and not grads[place] > 0
                self._create.see(int(step), bool(create[place] == 1.0 and unused))
            if np.isfinite(counts[place]):
                self._see_count(int(step), float(counts[place]))

    def _see_count(self, step: int, count: float) -> None:
        """Adam counts its own steps: the count of a continued run goes on, or begins again at 1."""
        if self._counts and step > self._counts[-1][0] and count < self._counts[-1][1] and count <= 1.0:
            self._starts.append(step)
            self._counts.append((step, count, self._counts[-1][1]))
        elif not self._counts and step > 0 and count <= 1.0:
            self._counts.append((step, count, 0.0))
        else:
            self._counts[-1:] = [(step, count, 0.0)]

    def _see_momentum(self, span: Span) -> None:
        """SGD's first step after a loss of its state has a momentum that is the gradient itself, in every tensor."""
        self._groups = groups_by_site(span.events, self._groups)
        gradients = {span.sites[n].site.path: int(n) for n in span.places(Kind.GRADIENT)}
        pairs = []
        for n in span.places(Kind.OPTIMIZER_STATE):
            path = span.sites[n].site.path.removesuffix(".momentum_buffer")
            group = self._groups.get(path)
            plain = group is not None and group.number("momentum", 0.0) >= 0.5 and not group.number("weight_decay", 0.0)
            if path in gradients and path != span.sites[n].site.path and plain:
                pairs.append((int(n), gradients[path]))
        if len(pairs) < TENSORS_NEEDED:
            return
        norms, places = span.stat("norm"), np.array(pairs).T
        momentum, gradient = norms[:, places[0]], norms[:, places[1]]
        for row in np.flatnonzero(np.isfinite(momentum).all(axis=1) & (gradient > 0).all(axis=1)):
            equal = bool((np.abs(momentum[row] - gradient[row]) <= 1e-5 * gradient[row]).all())
            step = int(span.steps[row])
            if equal and self._momentum_seen and step > self._momentum_seen:
                self._starts.append(step)
                self._lost_momentum.add(step)
            self._momentum_seen = max(self._momentum_seen, step)

    def readings(self) -> dict[str, list[Reading]]:
        """What each rule asks for, and what it got."""
        flag = max(self._create.longest, self._retain.longest)
        pairs = zip(self._hooks, self._hooks[1:], strict=False)
        moved = any(a["moved"] for _, told in self._averages for a in told)
        return {
            "graph_retained": [
                Reading("graphs of earlier steps alive", self._alive[-1][1] if self._alive else np.nan, ">=", GRAPHS_NEEDED,
                        way="kept alive"),
                Reading("steps in a row with retain_graph or create_graph and no use of it", flag, ">=", FLAG_STEPS, way="flags"),
            ],
            "hooks_accumulate": [
                Reading("hooks at the start", self._hooks[0][1] if self._hooks else np.nan),
                Reading("times their number rose", sum(now[1] > before[1] for before, now in pairs), ">=", RISES_NEEDED),
            ],
            "ema_frozen": [
                Reading("looks at averaged weights", len(self._averages), ">=", AVERAGE_LOOKS),
                Reading("the average moved at least once", int(moved), "=", 0),
            ],
            "optimizer_state_lost": [Reading("times the optimizer's own count or momentum began again", len(self._starts), ">", 0)],
        }  # fmt: skip

    def findings(self) -> list[Finding]:
        """Each where it lasts."""
        found = [
            self._find_alive() or self._find_outputs(),
            self._find_flags(),
            self._find_hooks(),
            self._find_average(),
            self._find_lost(),
        ]
        return [finding for finding in found if finding is not None]

    def _find_alive(self) -> Finding | None:
        if len(self._alive) < GRAPHS_NEEDED or self._alive[-1][1] < GRAPHS_NEEDED:
            return None
        # Growth until the end or until an epoch's sum was dropped: the longest rise counts.
        steps = np.array([step for step, _ in self._alive])
        counts = np.array([count for _, count in self._alive])
        drops = np.flatnonzero(np.diff(counts) < 0)
        start = int(drops[-1]) + 1 if len(drops) else 0
        rise, length = counts[-1] - counts[start], steps[-1] - steps[start]
        if length < GRAPHS_NEEDED or rise < GROWTH * length:
            return None
        where = f" (backward is called at {name_list(self._lines, 1)})" if self._lines else ""
        return Finding(
            "graph_retained", Severity.WARNING,
            f"{int(counts[-1]):,} graphs of earlier steps are still alive, one more with each step{where}: something keeps the loss, "
            "such as total += loss.",
            int(steps[start]), int(steps[-1]), (),
            (Evidence("graphs alive", float(counts[-1]), float(counts[start])),),
            "total += loss.item()  # or loss.detach()",
        )  # fmt: skip

    def _find_outputs(self) -> Finding | None:
        """Predictions whose graphs stay: nearly every one that was marked since the last time that any were let go."""
        if len(self._outputs) < 2:
            return None
        steps, counts, marked = np.array(self._outputs).T
        drops = np.flatnonzero(np.diff(counts) < 0)
        start = int(drops[-1]) + 1 if len(drops) else 0
        rise, length = counts[-1] - counts[start], marked[-1] - marked[start]
        if rise < GRAPHS_NEEDED or rise < GROWTH * length:
            return None
        return Finding(
            "graph_retained", Severity.WARNING,
            f"{int(counts[-1]):,} outputs of earlier steps are still alive with their graphs, one more with each step: something keeps "
            "the model's predictions, such as a list for a plot.",
            int(steps[start]), int(steps[-1]), (), (Evidence("outputs alive", float(counts[-1]), float(counts[start])),),
            "history.append(output.detach())",
        )  # fmt: skip

    def _find_flags(self) -> Finding | None:
        name, streak = (
            ("create_graph", self._create)
            if self._create.longest >= FLAG_STEPS
            else ("retain_graph", self._retain)
        )
        if streak.longest < FLAG_STEPS:
            return None
        return Finding(
            "graph_retained", Severity.WARNING,
            f"backward({name}=True) on every step since {streak.start_of_longest:,}, with no second backward that would need it: "
            "memory that nobody uses.",
            streak.start_of_longest, streak.last_step, (), (Evidence("steps with the flag", float(streak.longest)),),
            "loss.backward()  # without the flag",
        )  # fmt: skip

    def _find_hooks(self) -> Finding | None:
        rises = [
            (now, before) for before, now in zip(self._hooks, self._hooks[1:], strict=False) if now[1] > before[1]
        ]  # fmt: skip
        if len(rises) < RISES_NEEDED or self._hooks[-1][1] < max(count for _, count in self._hooks):
            return None
        return Finding(
            "hooks_accumulate", Severity.WARNING,
            f"The model's hooks grew from {self._hooks[0][1]:.0f} to {self._hooks[-1][1]:.0f} since step {rises[0][1][0]:,}: they are "
            "registered again and never removed.",
            rises[0][1][0], self._last_step, tuple(self._hooked), (Evidence("hooks", self._hooks[-1][1], self._hooks[0][1]),),
            "handle = module.register_forward_hook(hook); handle.remove()",
        )  # fmt: skip

    def _find_average(self) -> Finding | None:
        if len(self._averages) < AVERAGE_LOOKS:
            return None
        latest = self._averages[-1][1]
        still = [a for a in latest if not a["moved"] and (a.get("given") or self._ended)]
        ever = any(a["moved"] for _, told in self._averages for a in told)
        if not still or ever:
            return None
        return Finding(
            "ema_frozen", Severity.CRITICAL,
            f"The average of the weights ({still[0]['type']}) has not moved in {self._averages[-1][0]:,} steps: nobody updates it.",
            0, self._last_step, (), (Evidence("looks without a change", float(len(self._averages))),),
            "ema.update_parameters(model)  # after optimizer.step()",
        )  # fmt: skip

    def _find_lost(self) -> Finding | None:
        if not self._starts:
            return None
        step = self._starts[0]
        before = (
            next(lost for at, _, lost in self._counts if at == step)
            if any(c[0] == step for c in self._counts)
            else 0.0
        )
        shown = (
            Evidence("momentum, against the gradient", 1.0) if step in self._lost_momentum
            else Evidence("the optimizer's own step count", 1.0, before or None)
        )  # fmt: skip
        return Finding(
            "optimizer_state_lost", Severity.CRITICAL,
            f"The run was continued at step {step:,} with an empty optimizer: its moments begin again at zero.",
            step, self._last_step, (), (shown,),
            'optimizer.load_state_dict(checkpoint["optimizer"])',
        )  # fmt: skip
