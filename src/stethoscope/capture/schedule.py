"""When to look: what is measured at which step, and the governor that keeps the cost inside its budget.

The ledger and the non-finite checks are looked at every step, and so are gradients but where they alone cost twice
what a step may. Everything else is looked at when the step number is divisible by a power of two, which the governor
raises until the measured cost fits: at most the given share of a step, and never less than a floor. Powers of two, so
that two runs share steps.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections import deque
from collections.abc import Iterable, Mapping
from typing import Final, Literal

from stethoscope.config import DebugConfig

Part = Literal["gradients", "boundary", "modules", "units", "ledger", "histograms", "batches"]
GOVERNED: Final[tuple[Part, ...]] = ("boundary", "modules", "units", "histograms", "batches")
"""What can be looked at less often, in the order of its worth: the last one gives way first."""
STEPWISE: Final[tuple[Part, ...]] = ("gradients", "boundary", "modules")
"""What is looked at in single steps, as a whole."""
GRADIENT_BUDGETS: Final = 2
"""Times the budget that gradients may take before they too are looked at less often, as with ten thousand layers."""
TOLD: Final[tuple[Part, ...]] = ("gradients", "ledger", "boundary", "modules", "batches", "units")
"""Parts whose cost is told step by step."""
TIMED_EVERY: Final = 8
DEVICE_FLOOR: Final = 0.25
LEARNING_STEPS: Final = 8
EARLY_STEPS: Final = 256
"""Steps of a process in which the floor is higher: most faults show at a run's beginning, and a short run is soon over."""
EARLY_FLOORS: Final = 10
REVIEW_EVERY: Final = 16
MAX_SHIFT: Final = 12
MEMORY: Final = 0.9
RECENT: Final = 9
LEAST_LOOKS: Final = 3
"""Looks at a part before the governor makes it rarer."""
FIRST_COSTS: Final = 2 + LEAST_LOOKS
"""Steps after which costs are known: the first two are not counted."""
DEAR_START: Final = 4
"""Times the budget, from which on looking is made rarer at once instead of after `REVIEW_EVERY` steps."""
WINDOW_BITS: Final = 6
"""Batches are looked at in windows of consecutive steps, for only neighbours show that one came again."""
DEAR: Final = 3
DEAR_STEPS: Final = 16
"""Of a window of batches that are dear, rarer than one in 2 ** DEAR windows, only so many steps are looked at."""
ALL_BATCHES_BITS: Final = 14
"""After so many steps windows become rarer, so that what is stored grows with the logarithm of the steps."""
UNITS_EVERY: Final = 8
"""Steps between two looks at units, logits and attention, where they are cheap."""
LEAST_SHARE: Final = 0.25
"""Of the budget, that each governed part may take in any case: a part that is never looked at finds nothing."""


@dataclasses.dataclass(frozen=True, slots=True)
class StepPlan:
    """What is measured in one step; made once, when the step begins."""

    gradients: bool
    boundary: bool
    modules: bool
    batches: bool
    histogram: bool
    timed: bool
    """Whether the device's own time is asked for."""

    @property
    def is_ordinary(self) -> bool:
        """Whether nothing is measured that is not measured in nearly every step."""
        return not (self.boundary or self.modules or self.histogram)


_plan = functools.cache(StepPlan)
"""One plan of each kind: making one takes longer than finding it."""


class Schedule:
    """Answers "is this due at this step" and learns what things cost."""

    def __init__(self, config: DebugConfig) -> None:
        self._config = config
        self._fixed = config.every
        rate = config.sampling_rate
        self._stride = 0 if rate <= 0 else 2 ** math.ceil(math.log2(1.0 / rate))
        self.shift: dict[Part, int] = dict.fromkeys(("gradients", *GOVERNED), 0)
        self._recent: dict[Part, deque[float]] = {}
        self._step_ms: float | None = None
        self._num_seen = 0
        self._device: dict[Part, deque[float]] = {}
        self.behind = False
        """Whether the device still worked on a step when its last call returned: then the host's time is free."""

    def due(self, part: Part, step: int) -> bool:
        """Whether this part is looked at in this step."""
        if part in ("ledger", "units"):
            return True
        if part == "batches":
            return self._batches_due(step)
        if self._stride == 0 or step % self._stride:
            return False
        if self._fixed:
            return part == "gradients" or step % self._fixed == 0
        return step % (1 << self.shift[part]) == 0

    def plan(self, step: int) -> StepPlan:
        """Everything that this step will ask."""
        shift, histogram = self.shift, self.histogram_due(step)
        if self._stride == 0 or step % self._stride:
            gradients = boundary = modules = False
        elif self._fixed:
            gradients, boundary = True, step % self._fixed == 0
            modules = boundary
        else:
            gradients, boundary, modules = (not step % (1 << shift[part]) for part in STEPWISE)
        return _plan(gradients, boundary, modules, self._batches_due(step), histogram, self.timed(step, histogram))

    def _batches_due(self, step: int) -> bool:
        """Whole windows, as often as other parts are looked at single steps."""
        window = step >> WINDOW_BITS
        if self._stride == 0 or window % self._stride:
            return False
        shift = max(0 if self._fixed else self.shift["batches"], step.bit_length() - ALL_BATCHES_BITS, 0)
        if shift > DEAR and step & ((1 << WINDOW_BITS) - 1) >= DEAR_STEPS:
            return False
        return window % max(self._fixed or 1, 1) == 0 and window % (1 << shift) == 0

    def histogram_due(self, step: int) -> bool:
        """Whether histograms and sketches are taken in this step."""
        every = self._config.histogram_every
        return every > 0 and step % (every << self.shift["histograms"]) == 0

    def units_every(self) -> int:
        """Steps that must lie between two looks at units."""
        return UNITS_EVERY << self.shift["units"]

    def timed(self, step: int, histogram: bool) -> bool:
        """Whether the device's own time is asked for in this step: while learning, now and then, and with histograms."""
        return self._num_seen < 4 * LEARNING_STEPS or step % TIMED_EVERY == 0 or histogram

    def periods(self) -> dict[str, int]:
        """At steps divisible by what each governed part is looked at now."""
        every: dict[str, int] = {part: 1 << shift for part, shift in self.shift.items()}
        every["units"] = self.units_every()
        every["histograms"] = self._config.histogram_every << self.shift["histograms"]
        return every

    def step_cost(self, step: int, spent_ms: Mapping[str, float]) -> None:
        """Note what looking cost the host in a step, by part."""
        self._share_out(step, spent_ms, self._recent)

    def step_cost_on_device(self, step: int, spent_ms: Mapping[str, float]) -> None:
        """Note what looking cost the device in a step, by part; told later, from another thread."""
        self._share_out(step, spent_ms, self._device)

    @property
    def has_device(self) -> bool:
        """Whether anything was measured on a device."""
        return bool(self._device)

    def device_ms(self, step: int) -> float:
        """What the device spends on a step like this one, as far as known."""
        return sum(
            (_middle(recent) for part, recent in self._device.items() if part != "histograms" and self.due(part, step)),
            start=0.0,
        )

    def _share_out(self, step: int, spent_ms: Mapping[str, float], costs: dict[Part, deque[float]]) -> None:
        """With histograms everything takes longer: what is more than usual is theirs."""
        due = [part for part in TOLD if spent_ms.get(part) and self.due(part, step)]
        if not self.histogram_due(step):
            for part in due:
                _note(costs, part, spent_ms[part])
        elif all(part in costs for part in due):
            usual = sum(_middle(costs[part]) for part in due)
            _note(costs, "histograms", max(sum(spent_ms[part] for part in due) - usual, 0.0))

    def _cost(self, part: Part) -> float | None:
        """Of one look: the device's time, and the host's where the device waits for it."""
        recent, device = self._recent.get(part), self._device.get(part)
        # The middle of the last few: a busy machine takes the processor away now and then, which is not our cost.
        host = _middle(recent) if recent else None
        if not device:
            return host
        return _middle(device) + (0.0 if self.behind or host is None else host)

    def step_took(self, milliseconds: float) -> bool:
        """Note a whole step's time, ours included; True where the governor changed a rate."""
        self._num_seen += 1
        # The first steps hold compilation and warm-up: they say nothing about the rest.
        if self._num_seen <= 2:
            self._recent.clear()
            self._device.clear()
            return False
        old = self._step_ms
        self._step_ms = milliseconds if old is None else MEMORY * old + (1 - MEMORY) * milliseconds
        if self._fixed or not self._is_time_for_review():
            return False
        return self._review()

    def _is_time_for_review(self) -> bool:
        """Every so often; and as soon as costs are known where they are many times the budget, as with 10,000 layers."""
        if self._num_seen == FIRST_COSTS:
            spent = sum(self._cost(part) or 0.0 for part in GOVERNED if part != "histograms")
            return spent > DEAR_START * self.budget_ms
        return self._num_seen >= LEARNING_STEPS and self._num_seen % REVIEW_EVERY == 0

    @property
    def budget_ms(self) -> float:
        """What a step may cost."""
        floor = self._config.overhead_floor_ms * (EARLY_FLOORS if self._num_seen < EARLY_STEPS else 1)
        return max(self._config.overhead * (self._step_ms or 0.0), self._floor_share * floor)

    @property
    def _floor_share(self) -> float:
        """Floors are for what a host's every call costs; a device that is the slower one needs less."""
        return DEVICE_FLOOR if self._device and self.behind else 1.0

    def _is_known(self, part: Part) -> bool:
        """Whether it was looked at often enough to say what it costs.

        One look that a busy machine held up would put off the next one for so long that nobody finds out.
        """
        return max(len(self._recent.get(part, ())), len(self._device.get(part, ()))) >= LEAST_LOOKS

    def _review(self) -> bool:
        before = dict(self.shift)
        gradients = self._cost("gradients") or 0.0
        if self._is_known("gradients"):
            self.shift["gradients"] = _halvings(gradients, GRADIENT_BUDGETS * self.budget_ms)
        left = self.budget_ms - gradients / (1 << self.shift["gradients"]) - (self._cost("ledger") or 0.0)
        for part in GOVERNED:
            cost = self._cost(part)
            if part == "histograms" and cost is not None:
                cost /= max(self._config.histogram_every, 1)
            if part == "units" and cost is not None:
                cost /= UNITS_EVERY
            if cost is None or cost <= 0 or not self._is_known(part):
                continue
            # Of what is left, the more valuable part may take all; the next one what remains, and at least a little.
            share = max(left, LEAST_SHARE * self._floor_share * self.budget_ms)
            self.shift[part] = _halvings(cost, share)
            left -= cost / (1 << self.shift[part])
        return self.shift != before


def _halvings(cost: float, share: float) -> int:
    """How often a cost must be halved to fit into a share."""
    if cost <= 0:
        return 0
    return min(MAX_SHIFT, max(0, math.ceil(math.log2(cost / share)))) if share > 0 else MAX_SHIFT


def _note(costs: dict[Part, deque[float]], part: Part, milliseconds: float) -> None:
    costs.setdefault(part, deque(maxlen=RECENT)).append(milliseconds)


def _middle(values: Iterable[float]) -> float:
    ordered = sorted(values)
    return ordered[len(ordered) // 2]
