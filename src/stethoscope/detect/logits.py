"""Logits that run away: attention that locks onto one place, outputs whose log-sum-exp drifts."""

from __future__ import annotations

import math
from typing import ClassVar, Final

import numpy as np

from stethoscope.analyse.span import Span
from stethoscope.detect.detector import Reading
from stethoscope.kernels.columns import INDEX
from stethoscope.record import Evidence, Finding, Kind, Severity

LOOKS_NEEDED: Final = 6
BASELINE_LOOKS: Final = 3
COLLAPSED: Final = 0.1
"""Entropy against a uniform row's: below a tenth, a row looks at one place."""
OPEN: Final = 0.4
"""Where it must have been before: attention that starts sharp is made so."""
LOGIT_GROWTH: Final = 8.0
LARGE_LOGIT: Final = 30.0
DRIFT: Final = 0.5
"""Times ln(number of classes) that the mean log-sum-exp moved."""
SHIFTED: Final = 1.5
"""Times their spread that all logits moved together. Cross entropy never does that: its gradient sums to zero."""
ACCELERATES: Final = 1.3
"""Or: moved further in the second half of the run than in the first, look after look, where a model that learns slows down."""


class Logits:
    """Follows entropies, largest logits, and log Z."""

    codes: ClassVar[tuple[str, ...]] = ("attention_logit_growth", "output_logit_drift")

    def __init__(self) -> None:
        self._looks: dict[str, list[tuple[int, dict[str, float]]]] = {}
        self._drift: list[tuple[int, float]] = []
        self._num_classes = 0.0
        self._centre: list[tuple[float, float]] = []
        self._last_step = 0

    def observe(self, span: Span) -> None:
        """Keep every look at attention and at the output."""
        for event in span.events:
            if event.kind == "attention":
                for path, numbers in event.body["modules"].items():
                    self._looks.setdefault(path, []).append((event.step, numbers))
        log_z, classes = span.metric("output/log_z"), span.metric("output/num_units")
        outputs = span.places(Kind.OUTPUT)
        for place in np.flatnonzero(np.isfinite(log_z)):
            self._drift.append((int(span.steps[place]), float(log_z[place])))
            self._num_classes = float(classes[place])
            if len(outputs) and span.present[place, outputs[0]]:
                row = span.rows[place, outputs[0]]
                self._centre.append((float(row[INDEX["mean"]]), float(row[INDEX["std"]])))
        if len(span.steps):
            self._last_step = int(span.steps[-1])

    def readings(self) -> dict[str, list[Reading]]:
        """What each rule asks for: of the attention with the lowest entropy now, and of the output."""
        looks = {path: [n for _, n in seen if n.get("uniform", 0.0) > 0.5] for path, seen in self._looks.items()}
        openness = {path: [n["entropy"] / n["uniform"] for n in seen] for path, seen in looks.items() if len(seen) >= LOOKS_NEEDED}
        now = {path: float(np.median(values[-BASELINE_LOOKS:])) for path, values in openness.items()}
        path = min(now, key=lambda name: now[name], default="")
        before = float(np.median(openness[path][:BASELINE_LOOKS])) if path else np.nan
        largest = [n.get("max_logit", np.nan) for n in looks.get(path, [])] or [np.nan]
        values = np.array([value for _, value in self._drift])
        moved = float(np.median(values[-BASELINE_LOOKS:]) - np.median(values[:BASELINE_LOOKS])) if len(values) else np.nan
        return {
            "attention_logit_growth": [
                Reading("attention modules looked at often enough", len(now), ">", 0),
                Reading("entropy at the start, of a uniform row's", before, ">", OPEN, path, "collapsed"),
                Reading("entropy now, of a uniform row's", now.get(path, np.nan), "<", COLLAPSED, path, "collapsed"),
                Reading("largest logit", largest[-1], ">", LARGE_LOGIT, path, "ran away"),
                Reading("largest logit at the start", largest[0], site=path),
            ],
            "output_logit_drift": [
                Reading("looks at the output's logits", len(values), ">", LOOKS_NEEDED),
                Reading("change of the mean log Z", abs(moved), ">=", DRIFT * math.log(max(self._num_classes, 2))),
            ],
        }

    def findings(self) -> list[Finding]:
        """Attention by module, the worst one told; then the output."""
        grown = [found for path in sorted(self._looks) if (found := self._attention(path)) is not None]
        grown.sort(key=lambda pair: pair[0])
        told = [grown[0][1]] if grown else []
        drift = self._output()
        return told if drift is None else [*told, drift]

    def _attention(self, path: str) -> tuple[float, Finding] | None:
        looks = [(step, n) for step, n in self._looks[path] if n.get("uniform", 0.0) > 0.5]
        if len(looks) < LOOKS_NEEDED:
            return None
        openness = np.array([n["entropy"] / n["uniform"] for _, n in looks])
        before, after = (
            float(np.median(openness[:BASELINE_LOOKS])),
            float(np.median(openness[-BASELINE_LOOKS:])),
        )
        largest = [n.get("max_logit", math.nan) for _, n in looks]
        base, top = largest[0], largest[-1]
        collapsed = (
            before > OPEN and after < COLLAPSED and bool((openness[-BASELINE_LOOKS:] < COLLAPSED).all())
        )
        ran_away = (
            math.isfinite(base) and top > LARGE_LOGIT and top > LOGIT_GROWTH * base and after < 0.5 * before
        )
        if not collapsed and not ran_away:
            return None
        middle = (before + after) / 2
        above = np.flatnonzero(openness > middle)
        first = looks[min(int(above[-1]) + 1, len(looks) - 1)][0] if len(above) else looks[0][0]
        evidence = [Evidence("attention entropy against a uniform row", after, before)]
        if math.isfinite(top):
            evidence.append(Evidence("largest logit", top, base if math.isfinite(base) else None))
        finding = Finding(
            "attention_logit_growth", Severity.WARNING,
            f"Attention in {path} locks onto single places from step {first:,}: its entropy fell from {before:.0%} to "
            f"{after:.0%} of a uniform row's.",
            first, self._last_step, (path,), tuple(evidence),
            "q, k = rms_norm(q), rms_norm(k)  # or a smaller learning rate for query and key",
        )  # fmt: skip
        return after, finding

    def _shifted(self) -> bool:
        """Whether all logits moved together; a model that grows sure spreads them, which is learning."""
        if len(self._centre) < 2 * BASELINE_LOOKS:
            return False
        start = float(np.median([mean for mean, _ in self._centre[:BASELINE_LOOKS]]))
        end = float(np.median([mean for mean, _ in self._centre[-BASELINE_LOOKS:]]))
        spread = float(np.median([std for _, std in self._centre[-BASELINE_LOOKS:]]))
        return abs(end - start) > SHIFTED * spread

    def _output(self) -> Finding | None:
        if len(self._drift) <= LOOKS_NEEDED or self._num_classes < 2:
            return None
        values = np.array([value for _, value in self._drift])
        start, end = float(np.median(values[:BASELINE_LOOKS])), float(np.median(values[-BASELINE_LOOKS:]))
        limit = DRIFT * math.log(self._num_classes)
        middle = float(np.median(values[len(values) // 2 :][:BASELINE_LOOKS]))
        first_half, second_half = abs(middle - start), abs(end - middle)
        still = second_half > 0.2 * first_half
        runs_away = second_half > ACCELERATES * first_half and bool((np.diff(np.abs(values[-8:])) > 0).all())
        if abs(end - start) < limit or not still or not (self._shifted() or runs_away):
            return None
        first = next(step for step, value in self._drift if abs(value - start) > limit / 2)
        return Finding(
            "output_logit_drift", Severity.WARNING,
            f"The output's logits drift: the mean of log Z went from {start:.3g} to {end:.3g} since step {first:,}, which the loss "
            "does not see.",
            first, self._last_step, ("(root)",), (Evidence("mean log Z", end, start),),
            "loss = loss + 1e-4 * torch.logsumexp(logits, -1).square().mean()",
        )  # fmt: skip
