"""When to look: what is measured at which step, and the governor that keeps the cost inside its budget.

The ledger and the loss are looked at every step, and so are gradients while they fit into the budget; after that at least
as often as a quarter of it allows, and whenever the loss is unlike the ones before it. Everything else is looked at when
the step number, less a small number of its own, is divisible by a power of two, which the governor raises until the whole
cost fits: at most the given share of a step, and never less than a floor. Powers of two, so that two runs share steps; a
number of its own for each part, so that no step has to bear all of them.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Mapping
from typing import Final

from stethoscope.capture.part_costs import LEAST_LOOKS, TOLD, Part, PartCosts
from stethoscope.config import DebugConfig

GOVERNED: Final[tuple[Part, ...]] = ("boundary", "modules", "units", "histograms", "batches")
"""What can be looked at less often, in the order of its worth: the last one gives way first."""
GRADIENT_SHARE: Final = 0.25
"""Of the budget, that gradients may take whatever a step costs otherwise."""
PHASE: Final[dict[str, int]] = {"modules": 1}
"""What is taken off the step number before it is divided; nothing for all others."""
TIMED_EVERY: Final = 8
DEVICE_FLOOR: Final = 0.25
LEARNING_STEPS: Final = 8
EARLY_STEPS: Final = 256
"""Steps of a process in which the floor is higher: most faults show at a run's beginning, and a short run is soon over."""
EARLY_FLOORS: Final = 10
REVIEW_EVERY: Final = 16
MAX_SHIFT: Final = 6
"""Every 64th step, or 64th window of batches, is looked at whatever it costs: what rules need does not depend on how busy a machine is."""
MEMORY: Final = 0.9
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
LEAST_SHARE: Final = 0.05
"""Of the budget, that each governed part may take in any case: a part that is never looked at finds nothing."""
EARLY_SHARE: Final = 0.25
"""As much in a process's first steps."""
MAX_UNIT_SHARES: Final = 8
UNIT_STEP_SHARE: Final = 0.1
"""Of a step, that a look at units may take in it."""


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
    def alone(self) -> Part | None:
        """The one part beside gradients that is measured in it; None where there are several, or none."""
        if self.histogram or self.boundary == self.modules:
            return None
        return "boundary" if self.boundary else "modules"

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
        self.costs = PartCosts()
        self.unit_shares = 1
        """Into how many steps a look at units is divided, so that none of them stands out."""
        self._step_ms: float | None = None
        self._num_seen = 0

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
        return (step - PHASE.get(part, 0)) % (1 << self.shift[part]) == 0

    def plan(self, step: int) -> StepPlan:
        """Everything that this step will ask."""
        shift, histogram = self.shift, self.histogram_due(step)
        if self._stride == 0 or step % self._stride:
            gradients = boundary = modules = False
        elif self._fixed:
            gradients, boundary = True, step % self._fixed == 0
            modules = boundary
        else:
            gradients, boundary = step % (1 << shift["gradients"]) == 0, step % (1 << shift["boundary"]) == 0
            modules = (step - PHASE["modules"]) % (1 << shift["modules"]) == 0
        return _plan(gradients, boundary, modules, self._batches_due(step), histogram, self.timed(step, histogram))

    def plain_ahead(self, step: int, most: int) -> list[StepPlan]:
        """The plans of this step and those after it in which nothing but gradients may be due, not even now and then."""
        if self._stride != 1 or self._fixed or self._num_seen < 4 * LEARNING_STEPS or self._batches_due(step):
            return []
        gradients, boundary, modules = ((1 << self.shift[part]) - 1 for part in ("gradients", "boundary", "modules"))
        histogram = self._config.histogram_every << self.shift["histograms"]
        often = TIMED_EVERY if self.costs.has_device else REVIEW_EVERY
        found: list[StepPlan] = []
        for number in range(step, step + most):
            is_special = not (number & boundary and (number - PHASE["modules"]) & modules and number % often)
            if is_special or (histogram and not number % histogram) or not number & (number - 1):
                break
            found.append(_plan(not number & gradients, False, False, False, False, False))
        return found

    def closer(self, plan: StepPlan) -> StepPlan:
        """The same with gradients and what the step changes, but where the user set a share of the steps."""
        if self._stride != 1 or self._fixed:
            return plan
        return dataclasses.replace(plan, gradients=True, boundary=True)

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
        is_ordinary = not (self.due("boundary", step) or self.due("modules", step) or self.histogram_due(step))
        if is_ordinary and "ledger" in spent_ms:
            self.costs.note_fixed(spent_ms["ledger"])
        self.costs.note(spent_ms, self._told(step), histogram=self.histogram_due(step), on_device=False)

    def step_cost_on_device(self, step: int, spent_ms: Mapping[str, float]) -> None:
        """Note what looking cost the device in a step, by part; told later, from another thread."""
        self.costs.note(spent_ms, self._told(step), histogram=self.histogram_due(step), on_device=True)

    def device_ms(self, step: int) -> float:
        """What the device spends on a step like this one, as far as known."""
        return self.costs.device_ms(self._told(step))

    def _told(self, step: int) -> list[Part]:
        return [part for part in TOLD if self.due(part, step)]

    def step_took(self, milliseconds: float, plan: StepPlan | None = None) -> bool:
        """Note a whole step's time, ours included, and what was looked at in it; True where the governor changed a rate."""
        self._num_seen += 1
        # The first steps hold compilation and warm-up: they say nothing about the rest.
        if self._num_seen <= 2:
            self.costs.forget()
            return False
        if plan is not None:
            self.costs.note_step(milliseconds, plan.alone, is_ordinary=plan.is_ordinary)
        old = self._step_ms
        self._step_ms = milliseconds if old is None else MEMORY * old + (1 - MEMORY) * milliseconds
        if self._fixed or not self._is_time_for_review():
            return False
        return self._review()

    def plain_step_took(self, milliseconds: float, fixed_ms: float) -> bool:
        """As `step_took`, for a step in which nothing but gradients may have been looked at, and what it cost beside these."""
        self._num_seen += 1
        self.costs.note_plain(milliseconds, fixed_ms)
        self._step_ms = MEMORY * (self._step_ms or milliseconds) + (1 - MEMORY) * milliseconds
        return self._num_seen % REVIEW_EVERY == 0 and self._review()

    def _is_time_for_review(self) -> bool:
        """Every so often; and as soon as costs are known where they are many times the budget, as with 10,000 layers."""
        if self._num_seen == FIRST_COSTS:
            spent = sum(self.costs.of(part) or 0.0 for part in GOVERNED if part != "histograms")
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
        return DEVICE_FLOOR if self.costs.has_device and self.costs.behind else 1.0

    def _review(self) -> bool:
        before = dict(self.shift)
        is_early = self._num_seen < EARLY_STEPS
        # In its first steps a run is looked at closely: there the budget is that of looking alone.
        self.costs.compares = not is_early
        budget = self.budget_ms
        fixed = 0.0 if is_early else (self.costs.of("ledger") or 0.0) + self.costs.background_ms
        gradients = self.costs.of("gradients") or 0.0
        if self.costs.is_known("gradients"):
            self.shift["gradients"] = _halvings(gradients, max(budget - fixed, GRADIENT_SHARE * budget))
        left = budget - fixed - gradients / (1 << self.shift["gradients"])
        least = self._floor_share * budget * (EARLY_SHARE if is_early else LEAST_SHARE)
        for part in GOVERNED:
            cost = self.costs.of(part)
            if cost is None or cost <= 0 or not self.costs.is_known(part):
                continue
            if part == "histograms":
                cost /= max(self._config.histogram_every, 1)
            if part == "units":
                cost *= self.unit_shares
                self._divide_units(cost)
                cost /= UNITS_EVERY
            # Of what is left, the more valuable part may take all; the next one what remains, and at least a little.
            self.shift[part] = _halvings(cost, max(left, least))
            left -= cost / (1 << self.shift[part])
        return self.shift != before

    def _divide_units(self, cost: float) -> None:
        """Into as few shares as keep each a small part of a step, and no more than there are steps for until the next look."""
        most = max(UNIT_STEP_SHARE * (self._step_ms or 0.0), EARLY_FLOORS * self._config.overhead_floor_ms)
        shares = min(1 << _halvings(cost, most), MAX_UNIT_SHARES, max(self.units_every() >> self.shift["modules"], 1))
        if shares != self.unit_shares:
            self.unit_shares = shares
            self.costs.forget_part("units")


def _halvings(cost: float, share: float) -> int:
    """How often a cost must be halved to fit into a share."""
    if cost <= 0:
        return 0
    return min(MAX_SHIFT, max(0, math.ceil(math.log2(cost / share)))) if share > 0 else MAX_SHIFT
