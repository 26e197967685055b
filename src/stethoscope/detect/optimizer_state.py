"""An optimizer that begins again with nothing in the middle of a run: its state was not loaded.

Adam counts its own steps; the momentum of SGD is the gradient itself, at its first step only. A new optimizer that the script makes, or
a new training in an old folder, rightly begins so.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar, Final

import numpy as np

from stethoscope.analyse.span import Span
from stethoscope.detect.detector import Code, Detector, Reading, Rule
from stethoscope.detect.groups import Group, groups_by_site
from stethoscope.detect.needs import STATE, Need, optional
from stethoscope.record import Evidence, Finding, Kind, Severity, metrics
from stethoscope.record.events import Continuation, Ownership

TENSORS_NEEDED: Final = 4
"""With momentum: fewer could equal their gradients by accident."""
OWN_COUNT: Final = Need(
    "the optimizer's own step count", "metric", (metrics.OPTIMIZER_STEP,), "kept by Adam and its kin"
)


class OptimizerState(Detector):
    """Follows the optimizer's own count of its steps, and momentum beside gradients."""

    codes: ClassVar[tuple[Code, ...]] = (Code("optimizer_state_lost", needs=(optional(OWN_COUNT), optional(STATE))),)

    def __init__(self) -> None:
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
        self._replaced += [event.step for event, ownership in span.events_of(Ownership) if ownership.replaces]
        # A new training in an old folder, or one beside another: nothing was lost.
        self._replaced += [event.step for event, said in span.events_of(Continuation) if said.how != "resumed"]
        self._see_momentum(span)
        counts = span.metric(metrics.OPTIMIZER_STEP)
        for index in np.flatnonzero(np.isfinite(counts)):
            self._see_count(int(span.steps[index]), float(counts[index]))
        self._last_step = int(span.steps[-1]) if len(span.steps) else self._last_step

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
        """The first time."""
        step = self._first_start or 0
        shown = (
            Evidence("momentum, against the gradient", 1.0)
            if self._is_momentum_lost
            else Evidence("the optimizer's own step count", 1.0, self._lost_count or None)
        )
        yield Rule(
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
