"""F23, F68: a gradient and a rate, and yet the weight does not change.

The applied update is read on a fixed sample of coordinates, where an exact zero means that not one bit changed.
Silence is only suspicious where a change was due: the gradient is dense enough that the sample must have met it, and
lr x gradient (or Adam's step, which is about lr) is above the weight's own precision.
"""

from __future__ import annotations

import dataclasses
from typing import ClassVar, Final

import numpy as np
import numpy.typing as npt

from stethoscope.analyse.span import Span
from stethoscope.detect.detector import Code, Detector, Reading, Streak
from stethoscope.detect.needs import GRADIENTS, OWNERS, RATE, UPDATES, WEIGHTS
from stethoscope.detect.rounding import FALL, RESTING, Rounding
from stethoscope.kernels.columns import INDEX, stat
from stethoscope.record import Evidence, Finding, FloatArray, Kind, Severity, metrics, name_list
from stethoscope.record.events import Ownership, UndoneUpdates

SURE_AFTER: Final = 5
DENSE: Final = 0.9
"""At most this share of the gradient may be zero: of 1,024 coordinates, 0.9 ** 1024 have none, about 10 ** -47."""
NEGLIGIBLE: Final = 1e-4
"""A gradient under this share of the largest one is rounding noise (a bias before BatchNorm): no change is due."""
RELATIVE_PRECISION: Final = {
    "float64": 2.0**-53,
    "float32": 2.0**-24,
    "float16": 2.0**-11,
    "bfloat16": 2.0**-8,
}


WIDER: Final = "model.float()  # keep weights in float32 and compute in bf16 under torch.autocast"

Flags = npt.NDArray[np.bool_]


def _largest_gradient(span: Span) -> FloatArray:
    """The size of the largest gradient at each step, 0 where there are none."""
    indices = span.site_indices(Kind.GRADIENT)
    sizes = span.stat("rms")[:, indices]
    known = ~np.isnan(sizes).all(axis=1) if len(indices) else np.zeros(len(span.steps), dtype=bool)
    out = np.zeros(len(span.steps))
    if known.any():
        out[known] = np.nanmax(sizes[known], axis=1)
    return out


class Applied(Detector):
    """Watches every trained tensor's update beside its gradient."""

    codes: ClassVar[tuple[Code, ...]] = (
        Code(
            "silent_no_update",
            needs=(UPDATES, GRADIENTS, WEIGHTS, RATE, OWNERS),
        ),
        Code(
            "update_below_precision",
            needs=(UPDATES, GRADIENTS, WEIGHTS, RATE, OWNERS),
            leads_to=("update_too_small", "silent_no_update"),
        ),
    )

    def __init__(self) -> None:
        self._still: dict[str, Streak] = {}
        self._ever_moved: set[str] = set()
        self._dtype: dict[str, str] = {}
        self._ratio: dict[str, float] = {}
        self._rates: dict[str, str] = {}
        self._undone: tuple[int, int, list[str]] | None = None
        """Since when, at least until when, and which parameters are put back after every step."""
        self._rounding = Rounding()
        self._last_step = 0

    def observe(self, span: Span) -> None:
        """Pair updates with gradients, weights and rates, tensor by tensor."""
        for _, ownership in span.events_of(Ownership):
            self._rates = {
                site: metrics.learning_rate(number)
                for number, group in enumerate(ownership.groups)
                for site in group.sites
            }
        for event, undone in span.events_of(UndoneUpdates):
            first = self._undone[0] if self._undone is not None else max(0, event.step - undone.times)
            self._undone = (first, event.step, list(undone.sites))
        self._rounding.observe(span)
        self._last_step = int(span.steps[-1]) if len(span.steps) else self._last_step
        by_path: dict[str, dict[Kind, int]] = {}
        for index, info in enumerate(span.sites):
            if info.site.kind in (Kind.UPDATE, Kind.GRADIENT, Kind.WEIGHT):
                by_path.setdefault(info.site.path, {})[info.site.kind] = index
        skipped = np.nan_to_num(span.metric(metrics.FOUND_INF)) > 0
        largest = _largest_gradient(span)
        for path, indices in by_path.items():
            if len(indices) == 3 and path in self._rates:
                self._follow(span, path, indices, skipped, largest)

    def _follow(self, span: Span, path: str, indices: dict[Kind, int], skipped: Flags, largest: FloatArray) -> None:
        update, gradient = span.rows[:, indices[Kind.UPDATE]], span.rows[:, indices[Kind.GRADIENT]]
        weight = span.rows[:, indices[Kind.WEIGHT]]
        rates = span.metric(self._rates[path])
        self._dtype[path] = span.sites[indices[Kind.WEIGHT]].dtype
        streak = self._still.setdefault(path, Streak())
        dense = gradient[:, INDEX["num_zero"]] <= DENSE * gradient[:, INDEX["count"]]
        dense |= update[:, INDEX["count"]] == gradient[:, INDEX["count"]]
        size = stat(gradient, "rms")
        due = (rates > 0) & dense & (size > NEGLIGIBLE * largest) & ~skipped
        known = ~np.isnan(update[:, INDEX["abs_max"]]) & ~np.isnan(gradient[:, INDEX["norm"]])
        for step in np.flatnonzero(known):
            moved = update[step, INDEX["abs_max"]] > 0
            if moved:
                self._ever_moved.add(path)
            streak.see(int(span.steps[step]), bool(due[step] and not moved))
            if due[step] and not moved:
                mean = weight[step, INDEX["mean_abs"]]
                step_size = rates[step] * gradient[step, INDEX["abs_max"]]
                self._ratio[path] = float(step_size / mean) if mean > 0 else float("inf")

    def readings(self) -> dict[str, list[Reading]]:
        """What each rule asks for of the tensor that stood still for longest."""
        still = {path: streak.longest for path, streak in self._still.items() if path not in self._ever_moved}
        path = max(still, key=lambda name: still[name], default="")
        count = Reading("steps in a row without a change that was due", still.get(path, 0), ">=", SURE_AFTER, path)
        never = Reading("tensors that never changed", len(still), ">", 0)
        ratio, limit = self._ratio.get(path, np.nan), RELATIVE_PRECISION.get(self._dtype.get(path, ""), 0.0)
        size = "largest lr × gradient / mean weight"
        alone = [dataclasses.replace(one, way="never") for one in (never, count)]
        middles = self._rounding.middles
        at = max(middles, key=lambda name: middles[name], default="")
        undone = len(self._undone[2]) if self._undone is not None else 0
        return {
            "silent_no_update": [
                *alone,
                Reading(size, ratio, ">=", limit, path, way="never"),
                Reading("parameters that are put back after every step", undone, ">", 0, way="put back"),
            ],
            "update_below_precision": [
                *alone,
                Reading(size, ratio, "<", limit, path, way="never"),
                Reading(
                    "share of a weight of few bits that does not change",
                    middles.get(at, np.nan),
                    ">",
                    RESTING,
                    at,
                    way="mostly",
                ),
                Reading("fall of the loss, of its size", self._rounding.fall, "<", FALL, way="mostly"),
            ],
        }

    def findings(self) -> list[Finding]:
        """Tensors that stand still although a change was due."""
        stuck = {p: s for p, s in self._still.items() if s.longest >= SURE_AFTER and p not in self._ever_moved}
        too_fine = {p: s for p, s in stuck.items() if self._is_below_precision(p)}
        others = {p: s for p, s in stuck.items() if p not in too_fine}
        found = [*self._put_back()]
        if others:
            found.append(
                self._finding(
                    "silent_no_update",
                    others,
                    f"{name_list(sorted(others))} {'does' if len(others) == 1 else 'do'} not change although "
                    f"{'its' if len(others) == 1 else 'their'} gradient and learning rate are not zero.",
                    "param.copy_(new)  # write into the parameter the optimizer holds, do not replace or restore it",
                )
            )
        if too_fine:
            found.append(
                self._finding(
                    "update_below_precision",
                    too_fine,
                    f"Updates of {name_list(sorted(too_fine))} are smaller than one unit of {self._dtype[min(too_fine)]} and "
                    "round to nothing.",
                    WIDER,
                )
            )
        else:
            found += self._rounded_away()
        return found

    def _put_back(self) -> list[Finding]:
        if self._undone is None:
            return []
        first, last, sites = self._undone
        if self._last_step > 2 * last + 1:
            return []  # it would have been said again at the next power of two
        one = len(sites) == 1
        return [
            Finding(
                "silent_no_update",
                Severity.CRITICAL,
                f"{name_list(sites)} {'is' if one else 'are'} put back after every step to what {'it was' if one else 'they were'} before: "
                f"the optimizer moves {'it' if one else 'them'}, and nothing stays.",
                first,
                last,
                tuple(sites),
                (Evidence("parameters that are put back", float(len(sites))),),
                "remove what writes to the parameter between two steps; requires_grad_(False) where it is meant to stay",
            )
        ]

    def _rounded_away(self) -> list[Finding]:
        lost, rounding = self._rounding.lost(), self._rounding
        if not lost:
            return []
        share = float(np.median([rounding.middles[path] for path in lost]))
        return [
            Finding(
                "update_below_precision",
                Severity.CRITICAL,
                f"{share:.0%} of the values of {name_list(lost)} do not change at a step: their updates are smaller than one unit of "
                f"{self._dtype.get(lost[0], 'their type')} and round to nothing, and the loss does not fall.",
                rounding.since,
                rounding.last_step,
                tuple(lost),
                (
                    Evidence(
                        "share of values that do not change",
                        share,
                        0.0,
                        site=lost[0],
                        kind="update",
                        stat="zero_fraction",
                    ),
                    Evidence("fall of the loss, of its size", rounding.fall),
                ),
                WIDER,
            )
        ]

    def _is_below_precision(self, path: str) -> bool:
        return self._ratio.get(path, np.inf) < RELATIVE_PRECISION.get(self._dtype[path], 0.0)

    def _finding(self, code: str, stuck: dict[str, Streak], message: str, remedy: str) -> Finding:
        first = min(s.start_of_longest for s in stuck.values())
        worst = min(stuck)
        return Finding(
            code=code,
            severity=Severity.CRITICAL,
            message=message,
            first_step=first,
            last_step=max(s.last_step for s in stuck.values()),
            sites=tuple(sorted(stuck)),
            evidence=(
                Evidence("steps in a row without a change", float(max(s.longest for s in stuck.values()))),
                Evidence("largest lr × gradient / mean weight", self._ratio.get(worst), site=worst),
            ),
            remedy=remedy,
        )
