"""Logits that run away: attention that locks onto one position, outputs whose log-sum-exp drifts.

Cross entropy cannot tell a common shift of all logits, so its gradient over them sums to zero, exactly, whatever the labels, weights or
smoothing. A sum that is not zero, always of one sign, that drives log Z further out and does not fade on the way, is another term of the
loss that nothing holds back. A term with a goal (a teacher's logits, a z-loss of the right sign) fades, or pulls back.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import partial
from typing import ClassVar, Final

import numpy as np

from stethoscope.analyse.span import Span
from stethoscope.detect.detector import Code, Detector, Reading, Rule, all_hold, median
from stethoscope.detect.effects import BLOW_UP
from stethoscope.detect.needs import LOGITS, UNITS_HINT, Need
from stethoscope.detect.tracks import Track
from stethoscope.kernels.columns import INDEX
from stethoscope.record import Evidence, Finding, Kind, Severity, metrics
from stethoscope.record.events import Attention, AttentionNumbers, LossGraph

LOOKS_NEEDED: Final = 6
LOOKS_KEPT: Final = 1024
ATTENTION_LOOKS: Final = 4
"""Each is a mean over rows and heads, so a few suffice: a busy machine may take no more."""
BASELINE_LOOKS: Final = 3
COLLAPSED: Final = 0.1
"""Entropy against a uniform row's: below a tenth, a row attends to one position."""
OPEN: Final = 0.4
"""Where it must have been before: attention that starts sharp is made so."""
LOGIT_GROWTH: Final = 8.0
LARGE_LOGIT: Final = 30.0
HALVED: Final = 0.5
DRIFT: Final = 0.5
"""Times ln(number of classes) that the mean log-sum-exp moved."""
STILL: Final = 0.2
"""Of the change until the middle: log Z must go on as far after it."""
SHIFTED: Final = 1.5
"""Times their spread that all logits moved together."""
PUSHED: Final = 0.01
"""The sum of the gradient over all logits, against the sum of its sizes: rounding gives 1e-7, in bfloat16 2e-4."""
PUSHES_NEEDED: Final = 12
ONE_SIGN: Final = 0.95
LASTS: Final = 0.8
"""The push in the last fifth, against the fifth in which it was largest: towards a goal it fades."""


class Logits(Detector):
    """Follows entropies, largest logits, and log Z."""

    codes: ClassVar[tuple[Code, ...]] = (
        Code(
            "attention_logit_growth",
            needs=(Need("looks at attention", "event", (Attention.KIND,), UNITS_HINT),),
            leads_to=(*BLOW_UP, "dead_units"),  # attention that is locked gives queries and keys no gradient
        ),
        Code("output_logit_drift", needs=(LOGITS,), leads_to=BLOW_UP),
    )

    def __init__(self) -> None:
        self._looks: dict[str, Track] = {}
        self._freedom: dict[str, float] = {}
        self._drift = Track(2)
        self._num_classes = 0.0
        self._num_labels = 0
        self._centre = Track(2, limit=LOOKS_NEEDED, ends=BASELINE_LOOKS)
        self._pushes = Track(2)
        self._last_step = 0

    def observe(self, span: Span) -> None:
        """Keep every sample of attention and of the output."""
        for event, attention in span.events_of(Attention):
            for path, numbers in attention.modules.items():
                self._see_attention(event.step, path, numbers)
        for _, graph in span.events_of(LossGraph):
            self._num_labels = max(self._num_labels, graph.num_classes)
        log_z, classes = span.metric(metrics.LOG_Z), span.metric(metrics.NUM_UNITS)
        outputs = span.site_indices(Kind.OUTPUT)
        for index in np.flatnonzero(np.isfinite(log_z)):
            self._drift.add(int(span.steps[index]), float(log_z[index]))
            self._num_classes = float(classes[index])
            if len(outputs) and span.present[index, outputs[0]]:
                row = span.rows[index, outputs[0]]
                self._centre.add(float(row[INDEX["mean"]]), float(row[INDEX["std"]]))
        self._see_pushes(span)
        if len(span.steps):
            self._last_step = int(span.steps[-1])

    def _see_attention(self, step: int, path: str, numbers: AttentionNumbers) -> None:
        """The entropy of an attention as a share of what its rows are free to have, and its largest logit.

        Weights that are exactly zero may be masked or may have run away so far that they vanished: a row is held against the most
        freedom that any look until then had.
        """
        free = max(self._freedom.get(path, 0.0), numbers.uniform)
        self._freedom[path] = free
        # After a NaN there is nothing to look at, and nothing is taken back.
        if free > 0.5 and math.isfinite(numbers.entropy):
            if path not in self._looks:
                self._looks[path] = Track(3, limit=LOOKS_KEPT)
            score = math.nan if numbers.max_logit is None else numbers.max_logit
            self._looks[path].add(step, numbers.entropy / free, score)

    def _see_pushes(self, span: Span) -> None:
        """Of the last layer with one output a class: the sum of the gradient over its logits, and of its sizes."""
        heads = [
            n
            for n in span.in_depth(span.site_indices(Kind.ACTIVATION_GRADIENT))
            if len(span.sites[n].shape) > 1 and span.sites[n].shape[-1] == self._num_labels
        ]
        if not heads:
            return
        rows = span.rows[span.present[:, heads[-1]], heads[-1]]
        sums = rows[:, [INDEX["mean"], INDEX["mean_abs"]]] * rows[:, [INDEX["count"]]]
        for push, size in sums:
            if math.isfinite(push) and size > 0:
                self._pushes.add(float(push), float(size))

    def rules(self) -> Iterator[Rule]:
        """Attention by module, the worst one told; then the output."""
        looked = {
            path: (median(looks.last(BASELINE_LOOKS)[:, 1]), looks) for path, looks in sorted(self._looks.items())
        }
        for path, (after, looks) in sorted(looked.items(), key=lambda item: item[1][0]) or [("", (math.nan, Track(3)))]:
            yield from self._attention(path, after, looks)
        yield from self._output()

    def _attention(self, path: str, after: float, looks: Track) -> Iterator[Rule]:
        early, late = looks.first(BASELINE_LOOKS), looks.last(BASELINE_LOOKS)
        before, base, top = max(early[:, 1], default=math.nan), median(early[:1, 2]), median(late[:, 2])
        enough = Reading("looks at an attention", len(looks), ">=", ATTENTION_LOOKS, path)
        ways = {
            "collapsed": (
                Reading("entropy at the start, of a uniform row's", before, ">", OPEN, path),
                Reading("entropy now, of a uniform row's", after, "<", COLLAPSED, path),
                Reading(
                    "the same in each of the latest looks", max(late[:, 1], default=math.nan), "<", COLLAPSED, path
                ),
            ),
            "ran away": (
                Reading("largest logit", top, ">", LARGE_LOGIT, path),
                Reading("the same, against the start", top, ">", LOGIT_GROWTH * base, path),
                Reading("entropy now, against the start", after, "<", HALVED * before, path),
            ),
        }
        for way, readings in ways.items():
            yield Rule(
                "attention_logit_growth",
                (enough, *readings),
                partial(self._tell_attention, path, looks, (before, after), (base, top)),
                way,
                is_otherwise=True,
            )

    def _tell_attention(
        self, path: str, looks: Track, entropy: tuple[float, float], logit: tuple[float, float]
    ) -> Finding:
        (before, after), (base, top) = entropy, logit
        above = np.flatnonzero(looks.column(1) > (before + after) / 2)
        first = int(looks.steps[min(int(above[-1]) + 1, len(looks.steps) - 1)] if len(above) else looks.first(1)[0, 0])
        largest = Evidence("largest logit", top, base if math.isfinite(base) else None)
        return Finding(
            "attention_logit_growth",
            Severity.WARNING,
            f"Attention in {path} locks onto single positions from step {first:,}: its entropy fell from {before:.0%} to "
            f"{after:.0%} of a uniform row's.",
            first,
            self._last_step,
            (path,),
            (
                Evidence("attention entropy against a uniform row", after, before),
                *([largest] if math.isfinite(top) else []),
            ),
            "q, k = rms_norm(q), rms_norm(k)  # or a smaller learning rate for query and key",
        )

    def _common_shift(self) -> float:
        """How far all logits moved together, in their spread; a model that grows sure spreads them, which is learning."""
        if len(self._centre) < 2 * BASELINE_LOOKS:
            return math.nan
        (start, wide), (end, narrow) = (
            np.median(part, axis=0) for part in (self._centre.first(BASELINE_LOOKS), self._centre.last(BASELINE_LOOKS))
        )
        return abs(float(end - start)) / max(float(wide), float(narrow), 1e-300)

    def _gradient_push(self) -> tuple[float, float, float]:
        """Of the gradient over all logits: its common share, its mean sign, and the push of the last fifth against the largest."""
        if len(self._pushes) < PUSHES_NEEDED:
            return math.nan, math.nan, math.nan
        sums, sizes = self._pushes.rows.T
        # Of the whole gradient too: where everything else fades sooner, that is no push towards a goal either.
        fifths = [
            [float(np.median(part)) for part in np.array_split(v, 5)] for v in (np.abs(sums), np.abs(sums) / sizes)
        ]
        lasts = min(fifth[-1] / max(*fifth, 1e-300) for fifth in fifths)
        return float(np.median(np.abs(sums) / sizes)), float(np.sign(sums).mean()), lasts

    def _output(self) -> Iterator[Rule]:
        """Log Z went far and did not come to rest, with all logits together or by a push that nothing holds back."""
        drift, num_classes = self._drift, self._num_classes
        start, end = (median(part[:, 1]) for part in (drift.first(BASELINE_LOOKS), drift.last(BASELINE_LOOKS)))
        middle = median(drift.values[len(drift.values) // 2 :][:BASELINE_LOOKS])
        limit = DRIFT * math.log(max(num_classes, 2))
        drifts = (
            Reading("looks at the output's logits", len(drift), ">", LOOKS_NEEDED),
            Reading("classes of the output", num_classes, ">=", 2),
            Reading("classes of the labels", self._num_labels, "=", num_classes),
            Reading("change of the mean log Z", abs(end - start), ">=", limit),
            Reading("the same in the second half", abs(end - middle), ">", STILL * abs(middle - start)),
        )
        shifted = Reading("all logits moved together, times their spread", self._common_shift(), ">", SHIFTED)
        share, sign, lasts = self._gradient_push()
        pushed = (
            Reading("share of the gradient that shifts all logits", share, ">", PUSHED),
            Reading("share of samples in which it has one sign", abs(sign), ">=", ONE_SIGN),
            Reading("this push in the last fifth, against its largest", lasts, ">=", LASTS),
            # Descent moves the logits against the gradient.
            Reading("its sign, times the change of log Z", sign * (end - start), "<", 0),
        )
        pull = [Evidence(pushed[0].label, share, 0.0)] if all_hold(pushed) else []

        def tell() -> Finding:
            moved = np.flatnonzero(np.abs(drift.values - start) > limit / 2)
            first = int(drift.steps[moved[0]]) if len(moved) else self._last_step
            return Finding(
                "output_logit_drift",
                Severity.WARNING,
                f"The output's logits drift: the mean of log Z went from {start:.3g} to {end:.3g} since step {first:,}, which the "
                "loss does not see.",
                first,
                self._last_step,
                ("(root)",),
                (Evidence("mean log Z", end, start), *pull),
                "loss = loss + 1e-4 * torch.logsumexp(logits, -1).square().mean()",
            )

        yield Rule("output_logit_drift", (*drifts, shifted), tell, "shifted")
        yield Rule("output_logit_drift", (*drifts, *pushed), tell, "pushed", is_otherwise=True)
