"""Every prediction is the commonest class, for a long time, although the labels are not.

Early in training this is usual, and for a class with almost all labels it is right. It is a fault when not one other
class was predicted for long and the loss shows that little more than the classes' frequencies was learned.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar, Final

import numpy as np

from stethoscope.analyse.span import Span
from stethoscope.analyse.trends import Direction, mann_kendall
from stethoscope.detect.detector import Code, Detector, Reading, Rule, median, ratio
from stethoscope.detect.needs import BATCHES, LOSS, PREDICTIONS, optional
from stethoscope.kernels.columns import INDEX
from stethoscope.record import Evidence, Finding, FloatArray, Kind, Severity, metrics
from stethoscope.record.events import Batch, LossGraph

LOOKS_NEEDED: Final = 10
STEPS_NEEDED: Final = 80
SHARE: Final = 0.995
MAJORITY: Final = 0.5
"""The commonest class has at least this share of the labels."""
EXPECTED: Final = 20.0
"""So many predictions of other classes were to be expected, at least."""
LEARNED: Final = 0.7
"""A loss below this share of the entropy of the classes shows that samples are told apart."""
RECENT: Final = 64
FALLS: Final = 0.1
"""Of the loss, from the first half of the recent steps to the second."""
ONE_LOGIT: Final = "BinaryCrossEntropyWithLogits"


class ClassCollapse(Detector):
    """Follows the share of the commonest prediction beside the labels."""

    codes: ClassVar[tuple[Code, ...]] = (Code("class_collapse", needs=(PREDICTIONS, LOSS, optional(BATCHES))),)

    def __init__(self) -> None:
        self._labels = np.zeros(0)
        self._num_batches = 0
        self._since: int | None = None
        self._last_step = 0
        self._num_looks = 0
        self._top = -1
        self._num_units = 0
        self._losses: list[float] = []
        self._is_one_logit = False

    def observe(self, span: Span) -> None:
        """Labels from the batches, predictions where they were recorded."""
        for event, batch in span.events_of(Batch):
            counts = batch.class_counts
            # One label a sample: language models begin with the commonest letter and are right to.
            if counts and not event.rank and sum(counts) == batch.num_samples:
                if len(counts) > len(self._labels):
                    self._labels = np.pad(self._labels, (0, len(counts) - len(self._labels)))
                self._labels[: len(counts)] += counts
                self._num_batches += 1
        for _, graph in span.events_of(LossGraph):
            self._is_one_logit |= any(name == ONE_LOGIT for name, _ in graph.operations)
        if self._is_one_logit:
            self._take_targets(span)
        shares, tops, units = map(span.metric, (metrics.TOP_SHARE, metrics.TOP_CLASS, metrics.NUM_UNITS))
        losses = span.metric(metrics.LOSS)
        self._losses = [*self._losses, *losses[np.isfinite(losses)].tolist()][-RECENT:]
        for row in np.flatnonzero(np.isfinite(shares)):
            step = int(span.steps[row])
            top = int(tops[row]) if np.isfinite(tops[row]) else -1
            self._num_units = int(units[row]) if np.isfinite(units[row]) else 0
            if shares[row] < SHARE or top != self._top:
                self._since, self._num_looks = None, 0
            if shares[row] >= SHARE:
                self._since = step if self._since is None else self._since
                self._num_looks += 1
            self._top, self._last_step = top, step

    def _take_targets(self, span: Span) -> None:
        """Targets of zeros and ones beside one logit a sample, or a pixel, are labels of two classes."""
        indices = [
            n
            for n in span.site_indices(Kind.TARGET)
            if "float" in span.sites[n].dtype
            and (len(span.sites[n].shape) == 1 or span.sites[n].shape[-1] == 1 or self._num_units == 1)
        ]
        if not indices:
            return
        rows = span.rows[span.present[:, indices[0]], indices[0]]
        count, zeros, mean = (rows[:, INDEX[name]] for name in ("count", "num_zero", "mean"))
        for row in np.flatnonzero((rows[:, INDEX["max"]] <= 1) & np.isclose(mean * count + zeros, count)):
            if not len(self._labels):
                self._labels = np.zeros(2)
            self._labels[:2] += [float(zeros[row]), float(count[row] - zeros[row])]
            self._num_batches += 1

    def _still_falls(self) -> bool:
        half = len(self._losses) // 2
        before, after = median(self._losses[:half]), median(self._losses[half:])
        trend = mann_kendall(self._losses, alpha=0.01).direction
        return after < before - FALLS * abs(before) and trend is Direction.FALLING

    def rules(self) -> Iterator[Rule]:
        """Only while it lasts."""
        total = float(self._labels.sum())
        shares = self._labels / total if total else self._labels
        common = float(shares[self._top]) if total and self._top < len(shares) else np.nan
        entropy, loss = _entropy(shares), median(self._losses)
        num_classes = 2 if self._num_units == 1 and self._is_one_logit else self._num_units
        expected = (1.0 - common) * total / max(self._num_batches, 1) * self._num_looks
        lasts = self._last_step - self._since if self._since is not None else 0
        # Below what the frequencies give, a loss that goes on falling tells samples apart, whatever it predicts by now.
        learns = loss < entropy and self._still_falls()
        yield Rule(
            "class_collapse",
            (
                Reading(
                    "samples in a row in which every prediction was one class", self._num_looks, ">=", LOOKS_NEEDED
                ),
                Reading("steps for which that has lasted", lasts, ">=", STEPS_NEEDED),
                Reading("classes of the labels, and of the model", len(shares), "=", num_classes),
                Reading("share of that class among the labels", common, ">=", MAJORITY),
                Reading("share of the commonest class among them", float(shares.max(initial=0.0)), "=", common),
                Reading("predictions of other classes that were to be expected", expected, ">=", EXPECTED),
                Reading("loss, against the entropy of the classes", ratio(loss, entropy), ">", LEARNED),
                Reading("it is below that entropy and goes on falling", learns, "=", 0),
            ),
            lambda: self._tell(shares, common, loss, entropy),
        )

    def _tell(self, shares: FloatArray, common: float, loss: float, entropy: float) -> Finding:
        since = self._since or 0
        rare = ", ".join(f"class {n} {share:.1%}" for n, share in enumerate(shares[:4]) if n != self._top)
        return Finding(
            "class_collapse",
            Severity.WARNING,
            f"Every prediction since step {since:,} is class {self._top}, which {common:.1%} of the labels are; "
            f"{rare} of the labels are never predicted.",
            since,
            self._last_step,
            ("(root)",),
            (
                Evidence(f"share of predictions of class {self._top}", 1.0, common),
                Evidence("loss, against the entropy of the classes", loss, entropy),
            ),
            "nn.CrossEntropyLoss(weight=1 / class_counts)  # or a WeightedRandomSampler",
        )


def _entropy(shares: FloatArray) -> float:
    positive = shares[shares > 0]
    return float(-(positive * np.log(positive)).sum())
