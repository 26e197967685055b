"""Updates against the weights they change: so large that they destroy, so small that nothing is learned.

The ratio is root mean square of the update over that of the weight, per weight matrix. Large alone is no fault (early
steps of a small net are large): it is one when the loss is worse for it. Small alone is no fault late in training: it is
one when it was never otherwise.
"""

from __future__ import annotations

from typing import ClassVar, Final

import numpy as np

from stethoscope.analyse.span import Span
from stethoscope.detect.curves import Curves
from stethoscope.detect.detector import Code, Detector, Reading, is_matrix
from stethoscope.detect.effects import BLOW_UP, UNIT_TROUBLE
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
RECOVERED: Final = 0.1
"""Of the first loss and the best one: a loss that fell so far, and further than it had risen, was not diverging when its
first few batches were noisy."""
FEW_LOSSES: Final = 20
NOISE: Final = 2.0
"""Standard deviations of the loss from one step to the next, in its logarithm: a rise within that is what batches do."""
AT_ONCE: Final = 2
"""Steps between one that left nothing of the weights and a loss that is no number: what came of those weights."""
RECENT: Final = 512
"""Losses that are kept one by one: updates are measured every few steps, and it takes a few samples to call them large."""
WORSE: Final = 2.0
"""A loss above this many times the best it had been, and above where it began, is divergence and not noise."""


class UpdateSize(Detector):
    """Follows update/weight of every matrix, beside the loss."""

    codes: ClassVar[tuple[Code, ...]] = (
        Code(
            "update_too_large",
            needs=(UPDATES, WEIGHTS, LOSS),
            leads_to=(*BLOW_UP, *UNIT_TROUBLE, "exploding_gradients", "output_logit_drift", "attention_logit_growth"),
            through_updates=True,
        ),
        Code(
            "update_too_small",
            needs=(UPDATES, WEIGHTS, RATE),
        ),
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
        self._diverged: tuple[int, float, float] | None = None
        self._diverged_early = False
        """Whether it was so few losses that said so that noise may have done it."""
        self._first_loss: float | None = None
        self._best_loss = np.inf
        self._worst_loss = 0.0
        self._largest_ever = 0.0
        self._ratios: list[float] = []
        self._rising_rate = False
        self._last_rate = 0.0
        self._last_step = 0
        self._losses = Track(2, ends=RECENT)
        self._before: tuple[int, float] = (0, np.nan)
        """How many losses there were before updates became large, and the middle of the last ones."""
        self._weights: dict[str, tuple[float, float]] = {}
        self._usual: dict[str, float] = {}
        self._streak = Track(2, limit=1024)
        self._stalled: tuple[int, float, float] | None = None
        self._latest_loss = np.nan
        self._kind = SurrogateLoss()
        self._curves = Curves()
        self._lost_at: int | None = None
        """The first step without a finite loss."""

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
            self._follow_loss(int(step), float(loss[row]))
            if recorded[row] and not np.isfinite(loss[row]) and self._lost_at is None:
                self._lost_at = int(step)
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
            self._first_loss, self._best_loss, self._worst_loss = None, np.inf, 0.0
            self._losses, self._streak = Track(2, ends=RECENT), Track(2, limit=1024)
            self._large_streak = 0
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
        middle = float(np.median(values))
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
            recent = self._losses.last(RECENT)
            earlier = recent[recent[:, 0] < since, 1]
            num = len(self._losses) - len(recent) + len(earlier)
            self._before = (num, float(np.median(earlier[-LOST_STEPS:])) if len(earlier) else np.nan)
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
        before, after = float(np.median(losses[:half])), float(np.median(losses[half:]))
        if after > before - STALL_FALL * abs(before):
            self._stalled = (first, before, after)

    def _follow_loss(self, step: int, loss: float) -> None:
        self._latest_loss = loss
        if np.isnan(loss):
            return
        if self._first_loss is None:
            self._first_loss = loss
        self._losses.add(step, loss)
        # The middle of the last three, so that one bad batch is not divergence.
        recent = self._middle_of_last(3)
        worse = recent > WORSE * abs(self._best_loss) and recent > self._first_loss + abs(self._first_loss)
        if (
            self._diverged is None
            and len(self._losses) > 3
            and worse
            and not self._within_noise(recent, self._earlier())
        ):
            self._diverged = (step, recent, float(self._best_loss))
            self._diverged_early = len(self._losses) <= FEW_LOSSES
        self._best_loss, self._worst_loss = min(self._best_loss, loss), max(self._worst_loss, loss)

    def _earlier(self) -> FloatArray:
        """The losses before the last three."""
        return self._losses.last(RECENT)[:-3, 1]

    def _middle_of_last(self, number: int) -> float:
        return float(np.median(self._losses.last(number)[:, 1]))

    def readings(self) -> dict[str, list[Reading]]:
        """What each rule asks for, and what it got."""
        largest = Reading("largest update / weight of any matrix", self._largest_ever if self._ratios else np.nan)
        recent = self._middle_of_last(3) if len(self._losses) else np.nan
        since = np.nan if self._large_since is None else self._large_since
        large = f"first of {LARGE_STEPS} steps in a row whose median update / weight is above {LARGE:g}"
        growth, diverged = self._weight_growth(), self._divergence()
        return {
            "update_too_large": [
                Reading(large, since, ">=", 0),
                Reading(
                    "the loss is a measure of progress", int(self._kind.is_measure or self._lost_at is not None), "=", 1
                ),
                largest,
                Reading(
                    f"step at which the loss passed {WORSE:g} times its best",
                    diverged[0] if diverged else np.nan,
                    ">=",
                    0,
                    way="diverges",
                ),
                Reading(
                    "first step without a finite loss",
                    np.nan if self._lost_at is None else self._lost_at,
                    "<=",
                    np.nan if self._replaced is None else self._replaced + AT_ONCE,
                    way="lost",
                ),
                Reading(
                    "large steps without a lower loss began at",
                    self._stalled[0] if self._stalled else np.nan,
                    ">=",
                    0,
                    way="stalls",
                ),
                Reading(
                    "growth of the median matrix",
                    float(np.median(growth)) if growth else np.nan,
                    ">=",
                    WRECKED_GROWTH,
                    way="wrecked",
                ),
                Reading("loss now, against the first", recent / (self._first_loss or np.nan), ">", LOST, way="undone"),
                Reading("loss now", recent),
                Reading("best loss", self._best_loss),
            ],
            "update_too_small": [
                Reading("steps with updates and weights", len(self._ratios), ">=", SAMPLES_NEEDED),
                Reading("steps from the first of them to the last", self._spanned(), ">=", STEPS_NEEDED),
                Reading(largest.label, largest.value, "<", SMALL, way="at any time"),
                Reading(
                    "most that all updates of the finished run can change a weight, as a share of it",
                    self._reach() if self._curves.is_finished else np.nan,
                    "<",
                    OUT_OF_REACH,
                    way="in the time",
                ),
                Reading(
                    "loss at its end, against what guessing gives",
                    self._against_guessing(),
                    ">",
                    NOTHING_LEARNED,
                    way="in the time",
                ),
                Reading("the rate rose on the way", int(self._rising_rate), "=", 0),
            ],
        }

    def findings(self) -> list[Finding]:
        """Too large and harmful, or too small from the first step on."""
        if self._lost_at is None and not self._kind.is_measure:
            return self._never_large()
        diverged = self._divergence()
        if self._large_since is not None and diverged is not None and diverged[0] >= self._large_since:
            return [self._too_large(*diverged)]
        if self._lost_at is not None and self._replaced is not None and 0 <= self._lost_at - self._replaced <= AT_ONCE:
            return [self._too_large(self._lost_at, None, self._best_loss)]
        if self._stalled is not None and self._large_since is not None:
            return [self._too_large(self._stalled[0], self._stalled[2], self._stalled[1])]
        wrecked = self._wrecked_start() or self._lost_progress()
        if wrecked is not None:
            return [self._too_large(self._large_since or 0, *wrecked)]
        return self._never_large()

    def _never_large(self) -> list[Finding]:
        if len(self._ratios) < SAMPLES_NEEDED or self._spanned() < STEPS_NEEDED or self._rising_rate:
            return []
        return [self._too_small()] if self._largest_ever < SMALL or self._is_out_of_reach() else []

    def _spanned(self) -> int:
        return self._last_step - self._began + 1

    def _reach(self) -> float:
        """How far all updates of the run together can move a weight, all going one way, as a share of it."""
        return self._largest_ever * (self._curves.last_step + 1)

    def _against_guessing(self) -> float:
        chance = self._curves.chance()
        return self._middle_of_last(LOST_STEPS) / chance if chance and len(self._losses) >= LOST_STEPS else np.nan

    def _is_out_of_reach(self) -> bool:
        """The run is over, its weights are about what they began as, and the loss is where guessing is."""
        if not self._curves.is_finished or self._reach() >= OUT_OF_REACH:
            return False
        first = self._first_loss or 0.0
        fell = first - self._middle_of_last(LOST_STEPS) > STALL_FALL * abs(first)
        return bool(self._against_guessing() > NOTHING_LEARNED) and not fell

    def _divergence(self) -> tuple[int, float, float] | None:
        """Where the loss diverged: the step, the loss, the best before. The first few losses say so when more have come."""
        if self._diverged is None or not self._diverged_early or self._lost_at is not None:
            return self._diverged
        if len(self._losses) < LOST_STEPS:
            return None
        began, now = min(abs(self._first_loss or 0.0), abs(self._diverged[2])), abs(self._middle_of_last(LOST_STEPS))
        recovered = now < RECOVERED * began and now * self._worst_loss < began * began
        return None if recovered or self._is_noise() else self._diverged

    def _is_noise(self) -> bool:
        """Whether the rise of the first few losses is no larger than what the later ones do all the time."""
        if self._diverged is None or len(self._losses) < 2 * FEW_LOSSES:
            return False
        return self._within_noise(
            self._diverged[1], self._losses.last(min(len(self._losses) - FEW_LOSSES, RECENT))[:, 1]
        )

    def _within_noise(self, risen: float, usual: FloatArray) -> bool:
        """Whether a loss is no further above the first one than these losses are from each other."""
        if len(usual) < FEW_LOSSES or self._first_loss is None or not min(self._first_loss, float(usual.min())) > 0:
            return False
        # From one step to the next, so that learning is not taken for noise; by their middle, so that one batch does not decide.
        spread = 1.4826 * float(np.median(np.abs(np.diff(np.log(usual))))) / np.sqrt(2.0)
        return bool(np.log(risen / self._first_loss) < NOISE * spread)

    def _weight_growth(self) -> list[float]:
        """How many times its first size, or the one that weights usually begin with, each matrix has now."""
        return [last / max(first, self._usual[path]) for path, (first, last) in self._weights.items()]

    def _wrecked_start(self) -> tuple[float, float] | None:
        """The first steps multiplied or replaced the weights, and after them the loss never fell again: what it is, what it was."""
        growth = self._weight_growth()
        grown = bool(growth) and float(np.median(growth)) >= WRECKED_GROWTH
        if self._large_since is None or len(self._losses) < WRECKED_STEPS or not (grown or self._replaced is not None):
            return None
        losses = self._losses.values
        third = len(losses) // 3
        before, after = float(np.median(losses[third : 2 * third])), float(np.median(losses[-third:]))
        early = float(np.median(self._losses.first(3)[:, 1]))
        stands_still = after > before - STALL_FALL * abs(before) and after > STUCK_ABOVE * early
        return (after, before) if stands_still else None

    def _lost_progress(self) -> tuple[float, float] | None:
        """The loss had fallen; since updates became large it is back where it began, and stays: what it is, what it was."""
        if self._large_since is None:
            return None
        cut, before = self._before
        if cut < 2 * LOST_STEPS or len(self._losses) < cut + LOST_STEPS:
            return None
        early, after = float(np.median(self._losses.first(3)[:, 1])), self._middle_of_last(LOST_STEPS)
        lost = 0 < before < LEARNED * early and after > LOST * early and after > WORSE * before
        return (after, before) if lost else None

    def _too_large(self, step: int, loss: float | None, best: float) -> Finding:
        assert self._large_since is not None
        how = (
            f"and the loss diverges at step {step:,}"
            if self._divergence() is not None
            else f"and the loss is NaN or Inf at step {step:,}"
            if step == self._lost_at
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
        ratio = float(np.median(self._ratios))
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
