"""Few bits: gradients that fall under float16's smallest number, and a loss scale that collapses."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import ClassVar, Final

import numpy as np

from stethoscope.analyse.span import Span
from stethoscope.detect.detector import Code, Detector, Reading, Rule, median
from stethoscope.detect.needs import GRADIENTS, SCALER
from stethoscope.detect.tracks import Track
from stethoscope.kernels.columns import INDEX
from stethoscope.record import Evidence, Finding, Kind, Severity, metrics, name_list
from stethoscope.record.events import SkippedStep

SKIPS_NEEDED: Final = 10
SKIPS_ALWAYS: Final = 24
"""Skips in a row that no sensible initial scale explains: 2 ** 24 above the scale that works."""
STEPS_NEEDED: Final = 6
"""Looks at a gradient."""
TINY_SHARE: Final = 0.5
"""Of a gradient's values that are not zero: where most are subnormal, as many again are already lost."""
SHARES_KEPT: Final = 512
STREAKS_KEPT: Final = 256
MOST: Final = 0.5


class Precision(Detector):
    """Follows skipped steps, and the smallest values of float16 gradients."""

    codes: ClassVar[tuple[Code, ...]] = (
        Code("loss_scale_collapse", needs=(SCALER,), leads_to=("update_too_small",)),
        Code(
            "precision_underflow",
            needs=(GRADIENTS,),
            leads_to=(
                "vanishing_gradients",
                "update_too_small",
                "dead_units",
                "silent_no_update",
                "adam_eps_dominates",
            ),
        ),
    )

    def __init__(self) -> None:
        self._skips: dict[int, int] = {}
        self._scale = np.inf
        self._tiny: dict[str, Track] = {}
        self._gone: dict[str, int] = {}
        """From a float16 gradient to how often it was nothing but zeros."""
        self._loss = 0.0
        self._scaled = False
        self._first: int | None = None
        self._last_step = 0
        self._last_stepped = -1

    def observe(self, span: Span) -> None:
        """Count skips at each step, and tiny values in each float16 gradient."""
        for event, skipped in span.events_of(SkippedStep):
            self._skips[event.step] = self._skips.get(event.step, 0) + 1
            if len(self._skips) > STREAKS_KEPT:  # the shortest streak is never told
                others = [step for step in self._skips if step != event.step]
                del self._skips[min(others, key=lambda step: self._skips[step])]
            self._scale = skipped.scale or self._scale
        scale = span.metric(metrics.LOSS_SCALE)
        self._scaled = self._scaled or bool((scale[np.isfinite(scale)] > 1.0).any())
        losses = np.abs(span.metric(metrics.LOSS))
        self._loss = max(self._loss, float(losses[np.isfinite(losses)].max(initial=0.0)))
        if len(span.steps):
            self._last_step = int(span.steps[-1])
        stepped = np.flatnonzero(np.isfinite(span.metric(metrics.LEARNING_RATE)))
        if len(stepped):
            self._last_stepped = int(span.steps[stepped[-1]])
        for index, info in enumerate(span.sites):
            if info.dtype != "float16" or info.site.kind not in (Kind.GRADIENT, Kind.ACTIVATION_GRADIENT):
                continue
            rows = span.rows[:, index]
            there = np.flatnonzero(span.present[:, index])
            if len(there) and self._first is None:
                self._first = int(span.steps[there[0]])
            alive = rows[there, INDEX["count"]] - rows[there, INDEX["num_zero"]]
            lost = rows[there, INDEX["num_tiny"]] / np.maximum(alive, 1.0)
            if info.site.path not in self._tiny:
                self._tiny[info.site.path] = Track(limit=SHARES_KEPT, ends=1)
            for share in lost[alive > 0]:
                self._tiny[info.site.path].add(float(share))
            empty = (alive == 0) & (rows[there, INDEX["count"]] > 0)
            self._gone[info.site.path] = self._gone.get(info.site.path, 0) + int(empty.sum())

    def rules(self) -> Iterator[Rule]:
        """A collapse as it happens; underflow where no scaler works against it."""
        worst = max(self._skips, key=lambda step: self._skips[step], default=-1)
        count = self._skips.get(worst, 0)
        # A streak after which the optimizer stepped again was the scaler finding its scale.
        again = Reading("the optimizer stepped again after them", count > 0 and worst <= self._last_stepped, "=", 0)
        scale = np.nan if np.isinf(self._scale) else self._scale
        skipped, collapse = "steps skipped in a row", partial(self._collapse_finding, worst, count)
        yield Rule(
            "loss_scale_collapse",
            (
                again,
                Reading(skipped, count, ">=", SKIPS_NEEDED),
                Reading("loss scale at the latest skip", scale, "<", 1),
            ),
            collapse,
            "scale below 1",
        )
        yield Rule(
            "loss_scale_collapse",
            (again, Reading(skipped, count, ">=", SKIPS_ALWAYS)),
            collapse,
            "any scale",
            is_otherwise=True,
        )
        yield from self._underflows()

    def _underflows(self) -> Iterator[Rule]:
        tiny = {path: median(shares.values) for path, shares in self._tiny.items() if len(shares) >= STEPS_NEEDED}
        losing = sorted(path for path, share in tiny.items() if share > TINY_SHARE)
        worst = max(tiny, key=lambda name: tiny[name], default="")
        scaled = Reading("a loss scale above 1 was used", self._scaled, "=", 0)
        share = "largest median share of subnormal values"
        yield Rule(
            "precision_underflow",
            (
                scaled,
                Reading("float16 gradients looked at often enough", len(tiny), ">", 0),
                Reading(share, tiny.get(worst, np.nan), ">", TINY_SHARE, worst),
                Reading("gradients in which it is so large", len(losing), ">=", max(1, MOST * len(tiny))),
            ),
            lambda: self._underflow_finding(losing, tiny[worst]),
            "subnormal",
        )
        yield Rule(
            "precision_underflow",
            (
                scaled,
                Reading(
                    "float16 gradients that ever had a value", sum(map(bool, map(len, self._tiny.values()))), "=", 0
                ),
                Reading(
                    "looks at the one with fewest, nothing but zeros",
                    min(self._gone.values(), default=0),
                    ">=",
                    STEPS_NEEDED,
                ),
                Reading("largest loss", self._loss, ">", 0),
            ),
            lambda: self._all_gone(sorted(self._gone)),
            "gone",
            is_otherwise=True,
        )

    def _all_gone(self, paths: list[str]) -> Finding:
        return Finding(
            "precision_underflow",
            Severity.CRITICAL,
            f"Every gradient of {name_list(paths)} is 0: the loss, at most {self._loss:.2g}, makes gradients below the smallest "
            "number of float16.",
            self._first or 0,
            self._last_step,
            tuple(paths),
            (
                Evidence("share of zeros", 1.0, site=paths[0], kind="activation_gradient", stat="zero_fraction"),
                Evidence("largest loss", self._loss),
            ),
            "scaler = torch.amp.GradScaler(); scaler.scale(loss).backward()  # or torch.bfloat16",
        )

    def _collapse_finding(self, step: int, count: int) -> Finding:
        return Finding(
            "loss_scale_collapse",
            Severity.CRITICAL,
            f"The gradient scaler has skipped {count:,} steps in a row since step {step:,}: every gradient holds Inf or NaN, "
            "whatever the scale.",
            step,
            max(step, self._last_step),
            (),
            (
                Evidence("skipped in a row", float(count)),
                Evidence("loss scale", None if np.isinf(self._scale) else self._scale),
            ),
            "torch.autograd.set_detect_anomaly(True)  # one step, to see which operation makes it",
        )

    def _underflow_finding(self, paths: list[str], share: float) -> Finding:
        return Finding(
            "precision_underflow",
            Severity.WARNING,
            f"Gradients of {name_list(paths)} are too small for float16: up to {share:.0%} of what is not 0 is subnormal, and "
            "smaller values are 0.",
            self._first or 0,
            self._last_step,
            tuple(paths),
            (Evidence("share of subnormal values", share, site=paths[0], kind="activation_gradient", stat="num_tiny"),),
            "scaler = torch.amp.GradScaler(); scaler.scale(loss).backward()  # or torch.bfloat16",
        )
