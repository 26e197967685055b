"""Which term of the optimizer rules: Adam's eps, an update beyond Adam's own bound, weight decay."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import ClassVar, Final

import numpy as np

from stethoscope.analyse.span import Span
from stethoscope.detect.detector import Code, Detector, Reading, Rule, all_hold, is_matrix, median, nearest, ratio
from stethoscope.detect.effects import BLOW_UP
from stethoscope.detect.groups import Group, groups_by_site
from stethoscope.detect.needs import GRADIENTS, OWNERS, STATE, UPDATES, WEIGHTS
from stethoscope.detect.tracks import Track
from stethoscope.kernels.columns import INDEX, stat
from stethoscope.record import Evidence, Finding, FloatArray, Kind, Severity, name_list

SAMPLES_NEEDED: Final = 6
STEPS_NEEDED: Final = 20
"""For which something must have lasted; a busy machine looks at few of them, and then these have to do."""
SHARES_KEPT: Final = 512
MOST: Final = 0.5
BOUND_FACTOR: Final = 3.0
"""Adam cannot move a weight further than its bound x lr; three times that is not rounding."""
USUAL_BOUND: Final = 10.0**0.5
"""Adam's bound with its usual betas; others may allow more, and with an eps next to nothing rare gradients do take it."""
TINY_EPS: Final = 1e-10
DECAY_SHARE: Final = 0.5
SHRUNK: Final = 0.7
"""Of the norm at the start: decay that wins makes weights smaller."""


class OptimizerTerms(Detector):
    """Compares, tensor by tensor, what moves it."""

    codes: ClassVar[tuple[Code, ...]] = (
        Code("adam_eps_dominates", needs=(STATE, WEIGHTS, OWNERS), leads_to=("update_too_small",)),
        Code(
            "adam_update_spike",
            needs=(STATE, UPDATES, WEIGHTS, OWNERS),
            leads_to=(*BLOW_UP, "update_too_large", "exploding_gradients"),
            through_updates=True,
        ),
        Code(
            "weight_decay_dominates",
            needs=(UPDATES, WEIGHTS, GRADIENTS, OWNERS),
            leads_to=("vanishing_gradients", "dead_units", "dormant_units"),
            through_updates=True,
        ),
    )

    def __init__(self) -> None:
        self._groups: dict[str, Group] = {}
        self._lasting: dict[str, tuple[int, int]] = {}
        """First and last step at which a tensor was looked at."""
        self._eps: dict[str, list[bool]] = {}
        self._eps_ratio: dict[str, float] = {}
        self._spike: tuple[int, str, float, float] | None = None
        self._last_spike = 0
        self._decay: dict[str, Track] = {}
        self._norms: dict[str, tuple[float, float]] = {}
        self._last_step = 0
        self._eps_value = 0.0

    def observe(self, span: Span) -> None:
        """One comparison for every measured step of every tensor."""
        self._groups = groups_by_site(span, self._groups)
        if len(span.steps):
            self._last_step = int(span.steps[-1])
        indices: dict[str, dict[str, int]] = {}
        for index, info in enumerate(span.sites):
            kind = info.site.kind
            if kind in (Kind.WEIGHT, Kind.UPDATE, Kind.GRADIENT):
                indices.setdefault(info.site.path, {})[str(kind)] = index
            elif kind is Kind.OPTIMIZER_STATE and info.site.name.endswith(".exp_avg_sq"):
                indices.setdefault(info.site.path.removesuffix(".exp_avg_sq"), {})["square"] = index
        for path, found in indices.items():
            group = self._groups.get(path)
            if group is None or "weight" not in found:
                continue
            matrix = is_matrix(span.sites[found["weight"]])
            rates = span.metric(group.rate_metric)
            if group.is_adam and "square" in found:
                if matrix:
                    self._see_eps(span, path, group, span.rows[:, found["square"]])
                if "update" in found:
                    self._see_spike(
                        span, path, group, rates, span.rows[:, found["update"]], span.rows[:, found["weight"]]
                    )
            if matrix and group.number("weight_decay", 0.0) > 0 and "update" in found and "gradient" in found:
                self._see_decay(path, group, rates, span, found)

    def _see_eps(self, span: Span, path: str, group: Group, square: FloatArray) -> None:
        seen = self._eps.setdefault(path, [])
        eps, beta = group.number("eps", 1e-8), group.betas[1]
        for index in np.flatnonzero(~np.isnan(square[:, INDEX["mean"]])):
            if len(seen) >= STEPS_NEEDED:
                return
            if not square[index, INDEX["mean"]] > 0:
                continue  # nothing arrives there: the step is 0 with any eps
            self._lasting[path] = self._since(path, int(span.steps[index])), int(span.steps[index])
            corrected = square[index, INDEX["mean"]] / max(1.0 - beta ** (int(span.steps[index]) + 1), 1e-12)
            size = math.sqrt(max(corrected, 0.0))
            seen.append(size < eps)
            self._eps_ratio[path] = size / eps if eps else math.inf
            self._eps_value = eps

    def _see_spike(
        self, span: Span, path: str, group: Group, rates: FloatArray, update: FloatArray, weight: FloatArray
    ) -> None:
        first, second = group.betas
        bound = max(1.0, (1.0 - first) / math.sqrt(1.0 - second)) if second < 1 else math.inf
        decay = group.number("weight_decay", 0.0) * weight[:, INDEX["abs_max"]] if group.optimizer == "AdamW" else 0.0
        size = update[:, INDEX["abs_max"]]
        over = size > BOUND_FACTOR * rates * (bound + decay)
        if group.number("eps", 1e-8) < TINY_EPS:
            # Other betas allow more to single coordinates now and then; not to a whole tensor.
            over |= stat(update, "rms") > BOUND_FACTOR * rates * (USUAL_BOUND + decay)
            bound = min(bound, USUAL_BOUND)
        for index in np.flatnonzero(over):
            step = int(span.steps[index])
            if rates[index] <= 0:
                continue
            self._last_spike = max(self._last_spike, step)
            if self._spike is None or step < self._spike[0]:
                self._spike = (step, path, float(size[index]), float(rates[index] * bound))

    def _see_decay(self, path: str, group: Group, rates: FloatArray, span: Span, found: dict[str, int]) -> None:
        # Of these three columns alone: this is asked for every matrix, and the table holds all of them.
        weight, update, gradient = (stat(span.rows[:, found[of]], "rms") for of in ("weight", "update", "gradient"))
        factor = group.number("weight_decay", 0.0)
        decoupled = group.optimizer == "AdamW"
        with np.errstate(divide="ignore", invalid="ignore"):
            share = rates * factor * weight / update if decoupled else factor * weight / (factor * weight + gradient)
        if path not in self._decay:
            self._decay[path] = Track(limit=SHARES_KEPT, ends=1)
        for index in np.flatnonzero(np.isfinite(share)):
            self._decay[path].add(float(min(share[index], 1.0)))
            self._lasting[path] = self._since(path, int(span.steps[index])), int(span.steps[index])
            first = self._norms.get(path, (float(weight[index]), 0.0))[0]
            self._norms[path] = (first, float(weight[index]))

    def _since(self, path: str, step: int) -> int:
        return self._lasting.get(path, (step, step))[0]

    def _is_enough(self, path: str, num_samples: int) -> bool:
        first, last = self._lasting.get(path, (0, 0))
        return num_samples >= SAMPLES_NEEDED and last - first + 1 >= STEPS_NEEDED

    def rules(self) -> Iterator[Rule]:
        """Terms that rule in most matrices."""
        full = [path for path, seen in self._eps.items() if self._is_enough(path, len(seen))]
        under = sorted(path for path in full if np.mean(self._eps[path]) > 0.9)
        yield Rule(
            "adam_eps_dominates",
            (
                Reading(f"matrices whose second moment was read over {STEPS_NEEDED} steps", len(full), ">", 0),
                Reading("of which it lies below eps, share", ratio(len(under), len(full)), ">", MOST),
            ),
            lambda: self._eps_rules(under),
        )
        _, _, size, bound = self._spike or (0, "", np.nan, np.nan)
        yield Rule(
            "adam_update_spike",
            (
                Reading("updates beyond Adam's own bound", self._spike is not None, ">", 0),
                Reading("the first of them", size),
                Reading("the bound there", bound),
            ),
            self._spike_finding,
        )
        decay = {
            path: median(shares.values) for path, shares in self._decay.items() if self._is_enough(path, len(shares))
        }
        shrunk = {path: ratio(self._norms[path][1], self._norms[path][0]) for path in decay}
        asked = {
            path: (
                Reading("decay's median share of the step", decay.get(path, np.nan), ">", DECAY_SHARE, path),
                Reading("its size against its start", shrunk.get(path, np.nan), "<", SHRUNK, path),
            )
            for path in sorted(decay, key=lambda path: shrunk[path] - decay[path]) or [""]
        }
        ruled = sorted(path for path, readings in asked.items() if all_hold(readings))
        share = ratio(len(ruled), len(self._decay))
        yield Rule(
            "weight_decay_dominates",
            (
                Reading("share of the matrices that decay rules and that shrank", share, ">", MOST),
                *nearest(asked.values()),
            ),
            lambda: self._decay_rules(ruled, decay),
        )

    def _eps_rules(self, paths: list[str]) -> Finding:
        worst = min(paths, key=lambda path: self._eps_ratio[path])
        return Finding(
            "adam_eps_dominates",
            Severity.WARNING,
            f"Adam's eps of {self._eps_value:g} is larger than the gradients of {name_list(paths)}: their steps shrink with the "
            "gradient as in plain descent.",
            0,
            self._last_step,
            tuple(paths),
            (
                Evidence(
                    "root of the second moment / eps",
                    self._eps_ratio[worst],
                    site=f"{worst}.exp_avg_sq",
                    kind="optimizer_state",
                    stat="mean",
                ),
            ),
            "torch.optim.AdamW(..., eps=1e-8)",
        )

    def _spike_finding(self) -> Finding:
        assert self._spike is not None
        step, path, size, bound = self._spike
        return Finding(
            "adam_update_spike",
            Severity.CRITICAL,
            f"Adam moved {path} by {size:.3g} at step {step:,}, where at most {bound:.3g} is to be expected: the second moment was "
            "next to 0 and eps does not brake.",
            step,
            max(self._last_spike, step),
            (path,),
            (Evidence("largest update", size, bound, site=path, kind="update", stat="abs_max"),),
            "torch.optim.AdamW(..., eps=1e-8)  # larger than the square root of the smallest float32",
        )

    def _decay_rules(self, paths: list[str], decay: dict[str, float]) -> Finding:
        worst = max(paths, key=lambda path: decay[path])
        first, last = self._norms[worst]
        return Finding(
            "weight_decay_dominates",
            Severity.WARNING,
            f"Weight decay moves {name_list(paths)} more than the gradient does: the weights shrink to {last / first:.0%} of "
            "their size.",
            0,
            self._last_step,
            tuple(paths),
            (
                Evidence("decay's share of the step", decay[worst], site=worst, kind="weight", stat="norm"),
                Evidence("size of the weights", last, first, site=worst, kind="weight", stat="rms"),
            ),
            "weight_decay=0.01  # for AdamW; 1e-4 for SGD",
        )
