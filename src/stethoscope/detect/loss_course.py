"""The course of the training loss beside the updates: the first, the best, and where it left what it had reached.

A loss diverges where it is above where it began and far above its best; of the first few losses noise may say so, and then later ones
decide.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from stethoscope.detect.detector import median
from stethoscope.detect.tracks import Track
from stethoscope.record import FloatArray

WORSE: Final = 2.0
"""A loss above this many times the best it had been, and above where it began, is divergence and not noise."""
FEW_LOSSES: Final = 20
NOISE: Final = 2.0
"""Standard deviations of the loss from one step to the next, in its logarithm: a rise within that is what batches do."""
RECOVERED: Final = 0.1
"""Of the first loss and the best one: a loss that fell so far, and further than it had risen, was not diverging when its
first few batches were noisy."""
SETTLED: Final = 10
"""Losses whose middle says where the loss is now."""
RECENT: Final = 512
"""Losses that are kept one by one: updates are measured every few steps, and it takes a few samples to call them large."""


class LossCourse:
    """Takes in one loss a step."""

    def __init__(self) -> None:
        self.lost_at: int | None = None
        """The first step without a finite loss."""
        self._diverged: tuple[int, float, float] | None = None
        self._is_early = False
        """Whether it was so few losses that said so that noise may have done it."""
        self.begin_anew()

    def begin_anew(self) -> None:
        """Another part is trained from here on: its loss is another one."""
        self.first: float | None = None
        self.best, self._worst = np.inf, 0.0
        self.losses = Track(2, ends=RECENT)

    def see(self, step: int, loss: float) -> None:
        """One more loss that was recorded."""
        if not np.isfinite(loss) and self.lost_at is None:
            self.lost_at = step
        if np.isnan(loss):
            return
        if self.first is None:
            self.first = loss
        self.losses.add(step, loss)
        # The middle of the last three, so that one bad batch is not divergence.
        recent = self.now(3)
        worse = recent > WORSE * abs(self.best) and recent > self.first + abs(self.first)
        if self._diverged is None and len(self.losses) > 3 and worse:
            earlier = self.losses.last(RECENT)[:-3, 1]
            if not self._is_within_noise(recent, earlier):
                self._diverged = (step, recent, float(self.best))
                self._is_early = len(self.losses) <= FEW_LOSSES
        self.best, self._worst = min(self.best, loss), max(self._worst, loss)

    def now(self, number: int) -> float:
        """The middle of the last losses."""
        return median(self.losses.last(number)[:, 1])

    def divergence(self) -> tuple[int, float, float] | None:
        """Where the loss diverged: the step, the loss, the best before. The first few losses say so when more have come."""
        if self._diverged is None or not self._is_early or self.lost_at is not None:
            return self._diverged
        if len(self.losses) < SETTLED:
            return None
        began, now = min(abs(self.first or 0.0), abs(self._diverged[2])), abs(self.now(SETTLED))
        recovered = now < RECOVERED * began and now * self._worst < began * began
        later = self.losses.last(min(len(self.losses) - FEW_LOSSES, RECENT))[:, 1]
        is_noise = len(self.losses) >= 2 * FEW_LOSSES and self._is_within_noise(self._diverged[1], later)
        return None if recovered or is_noise else self._diverged

    def _is_within_noise(self, risen: float, usual: FloatArray) -> bool:
        """Whether a loss is no further above the first one than these losses are from each other."""
        if len(usual) < FEW_LOSSES or self.first is None or not min(self.first, float(usual.min())) > 0:
            return False
        # From one step to the next, so that learning is not taken for noise; by their middle, so that one batch does not decide.
        spread = 1.4826 * float(np.median(np.abs(np.diff(np.log(usual))))) / np.sqrt(2.0)
        return bool(np.log(risen / self.first) < NOISE * spread)
