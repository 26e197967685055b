"""How steps follow each other: updates that undo the last one, and time spent waiting for data."""

from __future__ import annotations

from typing import ClassVar, Final

import numpy as np

from stethoscope.analyse.span import Span
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


class Dynamics:
    """Follows the direction of updates beside the loss, and the time before each step."""

    codes: ClassVar[tuple[str, ...]] = ("oscillation", "data_bound")

    def __init__(self) -> None:
        self._cosines: list[tuple[int, float]] = []
        self._losses: dict[int, float] = {}
        self._first: int | None = None
        self._worst = 0.0
        self._waits: list[tuple[int, float, float]] = []
        self._last_step = 0

    def observe(self, span: Span) -> None:
        """One cosine, one loss and one wait for every step."""
        cosines, losses = span.metric("update_cos"), span.metric("loss")
        waits, times = span.metric("data_ms"), span.metric("step_ms")
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
        return after > before - FALLS * abs(before)

    def readings(self) -> dict[str, list[Reading]]:
        """What each rule asks for, and what it got."""
        window = [cosine for _, cosine in self._cosines[-WINDOW:]]
        since = np.nan if self._first is None else self._last_step - self._first
        waits = self._waits[WARM_UP:]
        share = float(np.median([wait / max(whole, 1e-9) for _, wait, whole in waits])) if waits else np.nan
        return {
            "oscillation": [
                Reading(f"median cosine of the last {WINDOW} updates", float(np.median(window)) if window else np.nan, "<=", OPPOSED),
                Reading("steps for which that has lasted", since, ">=", LASTING),
            ],
            "data_bound": [
                Reading("steps that were timed", len(waits), ">=", 20),
                Reading("median share of a step spent waiting", share, ">", WAITING_SHARE),
                Reading("median wait in ms", float(np.median([w for _, w, _ in waits])) if waits else np.nan, ">", WAITING_MS),
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
        waits = [(step, wait, whole) for step, wait, whole in self._waits[WARM_UP:]]
        if len(waits) >= 20:
            shares = np.array([wait / max(whole, 1e-9) for _, wait, whole in waits])
            typical = float(np.median([wait for _, wait, _ in waits]))
            if np.median(shares) > WAITING_SHARE and typical > WAITING_MS:
                found.append(Finding(
                    "data_bound", Severity.WARNING,
                    f"{np.median(shares):.0%} of every step is spent waiting for data, {typical:.0f} ms of it.",
                    waits[0][0], self._last_step, (),
                    (Evidence("share of the step spent waiting", float(np.median(shares))),
                     Evidence("waiting", typical, unit="ms")),
                    "DataLoader(..., num_workers=4, persistent_workers=True, pin_memory=True)",
                ))  # fmt: skip
        return found
