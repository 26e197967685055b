"""The size of what goes in: so large that the first layer is flooded, so small that it hears nothing, or nothing at all.

Layers are initialised for inputs of about unit size. Large inputs alone are no fault, where a normalising layer takes
them or the loss begins where chance is: they are one when the first losses are far above chance or the first units are
saturated. Small inputs are one unless a layer brings them up. Inputs that never differ from each other always are.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import ClassVar, Final

import numpy as np
import numpy.typing as npt

from stethoscope.analyse.span import Span
from stethoscope.detect.detector import Code, Detector, Reading, Readings, Rule, Streak, median
from stethoscope.detect.effects import BLOW_UP, LEARNING_TROUBLE, UNIT_TROUBLE
from stethoscope.detect.input_norms import is_scaled_in_order, is_scaled_on_every_way
from stethoscope.detect.needs import BATCHES, INPUTS, LOSS, UNITS, optional
from stethoscope.kernels.columns import INDEX, stat
from stethoscope.record import Evidence, Finding, Kind, Severity, metrics
from stethoscope.record.events import Batch, DataFlow, FeatureSizes, LossGraph, Units

BATCHES_NEEDED: Final = 5
LARGE: Final = 10.0
"""Root mean square of inputs that no layer was initialised for."""
FLOODED: Final = 4.0
"""First losses above this many times chance."""
SATURATED: Final = 0.9
SMALL: Final = 0.01
LOST: Final = 0.003
"""Inputs so small that even a normalising layer's eps outweighs them."""
AUDIBLE: Final = 0.5
"""A first layer with outputs of this size is not short of input."""
LIFTED: Final = 10.0
FEW: Final = 16


class InputScale(Detector):
    """Looks at the first batches beside the first losses and outputs; at constancy for ever."""

    codes: ClassVar[tuple[Code, ...]] = (
        Code(
            "unscaled_inputs",
            needs=(INPUTS, optional(LOSS), optional(UNITS)),
            leads_to=(*LEARNING_TROUBLE, *UNIT_TROUBLE, *BLOW_UP, "bad_initial_loss", "bad_init_scale"),
        ),
        Code(
            "inputs_too_small",
            needs=(INPUTS,),
            leads_to=(*LEARNING_TROUBLE, *UNIT_TROUBLE, "adam_eps_dominates", "class_collapse"),
        ),
        Code(
            "inputs_ignored",
            needs=(INPUTS, optional(BATCHES)),
            leads_to=(*UNIT_TROUBLE, "vanishing_gradients", "silent_no_update", "oscillation", "class_collapse"),
        ),
    )

    def __init__(self) -> None:
        self._sizes: list[tuple[float, float]] = []
        self._name, self._first_step, self._last_step = "", 0, 0
        self._losses: list[float] = []
        self._lost_at: int | None = None
        self._num_classes = 0
        self._target_rms: list[float] = []
        self._targets_vary = False
        self._has_targets = False
        self._first_layer: tuple[str, float] | None = None
        self._is_normalised = False
        self._scaled_by_order = False
        self._scaled_by_flow: bool | None = None
        """Whether a norm takes their size away before anything else could suffer from it."""
        self._saturation: dict[str, float] = {}
        self._features: FeatureSizes | None = None
        self._constant = Streak()
        self._constant_value: float | None = None
        self._identical: dict[int, bool] = {}
        self._are_data = False
        """Whether the model is known to be called with what a loader yields."""

    def observe(self, span: Span) -> None:
        """The input that the user logs first, the targets, and what the first layer made of it."""
        self._take_events(span)
        self._take_targets(span)
        losses = span.metric(metrics.LOSS)
        lost = np.flatnonzero(span.recorded(metrics.LOSS) & ~np.isfinite(losses))
        if self._lost_at is None and len(lost):
            self._lost_at = int(span.steps[lost[0]])
        self._losses += losses[np.isfinite(losses)][: max(0, 3 - len(self._losses))].tolist()
        if self._first_layer is None:
            self._look_at_first_layer(span)
        inputs = span.inputs()
        if not inputs:
            return
        if len(self._sizes) < BATCHES_NEEDED and "float" in span.sites[inputs[0]].dtype:
            self._take_sizes(span, inputs[0])
        # What a model is called with may be constant on purpose; what data are drawn from may not.
        if self._are_data or span.sites[inputs[0]].site.name.startswith("batch"):
            self._follow_constancy(span, inputs)

    def _take_sizes(self, span: Span, site: int) -> None:
        rows = span.rows[:, site]
        rms, std = stat(rows, "rms"), rows[:, INDEX["std"]]
        with np.errstate(invalid="ignore", divide="ignore"):
            # Where most values are zero (counts of words, one-hot codes) the others carry the size.
            spread = std / np.sqrt(np.maximum(1.0 - stat(rows, "zero_fraction"), 1e-12))
        for row in np.flatnonzero(span.present[:, site]):
            if not self._sizes:
                self._name, self._first_step = span.sites[site].site.path, int(span.steps[row])
            if len(self._sizes) < BATCHES_NEEDED:
                self._sizes.append((float(rms[row]), float(spread[row])))

    def _take_events(self, span: Span) -> None:
        if len(span.steps):
            self._identical = {step: same for step, same in self._identical.items() if step >= int(span.steps[0])}
        for event, batch in span.events_of(Batch):
            if event.rank:
                continue
            self._num_classes = max(self._num_classes, len(batch.class_counts))
            self._features = self._features or batch.feature_rms
            if batch.seen == "call":
                continue
            self._are_data = self._are_data or batch.source is not None
            names = batch.fingerprints
            self._identical[event.step] = len(names) > 1 and len(set(names)) == 1
        for event, flow in span.events_of(DataFlow):
            if not event.rank and self._scaled_by_flow is None:
                self._scaled_by_flow = is_scaled_on_every_way(flow)
        for event, graph in span.events_of(LossGraph):
            if not event.rank:
                self._num_classes = max(self._num_classes, graph.num_classes)
        for event, units in span.events_of(Units):
            if not event.rank and not self._saturation:
                self._saturation = dict(units.saturation)

    def _take_targets(self, span: Span) -> None:
        indices = [n for n in span.site_indices(Kind.TARGET) if span.present[:, n].any()]
        if not indices:
            return
        self._has_targets = True
        rows = span.rows[:, indices[0]]
        self._targets_vary = self._targets_vary or bool((rows[:, INDEX["std"]] > 0).any())
        if "float" in span.sites[indices[0]].dtype and len(self._target_rms) < BATCHES_NEEDED:
            sizes = stat(rows, "rms")
            self._target_rms += sizes[np.isfinite(sizes)][: BATCHES_NEEDED - len(self._target_rms)].tolist()

    def _look_at_first_layer(self, span: Span) -> None:
        outputs = span.in_depth(span.site_indices(Kind.ACTIVATION))
        leaves = [n for n in outputs if span.sites[n].site.module in span.modules][:3]
        if not leaves or not span.present[:, leaves[0]].any():
            return
        row = int(np.flatnonzero(span.present[:, leaves[0]])[0])
        kinds = [str(span.modules[span.sites[n].site.module].get("type", "")) for n in leaves]
        self._is_normalised = any("Norm" in kind for kind in kinds)
        self._scaled_by_order = is_scaled_in_order(span)
        self._first_layer = (span.sites[leaves[0]].site.module, float(stat(span.rows[row, leaves[0]], "rms")))

    def _follow_constancy(self, span: Span, inputs: list[int]) -> None:
        rows = span.rows[:, inputs]
        there = span.present[:, inputs]
        low, high, count = (rows[..., INDEX[name]] for name in ("min", "max", "count"))
        flat: npt.NDArray[np.bool_] = (low == high) & (count >= FEW)
        same = np.all(flat | ~there, axis=1)
        for row in np.flatnonzero(there.any(axis=1)):
            step = int(span.steps[row])
            value = float(low[row, 0])
            lasts = bool(same[row]) and (self._constant.length == 0 or value == self._constant_value)
            self._constant_value = value
            one_sample = self._identical.pop(step, False)
            self._constant.see(step, lasts or one_sample)
            self._last_step = step

    def rules(self) -> Iterator[Rule]:
        """Nothing at all comes first: it has no size."""
        constant = self._constant
        ignored = Rule(
            "inputs_ignored",
            (
                Reading("batches in a row without any difference", constant.longest, ">=", BATCHES_NEEDED),
                Reading("targets differ, or are not known", self._targets_vary or not self._has_targets, "=", 1),
                Reading(
                    "the latest batches are so too, or this lasted for long",
                    constant.length > 0 or constant.longest >= 4 * BATCHES_NEEDED,
                    "=",
                    1,
                ),
            ),
            self._ignored,
        )
        yield ignored
        rms, spread = (median([size[n] for size in self._sizes]) for n in (0, 1))
        known = (
            Reading("told as inputs_ignored", ignored.holds, "=", 0),
            Reading("batches of floats that were logged", len(self._sizes), ">=", BATCHES_NEEDED),
        )
        yield from self._unscaled(known, rms)
        small = LOST if self._is_normalised else SMALL
        yield Rule(
            "inputs_too_small",
            (
                *known,
                Reading("spread of the inputs", spread, "<", small, self._name),
                Reading("the same, not zero", spread, ">", 0, self._name),
                Reading("root mean square of the inputs", rms, "<", LARGE, self._name),
                # A model that scales its inputs itself shows outputs far larger than what went in.
                Reading(
                    "size of the first layer's output",
                    self._first_layer[1] if self._first_layer else np.nan,
                    "<" if self._first_layer else "",
                    max(AUDIBLE, LIFTED * rms),
                ),
            ),
            lambda: self._too_small(spread),
        )

    @property
    def _is_scaled_away(self) -> bool:
        """Whether a norm takes the size of the inputs away: by where the data goes, where that is known."""
        return self._scaled_by_order if self._scaled_by_flow is None else self._scaled_by_flow

    def _chance(self) -> float:
        """The loss of predictions that do not depend on the inputs; NaN where that is unknown."""
        if self._num_classes > 1:
            return math.log(self._num_classes)
        if self._target_rms:
            size = float(np.median(self._target_rms))
            return max(size, size * size, 0.1)
        return np.nan

    def _unscaled(self, known: Readings, rms: float) -> Iterator[Rule]:
        """Large, with nothing that takes their size away, and harmful in one of three ways."""
        large = (
            *known,
            Reading("root mean square of the inputs", rms, ">=", LARGE, self._name),
            Reading("a norm takes their size away", self._is_scaled_away, "=", 0),
        )
        chance, first = self._chance(), median(self._losses)
        yield Rule(
            "unscaled_inputs",
            (*large, Reading("first losses", first, ">", FLOODED * chance)),
            lambda: self._tell_unscaled(
                rms,
                f"the first losses are about {first:.3g} where knowing nothing gives {chance:.3g}",
                Evidence("first loss", first, chance),
            ),
            "first loss",
        )
        full = next((path for path, share in self._saturation.items() if share > SATURATED), "")
        share = self._saturation[full] if full else max(self._saturation.values(), default=np.nan)
        yield Rule(
            "unscaled_inputs",
            (*large, Reading("largest share of saturated outputs", share, ">", SATURATED, full)),
            lambda: self._tell_unscaled(
                rms, f"{full} is saturated from the start", Evidence(f"saturated outputs of {full}", share, 0.0)
            ),
            "saturated",
            is_otherwise=True,
        )
        # Nobody said what the targets are; a loss as large as the inputs that is gone at once needs no telling.
        lost = np.nan if self._lost_at is None else self._lost_at
        yield Rule(
            "unscaled_inputs",
            (
                *large,
                Reading("step at which the loss was no number", lost, "<", self._first_step + BATCHES_NEEDED),
                Reading("first losses, against the size of the inputs", first, ">=", rms),
            ),
            lambda: self._tell_unscaled(
                rms, f"the loss, {first:.3g} at first, was lost at step {lost:,}", Evidence("first loss", first)
            ),
            "lost",
            is_otherwise=True,
        )

    def _tell_unscaled(self, rms: float, harm: str, shown: Evidence) -> Finding:
        size = Evidence("root mean square of the inputs", rms, 1.0, site=self._name, kind="input", stat="rms")
        return Finding(
            "unscaled_inputs",
            Severity.CRITICAL,
            f"The inputs are about {rms:,.3g} in size where layers are made for about 1, and {harm}.",
            self._first_step,
            self._last_step,
            (self._name,),
            (size, *self._ranges(), shown),
            "inputs = (inputs - inputs.mean(0)) / inputs.std(0)  # with mean and std of the training set",
        )

    def _ranges(self) -> list[Evidence]:
        sizes = self._features
        if sizes is None:
            return []
        return [
            Evidence(f"size of feature {n}, against the median feature", size, sizes.median)
            for n, size in sizes.largest
        ]

    def _too_small(self, spread: float) -> Finding:
        heard = (
            [Evidence(f"output of {self._first_layer[0]}, root mean square", self._first_layer[1])]
            if self._first_layer is not None
            else []
        )
        return Finding(
            "inputs_too_small",
            Severity.WARNING,
            f"The inputs spread by only {spread:.2g} where layers are made for about 1: they may have been normalised twice.",
            self._first_step,
            self._last_step,
            (self._name,),
            (
                Evidence("standard deviation of the inputs", spread, 1.0, site=self._name, kind="input", stat="std"),
                *heard,
            ),
            "inputs = (inputs - inputs.mean()) / inputs.std()  # once, with statistics of the values as they are there",
        )

    def _ignored(self) -> Finding:
        value = self._constant_value
        what = (
            "zero" if value == 0 else f"{value:.3g}" if value is not None and self._sizes_flat() else "the same sample"
        )
        first = self._constant.start_of_longest
        return Finding(
            "inputs_ignored",
            Severity.CRITICAL,
            f"Every input is {what} since step {first:,}: nothing that the model is given tells one sample from another.",
            first,
            self._constant.last_step,
            (self._name or "batch",),
            (
                Evidence("batches without any difference", float(self._constant.longest), 0.0),
                Evidence("standard deviation of the inputs", 0.0, site=self._name, kind="input", stat="std"),
            ),
            "assert inputs.std() > 0  # in the data pipeline: a division of integers, a mask, a normalisation",
        )

    def _sizes_flat(self) -> bool:
        return all(spread == 0 for _, spread in self._sizes)
