"""How it begins: activations that grow or fade with depth before anything was learned, a first loss far above chance."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import ClassVar, Final

import numpy as np

from stethoscope.analyse.span import Span
from stethoscope.detect.detector import Code, Detector, Reading, Rule, ratio
from stethoscope.detect.effects import BLOW_UP, LEARNING_TROUBLE, UNIT_TROUBLE
from stethoscope.detect.needs import GRAPH, LOSS, OUTPUTS
from stethoscope.record import Evidence, Finding, FloatArray, Kind, Severity, metrics
from stethoscope.record.events import LossGraph

LAYERS_NEEDED: Final = 3
EARLY: Final = 4
"""Steps that count as the beginning."""
GROWN: Final = 100.0
"""Times the input's size at the end of the chain: what a layer that keeps variance never does."""
TAKE_PART: Final = 0.7
"""Share of the layers."""
MOVED: Final = 0.1
"""Of the size of a matrix: after a step that is larger than this in the middle one, the weights are no longer the initial ones."""
FAR_ABOVE: Final = 4.0
"""Times ln(classes): a head that knows nothing gives one."""
WEIGHTED: Final = ("Linear", "Conv1d", "Conv2d", "Conv3d", "ConvTranspose2d")


class Beginnings(Detector):
    """Looks at the first step whose modules were measured."""

    codes: ClassVar[tuple[Code, ...]] = (
        Code(
            "bad_init_scale",
            needs=(OUTPUTS,),
            leads_to=(*LEARNING_TROUBLE, *UNIT_TROUBLE, *BLOW_UP, "bad_initial_loss", "output_logit_drift"),
        ),
        Code("bad_initial_loss", needs=(LOSS, GRAPH, OUTPUTS), leads_to=("output_logit_drift", "exploding_gradients")),
    )

    def __init__(self) -> None:
        self._first: int | None = None
        self._sizes: list[tuple[str, float]] = []
        self._input = 1.0
        self._output_size = 0.0
        self._loss = math.nan
        self._num_classes = 0
        self._head = ""
        self._moved = False
        self._types: dict[str, str] = {}
        self._operations: tuple[tuple[str, tuple[int, ...]], ...] = ()

    def observe(self, span: Span) -> None:
        """Everything of the first step that was measured."""
        for _, graph in span.events_of(LossGraph):
            if not self._operations:
                self._num_classes, self._operations = graph.num_classes, graph.operations
        if not len(span.steps):
            return
        if self._first is None:
            self._first = int(span.steps[0])
            self._loss = float(span.metric(metrics.LOSS)[0])
            self._types = span.types
        # A script that is watched unchanged shows its modules from the second step on: little was learned by then, if steps are small.
        for row in np.flatnonzero(span.steps - self._first < EARLY):
            if not self._sizes and not self._moved:
                self._take_sizes(span, int(row))
            self._moved = self._moved or self._is_large_step(span, int(row))

    def _is_large_step(self, span: Span, row: int) -> bool:
        """Whether this step replaced what the weights began with."""
        rms = span.stat("rms")[row]
        weights = {
            span.sites[n].site.path: float(rms[n])
            for n in span.site_indices(Kind.WEIGHT)
            if len(span.sites[n].shape) > 1
        }
        ratios = [
            float(rms[n]) / size
            for n in span.site_indices(Kind.UPDATE)
            if (size := weights.get(span.sites[n].site.path, 0.0)) > 0 and np.isfinite(rms[n])
        ]
        return bool(ratios) and float(np.median(ratios)) > MOVED

    def _take_sizes(self, span: Span, row: int) -> None:
        rms = span.stat("rms")[row]
        inputs = [
            rms[n] for n in span.site_indices(Kind.INPUT) if "float" in span.sites[n].dtype and np.isfinite(rms[n])
        ]
        self._input = max([float(size) for size in inputs], default=0.0)
        for n in span.site_indices(Kind.ACTIVATION):
            site = span.sites[n].site
            if np.isfinite(rms[n]) and self._types.get(site.module) in (*WEIGHTED, "Embedding"):
                self._sizes.append((site.module, float(rms[n])))
        outputs = span.site_indices(Kind.OUTPUT)
        self._output_size = float(rms[outputs[0]]) if len(outputs) and np.isfinite(rms[outputs[0]]) else 0.0
        if self._sizes:
            self._head = self._sizes[-1][0]

    def rules(self) -> Iterator[Rule]:
        """Scale first: a bad scale makes a bad first loss too."""
        scale = self._scale()
        yield scale
        before = self._sizes[-2][1] if len(self._sizes) > 1 else self._input
        chance = math.log(self._num_classes) if self._num_classes > 1 else math.nan
        yield Rule(
            "bad_initial_loss",
            (
                Reading("first loss", self._loss, ">=", FAR_ABOVE * chance),
                Reading("size of the logits", self._output_size, ">=", FAR_ABOVE * max(before, 1.0), self._head),
                Reading("first step that was recorded", -1 if self._first is None else self._first, "=", 0),
                Reading("told as bad_init_scale", scale.holds, "=", 0),
            ),
            lambda: self._high_loss(chance),
        )

    def _scale(self) -> Rule:
        """Every layer takes part: one wide layer is a choice, a chain of them is a scale."""
        base = self._input or (self._sizes[0][1] if self._sizes else 0.0)
        sizes = np.array([size for _, size in self._sizes])
        known = sizes if base > 0 and (sizes > 0).all() else np.zeros(0)
        growth = np.diff(np.log(np.concatenate([[base], known]))) if len(known) else np.zeros(0)
        largest = known / base if len(known) else np.array([np.nan])
        return Rule(
            "bad_init_scale",
            (
                Reading("layers with weights measured at the beginning", len(self._sizes), ">=", LAYERS_NEEDED),
                Reading("size after the last layer / size of the input", float(largest[-1]), ">", GROWN, self._head),
                Reading(
                    "the same after the largest before it", max(largest[:-1], default=np.nan), ">", math.sqrt(GROWN)
                ),
                Reading(
                    "share of the layers that let it grow",
                    ratio(float((growth > 0).sum()), len(growth)),
                    ">",
                    TAKE_PART,
                ),
            ),
            lambda: self._grown(base, growth, float(largest[-1])),
        )

    def _grown(self, base: float, growth: FloatArray, times: float) -> Finding:
        step, (last, size) = self._first or 0, self._sizes[-1]
        return Finding(
            "bad_init_scale",
            Severity.CRITICAL,
            f"Before anything is learned, values grow {times:,.0f} times from the input to {last}: the initial weights are too large.",
            step,
            step,
            (self._sizes[int(np.argmax(growth))][0], last),
            (
                Evidence(f"size after {last}", size, base, site=last, kind="activation", stat="rms"),
                Evidence("first loss", self._loss),
            ),
            "nn.init.kaiming_normal_(layer.weight)  # keeps the size from layer to layer",
        )

    def _high_loss(self, chance: float) -> Finding:
        return Finding(
            "bad_initial_loss",
            Severity.WARNING,
            f"The first loss is {self._loss:.3g}, where guessing among {self._num_classes} classes gives {chance:.3g}: {self._head} "
            "begins far too sure of itself.",
            0,
            0,
            (self._head,),
            (
                Evidence("first loss", self._loss, chance),
                Evidence("size of the logits", self._output_size, site=self._head, kind="activation", stat="rms"),
            ),
            "nn.init.normal_(head.weight, std=0.02)",
        )
