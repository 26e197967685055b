"""Training that makes the errors larger: an error taken with a minus, or an optimizer that maximizes it.

What the loss measures is read from its own graph, so that a likelihood or a score of the script's own, which may fall below
zero rightly, is none of these. What then goes wrong inside (units at their ends, gradients that explode or fade) comes of it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import ClassVar, Final

import numpy as np

from stethoscope.analyse.span import Span
from stethoscope.analyse.trends import noise
from stethoscope.detect.detector import Code, Detector, Reading, Rule, median, ratio
from stethoscope.detect.effects import BLOW_UP, LEARNING_TROUBLE, UNIT_TROUBLE
from stethoscope.detect.needs import GRAPH, LOSS, OWNERS, optional
from stethoscope.detect.symptoms.loss_kind import LossFamily, loss_kind
from stethoscope.detect.tracks import Track
from stethoscope.record import Evidence, Finding, Severity, metrics
from stethoscope.record.events import LossGraph, Ownership

LOSSES_NEEDED: Final = 10
"""The first ones and the last, of a loss that may be lost soon; the sign itself is no matter of number."""
FIRST: Final = 5
GROWN: Final = 0.1
"""Of the error at the start: less may be noise of batches that differ."""
SURE: Final = 4.0
"""Standard errors of the error now."""
KNOWN: Final = (LossFamily.CLASSES, LossFamily.BINARY, LossFamily.DISTANCE)


class LossSign(Detector):
    """Follows the loss with the sign that its graph and the optimizer give it."""

    codes: ClassVar[tuple[Code, ...]] = (
        Code(
            "errors_maximised",
            needs=(GRAPH, LOSS, optional(OWNERS)),
            leads_to=(
                *LEARNING_TROUBLE,
                *UNIT_TROUBLE,
                *BLOW_UP,
                "loss_metric_disagree",
                "clipping_always_on",
                "attention_logit_growth",
                "class_collapse",
                "adam_update_spike",
                "update_below_precision",
            ),
            through_updates=True,
        ),
    )

    def __init__(self) -> None:
        self._losses = Track(2)
        self._others: set[str] = set()
        self._num_looks = self._num_plain = self._num_negated = 0
        self._name = ""
        self._maximizes = False

    def observe(self, span: Span) -> None:
        """What the loss is made by, with which sign, and where it stands."""
        for _, owned in span.events_of(Ownership):
            self._maximizes = bool(owned.groups) and all(g.settings.get("maximize") is True for g in owned.groups)
        for _, graph in span.events_of(LossGraph):
            kind = loss_kind(graph, None)
            self._num_looks += 1
            if kind.family in KNOWN and not kind.has_terms:
                self._name = kind.name
                self._num_plain += 1
                self._num_negated += kind.is_negated
        self._others |= {name for name in span.metrics if name.startswith("loss.") and name[5:].isdigit()}
        losses = span.metric(metrics.LOSS)
        for row in np.flatnonzero(np.isfinite(losses)):
            self._losses.add(int(span.steps[row]), float(losses[row]))

    def rules(self) -> Iterator[Rule]:
        """The sign is known, and the errors grow as it says."""
        turned = self._num_plain - self._num_negated if self._maximizes else self._num_negated
        sign = -1.0 if self._num_negated else 1.0
        errors = sign * self._losses.values
        start = median(sign * self._losses.first(FIRST)[:, 1])
        num_last = max(len(errors) // 10, FIRST)
        now = median(errors[-num_last:])
        unsure = 1.25 * noise(errors) / math.sqrt(num_last)
        yield Rule(
            "errors_maximised",
            (
                Reading("steps at which the loss's graph was read", self._num_looks, ">", 0),
                Reading(
                    "share of them with one known error, to be made larger", ratio(turned, self._num_looks), "=", 1
                ),
                Reading("further losses, as in a game", len(self._others), "=", 0),
                Reading("losses", len(self._losses), ">=", LOSSES_NEEDED),
                Reading("the error now", now, ">", max(start, 0.0)),
                Reading("what it grew by", now - start, ">=", max(GROWN * abs(start), SURE * unsure)),
            ),
            lambda: self._finding(start, now),
        )

    def _finding(self, start: float, now: float) -> Finding:
        why, remedy = (
            ("the optimizer maximizes it", "torch.optim.Adam(model.parameters(), maximize=False)")
            if self._maximizes
            else ("it is taken with a minus", "loss.backward()  # of the error itself, without the minus")
        )
        return Finding(
            "errors_maximised",
            Severity.CRITICAL,
            f"Training makes the errors larger: the loss is an error ({self._name}), {why}, and the error grew from {start:.3g} "
            f"to {now:.3g}.",
            int(self._losses.first(1)[0, 0]),
            int(self._losses.latest[0]),
            (),
            (Evidence("error", now, start),),
            remedy,
        )
