"""Ranks against each other: replicas that part, and ranks that are given the same samples.

Replicas start equal and get the same update, so every statistic of a weight is the same on all ranks, for ever. What was
never equal is a shard or a part of a pipeline; what becomes equal again is averaged now and then on purpose.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar, Final

import numpy as np
import numpy.typing as npt

from stethoscope.analyse.span import Span
from stethoscope.detect.detector import Code, Detector, Reading, Rule
from stethoscope.detect.needs import BATCHES, RANKS, WEIGHTS
from stethoscope.kernels.columns import INDEX, num_finite
from stethoscope.record import Evidence, Finding, FloatArray, Kind, Severity, events, name_list

COMPARED: Final = ("mean", "norm", "std", "min", "max")
TOLERANCE: Final = 1e-6
"""Statistics of equal tensors may differ by rounding, where ranks add up in another order."""
STEPS_NEEDED: Final = 3
MEETING: Final = 0.25
"""A distance that falls to this share of the step before: the replicas were brought together in between."""
MEETINGS: Final = 2
BATCHES_NEEDED: Final = 5
SAME: Final = 0.8
"""Share of the steps in which the ranks got the same samples; a sampler that pads its tail repeats some now and then."""


class _Weights:
    """What is known of every parameter across ranks, one index each; indices are only ever added."""

    def __init__(self) -> None:
        self.paths: list[str] = []
        self.was_equal = np.zeros(0, bool)
        self.is_apart = np.zeros(0, bool)
        self.returned = np.zeros(0, bool)
        self.first_apart = np.zeros(0, np.int64)
        self.num_apart = np.zeros(0, np.int64)
        self.norms = np.zeros((0, 2))

    def grow(self, paths: list[str]) -> None:
        """Make room for sites that came since."""
        more = len(paths) - len(self.paths)
        self.paths = paths
        for name in ("was_equal", "is_apart", "returned", "first_apart", "num_apart"):
            old = getattr(self, name)
            setattr(self, name, np.concatenate([old, np.zeros(more, old.dtype)]))
        self.norms = np.concatenate([self.norms, np.zeros((more, 2))])

    def see(self, step: int, usable: npt.NDArray[np.bool_], apart: npt.NDArray[np.bool_], norms: FloatArray) -> None:
        """One more step: which weights all ranks show, which of them differ, and their norms on two ranks."""
        apart = apart & usable
        equal = usable & ~apart
        self.first_apart[apart & ~self.is_apart] = step
        self.num_apart += apart
        self.norms[apart] = norms[apart]
        self.returned |= equal & self.is_apart
        self.was_equal |= equal
        self.is_apart = np.where(usable, apart, self.is_apart)


class Replicas(Detector):
    """Compares every weight across ranks, and the samples they were given."""

    codes: ClassVar[tuple[Code, ...]] = (
        Code("rank_desync", needs=(RANKS, WEIGHTS)),
        Code("same_data_on_ranks", needs=(RANKS, BATCHES), leads_to=("duplicate_batches",)),
    )

    def __init__(self) -> None:
        self._weights = _Weights()
        self._hashes: dict[str, dict[int, str]] = {}
        self._is_wrapped = False
        self._sharded = False
        self._total = 0.0
        self._num_meetings = 0
        self._last_step = 0
        self._num_compared = 0
        self._num_same = 0
        self._first_same = self._last_same = 0
        self._num_same_samples = 0
        self._same_ranks: set[int] = set()

    def observe(self, span: Span) -> None:
        """Weights of every step that all ranks have, and batches by their hashes."""
        self._take_starts(span)
        self._compare_batches(span)
        if len(span.by_rank) < 2:
            return
        indices = span.site_indices(Kind.WEIGHT)
        if not len(indices):
            return
        tables = np.stack([rank.rows[:, indices] for rank in span.by_rank.values()])
        there = np.all([rank.present[:, indices] for rank in span.by_rank.values()], axis=0)
        sizes = np.array([span.sites[n].num_elements for n in indices])
        is_shard = np.array([span.sites[n].measured == "shard" for n in indices])
        whole = (num_finite(tables) == sizes).all(axis=0) & ~is_shard
        # Fewer values than the parameter has: each rank holds its own shard.
        self._sharded = self._sharded or bool((there & ~whole & np.isfinite(tables[0, ..., INDEX["norm"]])).any())
        distance, usable = _rank_distance(tables), there & whole
        apart = distance > TOLERANCE
        norms = tables[[0, -1], ..., INDEX["norm"]]
        self._weights.grow([span.sites[n].site.path for n in indices])
        for row in np.flatnonzero(usable.any(axis=1)):
            self._weights.see(int(span.steps[row]), usable[row], apart[row], norms[:, row].T)
            self._last_step = int(span.steps[row])
            total = float(distance[row][usable[row]].sum())
            self._num_meetings += int(total < MEETING * self._total)
            self._total = total

    def rules(self) -> Iterator[Rule]:
        """Parted replicas, then repeated data."""
        weights = self._weights
        apart = weights.is_apart & ~weights.returned
        began_equal = [int(n) for n in np.flatnonzero(apart) if self._began_equal(int(n))]
        parted = [n for n in began_equal if weights.num_apart[n] >= STEPS_NEEDED]
        most = max((int(weights.num_apart[n]) for n in began_equal), default=0)
        yield Rule(
            "rank_desync",
            (
                Reading("parameters compared across ranks", len(weights.paths), ">", 0),
                Reading("of which began equal, differ, and never met again", len(began_equal), ">", 0),
                Reading("steps for which the worst of them differed", most, ">=", STEPS_NEEDED),
                Reading("times the ranks were brought together again", self._num_meetings, "<", MEETINGS),
            ),
            lambda: self._desync_finding(parted),
        )
        enough = max(BATCHES_NEEDED, SAME * self._num_compared)
        yield Rule(
            "same_data_on_ranks",
            (
                Reading("steps at which samples were compared", self._num_compared, ">", 0),
                Reading("of which equal", self._num_same, ">=", enough),
                Reading("the ranks hold parts of one model, which rightly see the same", self._holds_parts(), "=", 0),
            ),
            self._same_data,
        )

    def _take_starts(self, span: Span) -> None:
        for event, replicas in span.events_of(events.Replicas):
            self._is_wrapped = self._is_wrapped or replicas.wrapper == "DistributedDataParallel"
            for path, digest in replicas.hashes.items():
                self._hashes.setdefault(path, {}).setdefault(event.rank, digest)

    def _began_equal(self, index: int) -> bool:
        hashes = self._hashes.get(self._weights.paths[index], {})
        started_equal = len(hashes) > 1 and len(set(hashes.values())) == 1
        return bool(self._weights.was_equal[index]) or self._is_wrapped or started_equal

    def _holds_parts(self) -> bool:
        """Whether ranks hold parts of one model, which rightly see the same samples."""
        different = sum(len(set(hashes.values())) > 1 for hashes in self._hashes.values())
        return self._sharded or (not self._is_wrapped and 2 * different > len(self._hashes) > 0)

    def _compare_batches(self, span: Span) -> None:
        by_step: dict[int, dict[int, set[str]]] = {}
        for event, batch in span.events_of(events.Batch):
            names = set(batch.fingerprints)
            # A model that is called with copies of one sample gets them everywhere.
            if names and (batch.seen != "call" or len(names) > 1):
                by_step.setdefault(event.step, {}).setdefault(event.rank, set()).update(names)
        for step, ranks in by_step.items():
            if len(ranks) < 2:
                continue
            self._num_compared += 1
            (lowest, first), *others = sorted(ranks.items())
            same = [rank for rank, other in others if len(first & other) >= 0.9 * max(len(first), len(other))]
            if same:
                self._first_same = step if self._num_same == 0 else self._first_same
                self._last_same = step
                self._num_same += 1
                self._num_same_samples += len(first)
                self._same_ranks.update((lowest, *same))

    def _desync_finding(self, parted: list[int]) -> Finding:
        weights = self._weights
        order = sorted(parted, key=lambda n: int(weights.first_apart[n]))
        first, step = order[0], int(weights.first_apart[order[0]])
        paths = [weights.paths[n] for n in order]
        label = f"norm of {paths[0]}, highest rank against lowest"
        norms = [float(norm) for norm in weights.norms[first]]
        return Finding(
            "rank_desync",
            Severity.CRITICAL,
            f"The ranks train different models since step {step:,}: {name_list(paths)} began equal and part from rank to "
            "rank, so no gradient is averaged there.",
            step,
            self._last_step,
            tuple(paths),
            (
                Evidence(label, norms[1], norms[0], site=paths[0], kind="weight", stat="norm"),
                Evidence("parameters that differ", float(len(paths)), 0.0),
                Evidence("parameters in all", float(len(weights.paths))),
            ),
            "output = ddp_model(inputs)  # call the DistributedDataParallel wrapper, not ddp_model.module",
        )

    def _same_data(self) -> Finding:
        ranks = sorted(self._same_ranks)
        share = self._num_same / self._num_compared
        return Finding(
            "same_data_on_ranks",
            Severity.WARNING,
            f"Ranks {', '.join(map(str, ranks))} were given the same samples in {self._num_same:,} of "
            f"{self._num_compared:,} steps since step {self._first_same:,}: they compute the same gradient twice.",
            self._first_same,
            self._last_same,
            (),
            (
                Evidence("share of steps with equal batches", share, 0.0),
                Evidence("samples computed twice", float(self._num_same_samples)),
            ),
            "DataLoader(dataset, sampler=DistributedSampler(dataset))  # and sampler.set_epoch(epoch)",
        )


def _rank_distance(tables: FloatArray) -> FloatArray:
    """Of [ranks, steps, sites, columns]: the largest difference of a statistic between ranks, as a share of its size."""
    with np.errstate(invalid="ignore", divide="ignore"):
        scale = np.max(tables[..., INDEX["abs_max"]], axis=0)
        worst = np.zeros(tables.shape[1:3])
        for name in COMPARED:
            values: FloatArray = tables[..., INDEX[name]]
            spread = np.max(values, axis=0) - np.min(values, axis=0)
            size = np.max(np.abs(values), axis=0) if name == "norm" else scale
            worst = np.fmax(worst, np.where(size > 0, spread / size, 0.0))
    return worst
