"""How steps follow each other: updates that undo the last one, and time spent waiting for data."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import ClassVar, Final

import numpy as np

from stethoscope.analyse.span import Span
from stethoscope.analyse.trends import Direction, mann_kendall, shorten
from stethoscope.detect.detector import Code, Detector, Reading, Rule, median, ratio
from stethoscope.detect.needs import LOSS, Need
from stethoscope.detect.surrogate_loss import SurrogateLoss
from stethoscope.detect.tracks import LIMIT, Track
from stethoscope.record import Evidence, Finding, Severity, metrics
from stethoscope.record.events import EvalEnd

WINDOW: Final = 30
OPPOSED: Final = -0.7
"""Median cosine between successive updates: noise gives 0, momentum more, a valley's walls -1."""
LASTING: Final = 3 * WINDOW
"""One window shows it, two more that it stays; and it must have lasted as long as all that came before it."""
WAITING_SHARE: Final = 0.6
WAITING_MS: Final = 5.0
WARM_UP: Final = 5
TIMED: Final = 20
IDLE: Final = 0.5
"""Of the wait, on the CPU: where the processor works for longer, it prepares data, and nothing stands still meanwhile."""
PAUSES: Final = 0.05
"""Of the waits, the longest: checkpoints, validation and the like are seldom, a slow batch now and then is not."""


class Dynamics(Detector):
    """Follows the direction of updates beside the loss, and the time before each step."""

    codes: ClassVar[tuple[Code, ...]] = (
        Code(
            "oscillation",
            needs=(
                Need(
                    "cosines of successive updates", "metric", (metrics.UPDATE_COSINE,), "updates of successive steps"
                ),
                LOSS,
            ),
            leads_to=("update_too_large",),
            through_updates=True,
        ),
        Code(
            "data_bound",
            needs=(
                Need("waits before each step", "metric", (metrics.DATA_MS,), "a forward pass of the watched model"),
            ),
        ),
    )

    def __init__(self) -> None:
        self._cosines: deque[tuple[int, float]] = deque(maxlen=WINDOW)
        self._recent: deque[tuple[int, float]] = deque(maxlen=LIMIT)
        """Losses since the first of those updates: from there the account of the losses begins."""
        self._kind = SurrogateLoss()
        self._losses = Track(2)
        self._first: int | None = None
        self._worst = 0.0
        self._waits = Track(3)
        self._idle = Track(2)
        """Of the same steps, the wait and what of it the processor slept; only where that was measured."""
        self._num_waits = 0
        self._num_loaded = 0
        self._validated: set[int] = set()
        self._last_step = 0
        self._began = self._num_steps = 0

    def observe(self, span: Span) -> None:
        """One cosine, one loss and one wait for every step."""
        self._kind.observe(span)
        self._validated |= {event.step + 1 for event, _ in span.events_of(EvalEnd)}
        cosines, losses = span.metric(metrics.UPDATE_COSINE), span.metric(metrics.LOSS)
        waits, times = span.metric(metrics.DATA_MS), span.metric(metrics.STEP_MS)
        idle = span.metric(metrics.IDLE_MS)
        self._num_loaded += int(np.isfinite(span.metric(metrics.LOADER_MS)).sum())
        for index, step in enumerate(span.steps):
            self._last_step = int(step)
            if not self._num_steps:
                self._began = int(step)
            self._num_steps += 1
            if np.isfinite(losses[index]):
                self._recent.append((int(step), float(losses[index])))
                if self._first is not None:
                    self._losses.add(*self._recent[-1])
            if np.isfinite(cosines[index]):
                self._cosines.append((int(step), float(cosines[index])))
                self._check()
            if np.isfinite(waits[index]) and np.isfinite(times[index]):
                if self._num_waits >= WARM_UP and int(step) not in self._validated:
                    self._waits.add(int(step), float(waits[index]), float(times[index]))
                    if np.isfinite(idle[index]):
                        self._idle.add(float(waits[index]), float(idle[index]))
                self._num_waits += 1
        self._validated = {step for step in self._validated if step > self._last_step}

    def _check(self) -> None:
        """Since when the last updates oppose each other, without a break."""
        if len(self._cosines) < WINDOW:
            return
        while self._recent and self._recent[0][0] < self._cosines[0][0]:
            self._recent.popleft()
        middle = float(np.median([cosine for _, cosine in self._cosines]))
        if middle > OPPOSED:
            self._first = None
        elif self._first is None:
            self._first, self._worst = self._cosines[0][0], middle
            self._losses = Track(2)
            for step, loss in self._recent:
                self._losses.add(step, loss)

    def _waiting(self) -> tuple[int, int, float, float]:
        """From which step, how many waits, their share of the time and their length: of the typical ones, or of all but pauses."""
        if len(self._waits) < TIMED:
            return 0, len(self._waits), np.nan, np.nan
        table = np.maximum(self._waits.rows[:, 1:], [-np.inf, 1e-9])
        usual = float(np.median(table[:, 0] / table[:, 1])), float(np.median(table[:, 0]))
        kept = table[np.argsort(table[:, 0])[: len(table) - int(np.ceil(PAUSES * len(table)))]]
        spread = float(kept[:, 0].sum() / kept[:, 1].sum()), float(kept[:, 0].mean())
        # Outside of a loader's next() a busy machine takes its time too, now and then: only what is typical counts there.
        shown = usual if usual[0] >= spread[0] or 2 * self._num_loaded < self._num_waits else spread
        return int(self._waits.first(1)[0, 0]), len(self._waits), *shown

    def _idle_share(self) -> float:
        """Of the waits that were measured so, what the processor slept; 1 where nothing says otherwise: a device waits."""
        if not len(self._idle) or 2 * len(self._idle) < len(self._waits):
            return 1.0
        table = self._idle.rows
        return min(float(np.median(table[:, 1] / np.maximum(table[:, 0], 1e-9))), 1.0)

    def _loaded_share(self) -> float:
        """Of the waits, those that a loader was seen to make: what else passes between two steps may be a pause or a plot."""
        return min(ratio(self._num_loaded, self._num_waits), 1.0)

    def rules(self) -> Iterator[Rule]:
        """Both where they last."""
        began = self._first or 0
        # At the edge of stability updates oppose each other too, and the loss falls all the same.
        trend = mann_kendall(shorten(self._losses.values, 200)[0], alpha=0.01).direction
        yield Rule(
            "oscillation",
            (
                Reading(
                    f"median cosine of the last {WINDOW} updates", median([c for _, c in self._cosines]), "<=", OPPOSED
                ),
                Reading("the loss is a measure of progress", self._kind.is_measure, "=", 1),
                Reading(
                    "steps for which that has lasted",
                    np.nan if self._first is None else self._last_step - began,
                    ">=",
                    max(LASTING, began - self._began),
                ),
                Reading("losses in that time", len(self._losses.values), ">=", WINDOW),
                Reading("they fall", trend is Direction.FALLING, "=", 0),
            ),
            self._oscillates,
        )
        first, number, share, typical = self._waiting()
        idle = self._idle_share()
        yield Rule(
            "data_bound",
            (
                Reading("steps that were timed", number, ">=", TIMED),
                Reading("share of a step spent waiting", share, ">", WAITING_SHARE),
                Reading("wait in ms", typical, ">", WAITING_MS),
                Reading("share of the wait in which the processor slept (below half, it is a note)", idle),
                Reading("share of the waits that are a loader's own (below half, it is a note)", self._loaded_share()),
            ),
            lambda: self._data_bound(first, share, typical, idle),
        )

    def _oscillates(self) -> Finding:
        return Finding(
            "oscillation",
            Severity.WARNING,
            f"Since step {self._first:,} each update undoes the last one and the loss does not fall: the learning rate is at its "
            "limit.",
            self._first or 0,
            self._last_step,
            (),
            (Evidence("cosine between successive updates", self._worst),),
            "lr=lr / 2",
        )

    def _data_bound(self, first: int, share: float, typical: float, idle: float) -> Finding:
        """A warning where something stands still until a loader has a batch; a note where that is not known, or not so."""
        is_loaded = self._loaded_share() >= 0.5
        if idle < IDLE:
            spent = "between a step and the model's next call, and the processor works meanwhile: on data, or on an environment"
        else:
            spent = (
                "waiting for data" if is_loaded else "between a step and the model's next call: in a pause, or for data"
            )
        return Finding(
            "data_bound",
            Severity.WARNING if is_loaded and idle >= IDLE else Severity.INFO,
            f"{share:.0%} of the time is spent {spent}, {typical:.0f} ms a step.",
            first,
            self._last_step,
            (),
            (Evidence("share of the step spent waiting", share), Evidence("waiting", typical, unit="ms")),
            "DataLoader(..., num_workers=4, persistent_workers=True, pin_memory=True)",
        )
