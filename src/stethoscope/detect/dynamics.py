"""How steps follow each other: updates that undo the last one, and time spent waiting for data."""

from __future__ import annotations

from typing import ClassVar, Final

import numpy as np

from stethoscope.analyse.span import Span
from stethoscope.analyse.trends import Direction, mann_kendall, shorten
from stethoscope.detect.detector import Reading
from stethoscope.record import Evidence, Finding, Severity

WINDOW: Final = 30
OPPOSED: Final = -0.7
"""Median cosine between successive updates: noise gives 0, momentum more, a valley's walls -1."""
FALLS: Final = 0.03
LASTING: Final = 100
WAITING_SHARE: Final = 0.6
WAITING_MS: Final = 5.0
WARM_UP: Final = 5
TIMED: Final = 20
PAUSES: Final = 0.05
"""Of the waits, the longest: checkpoints, validation and the like are seldom, a slow batch now and then is not."""


class Dynamics:
    """Follows the direction of updates beside the loss, and the time before each step."""

    codes: ClassVar[tuple[str, ...]] = ("oscillation", "data_bound")

    def __init__(self) -> None:
        self._cosines: list[tuple[int, float]] = []
        self._losses: dict[int, float] = {}
        self._first: int | None = None
        self._worst = 0.0
        self._waits: list[tuple[int, float, float]] = []
        self._num_loaded = 0
        self._validated: set[int] = set()
        self._last_step = 0

    def observe(self, span: Span) -> None:
        """One cosine, one loss and one wait for every step."""
        self._validated |= {event.step + 1 for event in span.events if event.kind == "eval_end"}
        cosines, losses = span.metric("update_cos"), span.metric("loss")
        waits, times = span.metric("data_ms"), span.metric("step_ms")
        self._num_loaded += int(np.isfinite(span.metric("loader_ms")).sum())
        for place, step in enumerate(span.steps):
            self._last_step = int(step)
            if np.isfinite(losses[place]):
                self._losses[int(step)] = float(losses[place])
            if np.isfinite(cosines[place]):
                self._cosines.append((int(step), float(cosines[place])))
                self._check()
            if np.isfinite(waits[place]) and np.isfinite(times[place]):
                self._waits.append((int(step), float(waits[place]), float(times[place])))

    def _check(self) -> None:
        """Since when the last updates oppose each other, without a break."""
        if len(self._cosines) < WINDOW:
            return
        window = self._cosines[-WINDOW:]
        middle = float(np.median([cosine for _, cosine in window]))
        if middle > OPPOSED:
            self._first = None
        elif self._first is None:
            self._first, self._worst = window[0][0], middle

    def _oscillates(self) -> bool:
        """For long, and the loss is where it was: at the edge of stability updates oppose each other and it falls all the same."""
        if self._first is None or self._last_step - self._first < LASTING:
            return False
        losses = [loss for step, loss in self._losses.items() if step >= self._first]
        fifth = len(losses) // 5
        if fifth < 5:
            return False
        before, after = float(np.median(losses[:fifth])), float(np.median(losses[-fifth:]))
        if after < before - FALLS * abs(before):
            return False
        return mann_kendall(shorten(np.array(losses), 200)[0], alpha=0.01).direction is not Direction.FALLING

    def _waiting(self) -> tuple[int, int, float, float]:
        """From which step, how many waits, their share of the time and their length: of the typical ones, or of all but pauses."""
        waits = [wait for wait in self._waits[WARM_UP:] if wait[0] not in self._validated]
        if len(waits) < TIMED:
            return 0, len(waits), np.nan, np.nan
        table = np.array([(wait, max(whole, 1e-9)) for _, wait, whole in waits])
        usual = float(np.median(table[:, 0] / table[:, 1])), float(np.median(table[:, 0]))
        kept = table[np.argsort(table[:, 0])[: len(table) - int(np.ceil(PAUSES * len(table)))]]
        spread = float(kept[:, 0].sum() / kept[:, 1].sum()), float(kept[:, 0].mean())
        # Outside of a loader's next() a busy machine takes its time too, now and then: only what is typical counts there.
        if usual[0] >= spread[0] or 2 * self._num_loaded < len(self._waits):
            return waits[0][0], len(waits), *usual
        return waits[0][0], len(waits), *spread

    def readings(self) -> dict[str, list[Reading]]:
        """What each rule asks for, and what it got."""
        window = [cosine for _, cosine in self._cosines[-WINDOW:]]
        since = np.nan if self._first is None else self._last_step - self._first
        _, number, share, typical = self._waiting()
        return {
            "oscillation": [
                Reading(f"median cosine of the last {WINDOW} updates", float(np.median(window)) if window else np.nan, "<=", OPPOSED),
                Reading("steps for which that has lasted", since, ">=", LASTING),
            ],
            "data_bound": [
                Reading("steps that were timed", number, ">=", TIMED),
                Reading("share of a step spent waiting", share, ">", WAITING_SHARE),
                Reading("wait in ms", typical, ">", WAITING_MS),
            ],
        }  # fmt: skip

    def findings(self) -> list[Finding]:
        """Both where they last."""
        found = []
        if self._oscillates():
            found.append(Finding(
                "oscillation", Severity.WARNING,
                f"Since step {self._first:,} each update undoes the last one and the loss does not fall: the learning rate is at its "
                "limit.",
                self._first or 0, self._last_step, (), (Evidence("cosine between successive updates", self._worst),),
                "lr=lr / 2",
            ))  # fmt: skip
        first, _, share, typical = self._waiting()
        if share > WAITING_SHARE and typical > WAITING_MS:
            found.append(Finding(
                "data_bound", Severity.WARNING,
                f"{share:.0%} of the time is spent waiting for data, {typical:.0f} ms a step.",
                first, self._last_step, (),
                (Evidence("share of the step spent waiting", share), Evidence("waiting", typical, unit="ms")),
                "DataLoader(..., num_workers=4, persistent_workers=True, pin_memory=True)",
            ))  # fmt: skip
        return found
