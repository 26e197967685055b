"""One batch with a value far beyond all others, and the spike that it caused.

Seen from the whole run: the few batches whose largest value stands apart from every other batch's by a wide gap. Long tails
fill such gaps. A spike of the loss or of the gradient in the same step makes it a warning.
"""

from __future__ import annotations

from array import array
from typing import Any, ClassVar, Final

import numpy as np

from stethoscope.analyse.span import Span
from stethoscope.detect.detector import Reading
from stethoscope.kernels.columns import INDEX
from stethoscope.record import Evidence, Finding, FloatArray, Kind, Severity

BATCHES_NEEDED: Final = 20
FAR: Final = 30.0
"""Times the usual largest value of a batch."""
GAP: Final = 5.0
"""Times the largest value of any ordinary batch."""
RARE: Final = 0.02
SPIKE: Final = 4.0
"""Times the loss or gradient of the steps before."""
BEFORE: Final = 20


class Outliers:
    """Keeps the largest value, the loss and the gradient of every step that has a logged batch."""

    codes: ClassVar[tuple[str, ...]] = ("outlier_batch",)

    def __init__(self) -> None:
        self._steps = array("q")
        self._largest, self._losses, self._gradients = array("d"), array("d"), array("d")
        self._samples: dict[int, dict[str, Any]] = {}
        self._name = ""
        self._peak = 0.0

    def observe(self, span: Span) -> None:
        """Append; remember the index of samples that were the largest so far."""
        for event in span.events:
            found = event.body.get("largest") if event.kind == "batch" and not event.rank else None
            if found and found["value"] > 2.0 * self._peak:
                self._samples[event.step] = found
                self._peak = float(found["value"])
        inputs = span.inputs()
        if not inputs or "float" not in span.sites[inputs[0]].dtype:
            return
        self._name = span.sites[inputs[0]].site.path
        there = np.flatnonzero(span.present[:, inputs[0]])
        gradients = span.places(Kind.GRADIENT)
        norms = np.sqrt(np.nansum(span.stat("norm")[:, gradients] ** 2, axis=1)) if len(gradients) else None
        self._steps.extend(span.steps[there].tolist())
        self._largest.extend(span.rows[there, inputs[0], INDEX["abs_max"]].tolist())
        self._losses.extend(span.metric("loss")[there].tolist())
        self._gradients.extend(norms[there].tolist() if norms is not None else [float("nan")] * len(there))

    def readings(self) -> dict[str, list[Reading]]:
        """What the rule asks for, and what it got."""
        largest = np.array(self._largest)
        largest = largest[np.isfinite(largest)]
        usual = float(np.median(largest)) if len(largest) else np.nan
        top = float(largest.max()) / usual if len(largest) and usual > 0 else np.nan
        return {
            "outlier_batch": [
                Reading("batches of floats that were logged", len(largest), ">=", BATCHES_NEEDED),
                Reading("largest value of any batch / usual largest", top, ">", FAR, self._name),
                Reading("batches as far as that", int((largest > FAR * usual).sum()), "<=", max(2, int(RARE * len(largest)))),
            ]
        }

    def findings(self) -> list[Finding]:
        """The first batch that stands apart."""
        largest = np.array(self._largest)
        known = np.isfinite(largest)
        if int(known.sum()) < BATCHES_NEEDED:
            return []
        far = known & (largest > FAR * float(np.median(largest[known])))
        num_far = int(far.sum())
        ordinary = largest[known & ~far]
        if not 0 < num_far <= max(2, int(RARE * len(largest))) or not len(ordinary):
            return []
        if float(largest[far].min()) < GAP * float(ordinary.max()):
            return []
        return [self._tell(np.flatnonzero(far), largest)]

    def _tell(self, places: Any, largest: FloatArray) -> Finding:
        spikes = [(int(n), *self._spike(int(n))) for n in places]
        place, what, value, before = max(spikes, key=lambda spike: spike[2] / max(spike[3], 1e-300))
        harmful = value > SPIKE * before
        place = next((n for n, _, v, b in spikes if v > SPIKE * b), place) if harmful else int(places[0])
        if harmful:
            what, value, before = self._spike(place)
        step = int(self._steps[place])
        sample = self._samples.get(step, {}).get("sample")
        who = f"sample {sample} of the batch" if sample is not None else "a sample of the batch"
        usual = float(np.median(largest[np.isfinite(largest)]))
        effect = f"; the {what} went from {before:.3g} to {value:.3g}" if harmful else ""
        indexed = [Evidence("index in the batch", float(sample))] if sample is not None else []
        return Finding(
            "outlier_batch", Severity.WARNING if harmful else Severity.INFO,
            f"{who.capitalize()} of step {step:,} holds a value of {largest[place]:,.4g} where the largest of a batch is "
            f"usually {usual:,.3g}{effect}.".replace("batch of step", "batch at step"),
            step, int(self._steps[int(places[-1])]), (self._name,),
            (
                Evidence("largest value in the batch", float(largest[place]), usual, site=self._name, kind="input",
                         stat="abs_max"),
                *indexed,
                Evidence(what, value, before),
            ),
            "inputs = inputs.clamp(low, high)  # with limits from the training set, or drop the sample",
        )  # fmt: skip

    def _spike(self, place: int) -> tuple[str, float, float]:
        """What jumped most in this step against the steps before it: loss or gradient."""
        best = ("loss", 0.0, 1.0)
        for what, values in (("loss", self._losses), ("gradient norm", self._gradients)):
            window = np.abs(np.array(values[max(0, place - BEFORE) : place]))
            window = window[np.isfinite(window)]
            value = abs(values[place])
            if len(window) < 3 or not np.isfinite(value):
                continue
            # Above the largest of the steps before, not their middle: losses of single batches are noisy.
            before = float(window.max())
            if before > 0 and value / before > best[1] / best[2]:
                best = (what, value, before)
        return best
