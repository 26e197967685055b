"""Updates against the weights they change: so large that they destroy, so small that nothing is learned.

The ratio is root mean square of the update over that of the weight, per weight matrix. Large alone is no fault (early
steps of a small net are large): it is one when the loss is worse for it. Small alone is no fault late in training: it is
one when it was never otherwise.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import ClassVar, Final

import numpy as np

from stethoscope.analyse.span import Span
from stethoscope.detect.curves import Curves
from stethoscope.detect.detector import Code, Detector, Reading, Readings, Rule, is_matrix, median
from stethoscope.detect.effects import BLOW_UP, UNIT_TROUBLE
from stethoscope.detect.loss_course import RECENT, WORSE, LossCourse
from stethoscope.detect.needs import LOSS, RATE, UPDATES, WEIGHTS
from stethoscope.detect.surrogate_loss import SurrogateLoss
from stethoscope.detect.tracks import Track
from stethoscope.record import Evidence, Finding, FloatArray, Kind, Severity, metrics

LARGE: Final = 0.1
SMALL: Final = 1e-5
OUT_OF_REACH: Final = 0.1
"""Of its size: a weight that all updates of the run together, going one way, cannot move so far stays what it began as."""
NOTHING_LEARNED: Final = 0.95
"""Of what guessing gives: where a run ends above it, what its weights began as was of no use."""
SAMPLES_NEEDED: Final = 6
STEPS_NEEDED: Final = 20
"""That these samples must span; a busy machine takes few."""
LARGE_STEPS: Final = 5
WRECKED_GROWTH: Final = 3.0
WRECKED_STEPS: Final = 60
STUCK_ABOVE: Final = 0.5
"""Of the first loss: a loss that fell further than that was learned, and may rest."""
STALL_LOOKS: Final = 12
STALL_STEPS: Final = 40
STALL_FALL: Final = 0.05
NEAR_ZERO: Final = 0.2
"""Of its first size: a matrix below that is on its way to zero; of the size that is usual at first: it began next to it."""
REPLACED: Final = 0.5
"""Of the size of a matrix after it: one step that is so large in every matrix leaves nothing of what was there."""
LEARNED: Final = 0.6
"""Of the first losses: a loss below that had learned something."""
LOST: Final = 0.8
"""Of the first losses: back there, nothing of it is left."""
LOST_STEPS: Final = 10
AT_ONCE: Final = 2
"""Steps between one that left nothing of the weights and a loss that is no number: what came of those weights."""


Harm = tuple[Readings, tuple[float, float | None, float]]
"""What is asked; where it shows the harm, the step, the loss and the best or the earlier one."""


class UpdateSize(Detector):
    """Follows update/weight of every matrix, beside the loss."""

    codes: ClassVar[tuple[Code, ...]] = (
        Code(
            "update_too_large",
            needs=(UPDATES, WEIGHTS, LOSS),
            leads_to=(
                *BLOW_UP,
                *UNIT_TROUBLE,
                "exploding_gradients",
                "output_logit_drift",
                "attention_logit_growth",
                "lr_too_high",
            ),
            through_updates=True,
        ),
        Code("update_too_small", needs=(UPDATES, WEIGHTS, RATE)),
    )

    def __init__(self) -> None:
        self._num_steps = self._began = 0
        self._large_streak = 0
        self._large_since: int | None = None
        self._replaced: int | None = None
        self._moved: set[str] = set()
        """Matrices that an update ever changed."""
        self._born_at_zero: set[str] | None = None
        self._large_ratio = 0.0
        self._large_sites: tuple[str, ...] = ()
        self._course = LossCourse()
        self._largest_ever = 0.0
        self._ratios: list[float] = []
        self._rising_rate = False
        self._last_rate = 0.0
        self._last_step = 0
        self._before: tuple[int, float] = (0, np.nan)
        """How many losses there were before updates became large, and the middle of the last ones."""
        self._weights: dict[str, tuple[float, float]] = {}
        self._usual: dict[str, float] = {}
        self._streak = Track(2, limit=1024)
        self._stalled: tuple[int, float, float] | None = None
        self._latest_loss = np.nan
        self._kind = SurrogateLoss()
        self._curves = Curves()

    def observe(self, span: Span) -> None:
        """One median ratio for every step that has one."""
        self._kind.observe(span)
        self._curves.observe(span)
        updates, weights, paths = _update_weight_pairs(span)
        rms, zeros = span.stat("rms"), span.stat("zero_fraction")
        loss, rates = span.metric(metrics.LOSS), span.metric(metrics.LEARNING_RATE)
        with np.errstate(divide="ignore", invalid="ignore"):
            ratios = rms[:, updates] / rms[:, weights]
        # Matrices that are mostly zero, in either, say nothing about the size of a step.
        ratios[~((rms[:, weights] > 0) & (zeros[:, weights] < 0.5) & (zeros[:, updates] < 0.9))] = np.nan
        self._follow_weights(rms[:, weights], paths)
        # Nor do weights that something takes to zero, or that began next to it: against nothing every step is large.
        self._usual |= {path: _usual_size(span.sites[n].shape) for path, n in zip(paths, weights, strict=True)}
        firsts = np.array([max(self._weights.get(path, (0.0, 0.0))[0], self._usual[path]) for path in paths])
        ratios[rms[:, weights] < NEAR_ZERO * firsts] = np.nan
        self._leave_out_born_at_zero(ratios, paths)
        known = np.atleast_1d(np.any(~np.isnan(ratios), axis=1))
        moved = rms[:, updates] > 0
        recorded = span.recorded(metrics.LOSS)
        for row, step in enumerate(span.steps):
            self._note_moved({paths[n] for n in np.flatnonzero(moved[row])})
            self._latest_loss = float(loss[row])
            if recorded[row]:
                self._course.see(int(step), self._latest_loss)
            if not known[row]:
                continue
            self._began = self._began if self._num_steps else int(step)
            self._last_step = int(step)
            self._num_steps += 1
            if rates[row] > self._last_rate * (1 + 1e-9) and self._num_steps > 1:
                self._rising_rate = True
            self._last_rate = float(rates[row]) if np.isfinite(rates[row]) else self._last_rate
            self._follow_ratio(int(step), ratios[row], paths)

    def _note_moved(self, paths: set[str]) -> None:
        """Where all that moves is new, another part is trained from here on, as layer by layer: its loss is another one."""
        if paths and self._moved and not paths & self._moved:
            self._course.begin_anew()
            self._streak, self._large_streak = Track(2, limit=1024), 0
        self._moved |= paths

    def _leave_out_born_at_zero(self, ratios: FloatArray, paths: list[str]) -> None:
        """A matrix that is nothing but its first update began at zero (LoRA's B): unless all are so, that is a choice."""
        seen = np.flatnonzero(~np.isnan(ratios).all(axis=1)) if ratios.size else np.zeros(0, dtype=np.int64)
        if self._born_at_zero is None and len(seen):
            first = ratios[seen[0]]
            some = bool(np.nanmin(first) < REPLACED)
            self._born_at_zero = {path for path, ratio in zip(paths, first, strict=True) if some and ratio > 0.9}
        for index, path in enumerate(paths):
            if path in (self._born_at_zero or ()):
                ratios[:, index] = np.nan

    def _follow_weights(self, sizes: FloatArray, paths: list[str]) -> None:
        """The first and the latest size of every matrix."""
        for index, path in enumerate(paths):
            there = np.flatnonzero(np.isfinite(sizes[:, index]))
            if len(there):
                first = self._weights.get(path, (float(sizes[there[0], index]), 0.0))[0]
                self._weights[path] = (first, float(sizes[there[-1], index]))

    def _follow_ratio(self, step: int, ratios: FloatArray, paths: list[str]) -> None:
        values = ratios[~np.isnan(ratios)]
        middle = median(values)
        self._largest_ever = max(self._largest_ever, float(values.max()))
        if len(self._ratios) < STEPS_NEEDED:
            self._ratios.append(float(values.max()))
        if len(values) > 1 and float(values.min()) > REPLACED and self._replaced is None:
            self._replaced = step
            self._note_large(step, middle, ratios, paths)
        if middle <= LARGE:
            self._large_streak = 0
            self._streak = Track(2, limit=1024)
            return
        self._streak.add(step, self._latest_loss)
        self._look_for_stall()
        self._large_streak += 1
        if self._large_streak >= LARGE_STEPS:
            self._note_large(int(self._streak.last(LARGE_STEPS)[0, 0]), middle, ratios, paths)

    def _note_large(self, since: int, middle: float, ratios: FloatArray, paths: list[str]) -> None:
        if self._large_since is None:
            self._large_since, self._large_ratio = since, middle
            recent = self._course.losses.last(RECENT)
            earlier = recent[recent[:, 0] < since, 1]
            num = len(self._course.losses) - len(recent) + len(earlier)
            self._before = (num, median(earlier[-LOST_STEPS:]))
            order = np.argsort(-np.nan_to_num(ratios, nan=-1.0))[:3]
            self._large_sites = tuple(paths[n] for n in order)

    def _look_for_stall(self) -> None:
        """Large for long, and nothing learned meanwhile: the weights are thrown about."""
        if self._stalled is not None or len(self._streak) < STALL_LOOKS:
            return
        first = int(self._streak.first(1)[0, 0])
        if self._streak.latest[0] - first < STALL_STEPS:
            return
        # The first steps may fall to what the mean of the targets gives, whatever the rate.
        losses = self._streak.values[len(self._streak.values) // 2 :]
        losses = losses[np.isfinite(losses)]
        half = len(losses) // 2
        if half < 3:
            return
        before, after = median(losses[:half]), median(losses[half:])
        if after > before - STALL_FALL * abs(before):
            self._stalled = (first, before, after)

    def rules(self) -> Iterator[Rule]:
        """Too large and harmful, or too small from the first step on."""
        yield from self._large()
        yield from self._small()

    def _large(self) -> Iterator[Rule]:
        """Of the harms that large updates do, the first that shows."""
        course, since = self._course, np.nan if self._large_since is None else self._large_since
        known = (
            Reading(
                f"first of {LARGE_STEPS} steps in a row whose median update / weight is above {LARGE:g}", since, ">=", 0
            ),
            Reading(
                "the loss is a measure of progress, or no number",
                self._kind.is_measure or course.lost_at is not None,
                "=",
                1,
            ),
            Reading("largest update / weight of any matrix", self._largest_ever if self._ratios else np.nan),
            Reading("loss now", course.now(3)),
            Reading("best loss", course.best if len(course.losses) else np.nan),
        )
        for way, readings, found in (
            ("diverges", *self._diverges()),
            ("lost", *self._is_lost()),
            ("stalls", *self._stalls()),
            ("wrecked", *self._is_wrecked()),
            ("undone", *self._is_undone()),
        ):
            yield Rule(
                "update_too_large", (*known, *readings), partial(self._too_large, *found), way, is_otherwise=True
            )

    def _diverges(self) -> Harm:
        found = self._course.divergence() or (np.nan, np.nan, np.nan)
        label = f"step at which the loss passed {WORSE:g} times its best"
        return (Reading(label, found[0], ">=", np.nan if self._large_since is None else self._large_since),), found

    def _is_lost(self) -> Harm:
        """What came of weights of which one step left nothing."""
        lost = np.nan if self._course.lost_at is None else self._course.lost_at
        replaced = np.nan if self._replaced is None else self._replaced
        return (
            Reading("first step without a finite loss", lost, "<=", replaced + AT_ONCE),
            Reading("the same, after a step that replaced the weights", lost, ">=", replaced),
        ), (lost, None, self._course.best)

    def _stalls(self) -> Harm:
        """Large for long, and nothing learned meanwhile: the weights are thrown about."""
        first, before, after = self._stalled or (np.nan, np.nan, np.nan)
        return (Reading("large steps without a lower loss began at", first, ">=", 0),), (first, after, before)

    def _is_wrecked(self) -> Harm:
        """The first steps multiplied or replaced the weights, and after them the loss never fell again."""
        values = self._course.losses.values
        third = max(len(values) // 3, 1)
        before, after = median(values[third : 2 * third]), median(values[-third:])
        early = median(self._course.losses.first(3)[:, 1])
        # How many times its first size, or the one that weights usually begin with, each matrix has now.
        growth = [last / max(first, self._usual[path]) for path, (first, last) in self._weights.items()]
        grown = 0.0 if self._replaced is not None else WRECKED_GROWTH
        return (
            Reading("losses", len(self._course.losses), ">=", WRECKED_STEPS),
            Reading("growth of the median matrix (any, where a step replaced all)", median(growth), ">=", grown),
            Reading("loss of the last third, against the one before", after, ">", before - STALL_FALL * abs(before)),
            Reading("loss of the last third, against the first losses", after, ">", STUCK_ABOVE * early),
        ), (self._large_since or 0, after, before)

    def _is_undone(self) -> Harm:
        """The loss had fallen; since updates became large it is back where it began, and stays."""
        (num_before, before), early = self._before, median(self._course.losses.first(3)[:, 1])
        after = self._course.now(LOST_STEPS)
        return (
            Reading("losses before updates became large", num_before, ">=", 2 * LOST_STEPS),
            Reading("losses since", len(self._course.losses) - num_before, ">=", LOST_STEPS),
            Reading("loss until then, against the first", before, "<", LEARNED * early),
            Reading("loss until then", before, ">", 0),
            Reading("loss now, against the first", after, ">", LOST * early),
            Reading("loss now, against until then", after, ">", WORSE * before),
        ), (self._large_since or 0, after, before)

    def _small(self) -> Iterator[Rule]:
        course = self._course
        known = (
            Reading("steps with updates and weights", len(self._ratios), ">=", SAMPLES_NEEDED),
            Reading("steps from the first of them to the last", self._last_step - self._began + 1, ">=", STEPS_NEEDED),
            Reading("the rate rose on the way", self._rising_rate, "=", 0),
        )
        largest = Reading(
            "largest update / weight of any matrix", self._largest_ever if self._ratios else np.nan, "<", SMALL
        )
        yield Rule("update_too_small", (*known, largest), self._too_small, "at any time")
        # The run is over, its weights are about what they began as, and the loss is where guessing is.
        first, now, chance = course.first or 0.0, course.now(LOST_STEPS), self._curves.chance() or np.nan
        yield Rule(
            "update_too_small",
            (
                *known,
                Reading(
                    "most that all updates of the finished run can change a weight, as a share of it",
                    self._reach() if self._curves.is_finished else np.nan,
                    "<",
                    OUT_OF_REACH,
                ),
                Reading("losses", len(course.losses), ">=", LOST_STEPS),
                Reading("loss at its end, against what guessing gives", now / chance, ">", NOTHING_LEARNED),
                Reading("fall of the loss", first - now, "<=", STALL_FALL * abs(first)),
            ),
            self._too_small,
            "in the time",
            is_otherwise=True,
        )

    def _reach(self) -> float:
        """How far all updates of the run together can move a weight, all going one way, as a share of it."""
        return self._largest_ever * (self._curves.last_step + 1)

    def _too_large(self, step: float, loss: float | None, best: float) -> Finding:
        assert self._large_since is not None
        how = (
            f"and the loss diverges at step {step:,}"
            if self._course.divergence() is not None
            else f"and the loss is NaN or Inf at step {step:,}"
            if step == self._course.lost_at
            else "and the loss does not fall"
        )
        return Finding(
            code="update_too_large",
            severity=Severity.CRITICAL,
            message=f"Each step changes the weights by {self._large_ratio:.0%} of their size since step "
            f"{self._large_since:,}, {how}: the learning rate is too high.",
            first_step=self._large_since,
            last_step=self._last_step,
            sites=self._large_sites,
            evidence=(
                Evidence(
                    "update / weight",
                    self._large_ratio,
                    site=self._large_sites[0] if self._large_sites else "",
                    kind="update",
                    stat="rms",
                ),
                Evidence("loss", loss, best),
                Evidence("learning rate", self._last_rate),
            ),
            remedy=f"lr={self._last_rate / max(self._large_ratio / 1e-3, 1):.1g}  # brings update/weight near 0.001",
        )

    def _too_small(self) -> Finding:
        ratio = median(self._ratios)
        so = "the learning rate is too low to learn anything"
        if self._largest_ever >= SMALL:
            num_steps = self._curves.last_step + 1
            so = f"all {num_steps:,} together cannot move it by more than {self._reach():.1%}, too little for the time"
        return Finding(
            code="update_too_small",
            severity=Severity.WARNING,
            message=f"No step changes any weight by more than {self._largest_ever:.1e} of its size: {so}.",
            first_step=0,
            last_step=self._last_step,
            evidence=(Evidence("update / weight", ratio), Evidence("learning rate", self._last_rate)),
            remedy=f"lr={self._last_rate * 1e-3 / max(ratio, 1e-12):.1g}  # brings update/weight near 0.001",
        )


def _usual_size(shape: tuple[int, ...]) -> float:
    """The root mean square of PyTorch's default initialization: by how many values go into a unit."""
    return float(1.0 / np.sqrt(3.0 * max(1, int(np.prod(shape[1:])))))


def _update_weight_pairs(span: Span) -> tuple[list[int], list[int], list[str]]:
    """Indices of the updates of weight matrices, of the matrices themselves, and their paths."""
    weights = {span.sites[n].site.path: int(n) for n in span.site_indices(Kind.WEIGHT) if is_matrix(span.sites[n])}
    updates = {span.sites[n].site.path: int(n) for n in span.site_indices(Kind.UPDATE)}
    paths = [path for path in updates if path in weights]
    return [updates[path] for path in paths], [weights[path] for path in paths], paths
