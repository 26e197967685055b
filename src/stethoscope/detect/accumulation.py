"""Accumulated gradients: a sum where a mean was meant, and a mean of means over unequal numbers of targets.

Both are advice. The graph of each backward's loss says by what it is multiplied and over how many targets it is a mean; a
step whose backwards are each a whole mean adds up N of them, and one in which a mean of five weighs as much as a mean of
sixty-four is not the mean over its samples. A rate may have been chosen for either, so neither is called a fault.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import ClassVar, Final

import numpy as np

from stethoscope.analyse.span import Span
from stethoscope.detect.detector import Code, Detector, Reading, Rule
from stethoscope.detect.needs import GRAPH, LEDGER
from stethoscope.detect.tracks import SampledHistory
from stethoscope.record import Evidence, Finding, Severity, metrics
from stethoscope.record.events import Backward

STEPS_NEEDED: Final = 3
"""Steps whose every backward was measured and showed the same."""
UNEVEN: Final = 2.0
"""The most targets of a micro-batch, against the fewest."""


class Accumulation(Detector):
    """Follows the backwards of the steps at which the loss's graph is read."""

    codes: ClassVar[tuple[Code, ...]] = (
        Code("accumulation_not_averaged", needs=(GRAPH, LEDGER)),
        Code("accumulation_uneven", needs=(GRAPH, LEDGER)),
    )

    def __init__(self) -> None:
        self._waiting: dict[int, list[Backward]] = {}
        """What was measured of steps that are not complete yet."""
        self._looks: SampledHistory[tuple[int, list[Backward], bool]] = SampledHistory()
        """Steps of several backwards of one loss, all measured; and whether gradients were scaled by hand afterwards."""
        self._last_step = 0

    def observe(self, span: Span) -> None:
        """Keep what each looked-at backward counts for, and how many there were."""
        for event, backward in span.events_of(Backward):
            if not event.rank:
                self._waiting.setdefault(event.step, []).append(backward)
        counts, touched = span.metric(metrics.LEDGER_BACKWARDS), span.metric(metrics.LEDGER_TOUCHED)
        for index in np.flatnonzero(np.isfinite(counts)):
            step = int(span.steps[index])
            self._last_step = step
            found = self._waiting.pop(step, [])
            if (
                len(found) > 1
                and counts[index] == len(found)
                and len({backward.by for backward in found}) == 1
                and all(backward.num_targets > 0 for backward in found)
            ):
                self._looks.append((step, found, bool(touched[index] > 0)))
        self._waiting = {step: found for step, found in self._waiting.items() if step > self._last_step}

    def _summed(self) -> dict[int, int]:
        """Steps whose backwards each count as a whole; gradients that were scaled by hand afterwards are left out."""
        return {
            step: len(found)
            for step, found, is_touched in self._looks
            if not is_touched and all(0.999 < backward.factor < 1.001 for backward in found)
        }

    def _uneven(self) -> dict[int, tuple[float, float]]:
        """Steps in which equal factors stand before means over unequal numbers."""
        found = {}
        for step, backwards, _ in self._looks:
            factors, targets = [one.factor for one in backwards], [one.num_targets for one in backwards]
            if max(factors) <= 1.001 * min(factors) and max(targets) >= UNEVEN * min(targets):
                found[step] = (min(targets), max(targets))
        return found

    def rules(self) -> Iterator[Rule]:
        """Advice, where most of the measured steps show it."""
        summed, uneven = self._summed(), self._uneven()
        num_looks = len({step for step, _, _ in self._looks})
        looks = Reading("measured steps of several backwards", num_looks)
        enough = max(STEPS_NEEDED, num_looks // 2)
        yield Rule(
            "accumulation_not_averaged",
            (looks, Reading("of which added up whole losses", len(summed), ">=", enough)),
            lambda: self._not_averaged(summed),
        )
        yield Rule(
            "accumulation_uneven",
            (
                looks,
                Reading("of which averaged unequal means", len(uneven), ">=", enough),
                Reading(
                    "most targets against fewest",
                    max((high / low for low, high in uneven.values()), default=math.nan),
                    ">=",
                    UNEVEN,
                ),
            ),
            lambda: self._unequal(uneven),
        )

    def _not_averaged(self, summed: dict[int, int]) -> Finding:
        first, number = min(summed), int(np.median(list(summed.values())))
        return Finding(
            "accumulation_not_averaged",
            Severity.INFO,
            f"Each step adds up the gradients of {number:,} backward passes, each of a whole mean: they are {number:,} times those "
            "of one batch, which plain SGD feels as a rate that much higher.",
            first,
            self._last_step,
            ("(loss)",),
            (
                Evidence("backward passes a step", float(number), 1.0),
                Evidence("factor before each loss", 1.0, 1.0 / number),
            ),
            f"(loss / {number}).backward()  # unless the learning rate was chosen for the sum",
        )

    def _unequal(self, uneven: dict[int, tuple[float, float]]) -> Finding:
        first = min(uneven)
        low, high = max(uneven.values(), key=lambda pair: pair[1] / pair[0])
        return Finding(
            "accumulation_uneven",
            Severity.INFO,
            f"Micro-batches of {low:,.0f} to {high:,.0f} targets count the same in a step: a target of the smallest weighs "
            f"{high / low:.3g} times as much as one of the largest.",
            first,
            self._last_step,
            ("(loss)",),
            (
                Evidence("targets of the smallest micro-batch, against the largest", low, high),
                Evidence("weight of its targets", high / low, 1.0),
            ),
            'loss = cross_entropy(logits, targets, reduction="sum") / num_targets_of_the_step',
        )
