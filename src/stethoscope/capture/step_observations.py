"""What close looks at one step have shown: units, saturation, attention, routers, told when all of it is there."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from stethoscope.capture.attention import facts as attention_facts
from stethoscope.capture.deferred_reads import Values
from stethoscope.capture.routing import Candidate
from stethoscope.capture.sites import Sink
from stethoscope.capture.units import UnitRecord, logit_facts, saturated_share
from stethoscope.record import events
from stethoscope.record.wire import EventBody


class StepObservations:
    """The facts of one step, filled in as their numbers come."""

    def __init__(self) -> None:
        self.is_look = False
        """Whether units were looked at in this step at all."""
        self.num_layers = 0
        self.metrics: dict[str, float] = {}
        self.activity: list[tuple[int, str, Values]] = []
        self.gradients: list[tuple[int, str, Values]] = []
        self.saturation: dict[str, float] = {}
        self.normalised: dict[str, float] = {}
        self.attention: dict[str, events.AttentionNumbers] = {}
        self.routed: dict[str, tuple[int, ...]] = {}
        self.later: list[Callable[[], EventBody | None]] = []
        """Events that are known when everything has come."""

    @property
    def is_empty(self) -> bool:
        """Whether there will be nothing to tell, where no numbers are under way."""
        return not (self.is_look or self.later or self.normalised)

    def take_logits(self, values: Values) -> None:
        """The model's output."""
        self.metrics.update(logit_facts(values))

    def take_number(self, name: str, values: Values) -> None:
        """One named number of the step."""
        self.metrics[name] = float(values[0])

    def take_activity(self, position: int, path: str, values: Values) -> None:
        """How active each unit of a layer is."""
        self.activity.append((position, path, values))

    def take_gradient(self, position: int, path: str, values: Values) -> None:
        """The largest gradient of each row of a weight."""
        self.gradients.append((position, path, values))

    def take_saturation(self, path: str, values: Values) -> None:
        """What a bounded output looks like."""
        share = saturated_share(*values.tolist())
        if share is not None:
            self.saturation[path] = share

    def take_attention(self, path: str, values: Values) -> None:
        """How sharp an attention is."""
        self.attention[path] = attention_facts(values)

    def take_routing(self, path: str, candidate: Candidate, values: Values) -> None:
        """How many rows have each expert as their first, second … choice."""
        counts = values.astype(np.int64).reshape(-1, len(candidate.experts)).tolist()
        if candidate.is_router(counts):
            self.routed[path] = tuple(counts[0])

    def tell(self, step: int, sink: Sink, units: UnitRecord) -> dict[str, float]:
        """Hands everything on; returns the step's named numbers."""
        for _, path, values in self.activity:
            units.see_activity(path, values)
        for _, path, values in self.gradients:
            units.see_gradient(path, values)
        if self.attention:
            sink.tell(step, events.Attention(modules=self.attention))
        _vectors(step, "unit_gradient", self.gradients, sink)
        _vectors(step, "unit_activity", self.activity, sink)
        looked: dict[str, dict[str, Any]] = {
            "saturation": self.saturation,
            "batchnorm": self.normalised,
            "routed": self.routed,
        }
        if self.is_look:
            looked |= units.summary()
        if any(looked.values()):
            sink.tell(step, events.Units(**{name: found for name, found in looked.items() if found}))
        for told in self.later:
            said = told()
            if said is not None:
                sink.tell(step, said)
        return self.metrics


def _vectors(step: int, name: str, found: list[tuple[int, str, Values]], sink: Sink) -> None:
    """Layers of one width together."""
    by_width: dict[int, list[tuple[int, Values]]] = {}
    for position, _, values in found:
        by_width.setdefault(len(values), []).append((position, values))
    for rows in by_width.values():
        index = np.array([position for position, _ in rows], dtype=np.uint32)
        sink.vectors(step, name, index, np.stack([values for _, values in rows]))
