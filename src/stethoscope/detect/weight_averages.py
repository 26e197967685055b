"""An average of the weights that is kept beside them, and never updated."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar, Final

from stethoscope.analyse.span import Span
from stethoscope.detect.detector import Code, Detector, Reading, Rule
from stethoscope.detect.needs import Need
from stethoscope.record import Evidence, Finding, Severity
from stethoscope.record.events import Average, Averages, Totals

LOOKS_NEEDED: Final = 3


class WeightAverages(Detector):
    """Follows whether any average ever moved."""

    codes: ClassVar[tuple[Code, ...]] = (
        Code(
            "ema_frozen",
            needs=(Need("looks at averaged weights", "event", (Averages.KIND,), "watch(model, optimizer, ema=ema)"),),
        ),
    )

    def __init__(self) -> None:
        self._latest: tuple[int, tuple[Average, ...]] = (0, ())
        self._num_looks = 0
        self._have_moved = False
        self._ended = False
        self._last_step = 0

    def observe(self, span: Span) -> None:
        """Take in the looks."""
        for event, said in span.events_of(Averages):
            self._latest = (event.step, said.averages)
            self._num_looks += 1
            self._have_moved = self._have_moved or any(average.moved for average in said.averages)
        self._ended = self._ended or bool(span.events_of(Totals))
        self._last_step = int(span.steps[-1]) if len(span.steps) else self._last_step

    def rules(self) -> Iterator[Rule]:
        """While none has moved."""
        step, latest = self._latest
        still = [average.type for average in latest if not average.moved and (average.given or self._ended)]
        yield Rule(
            "ema_frozen",
            (
                Reading("looks at averaged weights", self._num_looks, ">=", LOOKS_NEEDED),
                Reading("the average moved at least once", self._have_moved, "=", 0),
                Reading("averages that were given to watch(), or of a run that ended", len(still), ">", 0),
            ),
            lambda: Finding(
                "ema_frozen",
                Severity.CRITICAL,
                f"The average of the weights ({still[0]}) has not moved in {step:,} steps: it is never updated.",
                0,
                self._last_step,
                (),
                (Evidence("looks without a change", float(self._num_looks)),),
                "ema.update_parameters(model)  # after optimizer.step()",
            ),
        )
