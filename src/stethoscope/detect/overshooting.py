"""Steps that promise more than there is: by its slope alone, a step would take away more than the whole loss.

A step of plain descent changes the loss by the rate times the squared gradient, as long as the loss is as straight as its gradient says.
A loss that cannot go below zero cannot fall by more than all of it: where the promise is larger, the loss curves within the step, which
goes beyond the lowest point on its way (on a parabola: for sure from twice the loss on; from four times on the loss rises). Momentum only
adds to a step. What labels or noise leave of a loss at its best makes the ratio smaller, never larger. Early in training a few such
steps are common and do good; where most steps are so and the loss no longer falls, only luck holds it.
"""

from __future__ import annotations

import dataclasses
from collections import deque
from collections.abc import Iterator
from typing import ClassVar, Final

import numpy as np

from stethoscope.analyse.span import Span
from stethoscope.detect.detector import Code, Detector, Reading, Rule, median
from stethoscope.detect.effects import BLOW_UP, UNIT_TROUBLE
from stethoscope.detect.groups import Group, groups_by_site
from stethoscope.detect.needs import GRADIENTS, GRAPH, LOSS, OWNERS, RATE
from stethoscope.detect.symptoms.loss_kind import LossFamily, loss_kind
from stethoscope.record import Evidence, Finding, FloatArray, IntArray, Kind, Severity, metrics
from stethoscope.record.events import LossGraph

PROMISED: Final = 1.0
"""Times the loss, that a step would take away by its slope: the median over a window. Where the rate has risen since the loss was at its
best, that is enough: the curvature it bears falls as the rate rises."""
PROMISED_STEADY: Final = 2.0
"""At a rate that has not: there the curvature settles at what the rate bears, and a loss at that edge goes on to fall."""
WINDOW: Final = 20
"""Steps, and losses whose median is a level."""
LEARNED: Final = 0.6
"""Of the first level: a loss below that had learned something."""
LOST: Final = 0.8
"""Of the first level: a loss back there has lost it."""
AGAIN: Final = 0.8
"""Of the best loss until then: further down, it learns on."""
OTHER_INPUTS: Final = 2.0
"""Times the size that inputs had at first: then they changed, and not what the rate is for them."""
KNOWN: Final = (LossFamily.CLASSES, LossFamily.BINARY, LossFamily.DISTANCE)
"""Losses that cannot go below zero."""


@dataclasses.dataclass(frozen=True, slots=True)
class _State:
    """What the rule goes by, at one step."""

    step: int
    promised: float
    limit: float
    since_best: int
    """Steps without a lower level of the loss."""
    rate: float
    best: float
    best_rate: float

    @property
    def holds(self) -> bool:
        """Whether steps promise too much, and the loss does not fall."""
        return self.promised > self.limit and self.since_best >= WINDOW


class Overshooting(Detector):
    """Follows what steps promise, of models that plain SGD trains."""

    codes: ClassVar[tuple[Code, ...]] = (
        Code(
            "lr_too_high",
            needs=(LOSS, GRAPH, GRADIENTS, RATE, OWNERS),
            leads_to=(*BLOW_UP, *UNIT_TROUBLE, "update_too_large", "exploding_gradients", "oscillation"),
            through_updates=True,
        ),
    )

    def __init__(self) -> None:
        self._groups: dict[str, Group] = {}
        self._sites: dict[str, IntArray] = {}
        """From the metric of a learning rate to the gradients that it scales."""
        self._num_sites = 0
        self._is_known: bool | None = None
        """Whether the loss is one that cannot go below zero, by its graph."""
        self._has_several = False
        self._promises: deque[float] = deque(maxlen=WINDOW)
        self._losses: deque[float] = deque(maxlen=WINDOW)
        self._first = self._best = np.inf
        self._best_step = self._last_step = 0
        self._best_rate = self._rate = np.nan
        self._since: _State | None = None
        """How it was from when on most steps promise too much, while they do."""
        self._broken: int | None = None
        self._was_lost = False
        """Whether the loss was lost before steps promised too much."""
        self._inputs: deque[float] = deque(maxlen=WINDOW)
        self._first_inputs = np.nan

    def observe(self, span: Span) -> None:
        """One promise and one loss for every step that has both."""
        for _, graph in span.events_of(LossGraph):
            kind = loss_kind(graph, None)
            fits = kind.family in KNOWN and not kind.has_terms and not kind.is_negated
            self._is_known = fits and self._is_known is not False
        self._has_several = self._has_several or bool(span.recorded(metrics.loss_of(1)).any())
        self._find_sites(span)
        losses, rates = span.metric(metrics.LOSS), span.metric(metrics.LEARNING_RATE)
        recorded = span.recorded(metrics.LOSS)
        with np.errstate(over="ignore", invalid="ignore"):
            promises = self._promise(span) / np.where(losses > 0, losses, np.nan)
        inputs = [n for n in span.inputs()[:1] if "float" in span.sites[n].dtype]
        sizes = span.stat("rms")[:, inputs[0]] if inputs else np.full(len(span.steps), np.nan)
        for row, step in enumerate(span.steps):
            self._last_step = int(step)
            self._rate = float(rates[row]) if np.isfinite(rates[row]) else self._rate
            if np.isfinite(promises[row]):
                self._promises.append(float(promises[row]))
            if np.isfinite(sizes[row]):
                self._inputs.append(float(sizes[row]))
                if np.isnan(self._first_inputs) and len(self._inputs) == WINDOW // 2:
                    self._first_inputs = median(self._inputs)
            if recorded[row]:
                self._see_loss(int(step), float(losses[row]))

    def _find_sites(self, span: Span) -> None:
        known = groups_by_site(span, self._groups)
        if known is self._groups and self._num_sites == len(span.sites):
            return
        self._groups, self._num_sites = known, len(span.sites)
        found: dict[str, list[int]] = {}
        for n in span.site_indices(Kind.GRADIENT):
            group = known.get(span.sites[n].site.path)
            if group is not None:
                found.setdefault(group.rate_metric, []).append(int(n))
        is_plain = all(group.optimizer == "SGD" for group in known.values())
        self._sites = {name: np.array(sites, dtype=np.int64) for name, sites in found.items()} if is_plain else {}

    def _promise(self, span: Span) -> FloatArray:
        """By step, the rate times the squared gradient; NaN where a gradient or the rate is not known, or several were added up."""
        total = np.zeros(len(span.steps)) if self._sites else np.full(len(span.steps), np.nan)
        norms = span.stat("norm")
        for name, sites in self._sites.items():
            total += span.metric(name) * (norms[:, sites] ** 2).sum(axis=1)
        backwards = span.metric(metrics.NUM_BACKWARDS)
        return np.where(backwards > 1, np.nan, total)

    def _see_loss(self, step: int, loss: float) -> None:
        if not np.isfinite(loss):
            if self._explains() and self._broken is None:
                self._broken = step
            return
        self._losses.append(loss)
        if len(self._losses) < WINDOW or self._broken is not None:
            return
        level = median(self._losses)
        self._first = min(self._first, level) if np.isinf(self._first) else self._first
        if level < self._best:
            self._best, self._best_step, self._best_rate = level, step, self._rate
        now = self._state(step)
        if self._since is None:
            self._since = now if now.holds else None
            self._was_lost = level > LOST * self._first
        elif self._best < LEARNED * self._first and level > LOST * self._first and self._explains():
            self._broken = step
        elif now.promised < now.limit / 2 or level < AGAIN * self._since.best:
            self._since = None  # smaller steps, or it learns on

    def _explains(self) -> bool:
        """Whether a break now comes of it: it began before, and with the inputs that the rate was good for."""
        return (
            self._since is not None
            and not self._was_lost
            and not median(self._inputs) > OTHER_INPUTS * self._first_inputs
        )

    def _state(self, step: int) -> _State:
        promised = median(self._promises) if len(self._promises) == WINDOW else np.nan
        limit = PROMISED if self._rate > self._best_rate else PROMISED_STEADY
        return _State(step, promised, limit, step - self._best_step, self._rate, self._best, self._best_rate)

    @property
    def _speaks(self) -> bool:
        return bool(self._is_known) and not self._has_several

    def rules(self) -> Iterator[Rule]:
        """A note while it stands; where the loss broke after it, the cause."""
        state = self._since or self._state(self._last_step)
        yield Rule(
            "lr_too_high",
            (
                Reading("the loss is one that cannot go below zero", self._speaks, "=", 1),
                Reading("parameter groups that SGD steps", len(self._sites), ">", 0),
                Reading(
                    f"what a step would take away by its slope / the loss, median of {WINDOW}",
                    state.promised,
                    ">",
                    state.limit,
                ),
                Reading("steps without a lower loss", state.since_best, ">=", WINDOW),
                Reading(
                    "step at which the loss broke (without it, a note)",
                    np.nan if self._broken is None else self._broken,
                ),
            ),
            lambda: self._tell(state),
        )

    def _tell(self, state: _State) -> Finding:
        at = f"with a learning rate of {state.rate:.2g}"
        why = f"by their slope alone, steps would take away {state.promised:.1f}x the whole loss, so they overshoot"
        told = (
            f"The loss may break: {at} at step {state.step:,}, {why}, and it stopped falling at {state.best:.3g}."
            if self._broken is None
            else f"The learning rate is too high since step {state.step:,}: {at}, {why}; the loss broke at step {self._broken:,}."
        )
        better = state.best_rate if state.best_rate < state.rate else state.rate / max(state.promised, 2.0)
        return Finding(
            "lr_too_high",
            Severity.INFO if self._broken is None else Severity.CRITICAL,
            told,
            state.step,
            self._last_step,
            (),
            (
                Evidence("what a step would take away by its slope, against the loss", state.promised, state.limit),
                Evidence("best loss", state.best, self._first, stat="loss"),
                Evidence("learning rate", state.rate, state.best_rate, stat="lr"),
            ),
            f"lr={better:.1g}",
        )
