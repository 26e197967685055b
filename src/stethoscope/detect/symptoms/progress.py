"""What a run says of its progress: the loss and what kind it is, validation, what knowing nothing would give.

Read from the run alone, so that a live run and a finished one give the same, on every face.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import Final

import numpy as np

from stethoscope.analyse.trends import noise
from stethoscope.detect.curves import direction, is_validation
from stethoscope.detect.symptoms.loss_kind import LossFamily, LossKind, loss_kind
from stethoscope.record import FloatArray, IntArray, Kind, Series, metrics
from stethoscope.record.events import Backward, Batch, Continuation, LossGraph
from stethoscope.store import Run

FIRST: Final = 5
"""The first losses, whose median is where training began."""
BATCHES_READ: Final = 64
TARGET_ROWS: Final = 64
LABELS_NEEDED: Final = 100
"""Labels counted before their frequencies are known."""


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class Progress:
    """The run as symptoms see it."""

    loss: Series
    """Finite and not, in order."""
    kind: LossKind
    validation: Mapping[str, Series] = dataclasses.field(default_factory=dict)
    """Metrics of validation, and scores such as a reward, whose name says which way is better."""
    label_entropy: float | None = None
    """Of the targets' classes as they were counted; what the best guess without the inputs gives."""
    target_variance: float | None = None
    output_std: float | None = None
    """How much the model's output varies in the last recorded steps."""
    same_class: float | None = None
    """The share of the last predictions that name one class."""
    num_losses: int = 1
    """Losses that take turns, each with an optimizer of its own."""
    is_live: bool = False
    is_mixed: bool = False
    """Several trainings in one folder."""
    first_step: int = 0
    last_step: int = 0
    warm_up_ends: int = 0
    """The first step at which the learning rate is half of its largest value."""

    @property
    def finite(self) -> tuple[IntArray, FloatArray]:
        """Steps and values of the losses that are numbers."""
        keep = np.isfinite(self.loss.values)
        return self.loss.steps[keep], self.loss.values[keep]

    @property
    def chance(self) -> float | None:
        """The loss of always predicting the targets' distribution; None where that is not known."""
        if self.kind.has_terms:
            return None
        if self.label_entropy is not None and self.kind.family in (LossFamily.CLASSES, LossFamily.BINARY):
            return self.label_entropy
        if self.kind.family is LossFamily.DISTANCE:
            return self.target_variance if self.kind.name in ("MseLoss", "Pow") else None
        found = self.kind.chance
        first = self.first
        # A sum over the batch, or a loss that is scaled, is measured in other units.
        if found is None or (not self.kind.is_mean and first is not None and not 0.3 * found < first < 3 * found):
            return None
        return found

    @property
    def is_chance_exact(self) -> bool:
        """Whether the targets themselves were seen, not only how many classes there are."""
        return self.chance is not None and (self.label_entropy is not None or self.target_variance is not None)

    @property
    def first(self) -> float | None:
        """Where the loss began."""
        values = self.finite[1][:FIRST]
        return float(np.median(values)) if len(values) else None

    @property
    def level(self) -> float | None:
        """Where it stands: the middle of its last tenth, of five losses at least."""
        values = self.finite[1]
        return float(np.median(values[-max(len(values) // 10, FIRST) :])) if len(values) else None

    @property
    def unsure(self) -> float:
        """How well the level is known: the standard error of that median."""
        values = self.finite[1]
        return 1.25 * noise(values) / math.sqrt(max(len(values) // 10, FIRST)) if len(values) else 0.0


def progress_of(run: Run) -> Progress:
    """Reads what symptoms need; a few metrics and events, no rows but those of targets and output."""
    known = run.metrics()
    loss = run.metric(metrics.LOSS)
    graph = next(iter(run.events_of(LossGraph)), None)
    backwards = {event.step: body for event, body in run.events_of(Backward)}
    kind = LossKind(LossFamily.OPAQUE) if graph is None else loss_kind(graph[1], backwards.get(graph[0].step))
    scored = {name: run.metric(name) for name in known if _is_score(name)}
    continuations = [body.how for _, body in run.events_of(Continuation)]
    entropy = _label_entropy(run, kind)
    return Progress(
        loss=loss,
        kind=kind,
        validation={name: series for name, series in scored.items() if np.isfinite(series.values).any()},
        label_entropy=entropy,
        target_variance=_target_variance(run) if kind.family is LossFamily.DISTANCE else None,
        output_std=_output_std(run) if kind.family is LossFamily.DISTANCE else None,
        same_class=_same_class(run) if kind.family is LossFamily.CLASSES else None,
        num_losses=1 + sum(name.startswith("loss.") and name[5:].isdigit() for name in known),
        is_live=run.state == "live",
        is_mixed=any(how in ("beside", "fresh") for how in continuations),
        first_step=int(loss.steps[0]) if len(loss) else 0,
        last_step=int(loss.steps[-1]) if len(loss) else run.last_step or 0,
        warm_up_ends=_warm_up_ends(run),
    )


def _is_score(name: str) -> bool:
    """A metric of validation, or one of training of which more is better: an accuracy, a reward."""
    inner = name.startswith(("ledger/", "output/", "batch/"))
    return not inner and ((is_validation(name) and direction(name) != 0) or direction(name) > 0)


def _label_entropy(run: Run, kind: LossKind) -> float | None:
    """The entropy of the classes over the batches whose targets were counted."""
    if kind.family is not LossFamily.CLASSES:
        return None
    total = np.zeros(0)
    counted = [b.class_counts for e, b in run.events_of(Batch) if b.class_counts and not e.rank][:BATCHES_READ]
    for counts in counted:
        if len(counts) > len(total):
            total = np.pad(total, (0, len(counts) - len(total)))
        total[: len(counts)] += counts
    num = float(total.sum())
    if num < LABELS_NEEDED:
        return None
    shares = total[total > 0] / num
    return min(float(-(shares * np.log(shares)).sum()), kind.chance or math.inf) if len(shares) > 1 else None


def _target_variance(run: Run) -> float | None:
    """Within batches and between them: a batch of one has no spread of its own."""
    deviations, means = run.matrix(Kind.TARGET, "std"), run.matrix(Kind.TARGET, "mean")
    if not deviations.values.size or "float" not in deviations.sites[0].dtype:
        return None
    within, between = deviations.values[:TARGET_ROWS, 0], means.values[:TARGET_ROWS, 0]
    known = np.isfinite(within) & np.isfinite(between)
    variance = float(np.mean(within[known] ** 2) + np.var(between[known])) if known.any() else 0.0
    return variance if variance > 0 else None


def _output_std(run: Run) -> float | None:
    matrix = run.matrix(Kind.OUTPUT, "std")
    if not matrix.values.size:
        return None
    found = matrix.values[-TARGET_ROWS:, 0]
    found = found[np.isfinite(found)]
    return float(np.median(found)) if len(found) else None


def _same_class(run: Run) -> float | None:
    values = run.metric(metrics.TOP_SHARE).finite[-FIRST:]
    return float(np.median(values)) if len(values) else None


def _warm_up_ends(run: Run) -> int:
    rates = [run.metric(name) for name in run.metrics() if name == "lr" or name.startswith("lr.")]
    ends = []
    for series in rates:
        values = np.where(np.isfinite(series.values), series.values, 0.0)
        if len(values) and values.max() > 0:
            ends.append(int(series.steps[int(np.argmax(values >= 0.5 * values.max()))]))
    return max(ends, default=0)
