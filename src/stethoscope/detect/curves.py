"""The curves of a run that detectors of learning read: the training loss, validation's metrics, and what chance would give."""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Sequence
from typing import Final

import numpy as np

from stethoscope.analyse.span import Span
from stethoscope.detect.surrogate_loss import SurrogateLoss
from stethoscope.detect.tracks import Track
from stethoscope.kernels.columns import INDEX
from stethoscope.record import FloatArray, IntArray, Kind, metrics
from stethoscope.record.events import Batch, LossGraph, Totals

VALIDATION: Final = ("eval", "val", "valid", "validation", "test", "dev")
RISING: Final = (
    "acc",
    "accuracy",
    "f1",
    "auc",
    "auroc",
    "auprc",
    "precision",
    "recall",
    "map",
    "iou",
    "miou",
    "dice",
    "bleu",
    "rouge",
    "r2",
    "reward",
    "return",
    "top1",
    "top5",
    "psnr",
    "ssim",
    "correct",
)
"""Words in the names of metrics of which more is better."""
FALLING: Final = (
    "loss",
    "error",
    "err",
    "wer",
    "cer",
    "mse",
    "mae",
    "rmse",
    "nll",
    "perplexity",
    "ppl",
    "bce",
    "ce",
    "fid",
)
"""And less."""
LOSSES_KEPT: Final = 1 << 15
BINARY: Final = ("BinaryCrossEntropyWithLogits", "BinaryCrossEntropy")


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class Curve:
    """A metric over steps, finite values only."""

    steps: IntArray
    values: FloatArray
    num: int = 0
    """How many there were: of a long run some are left out, evenly."""

    def __len__(self) -> int:
        return len(self.steps)

    def between(self, low: float, high: float) -> FloatArray:
        """The values of the steps above `low`, up to and with `high`."""
        first, last = np.searchsorted(self.steps, [low, high], side="right")
        return self.values[first:last]

    def part(self, first: float, last: float) -> FloatArray:
        """The values from one share of the curve's length to another; at least one."""
        num = len(self.values)
        start = min(int(first * num), num - 1)
        return self.values[start : max(math.ceil(last * num), start + 1)]


def words(name: str) -> list[str]:
    """The words of a metric's name: "eval/val_Loss" has three."""
    return [word for word in re.split(r"[^a-z0-9]+", name.lower()) if word]


def is_validation(name: str) -> bool:
    """Whether a metric speaks of validation."""
    found = words(name)
    return bool(found) and (name.startswith(metrics.EVALUATION) or found[0] in VALIDATION)


def direction(name: str) -> int:
    """1 where more is better, -1 where less is, 0 where the name does not say."""
    found = words(name)
    if any(word in FALLING or word.endswith("loss") for word in found):
        return -1
    return 1 if any(word in RISING for word in found) else 0


class Curves:
    """Collects while the run grows."""

    def __init__(self) -> None:
        self._tracks: dict[str, Track] = {}
        self._ended_at = -1
        self.last_step = 0
        self.num_classes = 0
        self.is_binary = False
        self._kind = SurrogateLoss()
        self._labels = np.zeros(0)
        self._labels_read = np.zeros(0)
        """Those that the loss was seen to read."""
        self._target_stds: list[float] = []

    def observe(self, span: Span) -> None:
        """Append the loss and every metric of validation."""
        for name in span.metrics:
            if name == metrics.LOSS or is_validation(name):
                values = span.metric(name)
                if name not in self._tracks:
                    # Beside each validation there are to be losses of training.
                    self._tracks[name] = Track(2, limit=LOSSES_KEPT if name == metrics.LOSS else LOSSES_KEPT // 8)
                for index in np.flatnonzero(np.isfinite(values)):
                    self._tracks[name].add(int(span.steps[index]), float(values[index]))
        if len(span.steps):
            self.last_step = int(span.steps[-1])
        for event, _ in span.events_of(Totals):
            self._ended_at = max(self._ended_at, event.step)
        for _, graph in span.events_of(LossGraph):
            self.num_classes = max(self.num_classes, graph.num_classes)
            self.is_binary = self.is_binary or any(name in BINARY for name, _ in graph.operations)
            self._labels_read = _added(self._labels_read, graph.class_counts)
        for event, batch in span.events_of(Batch):
            counts = batch.class_counts
            if counts and not event.rank:
                self._labels = _added(self._labels, counts)
        self._kind.observe(span)
        self._take_targets(span)

    def _take_targets(self, span: Span) -> None:
        indices = [n for n in span.site_indices(Kind.TARGET) if "float" in span.sites[n].dtype]
        if indices and len(self._target_stds) < 16:
            found = span.rows[:, indices[0], INDEX["std"]]
            self._target_stds += found[np.isfinite(found)][: 16 - len(self._target_stds)].tolist()

    @property
    def is_finished(self) -> bool:
        """Whether the run said its totals and nothing came after."""
        return self._ended_at >= self.last_step

    @property
    def is_measure(self) -> bool:
        """Whether the training loss says how well it goes; a policy gradient's does not."""
        return self._kind.is_measure

    @property
    def loss(self) -> Curve:
        """The training loss."""
        return self.curve(metrics.LOSS)

    def curve(self, name: str) -> Curve:
        """A metric, empty where it was never recorded."""
        track = self._tracks.get(name)
        return (
            Curve(np.empty(0, np.int64), np.empty(0)) if track is None else Curve(track.steps, track.values, track.num)
        )

    def first_losses(self, number: int) -> FloatArray:
        """The first losses, exactly."""
        return self._tracks[metrics.LOSS].first(number)[:, 1] if metrics.LOSS in self._tracks else np.empty(0)

    def validation(self, wanted: int) -> dict[str, Curve]:
        """Validation's metrics of one direction."""
        return {name: self.curve(name) for name in self._tracks if is_validation(name) and direction(name) == wanted}

    def validation_loss(self) -> tuple[str, Curve] | None:
        """The metric of validation that can be set beside the training loss."""
        names = [name for name in self._tracks if is_validation(name) and any(w.endswith("loss") for w in words(name))]
        names.sort(key=lambda name: (name != metrics.EVALUATION + metrics.LOSS, name))
        return (names[0], self.curve(names[0])) if names else None

    def chance(self) -> float | None:
        """The loss of always predicting the targets' distribution, where that is known."""
        if self.is_binary:
            return math.log(2.0)
        if self.num_classes > 1:
            labels = max(self._labels, self._labels_read, key=lambda counts: float(counts.sum()))
            total = float(labels.sum())
            shares = labels[labels > 0] / total if total else np.empty(0)
            entropy = float(-(shares * np.log(shares)).sum()) if len(shares) > 1 else math.log(self.num_classes)
            return min(entropy, math.log(self.num_classes))
        return float(np.median(self._target_stds)) ** 2 if self._target_stds else None

    def training_at(self, steps: IntArray) -> FloatArray:
        """The usual training loss around each validation: the middle of the losses since the one before."""
        loss = self.loss
        before = np.concatenate([[-1], steps])[:-1]
        found = [loss.between(low, high) for low, high in zip(before, steps, strict=True)]
        return np.array([float(np.median(part)) if len(part) else np.nan for part in found])


def _added(total: FloatArray, counts: Sequence[int]) -> FloatArray:
    """Counts by class, of which some may name more classes than others."""
    longer = np.zeros(max(len(total), len(counts)))
    longer[: len(total)] += total
    longer[: len(counts)] += counts
    return longer
