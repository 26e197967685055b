"""Learning-rate schedules and clipping: a rate that dies early or never moves, a schedule that runs ahead, a clip that
is always on or comes before the gradients are unscaled."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import ClassVar, Final

import numpy as np

from stethoscope.analyse.span import Span
from stethoscope.detect.detector import Code, Detector, Reading, Rule, Streak, is_matrix, median, ratio
from stethoscope.detect.groups import is_scale_free
from stethoscope.detect.needs import CLIPS, OWNERS, RATE, SCALER, TOTALS, Need
from stethoscope.detect.tracks import Track
from stethoscope.record import Evidence, Finding, Kind, Severity, metrics
from stethoscope.record.events import Ownership, ParameterGroup, SkippedStep, Totals

DEAD_RATE: Final = 1e-3
"""Of the highest rate: below this share nothing is learned any more."""
DEAD_SHARE: Final = 0.3
"""Of the run: a schedule that ends on time spends a few percent down there."""
STEPS_NEEDED: Final = 40
SMALL_COEFFICIENT: Final = 0.02
ONLY_SIGNS: Final = 0.9
"""Of the limit: where the mean size of a gradient's values is above that, nearly all of them were cut to it."""
ALWAYS: Final = 0.98
"""Share of the clipped steps."""
SCALED_NEEDED: Final = 3
SKIPS_NEEDED: Final = 3
AHEAD: Final = 0.05


class Schedules(Detector):
    """Follows rates, schedulers and clipping."""

    codes: ClassVar[tuple[Code, ...]] = (
        Code("lr_decays_too_early", needs=(RATE, TOTALS)),
        Code("lr_stuck", needs=(RATE, OWNERS, TOTALS)),
        Code(
            "scheduler_ahead_of_optimizer",
            needs=(
                Need("scheduler steps", "metric", (metrics.SCHEDULER_STEPS,), "none was seen", may_be_absent=True),
                SCALER,
            ),
        ),
        Code("clipping_always_on", needs=(CLIPS,), leads_to=("update_too_small",)),
        Code("clip_before_unscale", needs=(CLIPS, SCALER), leads_to=("clipping_always_on", "update_too_small")),
    )

    def __init__(self) -> None:
        self._rates = Track(2)
        self._highest, self._lowest = -np.inf, np.inf
        self._groups: tuple[ParameterGroup, ...] = ()
        self._totals: Totals | None = None
        self._scheduler_steps = 0.0
        self._skipped = 0
        self._first_skip = 0
        self._num_steps = 0
        self._coefficients = Track()
        self._num_shortened = 0
        self._clip = (0, 0, 0.0)
        self._signs = Track(2)
        self._value_limit = 0.0
        self._scaled = Streak()
        self._scale = 1.0
        self._last_step = 0
        self._num_values = 0

    def observe(self, span: Span) -> None:
        """Take in rates, counts and clips."""
        for _, ownership in span.events_of(Ownership):
            self._groups = ownership.groups
        weights = span.site_indices(Kind.WEIGHT)
        self._num_values = max(self._num_values, sum(span.sites[n].num_elements for n in weights))
        for _, totals in span.events_of(Totals):
            self._totals = totals
        for event, skipped in span.events_of(SkippedStep):
            self._first_skip = self._first_skip or event.step
            self._skipped = max(self._skipped, skipped.times)
        rates, ahead = span.metric(metrics.LEARNING_RATE), span.metric(metrics.SCHEDULER_STEPS)
        norms, limits = span.metric(metrics.GRADIENT_NORM), span.metric(metrics.CLIP_NORM)
        scaled, scale = span.metric(metrics.CLIP_SCALED), span.metric(metrics.LOSS_SCALE)
        for index, step in enumerate(span.steps):
            self._num_steps += bool(np.isfinite(rates[index]))
            if np.isfinite(rates[index]):
                self._rates.add(int(step), float(rates[index]))
                self._highest = max(self._highest, float(rates[index]))
                self._lowest = min(self._lowest, float(rates[index]))
                self._last_step = int(step)
            if np.isfinite(ahead[index]):
                self._scheduler_steps = float(ahead[index])
            if np.isfinite(scale[index]):
                self._scale = float(scale[index])
            if np.isfinite(limits[index]):
                self._see_clip(int(step), float(norms[index]), float(limits[index]), scaled[index] == 1.0)

        self._see_values(span)

    def _see_values(self, span: Span) -> None:
        """How close the values of the gradients lie to the limit that each of them was cut to."""
        limits = span.metric(metrics.CLIP_VALUE)
        indices = [n for n in span.site_indices(Kind.GRADIENT) if is_matrix(span.sites[n])]
        if not indices or not np.isfinite(limits).any():
            return
        alive = np.maximum(1.0 - span.stat("zero_fraction")[:, indices], 1e-12)
        sizes = span.stat("mean_abs")[:, indices] / alive
        for row in np.flatnonzero((limits > 0) & np.isfinite(sizes).any(axis=1)):
            self._signs.add(int(span.steps[row]), float(np.nanmedian(sizes[row]) / limits[row]))
            self._value_limit = float(limits[row])

    def _see_clip(self, step: int, norm: float, limit: float, still_scaled: bool) -> None:
        self._scaled.see(step, bool(still_scaled and self._scale > 1.0))
        if not still_scaled and np.isfinite(norm) and norm > 0:
            self._coefficients.add(min(1.0, limit / norm))
            self._num_shortened += limit < norm
            first = self._clip[0] if len(self._coefficients) > 1 else step
            self._clip = (first, step, limit)

    def rules(self) -> Iterator[Rule]:
        """Clipping as it happens; schedules where the run has ended, because only then is early early."""
        in_scale = Reading(
            "clipped steps in a row while the loss scale was still in", self._scaled.longest, ">=", SCALED_NEEDED
        )
        yield Rule("clip_before_unscale", (in_scale,), self._before_unscale)
        yield from self._clipping()
        ahead, most = self._scheduler_steps - self._num_steps, max(1.0, AHEAD * self._num_steps)
        yield Rule(
            "scheduler_ahead_of_optimizer",
            (
                Reading("skipped steps", self._skipped, ">=", SKIPS_NEEDED),
                Reading("scheduler steps beyond optimizer steps", ahead, ">", most),
                Reading("the same, against the skipped ones and one more", ahead, "<=", self._skipped + 1),
            ),
            lambda: self._ahead_finding(int(ahead)),
        )
        yield from self._when_finished()

    def _clipping(self) -> Iterator[Rule]:
        num, middle = len(self._coefficients), median(self._coefficients.values)
        shortened, only_signs = (
            ratio(self._num_shortened, num),
            float(np.mean(self._signs.values > ONLY_SIGNS)) if len(self._signs) else np.nan,
        )
        yield Rule(
            "clipping_always_on",
            (
                Reading("clipped steps", num, ">=", STEPS_NEEDED),
                Reading("share of them that were shortened", shortened, ">", ALWAYS),
                Reading("median clip coefficient", middle, "<", SMALL_COEFFICIENT),
                Reading(
                    "of the optimizer's groups those whose steps feel it, share (none: it is a note)", self._felt()
                ),
            ),
            lambda: self._always_on(middle),
            "norm",
        )
        yield Rule(
            "clipping_always_on",
            (
                Reading("steps clipped by value", len(self._signs), ">=", STEPS_NEEDED),
                Reading("steps clipped by the norm", num, "<", STEPS_NEEDED),
                Reading("share of them that left only signs", only_signs, ">", ALWAYS),
            ),
            self._signs_alone,
            "value",
        )

    def _felt(self) -> float:
        """Of the optimizers' groups the share whose steps the clipped gradients make smaller."""
        size = self._clip[2] / math.sqrt(self._num_values) if self._num_values else 0.0
        return ratio(sum(not is_scale_free(group, size) for group in self._groups), len(self._groups))

    def _when_finished(self) -> Iterator[Rule]:
        rates, highest = self._rates.values, self._highest if len(self._rates) else np.nan
        known = (
            Reading("the run has said its totals", self._totals is not None, "=", 1),
            Reading("steps with a learning rate", len(rates), ">=", STEPS_NEEDED),
            Reading("highest rate", highest, ">", 0),
        )
        alive = np.flatnonzero(rates > DEAD_RATE * highest)
        dead_from = int(alive[-1]) + 1 if len(alive) else 0
        dead = ratio(len(rates) - dead_from, len(rates))
        yield Rule(
            "lr_decays_too_early",
            (
                *known,
                Reading(f"share of the run at the end below {DEAD_RATE:g} of the highest rate", dead, ">", DEAD_SHARE),
            ),
            lambda: self._too_early(int(self._rates.steps[min(dead_from, len(rates) - 1)]), len(self._rates)),
        )
        scheduled = sum("initial_lr" in group.settings for group in self._groups)
        num_steps = self._totals.num_scheduler_steps if self._totals is not None else 0
        yield Rule(
            "lr_stuck",
            (
                *known,
                Reading("groups that a scheduler has marked", scheduled, ">", 0),
                Reading("scheduler steps", num_steps, "=", 0),
                Reading("spread of the rate", highest - self._lowest, "=", 0),
            ),
            lambda: self._stuck_finding(float(rates[0])),
        )

    def _too_early(self, step: int, num_steps: int) -> Finding:
        return Finding(
            "lr_decays_too_early",
            Severity.WARNING,
            f"The learning rate is next to nothing from step {step:,} of {num_steps:,} on: the schedule ends long before the run.",
            step,
            self._last_step,
            (),
            (
                Evidence("learning rate at the end", self._rates.latest[1], self._highest),
                Evidence("scheduler steps", self._scheduler_steps),
            ),
            "scheduler.step()  # once an epoch, or make the schedule as long as the number of steps",
        )

    def _stuck_finding(self, rate: float) -> Finding:
        return Finding(
            "lr_stuck",
            Severity.WARNING,
            f"A learning-rate scheduler exists and never stepped: the rate stayed at {rate:.3g} for the whole run.",
            0,
            self._last_step,
            (),
            (Evidence("scheduler steps", 0.0), Evidence("optimizer steps", float(self._num_steps))),
            "scheduler.step()  # after optimizer.step()",
        )

    def _ahead_finding(self, ahead: int) -> Finding:
        return Finding(
            "scheduler_ahead_of_optimizer",
            Severity.WARNING,
            f"The scheduler is {ahead:,} steps ahead of the optimizer: it advances on steps that the gradient scaler skips.",
            self._first_skip,
            self._last_step,
            (),
            (
                Evidence("scheduler steps", self._scheduler_steps, float(self._num_steps)),
                Evidence("skipped steps", float(self._skipped)),
            ),
            "if scaler.get_scale() >= scale_before: scheduler.step()  # only when the optimizer stepped",
        )

    def _always_on(self, middle: float) -> Finding:
        first, last, limit = self._clip
        # A scale-free optimizer undoes the shortening; where nobody is known to hold the weights, nothing is known of that.
        is_undone = self._felt() == 0.0
        so = (
            "the optimizer divides by that size again, so every gradient only counts the same"
            if is_undone
            else "the limit is the learning rate now"
        )
        return Finding(
            "clipping_always_on",
            Severity.INFO if is_undone else Severity.WARNING,
            f"Clipping at {limit:g} shortens every gradient, to {middle:.2g} of its size: {so}.",
            first,
            last,
            (),
            (Evidence("median clip coefficient", middle), Evidence("limit", limit, limit / middle)),
            f"torch.nn.utils.clip_grad_norm_(model.parameters(), {limit / middle:.1g})  # near the usual norm",
        )

    def _signs_alone(self) -> Finding:
        limit = self._value_limit
        return Finding(
            "clipping_always_on",
            Severity.WARNING,
            f"Clipping at {limit:g} cuts nearly every value of every gradient: only their signs are left, and the limit is the "
            "learning rate now.",
            int(self._signs.first(1)[0, 0]),
            int(self._signs.latest[0]),
            (),
            (
                Evidence("mean size of the values, against the limit", float(np.median(self._signs.values))),
                Evidence("limit", limit),
            ),
            "torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)  # shortens the gradient and keeps its direction",
        )

    def _before_unscale(self) -> Finding:
        return Finding(
            "clip_before_unscale",
            Severity.CRITICAL,
            f"Gradients are clipped while still multiplied by the loss scale of {self._scale:,.0f}: after unscaling, the norm is "
            f"1/{self._scale:,.0f} of the limit.",
            self._scaled.start_of_longest,
            self._scaled.last_step,
            (),
            (Evidence("loss scale", self._scale),),
            "scaler.unscale_(optimizer)  # before clip_grad_norm_",
        )
