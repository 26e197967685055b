"""How samples are drawn: sorted instead of shuffled, the same batch again, validation samples that were trained on.

Samples are known by their hashes. A batch that returns after all the others is the next epoch, one that is the only batch is full-batch
training, one that is the very same tensor is used again on purpose: none of these is a fault. Batches that a loader yielded are
judged by the data they were drawn from; a model's calls alone say nothing about how samples are drawn, and data that are both
trained and evaluated on give the training accuracy.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from functools import partial
from typing import ClassVar, Final

import numpy as np

from stethoscope.analyse.span import Span
from stethoscope.detect.detector import Code, Detector, Reading, Readings, Rule, all_hold, ratio
from stethoscope.detect.effects import UNIT_TROUBLE
from stethoscope.detect.needs import BATCH_HINT, BATCHES, Need
from stethoscope.record import Evidence, Finding, Severity
from stethoscope.record.events import Batch, EvalBatch

BATCHES_NEEDED: Final = 10
MIN_SAMPLES: Final = 4
SORTED: Final = 0.5
"""How far batches are on the way from a fair draw of the classes to a single one."""
COMMON: Final = 0.05
"""A class below this share of the samples is too rare to judge the order by."""
SOON: Final = 0.25
"""A batch that returns within this share of the number of different batches does not wait for an epoch."""
REPEATED: Final = 0.25
OVERLAP: Final = 0.1
OVERLAP_SAMPLES: Final = 5
MAX_HASHES: Final = 1 << 18
MAX_BATCHES: Final = 1 << 16
"""Batches that are remembered, the latest ones: what returns after more has waited for an epoch."""
EXACT_LAGS: Final = 1 << 12


class _Hashes:
    """A set of hashes that thins itself by value when it grows too large, so that two of them stay comparable."""

    def __init__(self) -> None:
        self.kept: set[int] = set()
        self.mask = 0

    def add(self, numbers: Iterable[int], mask: int = 0) -> None:
        """Take in more hashes, of which those outside a mask were left out already."""
        if mask & ~self.mask:
            self._thin(self.mask | mask)
        self.kept.update(n for n in numbers if n & self.mask == 0)
        while len(self.kept) > MAX_HASHES:
            self._thin(2 * self.mask + 1)

    def _thin(self, mask: int) -> None:
        self.mask = mask
        self.kept = {n for n in self.kept if n & mask == 0}

    def shared(self, other: _Hashes) -> tuple[int, int]:
        """Of how many that can be compared how many are in the other set too."""
        mask = self.mask | other.mask
        mine = {n for n in self.kept if n & mask == 0}
        return len(mine & other.kept), len(mine)


class _Draws:
    """The batches of training that were drawn from the same data."""

    def __init__(self) -> None:
        self.first_step = self.last_step = 0
        self._class_totals = np.zeros(0)
        self._purity_sum, self._num_pure = 0.0, 0
        self._num_single = 0
        self._num_batches = 0
        self._num_with_twins = 0
        self._seen: dict[int, int] = {}
        """Batches by their samples, the latest last: when each came."""
        self._num_different = 0
        self._lags: dict[int, list[int]] = {}
        """After how many batches some came again: how often that was, the first and the last step."""

    def take_classes(self, batches: list[Batch]) -> None:
        """Micro-batches of one step count together where their classes are concerned."""
        counts = [np.array(batch.class_counts, dtype=np.float64) for batch in batches if batch.class_counts]
        num_labels = sum(float(c.sum()) for c in counts)
        # One label a sample: labels of pixels or letters are alike within a sample, however it was drawn.
        if not counts or num_labels != sum(batch.num_samples for batch in batches):
            return
        width = max(len(self._class_totals), *(len(c) for c in counts))
        total = np.zeros(width)
        for one in counts:
            total[: len(one)] += one
        grown = total.copy()
        grown[: len(self._class_totals)] += self._class_totals
        self._class_totals = grown
        if num_labels >= MIN_SAMPLES:
            self._purity_sum += float((total * (total - 1)).sum() / (num_labels * (num_labels - 1)))
            self._num_pure += 1
            self._num_single += int((total > 0).sum() == 1)

    def take_samples(self, step: int, batch: Batch, numbers: list[int]) -> None:
        """Whether this batch was there before, and how many batches ago."""
        if len(numbers) < MIN_SAMPLES:
            return
        key = hash(frozenset(numbers))
        # Not every batch of a long run is recorded: its own number says how many came between.
        position = self._num_batches if batch.number is None else batch.number
        before = self._seen.pop(key, None)
        self._num_different += before is None
        if before is not None and not batch.again:
            lag = self._lags.setdefault(_rounded(position - before), [0, step, step])
            lag[:] = lag[0] + 1, lag[1], step
        self._seen[key] = position
        if len(self._seen) > MAX_BATCHES:
            del self._seen[next(iter(self._seen))]
        self._num_batches += 1
        self._num_with_twins += len(set(numbers)) < len(numbers)

    def _soon(self) -> tuple[int, int, int]:
        """How many batches came again too soon to be of the next epoch, and the first and last step of those."""
        near = [found for lag, found in self._lags.items() if lag <= SOON * self._num_different]
        first, last = min((one[1] for one in near), default=0), max((one[2] for one in near), default=0)
        return sum(one[0] for one in near), first, last

    def unshuffled(self) -> Rule:
        """Whether batches hold a single class."""
        total, num = float(self._class_totals.sum()), self._num_pure
        fair = float(((self._class_totals / total) ** 2).sum()) if total > 0 else np.nan
        found, chance = ratio(self._purity_sum, num), "chance that two samples of a batch share their class"
        return Rule(
            "unshuffled_data",
            (
                Reading("batches with one label a sample", num, ">=", BATCHES_NEEDED),
                Reading("classes that are not too rare", int((self._class_totals >= COMMON * total).sum()), ">=", 2),
                Reading(chance, found, ">=", fair + SORTED * (1.0 - fair)),
            ),
            lambda: Finding(
                "unshuffled_data",
                Severity.WARNING,
                f"The data are sorted: {self._num_single:,} of {num:,} batches hold a single class, and two samples of a batch "
                f"share their class in {found:.0%} of cases where a shuffled batch gives {fair:.0%}.",
                self.first_step,
                self.last_step,
                ("batch",),
                (Evidence(chance, found, fair), Evidence("batches of a single class", self._num_single / num)),
                "DataLoader(dataset, batch_size=..., shuffle=True)",
            ),
            is_otherwise=True,
        )

    def duplicates(self) -> Rule:
        """Whether batches come again too soon."""
        num, num_different = self._num_batches, self._num_different
        num_soon, first, last = self._soon()
        return Rule(
            "duplicate_batches",
            (
                Reading("batches", num, ">=", BATCHES_NEEDED),
                # Of fewer the very next batch would already be the next epoch's.
                Reading("different batches", num_different, ">=", 1 / SOON),
                Reading("batches that came again soon", num_soon, ">=", max(3.0, REPEATED * num)),
                # Data of a few possible values repeat by themselves, as twins within a batch show.
                Reading("batches with twins among their samples", self._num_with_twins, "<=", COMMON * num),
            ),
            lambda: Finding(
                "duplicate_batches",
                Severity.WARNING,
                f"{num_soon:,} of {num:,} batches had been there shortly before, sample by sample, since step "
                f"{first:,}: only {num_different:,} are different.",
                first,
                last,
                ("batch",),
                (
                    Evidence("share of batches that came again", num_soon / num, 0.0),
                    Evidence("different batches", float(num_different), float(num)),
                ),
                "DataLoader(..., worker_init_fn=lambda w: seed_everything(torch.initial_seed()))  # each worker its own seed",
            ),
            is_otherwise=True,
        )


def _rounded(lag: int) -> int:
    """Long lags to a sixty-fourth, upwards: a shuffled epoch has as many different ones as it has batches."""
    unit = 1 << max(0, lag.bit_length() - 7) if lag > EXACT_LAGS else 1
    return -(-lag // unit) * unit


class Sampling(Detector):
    """Follows the samples of rank 0: other ranks have detectors of their own."""

    codes: ClassVar[tuple[Code, ...]] = (
        Code(
            "unshuffled_data",
            needs=(BATCHES,),
            leads_to=(*UNIT_TROUBLE, "oscillation", "output_logit_drift", "class_collapse", "update_too_large"),
            through_updates=True,
        ),
        Code("duplicate_batches", needs=(BATCHES,)),
        Code(
            "train_val_overlap",
            needs=(BATCHES, Need("validation batches, sample by sample", "event", (EvalBatch.KIND,), BATCH_HINT)),
        ),
    )

    def __init__(self) -> None:
        self._last_step = 0
        self._draws: dict[int | None, _Draws] = {}
        self._trained = _Hashes()
        self._validated: dict[int | None, _Hashes] = {}
        self._num_validated_twice: Counter[int | None] = Counter()
        self._first_validated: dict[int | None, int] = {}

    def observe(self, span: Span) -> None:
        """One batch after another; micro-batches of one step count together where their classes are concerned."""
        by_step: dict[tuple[int, int | None], list[Batch]] = {}
        for event, validated in span.events_of(EvalBatch):
            if not event.rank:
                self._take_validation(event.step, validated)
        for event, batch in span.events_of(Batch):
            if not event.rank:
                by_step.setdefault((event.step, batch.source), []).append(batch)
        for (step, source), together in by_step.items():
            self._last_step = step
            drawn = [batch for batch in together if batch.seen != "call"]
            if drawn and source not in self._draws:
                self._draws[source] = _Draws()
                self._draws[source].first_step = step
            if drawn:
                self._draws[source].last_step = step
                self._draws[source].take_classes(drawn)
            for batch in together:
                numbers = [int(name, 16) for name in batch.fingerprints]
                self._trained.add(numbers, batch.mask)
                if batch.seen != "call":
                    self._draws[source].take_samples(step, batch, numbers)

    def _take_validation(self, step: int, batch: EvalBatch) -> None:
        names, source = batch.fingerprints, batch.source
        hashes = self._validated.setdefault(source, _Hashes())
        hashes.add((int(name, 16) for name in names), batch.mask)
        self._num_validated_twice[source] += len(names) - len(set(names))
        if names:
            self._first_validated.setdefault(source, step)

    def rules(self) -> Iterator[Rule]:
        """Each of the three by itself: of the data that show it first."""
        draws = sorted(self._draws.values(), key=lambda draw: draw.first_step) or [_Draws()]
        for draw in draws:
            yield draw.unshuffled()
        for draw in draws:
            yield draw.duplicates()
        yield from self._overlaps()

    def _overlaps(self) -> Iterator[Rule]:
        """Of all that is evaluated on, but for what is trained on by its own name: whether it was trained on too."""
        asked: dict[int | None, Readings] = {}
        num_clean = 0
        for source, validated in self._validated.items():
            if source is None or source not in self._draws:
                asked[source] = _overlap(*validated.shared(self._trained), self._num_validated_twice[source])
                is_clean = not all_hold(asked[source]) and asked[source][1].value >= OVERLAP_SAMPLES
                num_clean += source is not None and is_clean
        # Where there is a clean validation, what overlaps beside it measures training.
        clean = Reading("validations whose samples were not trained on", num_clean, "=", 0)
        for source, readings in asked.items() or [(None, _overlap(0, 0, 0))]:
            yield Rule("train_val_overlap", (*readings, clean), partial(self._tell_overlap, source), is_otherwise=True)

    def _tell_overlap(self, source: int | None) -> Finding:
        num_both, num_all = self._validated[source].shared(self._trained)
        return Finding(
            "train_val_overlap",
            Severity.WARNING,
            f"{num_both:,} of {num_all:,} validation samples ({num_both / num_all:.0%}) were trained on too, "
            "so validation is better than it should be.",
            self._first_validated.get(source, 0),
            self._last_step,
            ("batch",),
            (
                Evidence("share of validation samples in training", num_both / num_all, 0.0),
                Evidence("validation samples", float(num_all)),
            ),
            "train_set, val_set = torch.utils.data.random_split(dataset, [0.8, 0.2])  # split before anything is drawn",
        )


def _overlap(num_both: int, num_all: int, num_twins: int) -> Readings:
    return (
        Reading("validation samples that were trained on", num_both, ">=", max(OVERLAP_SAMPLES, OVERLAP * num_all)),
        Reading("validation samples", num_all),
        # Data of a few possible values repeat by themselves; then equal hashes say nothing.
        Reading("twins among them", num_twins, "<=", COMMON * max(num_all, 1)),
    )
