"""What a run says of its progress: the loss and what kind it is, validation, what knowing nothing would give.

Read from the run alone, so that a live run and a finished one give the same, on every face.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
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
GRAPHS_NEEDED: Final = 4
STEADY: Final = 2.0
"""Targets whose variance differs by more between the halves of the run are not those of a fixed set of data."""
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
        if self.kind.has_terms or self.kind.is_negated:
            return None
        if self.label_entropy is not None and self.kind.family in (LossFamily.CLASSES, LossFamily.BINARY):
            return self._in_its_units(self.label_entropy)
        if self.kind.family is LossFamily.DISTANCE:
            known = self.kind.name in ("MseLoss", "Pow")
            # How many times the first loss is of it says nothing of the units: a first output may be anywhere.
            return self.target_variance if known and self.kind.is_mean else None
        return self._in_its_units(self.kind.chance)

    def _in_its_units(self, found: float | None) -> float | None:
        """A sum over the batch, or a loss that is scaled, is measured in other units than what was found."""
        first = self.first
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
    graphs = run.events_of(LossGraph)
    graph = next(iter(graphs), None)
    backwards = {event.step: body for event, body in run.events_of(Backward)}
    kind = LossKind(LossFamily.OPAQUE) if graph is None else loss_kind(graph[1], backwards.get(graph[0].step))
    scored = {name: run.metric(name) for name in known if _is_score(name)}
    continuations = [body.how for _, body in run.events_of(Continuation)]
    bodies = [body for event, body in graphs if not event.rank]
    entropy = _label_entropy(run, kind, bodies)
    return Progress(
        loss=loss,
        kind=kind,
        validation={name: series for name, series in scored.items() if np.isfinite(series.values).any()},
        label_entropy=entropy,
        target_variance=_target_variance(run, bodies) if kind.family is LossFamily.DISTANCE else None,
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


def _label_entropy(run: Run, kind: LossKind, graphs: Sequence[LossGraph]) -> float | None:
    """The entropy of the classes over the batches whose targets were counted, or over those that the loss was seen to read."""
    if kind.family is LossFamily.BINARY:
        return _binary_entropy(graphs)
    if kind.family is not LossFamily.CLASSES:
        return None
    logged = [b.class_counts for e, b in run.events_of(Batch) if b.class_counts and not e.rank][:BATCHES_READ]
    read = [g.class_counts for g in graphs if g.class_counts][:BATCHES_READ]
    total = max(_added(logged), _added(read), key=lambda counts: float(counts.sum()))
    num = float(total.sum())
    if num < LABELS_NEEDED:
        return None
    shares = total[total > 0] / num
    if len(shares) < 2:
        return None
    # Few labels seem to be less even than all are: by (classes - 1) / (2 labels), after Miller and Madow.
    entropy = float(-(shares * np.log(shares)).sum()) + (len(shares) - 1) / (2 * num)
    return min(entropy, math.log(len(shares)), kind.chance or math.inf)


def _added(counted: Sequence[Sequence[int]]) -> FloatArray:
    total = np.zeros(max((len(counts) for counts in counted), default=0))
    for counts in counted:
        total[: len(counts)] += counts
    return total


def _binary_entropy(graphs: Sequence[LossGraph]) -> float | None:
    """What always answering the mean of the targets gives, where they lie between 0 and 1."""
    means = [g.target_mean for g in graphs[:BATCHES_READ] if g.target_mean is not None]
    mean = float(np.mean(means)) if means else math.nan
    return -mean * math.log(mean) - (1 - mean) * math.log(1 - mean) if 0 < mean < 1 else None


def _target_variance(run: Run, graphs: Sequence[LossGraph]) -> float | None:
    """Within batches and between them: a batch of one has no spread of its own."""
    seen = _variance_in_graphs(graphs)
    if seen is not None:
        return seen
    deviations, means = run.matrix(Kind.TARGET, "std"), run.matrix(Kind.TARGET, "mean")
    if not deviations.values.size or "float" not in deviations.sites[0].dtype:
        return None
    within, between = deviations.values[:TARGET_ROWS, 0], means.values[:TARGET_ROWS, 0]
    known = np.isfinite(within) & np.isfinite(between)
    variance = float(np.mean(within[known] ** 2) + np.var(between[known])) if known.any() else 0.0
    return variance if variance > 0 else None


def _variance_in_graphs(graphs: Sequence[LossGraph]) -> float | None:
    """Of the targets that the loss was seen to read; None where they change as the model does, as an agent's returns."""
    known = [
        (g.target_mean, g.target_square) for g in graphs if g.target_mean is not None and g.target_square is not None
    ]
    if len(known) < GRAPHS_NEEDED:
        return None
    means, squares = np.array(known, dtype=float).T
    half = len(known) // 2
    parts = [float(squares[s].mean() - means[s].mean() ** 2) for s in (slice(0, half), slice(half, None))]
    if not min(parts) > 0 or max(parts) > STEADY * min(parts):
        return None
    return float(squares.mean() - means.mean() ** 2)


def _output_std(run: Run) -> float | None:
    """In the last part of the run: of one that is looked at seldom, its last rows may reach back to its first steps."""
    end = run.last_step or 0
    matrix = run.matrix(Kind.OUTPUT, "std", first=end - end // 4)
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
