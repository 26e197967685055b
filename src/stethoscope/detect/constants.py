"""A feature that never changes, divided by its spread: 0/0.

Features without variance are common and harmless. They are the cause where the first non-finite values stand exactly in
their columns, or where the very first layer already gets them although the batch itself is finite.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar, Final, cast

import numpy as np
import numpy.typing as npt

from stethoscope.analyse.span import Span
from stethoscope.detect.detector import Code, Detector, Reading, Rule
from stethoscope.detect.effects import BLOW_UP, UNIT_TROUBLE
from stethoscope.detect.needs import BATCHES
from stethoscope.kernels.columns import INDEX, stat
from stethoscope.record import Evidence, Finding, Kind, Severity, metrics
from stethoscope.record.events import Batch

MAX_NAMED: Final = 3
SYMPTOMS: Final = (Kind.ACTIVATION, Kind.OUTPUT, Kind.GRADIENT)


class Constants(Detector):
    """Follows which features are constant until something is not finite."""

    codes: ClassVar[tuple[Code, ...]] = (
        Code("constant_feature", needs=(BATCHES,), leads_to=(*BLOW_UP, *UNIT_TROUBLE, "nonfinite_batch")),
    )

    def __init__(self) -> None:
        self._constant: dict[int, float] | None = None
        self._num_here = 0
        self._num_samples = 0
        self._num_features = 0
        self._absent: list[int] = []
        self._finding: Finding | None = None
        self._is_over = False

    def observe(self, span: Span) -> None:
        """Step by step until the first bad one, which decides."""
        if self._is_over:
            return
        facts: dict[int, list[Batch]] = {}
        for event, batch in span.events_of(Batch):
            if not event.rank:
                facts.setdefault(event.step, []).append(batch)
        if self._constant is None and not facts:
            self._is_over = bool(self._unwell(span).any())
            return
        unwell = self._unwell(span)
        for row, step in enumerate(span.steps):
            for batch in facts.get(int(step), ()):
                self._take(batch)
            if self._absent or unwell[row]:
                self._is_over = True
                self._finding = self._judge(span, row, stat(span.rows[row], "num_nonfinite") > 0)
                return

    @staticmethod
    def _unwell(span: Span) -> npt.NDArray[np.bool_]:
        """At which steps something that follows from the inputs is not finite."""
        indices = np.concatenate([span.site_indices(kind) for kind in SYMPTOMS])
        unwell = span.recorded(metrics.LOSS) & ~np.isfinite(span.metric(metrics.LOSS))
        for name in ("num_nan", "num_posinf", "num_neginf"):
            unwell = unwell | np.any(span.rows[:, indices, INDEX[name]] > 0, axis=1)
        return unwell

    def rules(self) -> Iterator[Rule]:
        """At most one finding; the first bad step has decided."""
        num_known = len(self._absent) or len(self._constant or {})
        yield Rule(
            "constant_feature",
            (
                Reading("features without variance so far", num_known, ">", 0),
                Reading("a non-finite value was seen in outputs, loss or gradients", self._is_over, "=", 1),
                Reading("it stands in their columns, or in the first layer", self._finding is not None, "=", 1),
            ),
            lambda: cast(Finding, self._finding),
        )

    def _take(self, batch: Batch) -> None:
        self._num_samples = batch.num_samples
        if batch.constant is None:
            return
        here = dict(batch.constant)
        self._num_here, self._num_features = batch.num_constant, batch.num_features
        kept = here if self._constant is None else {n: v for n, v in self._constant.items() if here.get(n) == v}
        self._constant = kept
        absent = list(batch.nonfinite_features)
        self._absent = absent if len(absent) < self._num_features else []

    def _judge(self, span: Span, row: int, bad: npt.NDArray[np.bool_]) -> Finding | None:
        if self._absent:
            # A whole column that is not finite in the batch itself: divided before it was logged.
            return self._tell(span, row, self._absent, "batch", float(self._num_samples * len(self._absent)))
        inputs = span.site_indices(Kind.INPUT)
        if not self._constant or bad[inputs].any():
            return None
        outputs = [n for n in span.in_depth(span.site_indices(Kind.ACTIVATION)) if span.present[row, n]]
        broken = [n for n in outputs if bad[n]]
        if not broken:
            return None
        first = broken[0]
        num_bad = float(
            span.rows[row, first, INDEX["num_nan"]]
            + span.rows[row, first, INDEX["num_posinf"]]
            + span.rows[row, first, INDEX["num_neginf"]]
        )
        columns = {len(self._constant), self._num_here}
        in_columns = self._num_samples > 0 and any(num_bad == self._num_samples * n for n in columns)
        total = float(span.rows[row, first, INDEX["count"]])
        if (in_columns and num_bad < total) or (first == outputs[0] and self._takes_inputs(span, first)):
            return self._tell(span, row, list(self._constant), span.sites[first].site.module, num_bad)
        return None

    def _takes_inputs(self, span: Span, first: int) -> bool:
        """A layer with weights that makes NaN of a finite batch was given it: only the inputs came before."""
        module = span.modules.get(span.sites[first].site.module, {})
        return str(module.get("type", "")).startswith(("Linear", "Conv")) and bool(module.get("num_parameters"))

    def _tell(self, span: Span, row: int, features: list[int], module: str, num_bad: float) -> Finding:
        step = int(span.steps[row])
        named = ", ".join(str(n) for n in features[:MAX_NAMED])
        more = f" and {len(features) - MAX_NAMED} more" if len(features) > MAX_NAMED else ""
        word = "Feature" if len(features) == 1 else "Features"
        verb = "has" if len(features) == 1 else "have"
        sites = (module, *(f"batch[{n}]" for n in features[:MAX_NAMED]))
        return Finding(
            "constant_feature",
            Severity.CRITICAL,
            f"{word} {named}{more} of the inputs {verb} one value in every sample; divided by a spread of zero in {module} "
            f"{'it becomes' if len(features) == 1 else 'they become'} non-finite at step {step:,}.",
            step,
            step,
            tuple(dict.fromkeys(sites)),
            (
                Evidence("features without variance", float(len(features)), 0.0),
                Evidence("first such feature", float(features[0])),
                Evidence(f"non-finite values in {module}", num_bad, 0.0),
            ),
            "inputs = (inputs - mean) / std.clamp(min=1e-6)  # or drop features without variance",
        )
