"""How samples are drawn: sorted instead of shuffled, the same batch again, validation samples that were trained on.

Samples are known by their hashes. A batch that returns after all the others is the next epoch, one that is the only batch is full-batch
training, one that is the very same tensor is used again on purpose: none of these is a fault. Batches that a loader yielded are
judged by the data they were drawn from; a model's calls alone say nothing about how samples are drawn, and data that are both
trained and evaluated on give the training accuracy.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import ClassVar, Final

import numpy as np

from stethoscope.analyse.span import Span
from stethoscope.detect.detector import Code, Detector, Reading
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

    def readings(self) -> dict[str, list[Reading]]:
        """What the rules about one source ask for, and what they got."""
        total = float(self._class_totals.sum())
        fair = float(((self._class_totals / total) ** 2).sum()) if total > 0 else np.nan
        mixed = self._purity_sum / self._num_pure if self._num_pure else np.nan
        soon = self._soon()[0]
        return {
            "unshuffled_data": [
                Reading("batches with one label a sample", self._num_pure, ">=", BATCHES_NEEDED),
                Reading(
                    "chance that two samples of a batch share their class", mixed, ">=", fair + SORTED * (1.0 - fair)
                ),
            ],
            "duplicate_batches": [
                Reading("batches", self._num_batches, ">=", BATCHES_NEEDED),
                Reading("different batches", self._num_different, ">=", 1 / SOON),
                Reading("batches that came again soon", soon, ">=", max(3.0, REPEATED * self._num_batches)),
            ],
        }

    def _soon(self) -> tuple[int, int, int]:
        """How many batches came again too soon to be of the next epoch, and the first and last step of those."""
        near = [found for lag, found in self._lags.items() if lag <= SOON * self._num_different]
        first, last = min((one[1] for one in near), default=0), max((one[2] for one in near), default=0)
        return sum(one[0] for one in near), first, last

    def unshuffled(self) -> list[Finding]:
        """Batches of one class."""
        total = float(self._class_totals.sum())
        if self._num_pure < BATCHES_NEEDED or total <= 0:
            return []
        shares = self._class_totals / total
        fair = float((shares**2).sum())
        found = self._purity_sum / self._num_pure
        if int((shares >= COMMON).sum()) < 2 or found - fair < SORTED * (1.0 - fair):
            return []
        num = self._num_pure
        return [
            Finding(
                "unshuffled_data",
                Severity.WARNING,
                f"The data are sorted: {self._num_single:,} of {num:,} batches hold a single class, and two samples of a batch "
                f"share their class in {found:.0%} of cases where a shuffled batch gives {fair:.0%}.",
                self.first_step,
                self.last_step,
                ("batch",),
                (
                    Evidence("chance that two samples of a batch share their class", found, fair),
                    Evidence("batches of a single class", self._num_single / num),
                ),
                "DataLoader(dataset, batch_size=..., shuffle=True)",
            )
        ]

    def duplicates(self) -> list[Finding]:
        """Batches that came again too soon."""
        num_different = self._num_different
        # Of fewer different ones the very next batch would already be the next epoch's.
        if self._num_batches < BATCHES_NEEDED or num_different < 1 / SOON:
            return []
        num_soon, first, last = self._soon()
        # Data of a few possible values repeat by themselves, as twins within a batch show.
        natural = self._num_with_twins > COMMON * self._num_batches
        if num_soon < max(3.0, REPEATED * self._num_batches) or natural:
            return []
        share = num_soon / self._num_batches
        return [
            Finding(
                "duplicate_batches",
                Severity.WARNING,
                f"{num_soon:,} of {self._num_batches:,} batches had been there shortly before, sample by sample, since step "
                f"{first:,}: only {num_different:,} are different.",
                first,
                last,
                ("batch",),
                (
                    Evidence("share of batches that came again", share, 0.0),
                    Evidence("different batches", float(num_different), float(self._num_batches)),
                ),
                "DataLoader(..., worker_init_fn=lambda w: seed_everything(torch.initial_seed()))  # each worker its own seed",
            )
        ]


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
        Code(
            "duplicate_batches",
            needs=(BATCHES,),
        ),
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

    def readings(self) -> dict[str, list[Reading]]:
        """What each rule asks for, and what it got: of the data that speak, else of the first."""
        draws = self._in_order() or [_Draws()]
        spoke = next((draw for draw in draws if draw.unshuffled() or draw.duplicates()), draws[0])
        shared = [hashes.shared(self._trained) for hashes in self._validated.values()]
        both, validated = max(shared, default=(0, 0))
        return spoke.readings() | {
            "train_val_overlap": [
                Reading(
                    "validation samples that were trained on", both, ">=", max(OVERLAP_SAMPLES, OVERLAP * validated)
                ),
                Reading("validation samples", validated),
            ],
        }

    def _in_order(self) -> list[_Draws]:
        return [draw for _, draw in sorted(self._draws.items(), key=lambda item: item[1].first_step)]

    def findings(self) -> list[Finding]:
        """Each of the three by itself, once."""
        draws = self._in_order()
        unshuffled = [finding for draw in draws for finding in draw.unshuffled()]
        duplicates = [finding for draw in draws for finding in draw.duplicates()]
        return [*unshuffled[:1], *duplicates[:1], *self._overlap()]

    def _overlap(self) -> list[Finding]:
        """Where everything that is evaluated on, but for what is trained on by its own name, was trained on too."""
        found: list[Finding] = []
        for source, validated in self._validated.items():
            if source is not None and source in self._draws:
                continue
            num_both, num_all = validated.shared(self._trained)
            # Data of a few possible values repeat by themselves; then equal hashes say nothing.
            natural = self._num_validated_twice[source] > COMMON * max(num_all, 1)
            if num_both < OVERLAP_SAMPLES or num_both < OVERLAP * num_all or natural:
                if source is not None and num_all >= OVERLAP_SAMPLES:
                    return []  # there is a clean validation: what overlaps beside it measures training
                continue
            found.append(self._tell_overlap(source, num_both, num_all))
        return found[:1]

    def _tell_overlap(self, source: int | None, num_both: int, num_all: int) -> Finding:
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
