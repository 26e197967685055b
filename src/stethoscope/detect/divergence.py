"""A suspicion that the loss will break: it rises beyond its noise, and the network grows beyond all that it was before.

Either alone is common and harmless: losses rise for a while where samples get harder or a schedule jumps, and weights grow all the time
while a network learns. A network that grows while its loss gets worse is not learning what it grows for, and nothing in training turns
that round by itself. It is a note and never a cause, and is withdrawn where the loss comes back.
"""

from __future__ import annotations

import dataclasses
from collections import deque
from collections.abc import Iterator
from typing import ClassVar, Final

import numpy as np
import numpy.typing as npt

from stethoscope.analyse.span import Span
from stethoscope.detect.detector import Code, Detector, Reading, Rule, is_matrix, median, ratio
from stethoscope.detect.needs import LOSS, OUTPUTS, WEIGHTS, optional
from stethoscope.detect.surrogate_loss import SurrogateLoss
from stethoscope.record import Evidence, Finding, FloatArray, IntArray, Kind, Severity, SiteInfo, metrics

WINDOW: Final = 20
"""Losses whose median is a level; of the latest half of them, the level now."""
LEVELS_NEEDED: Final = 3
"""Windows before anything is said: the first losses fall and rise for reasons of their own."""
SURE: Final = 3.0
"""Standard errors between the best level and the one now."""
RISEN: Final = 0.25
"""Of the best level: a rise that somebody would care about."""
GROWN: Final = 2.0
"""Times the largest size that a layer's output or a weight had until the loss was at its best."""
MEDIAN_ERROR: Final = 1.2533
"""Of a median, in standard deviations over the root of the number of values."""


@dataclasses.dataclass(slots=True)
class _Level:
    """A level of the loss."""

    value: float = np.inf
    noise: float = 0.0
    step: int = 0
    rate: float = np.nan


@dataclasses.dataclass(frozen=True, slots=True)
class _State:
    """What the rule goes by, at one step."""

    step: int
    num_losses: int
    level: float
    rise: float
    """Above the best level, as a share of that."""
    sureness: float
    """The same in standard errors."""
    site: int
    size: float
    largest: float
    """That it had until the loss was at its best."""

    @property
    def holds(self) -> bool:
        """Whether both are so: the loss rises, and something grows."""
        is_long = self.num_losses >= LEVELS_NEEDED * WINDOW
        return is_long and self.rise > RISEN and self.sureness > SURE and self.growth > GROWN

    @property
    def growth(self) -> float:
        return ratio(self.size, self.largest)


class Sizes:
    """The size of every layer's output and weight matrix, now and at most until the loss was at its best."""

    def __init__(self) -> None:
        self._before: FloatArray = np.zeros(0)
        self._now: FloatArray = np.zeros(0)
        self._largest: FloatArray = np.zeros(0)
        self._at_best: FloatArray = np.zeros(0)

    def extend(self, number: int) -> None:
        """So many sites are known by now."""
        more = np.full(max(number - len(self._now), 0), np.nan)
        self._before, self._now, self._largest, self._at_best = (
            np.concatenate([known, more]) for known in (self._before, self._now, self._largest, self._at_best)
        )

    def see(self, sites: IntArray, sizes: FloatArray, of_batch: npt.NDArray[np.bool_]) -> None:
        """One more measurement of some sites; of what depends on the batch the smaller one of two in a row counts."""
        steady = np.where(of_batch, np.fmin(self._before[sites], sizes), sizes)
        self._before[sites], self._now[sites] = sizes, steady
        self._largest[sites] = np.fmax(self._largest[sites], steady)

    def note_best(self) -> None:
        """The loss was never as low as now."""
        self._at_best = self._largest.copy()

    def growth(self) -> tuple[int, float, float]:
        """The site that grew most since, its size, and the largest it had until then; -1 where there is none."""
        with np.errstate(divide="ignore", invalid="ignore"):
            times = np.where(self._at_best > 0, self._now / self._at_best, np.nan)
        if not np.isfinite(times).any():
            return -1, np.nan, np.nan
        site = int(np.nanargmax(times))
        return site, float(self._now[site]), float(self._at_best[site])


class Divergence(Detector):
    """Follows the level of the loss, and sizes beside it."""

    codes: ClassVar[tuple[Code, ...]] = (
        Code(
            "divergence_ahead",
            needs=(LOSS, WEIGHTS, optional(OUTPUTS)),
        ),
    )

    def __init__(self) -> None:
        self._kind = SurrogateLoss()
        self._has_several = False
        self._losses: deque[float] = deque(maxlen=WINDOW)
        self._num_losses = 0
        self._best = _Level()
        self._now = _Level()
        self._sizes = Sizes()
        self._followed: IntArray = np.zeros(0, np.int64)
        self._is_output: npt.NDArray[np.bool_] = np.zeros(0, bool)
        self._names: list[tuple[str, str]] = []
        self._num_sites = 0
        self._said: _State | None = None
        """How it was when it was first suspected, while it is."""
        self._last_step = 0
        self._rate = np.nan

    def observe(self, span: Span) -> None:
        """Sizes where they were measured, the loss at every step."""
        self._kind.observe(span)
        self._has_several = self._has_several or bool(span.recorded(metrics.loss_of(1)).any())
        if self._num_sites != len(span.sites):
            self._num_sites = len(span.sites)
            self._sizes.extend(self._num_sites)
            self._followed = np.array([n for n, info in enumerate(span.sites) if _is_followed(info)], dtype=np.int64)
            self._is_output = np.array([span.sites[n].site.kind is Kind.ACTIVATION for n in self._followed], dtype=bool)
            self._names = [(info.site.path, str(info.site.kind)) for info in span.sites]
        sizes = span.stat("rms")[:, self._followed]
        is_there: npt.NDArray[np.bool_] = np.isfinite(sizes)
        losses, rates = span.metric(metrics.LOSS), span.metric(metrics.LEARNING_RATE)
        for row, step in enumerate(span.steps):
            self._last_step = int(step)
            self._rate = float(rates[row]) if np.isfinite(rates[row]) else self._rate
            there = is_there[row]
            if there.any():
                self._sizes.see(self._followed[there], sizes[row][there], self._is_output[there])
            if np.isfinite(losses[row]):
                self._see_loss(int(step), float(losses[row]))

    def _see_loss(self, step: int, loss: float) -> None:
        self._losses.append(loss)
        self._num_losses += 1
        if len(self._losses) < WINDOW:
            return
        values = np.array(self._losses)
        level, noise = _level(values)
        if level < self._best.value:
            self._best = _Level(level, noise, step, self._rate)
            self._sizes.note_best()
        late = values[-WINDOW // 2 :]
        self._now = _Level(*_level(late), step, self._rate)
        if self._said is not None and level < self._best.value + RISEN * abs(self._best.value):
            self._said = None  # it came back
        if self._said is None:
            state = self._state(step)
            self._said = state if state.holds else None

    def _state(self, step: int) -> _State:
        if self._num_losses < WINDOW:
            return _State(step, self._num_losses, np.nan, np.nan, np.nan, -1, np.nan, np.nan)
        best, now = self._best, self._now
        noise = max(now.noise, best.noise)
        error = MEDIAN_ERROR * float(np.sqrt(noise**2 / (WINDOW // 2) + best.noise**2 / WINDOW))
        above = now.value - best.value
        rise = above / max(abs(best.value), 1e-300)
        return _State(step, self._num_losses, now.value, rise, above / max(error, 1e-300), *self._sizes.growth())

    @property
    def _is_measure(self) -> bool:
        return self._kind.is_measure and not self._has_several

    def rules(self) -> Iterator[Rule]:
        """At most one, while it stands."""
        state = self._said or self._state(self._last_step)
        path, kind = self._names[state.site] if state.site >= 0 else ("", "")
        yield Rule(
            "divergence_ahead",
            (
                Reading("losses", state.num_losses, ">=", LEVELS_NEEDED * WINDOW),
                Reading("the loss is a measure of progress", self._is_measure, "=", 1),
                Reading("rise of the loss above its best level", state.rise, ">", RISEN),
                Reading("the same in standard errors", state.sureness, ">", SURE),
                Reading(
                    "largest growth of a layer's output or weight since the loss was at its best",
                    state.growth,
                    ">",
                    GROWN,
                    path,
                ),
            ),
            lambda: self._tell(state, path, kind),
        )

    def _tell(self, state: _State, path: str, kind: str) -> Finding:
        what = f"the output of {path}" if kind == Kind.ACTIVATION else path
        remedy = (
            f"lr={self._best.rate:.2g}  # where the loss was at its best; it is {self._rate:.2g} now"
            if self._rate > self._best.rate
            else "torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)  # or half the learning rate"
        )
        return Finding(
            "divergence_ahead",
            Severity.INFO,
            f"The training may diverge: at step {state.step:,} the loss had risen from {self._best.value:.3g} to {state.level:.3g} "
            f"while {what} grew to {state.growth:.2g}x the largest size it had before.",
            state.step,
            self._last_step,
            (path,),
            (
                Evidence("loss, against its best level", state.level, self._best.value, stat="loss"),
                Evidence(f"size (RMS) of {what}", state.size, state.largest, site=path, kind=kind, stat="rms"),
            ),
            remedy,
        )


def _is_followed(info: SiteInfo) -> bool:
    return info.site.kind is Kind.ACTIVATION or (info.site.kind is Kind.WEIGHT and is_matrix(info))


def _level(values: FloatArray) -> tuple[float, float]:
    """The median, and the standard deviation that its middle shows."""
    middle = median(values)
    return middle, 1.4826 * median(np.abs(values - middle))
