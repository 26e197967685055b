"""How samples are drawn: sorted instead of shuffled, the same batch again, validation samples that were trained on.

Samples are known by their hashes. A batch that returns after all the others is the next epoch, one that is the only batch is full-batch
training, one that is the very same tensor is used again on purpose: none of these is a fault.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, ClassVar, Final

import numpy as np

from stethoscope.analyse.span import Span
from stethoscope.detect.detector import Reading
from stethoscope.record import Evidence, Finding, Severity
from stethoscope.store import Event

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
MAX_HASHES: Final = 1 << 19


class _Hashes:
    """A set of hashes that thins itself by value when it grows too large, so that two of them stay comparable."""

    def __init__(self) -> None:
        self.kept: set[int] = set()
        self.mask = 0

    def add(self, numbers: Iterable[int]) -> None:
        """Take in more hashes."""
        self.kept.update(n for n in numbers if n & self.mask == 0)
        while len(self.kept) > MAX_HASHES:
            self.mask = 2 * self.mask + 1
            self.kept = {n for n in self.kept if n & self.mask == 0}


class Sampling:
    """Follows the samples of rank 0: other ranks have detectors of their own."""

    codes: ClassVar[tuple[str, ...]] = ("unshuffled_data", "duplicate_batches", "train_val_overlap")

    def __init__(self) -> None:
        self._first_step: int | None = None
        self._last_step = 0
        self._class_totals = np.zeros(0)
        self._purity: list[float] = []
        self._num_single = 0
        self._num_batches = 0
        self._seen: dict[int, int] = {}
        self._lags: list[tuple[int, int]] = []
        self._trained, self._validated = _Hashes(), _Hashes()
        self._num_validated_twice = 0
        self._first_validated: int | None = None

    def observe(self, span: Span) -> None:
        """One batch after another; micro-batches of one step count together where their classes are concerned."""
        by_step: dict[int, list[Event]] = {}
        for event in span.events:
            if event.rank or event.kind not in ("batch", "eval_batch"):
                continue
            if event.kind == "eval_batch":
                self._take_validation(event)
            else:
                by_step.setdefault(event.step, []).append(event)
        for step, events in by_step.items():
            self._first_step = step if self._first_step is None else self._first_step
            self._last_step = step
            self._take_classes([event.body for event in events])
            for event in events:
                self._take_samples(step, event.body)

    def _take_classes(self, bodies: list[dict[str, Any]]) -> None:
        counts = [
            np.array(body["class_counts"], dtype=np.float64) for body in bodies if "class_counts" in body
        ]
        num_labels = sum(float(c.sum()) for c in counts)
        # One label a sample: labels of pixels or letters are alike within a sample, however it was drawn.
        if not counts or num_labels != sum(body.get("num_samples", 0) for body in bodies):
            return
        width = max(len(self._class_totals), *(len(c) for c in counts))
        total = np.zeros(width)
        for one in counts:
            total[: len(one)] += one
        grown = total.copy()
        grown[: len(self._class_totals)] += self._class_totals
        self._class_totals = grown
        if num_labels >= MIN_SAMPLES:
            self._purity.append(float((total * (total - 1)).sum() / (num_labels * (num_labels - 1))))
            self._num_single += int((total > 0).sum() == 1)

    def _take_samples(self, step: int, body: dict[str, Any]) -> None:
        names = body.get("fingerprints") or []
        if not names:
            return
        numbers = [int(name, 16) for name in names]
        self._trained.add(numbers)
        if len(names) < MIN_SAMPLES:
            return
        key = hash(frozenset(numbers))
        before = self._seen.get(key)
        if before is not None and not body.get("again"):
            self._lags.append((self._num_batches - before, step))
        self._seen[key] = self._num_batches
        self._num_batches += 1

    def _take_validation(self, event: Event) -> None:
        names = event.body.get("fingerprints") or []
        self._validated.add(int(name, 16) for name in names)
        self._num_validated_twice += len(names) - len(set(names))
        if names and self._first_validated is None:
            self._first_validated = event.step

    def readings(self) -> dict[str, list[Reading]]:
        """What each rule asks for, and what it got."""
        total = float(self._class_totals.sum())
        fair = float(((self._class_totals / total) ** 2).sum()) if total > 0 else np.nan
        mixed = float(np.mean(self._purity)) if self._purity else np.nan
        soon = [step for lag, step in self._lags if lag <= SOON * len(self._seen)]
        mask = self._trained.mask | self._validated.mask
        validated = {n for n in self._validated.kept if n & mask == 0}
        both = len(validated & self._trained.kept)
        return {
            "unshuffled_data": [
                Reading("batches with one label a sample", len(self._purity), ">=", BATCHES_NEEDED),
                Reading("chance that two samples of a batch share their class", mixed, ">=", fair + SORTED * (1.0 - fair)),
            ],
            "duplicate_batches": [
                Reading("different batches", len(self._seen), ">=", BATCHES_NEEDED),
                Reading("batches that came again soon", len(soon), ">=", max(3.0, REPEATED * self._num_batches)),
            ],
            "train_val_overlap": [
                Reading("validation samples that were trained on", both, ">=", max(OVERLAP_SAMPLES, OVERLAP * len(validated))),
                Reading("validation samples", len(validated)),
            ],
        }

    def findings(self) -> list[Finding]:
        """Each of the three by itself."""
        return [*self._unshuffled(), *self._duplicates(), *self._overlap()]

    def _unshuffled(self) -> list[Finding]:
        total = float(self._class_totals.sum())
        if len(self._purity) < BATCHES_NEEDED or total <= 0 or self._first_step is None:
            return []
        shares = self._class_totals / total
        fair = float((shares**2).sum())
        found = float(np.mean(self._purity))
        if int((shares >= COMMON).sum()) < 2 or found - fair < SORTED * (1.0 - fair):
            return []
        num = len(self._purity)
        return [Finding(
            "unshuffled_data", Severity.WARNING,
            f"The data are sorted: {self._num_single:,} of {num:,} batches hold a single class, and two samples of a batch "
            f"share their class in {found:.0%} of cases where a shuffled batch gives {fair:.0%}.",
            self._first_step, self._last_step, ("batch",),
            (
                Evidence("chance that two samples of a batch share their class", found, fair),
                Evidence("batches of a single class", self._num_single / num),
            ),
            "DataLoader(dataset, batch_size=..., shuffle=True)",
        )]  # fmt: skip

    def _duplicates(self) -> list[Finding]:
        num_different = len(self._seen)
        if num_different < BATCHES_NEEDED:
            return []
        soon = [step for lag, step in self._lags if lag <= SOON * num_different]
        if len(soon) < max(3.0, REPEATED * self._num_batches):
            return []
        share = len(soon) / self._num_batches
        return [Finding(
            "duplicate_batches", Severity.WARNING,
            f"{len(soon):,} of {self._num_batches:,} batches had been there shortly before, sample by sample, since step "
            f"{soon[0]:,}: only {num_different:,} are different.",
            soon[0], soon[-1], ("batch",),
            (
                Evidence("share of batches that came again", share, 0.0),
                Evidence("different batches", float(num_different), float(self._num_batches)),
            ),
            "DataLoader(..., worker_init_fn=lambda w: seed_everything(torch.initial_seed()))  # each worker its own seed",
        )]  # fmt: skip

    def _overlap(self) -> list[Finding]:
        mask = self._trained.mask | self._validated.mask
        validated = {n for n in self._validated.kept if n & mask == 0}
        both = {n for n in validated if n in self._trained.kept}
        # Data of a few possible values repeat by themselves; then equal hashes say nothing.
        natural = self._num_validated_twice > COMMON * max(len(validated), 1)
        if len(both) < OVERLAP_SAMPLES or len(both) < OVERLAP * len(validated) or natural:
            return []
        first = self._first_validated or 0
        return [Finding(
            "train_val_overlap", Severity.WARNING,
            f"{len(both):,} of {len(validated):,} validation samples ({len(both) / len(validated):.0%}) were trained on too, "
            "so validation is better than it should be.",
            first, self._last_step, ("batch",),
            (
                Evidence("share of validation samples in training", len(both) / len(validated), 0.0),
                Evidence("validation samples", float(len(validated))),
            ),
            "train_set, val_set = torch.utils.data.random_split(dataset, [0.8, 0.2])  # split before anything is drawn",
        )]  # fmt: skip
