"""What lies between the model and the loss: softmax twice, sigmoid twice, a broadcast, a cut-off output, a clamp.

Read from the autograd graph of the loss itself, so each of these is a fact about the operations, not a guess from numbers.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import partial
from typing import Any, ClassVar, Final

import numpy as np

from stethoscope.analyse.span import Span
from stethoscope.detect.detector import Code, Detector, Reading, Readings, Rule
from stethoscope.detect.needs import GRAPH
from stethoscope.detect.tracks import SampledHistory
from stethoscope.record import Evidence, Finding, Kind, Severity
from stethoscope.record.events import LossGraph

SEEN_NEEDED: Final = 2
"""Steps at which the graph showed it: once may be a special first step."""
NEGATIVE_SHARE: Final = 0.05
CLAMPED_SHARE: Final = 0.2
CLAMPED_NEEDED: Final = 3


FACTS: Final = {
    "double_softmax": "double_softmax",
    "double_sigmoid": "double_sigmoid",
    "loss_broadcast": "broadcast",
    "output_clipped": "output_cut",
    "loss_clamped": "clamped",
}
"""From a code to the fact of the graph that it rests on."""


Seen = list[tuple[int, Any]]
"""The steps at which the graph showed a fact, and what it showed."""


class LossShape(Detector):
    """Follows the graph facts of the steps at which the graph was read."""

    codes: ClassVar[tuple[Code, ...]] = (
        Code("double_softmax", needs=(GRAPH,)),
        Code("double_sigmoid", needs=(GRAPH,)),
        Code("loss_broadcast", needs=(GRAPH,)),
        Code("output_clipped", needs=(GRAPH,), leads_to=("dead_units",)),
        Code("loss_clamped", needs=(GRAPH,)),
    )

    def __init__(self) -> None:
        self._seen: dict[str, SampledHistory[tuple[int, Any]]] = {}
        self._num_classes = 0
        self._last_module = ""
        self._makers: dict[str, str] = {}
        """From a fact to the module that made the values it is about, where the graph says so."""
        self._last_step = 0
        self._num_looks = 0

    def observe(self, span: Span) -> None:
        """Keep what each reading of the graph showed."""
        if len(span.steps):
            self._last_step = int(span.steps[-1])
        if span.depth:
            # What holds others, or was never called, is no layer that an output comes from.
            called = {info.site.module for info in span.sites if info.site.kind is Kind.ACTIVATION} or set(span.depth)
            holders = {path.rpartition(".")[0] for path in span.modules}
            ran = [path for path in span.depth if path and path in called and path not in holders]
            self._last_module = ran[-1] if ran else ""
        for event, graph in span.events_of(LossGraph):
            self._num_looks += 1
            self._num_classes = graph.num_classes or self._num_classes
            for key in FACTS.values():
                fact = getattr(graph, key)
                if fact is not None:
                    if key not in self._seen:
                        self._seen[key] = SampledHistory()
                    self._seen[key].append((event.step, fact))
                    maker = graph.made_by.get(key, "")
                    if maker:
                        self._makers.setdefault(key, maker)

    def rules(self) -> Iterator[Rule]:
        """What was seen more than once."""
        looks = Reading("steps at which the loss's graph was read", self._num_looks, ">", 0)
        for code, tell in (
            ("double_softmax", self._double_softmax),
            ("double_sigmoid", self._double_sigmoid),
            ("loss_broadcast", self._broadcast),
            ("output_clipped", self._cut),
            ("loss_clamped", self._clamped),
        ):
            seen = self._seen[FACTS[code]].to_list() if FACTS[code] in self._seen else []
            shown = Reading("of which showed it", len(self._seen.get(FACTS[code], ())), ">=", SEEN_NEEDED)
            further, told = self._further(code, seen)
            yield Rule(code, (looks, shown, *further), partial(tell, told))

    def _further(self, code: str, seen: Seen) -> tuple[Readings, Seen]:
        """What two of the facts must weigh besides, and the sightings that do."""
        if code == "output_clipped":
            below = [fact.negative_targets for _, fact in seen if fact.negative_targets is not None]
            return (Reading("share of targets below zero", max(below, default=np.nan), ">=", NEGATIVE_SHARE),), seen
        if code == "loss_clamped":
            heavy = [(step, fact) for step, fact in seen if fact.share >= CLAMPED_SHARE]
            label = f"of which with at least {CLAMPED_SHARE:.0%} of the terms beyond the limit"
            most = Reading("largest share of terms beyond the limit", max((f.share for _, f in seen), default=np.nan))
            return (Reading(label, len(heavy), ">=", min(CLAMPED_NEEDED, self._num_looks)), most), heavy
        return (), seen

    def _finding(
        self, code: str, severity: Severity, seen: Seen, message: str, evidence: tuple[Evidence, ...], remedy: str
    ) -> Finding:
        site = self._makers.get(FACTS[code]) or self._last_module
        sites = (site,) if site else ()
        return Finding(code, severity, message, seen[0][0], self._last_step, sites, evidence, remedy)

    def _double_softmax(self, seen: Seen) -> Finding:
        classes = max(self._num_classes, 2)
        floor = -math.log(math.e / (math.e + classes - 1))
        return self._finding(
            "double_softmax",
            Severity.CRITICAL,
            seen,
            f"The output goes through {seen[0][1].lower()} and then through cross entropy's own softmax: with {classes} classes "
            f"the loss cannot fall below {floor:.2f}.",
            (Evidence("lowest loss that can be reached", floor), Evidence("classes", float(classes))),
            "return logits  # cross_entropy takes logits; apply softmax only to show probabilities",
        )

    def _double_sigmoid(self, seen: Seen) -> Finding:
        return self._finding(
            "double_sigmoid",
            Severity.CRITICAL,
            seen,
            f"The output goes through {seen[0][1].lower()} and then through the sigmoid inside the loss: probabilities where "
            "logits belong.",
            (Evidence("lowest loss of a positive that can be reached", math.log1p(math.exp(-1.0))),),
            "return logits  # binary_cross_entropy_with_logits takes logits",
        )

    def _broadcast(self, seen: Seen) -> Finding:
        small, large = seen[0][1].prediction, seen[0][1].result
        return self._finding(
            "loss_broadcast",
            Severity.CRITICAL,
            seen,
            f"The loss compares every prediction with every target: a prediction of shape {tuple(small)} was broadcast to "
            f"{tuple(large)}.",
            (Evidence("comparisons a step", float(large[0] * large[1]), float(large[0])),),
            "loss = loss_fn(output.squeeze(1), target)  # or target.unsqueeze(1): equal shapes",
        )

    def _cut(self, seen: Seen) -> Finding:
        shares = [fact.negative_targets for _, fact in seen if fact.negative_targets is not None]
        share = sum(shares) / len(shares)
        return self._finding(
            "output_clipped",
            Severity.CRITICAL,
            seen,
            f"The output ends in {seen[0][1].by.lower()} and can never be negative, and {share:.0%} of the targets are.",
            (Evidence("share of targets below zero", share),),
            "remove the activation after the last layer",
        )

    def _clamped(self, heavy: Seen) -> Finding:
        share = max(fact.share for _, fact in heavy)
        return self._finding(
            "loss_clamped",
            Severity.WARNING,
            heavy,
            f"The loss is clamped, and up to {share:.0%} of its terms lie beyond the limit, where they have no gradient.",
            (Evidence("share of terms without a gradient", share), Evidence("limit", heavy[0][1].max)),
            "torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)  # limit the gradient, not the loss",
        )
