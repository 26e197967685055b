"""Few bits: gradients that fall under float16's smallest number, and a loss scale that collapses."""

from __future__ import annotations

from typing import ClassVar, Final

import numpy as np

from stethoscope.analyse.span import Span
from stethoscope.detect.detector import Code, Detector, Reading
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
        Code(
            "loss_scale_collapse",
            needs=(SCALER,),
            leads_to=("update_too_small",),
        ),
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

    def readings(self) -> dict[str, list[Reading]]:
        """What each rule asks for, and what it got."""
        worst = max(self._skips, key=lambda step: self._skips[step], default=-1)
        count = self._skips.get(worst, 0)
        tiny = {path: float(np.median(v.values)) for path, v in self._tiny.items() if len(v) >= STEPS_NEEDED}
        path = max(tiny, key=lambda name: tiny[name], default="")
        return {
            "loss_scale_collapse": [
                Reading("steps skipped in a row", count, ">=", SKIPS_NEEDED),
                Reading(
                    "the optimizer stepped again after them", int(count > 0 and worst <= self._last_stepped), "=", 0
                ),
                Reading("loss scale at the latest skip", np.nan if np.isinf(self._scale) else self._scale),
            ],
            "precision_underflow": [
                Reading("float16 gradients measured", max(len(tiny), len(self._gone)), ">", 0),
                Reading(
                    "largest median share of subnormal values",
                    tiny.get(path, np.nan),
                    ">",
                    TINY_SHARE,
                    path,
                    way="subnormal",
                ),
                Reading(
                    "nothing but zeros was seen, in looks",
                    min(self._gone.values(), default=0),
                    ">=",
                    STEPS_NEEDED,
                    way="gone",
                ),
                Reading("a loss scale above 1 was used", int(self._scaled), "=", 0),
            ],
        }

    def findings(self) -> list[Finding]:
        """A collapse as it happens; underflow where no scaler works against it."""
        found = []
        worst = max(self._skips, key=lambda step: self._skips[step], default=None)
        if worst is not None:
            count = self._skips[worst]
            # A streak after which the optimizer stepped again was the scaler finding its scale.
            goes_on = worst > self._last_stepped
            if goes_on and (count >= SKIPS_ALWAYS or (count >= SKIPS_NEEDED and self._scale < 1.0)):
                found.append(self._collapse_finding(worst, count))
        seen = {path: values for path, values in self._tiny.items() if len(values) >= STEPS_NEEDED}
        losing = [path for path, values in seen.items() if np.median(values.values) > TINY_SHARE]
        if not self._scaled and seen and len(losing) >= max(1, MOST * len(seen)):
            found.append(self._underflow_finding(sorted(losing)))
        elif not self._scaled and self._is_all_gone():
            found.append(self._all_gone(sorted(self._gone)))
        return found

    def _is_all_gone(self) -> bool:
        """There is a loss, and of all gradients in float16 not one value was ever anything but 0."""
        never = all(not len(values) for values in self._tiny.values())
        return never and self._loss > 0 and bool(self._gone) and min(self._gone.values()) >= STEPS_NEEDED

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

    def _underflow_finding(self, paths: list[str]) -> Finding:
        share = max(float(np.median(self._tiny[path].values)) for path in paths)
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
