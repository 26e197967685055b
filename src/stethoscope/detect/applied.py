"""F23, F68: a gradient and a rate, and yet the weight does not change.

The applied update is read on a fixed sample of coordinates, where an exact zero means that not one bit changed.
Silence is only suspicious where a change was due: the gradient is dense enough that the sample must have met it, and
lr x gradient (or Adam's step, which is about lr) is above the weight's own precision.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import ClassVar, Final

import numpy as np
import numpy.typing as npt

from stethoscope.analyse.span import Span
from stethoscope.detect.detector import (
    Code,
    Detector,
    Reading,
    Readings,
    Rule,
    Streak,
    all_hold,
    median,
    nearest,
    ratio,
)
from stethoscope.detect.needs import GRADIENTS, OWNERS, RATE, UPDATES, WEIGHTS
from stethoscope.detect.rounding import FALL, MOST, RESTING, Rounding
from stethoscope.kernels.columns import INDEX, stat
from stethoscope.record import Evidence, Finding, FloatArray, Kind, Severity, metrics, name_list
from stethoscope.record.events import Ownership, UndoneUpdates

SURE_AFTER: Final = 5
DENSE: Final = 0.9
"""At most this share of the gradient may be zero: of 1,024 coordinates, 0.9 ** 1024 have none, about 10 ** -47."""
NEGLIGIBLE: Final = 1e-4
"""A gradient under this share of the largest one is rounding noise (a bias before BatchNorm): no change is due."""
RELATIVE_PRECISION: Final = {"float64": 2.0**-53, "float32": 2.0**-24, "float16": 2.0**-11, "bfloat16": 2.0**-8}


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
        Code("silent_no_update", needs=(UPDATES, GRADIENTS, WEIGHTS, RATE, OWNERS)),
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

    def rules(self) -> Iterator[Rule]:
        """Tensors that stand still although a change was due."""
        yield self._put_back()
        still = {path: streak for path, streak in self._still.items() if path not in self._ever_moved}
        worst_first = sorted(still, key=lambda path: -still[path].longest)
        never = Reading("tensors that never changed", len(still), ">", 0)
        for code, asks, told in (
            ("silent_no_update", ">=", self._silent),
            ("update_below_precision", "<", self._too_fine),
        ):
            asked = {path: self._stands_still(path, asks) for path in worst_first}
            paths = [path for path in sorted(still) if all_hold(asked[path])]
            found = (never, *nearest(asked.values()))
            yield Rule(code, found, partial(told, paths), "never")
        yield self._rounded_away()

    def _stands_still(self, path: str, asks: str) -> Readings:
        """For long, by steps above or below what the tensor's type can hold."""
        steps, limit = self._still[path].longest, RELATIVE_PRECISION.get(self._dtype[path], 0.0)
        return (
            Reading("steps in a row without a change that was due", steps, ">=", SURE_AFTER, path),
            Reading("largest lr × gradient / mean weight", self._ratio.get(path, np.inf), asks, limit, path),
        )

    def _silent(self, paths: list[str]) -> Finding:
        one = len(paths) == 1
        return self._finding(
            "silent_no_update",
            paths,
            f"{name_list(paths)} {'does' if one else 'do'} not change although {'its' if one else 'their'} gradient and learning "
            "rate are not zero.",
            "param.copy_(new)  # write into the parameter the optimizer holds, do not replace or restore it",
        )

    def _too_fine(self, paths: list[str]) -> Finding:
        return self._finding(
            "update_below_precision",
            paths,
            f"Updates of {name_list(paths)} are smaller than one unit of {self._dtype[paths[0]]} and round to nothing.",
            WIDER,
        )

    def _put_back(self) -> Rule:
        first, last, sites = self._undone or (0, 0, [])
        one = len(sites) == 1
        return Rule(
            "silent_no_update",
            (
                Reading("parameters that are put back after every step", len(sites), ">", 0),
                Reading("latest step, before it would have been said again", self._last_step, "<=", 2 * last + 1),
            ),
            lambda: Finding(
                "silent_no_update",
                Severity.CRITICAL,
                f"{name_list(sites)} {'is' if one else 'are'} put back after every step to what {'it was' if one else 'they were'} before: "
                f"the optimizer moves {'it' if one else 'them'}, and nothing stays.",
                first,
                last,
                tuple(sites),
                (Evidence("parameters that are put back", float(len(sites))),),
                "remove what writes to the parameter between two steps; requires_grad_(False) where it is meant to stay",
            ),
            "put back",
        )

    def _rounded_away(self) -> Rule:
        rounding, middles = self._rounding, self._rounding.middles
        resting = sorted(path for path, share in middles.items() if share > RESTING)
        worst = max(middles, key=lambda path: middles[path], default="")
        share = median([middles[path] for path in resting])
        fall = Reading("fall of the loss, of its size", rounding.fall, "<", FALL)
        return Rule(
            "update_below_precision",
            (
                Reading(
                    "share of a weight of few bits that does not change",
                    middles.get(worst, np.nan),
                    ">",
                    RESTING,
                    worst,
                ),
                Reading("share of such weights of which it is so", ratio(len(resting), len(middles)), ">", MOST),
                fall,
            ),
            lambda: Finding(
                "update_below_precision",
                Severity.CRITICAL,
                f"{share:.0%} of the values of {name_list(resting)} do not change at a step: their updates are smaller than one unit "
                f"of {self._dtype.get(resting[0], 'their type')} and round to nothing, and the loss does not fall.",
                rounding.since,
                rounding.last_step,
                tuple(resting),
                (
                    Evidence(
                        "share of values that do not change",
                        share,
                        0.0,
                        site=resting[0],
                        kind="update",
                        stat="zero_fraction",
                    ),
                    Evidence(fall.label, fall.value),
                ),
                WIDER,
            ),
            "mostly",
            is_otherwise=True,
        )

    def _finding(self, code: str, paths: list[str], message: str, remedy: str) -> Finding:
        stuck = [self._still[path] for path in paths]
        return Finding(
            code=code,
            severity=Severity.CRITICAL,
            message=message,
            first_step=min(streak.start_of_longest for streak in stuck),
            last_step=max(streak.last_step for streak in stuck),
            sites=tuple(paths),
            evidence=(
                Evidence("steps in a row without a change", float(max(streak.longest for streak in stuck))),
                Evidence("largest lr × gradient / mean weight", self._ratio.get(paths[0]), site=paths[0]),
            ),
            remedy=remedy,
        )
