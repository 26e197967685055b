"""When to look: what is measured at which step, and the governor that keeps the cost inside its budget.

Gradients, the ledger and the non-finite checks are looked at every step. Everything else is looked at when the
step number is divisible by a power of two, which the governor raises until the measured cost fits: at most the
given share of a step, and never less than a floor. Powers of two, so that two runs share steps.
"""

from __future__ import annotations

import math
from collections import deque
from typing import Final, Literal

from stethoscope.config import DebugConfig

Part = Literal["gradients", "boundary", "modules", "ledger"]
GOVERNED: Final[tuple[Part, ...]] = ("boundary", "modules")
"""What can be looked at less often, in the order of its worth: the last one gives way first."""
LEARNING_STEPS: Final = 8
REVIEW_EVERY: Final = 16
MAX_SHIFT: Final = 12
MEMORY: Final = 0.9
RECENT: Final = 9
LEAST_SHARE: Final = 0.25
"""Of the budget, that each governed part may take in any case: a part that is never looked at finds nothing."""


class Schedule:
    """Answers "is this due at this step" and learns what things cost."""

    def __init__(self, config: DebugConfig) -> None:
        self._config = config
        self._fixed = config.every
        rate = config.sampling_rate
        self._stride = 0 if rate <= 0 else 2 ** math.ceil(math.log2(1.0 / rate))
        self.shift: dict[Part, int] = dict.fromkeys(GOVERNED, 0)
        self._cost_ms: dict[Part, float] = {}
        self._recent: dict[Part, deque[float]] = {}
        self._step_ms: float | None = None
        self._num_seen = 0

    def due(self, part: Part, step: int) -> bool:
        """Whether this part is looked at in this step."""
        if part == "ledger":
            return True
        if self._stride == 0 or step % self._stride:
            return False
        if part == "gradients":
            return True
        if self._fixed:
            return step % self._fixed == 0
        return step % (1 << self.shift[part]) == 0

    def histogram_due(self, step: int) -> bool:
        """Whether histograms and sketches are taken in this step."""
        every = self._config.histogram_every
        return every > 0 and step % every == 0

    def spent(self, part: Part, milliseconds: float) -> None:
        """Note what looking cost, once a step and part that was looked at."""
        recent = self._recent.setdefault(part, deque(maxlen=RECENT))
        recent.append(milliseconds)
        # The middle of the last few: a busy machine takes the processor away now and then, which is not our cost.
        self._cost_ms[part] = sorted(recent)[len(recent) // 2]

    def step_took(self, milliseconds: float) -> bool:
        """Note a whole step's time, ours included; True where the governor changed a rate."""
        self._num_seen += 1
        # The first steps hold compilation and warm-up: they say nothing about the rest.
        if self._num_seen <= 2:
            self._cost_ms.clear()
            self._recent.clear()
            return False
        old = self._step_ms
        self._step_ms = milliseconds if old is None else MEMORY * old + (1 - MEMORY) * milliseconds
        if self._fixed or self._num_seen < LEARNING_STEPS or self._num_seen % REVIEW_EVERY:
            return False
        return self._review()

    @property
    def budget_ms(self) -> float:
        """What a step may cost."""
        return max(self._config.overhead * (self._step_ms or 0.0), self._config.overhead_floor_ms)

    def _review(self) -> bool:
        left = self.budget_ms - self._cost_ms.get("gradients", 0.0) - self._cost_ms.get("ledger", 0.0)
        before = dict(self.shift)
        for part in GOVERNED:
            cost = self._cost_ms.get(part)
            if cost is None or cost <= 0:
                continue
            # Of what is left, the more valuable part may take all; the next one what remains, and at least a little.
            share = max(left, LEAST_SHARE * self.budget_ms)
            self.shift[part] = min(MAX_SHIFT, max(0, math.ceil(math.log2(cost / share))))
            left -= cost / (1 << self.shift[part])
        return self.shift != before
