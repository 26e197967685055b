"""What looking at each part costs: by our own clock, by the device's, and beside the steps that look at nothing.

A clock of our own sees what runs between its two readings. It does not see that the training's code and data were pushed
out of the processor's memory meanwhile, or that hooks keep PyTorch from its fast path. So a step that looks at one part
is also compared with the steps around it that look at none: what it took longer is that part's, where that is more.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Mapping
from typing import Final, Literal

Part = Literal["gradients", "boundary", "modules", "units", "ledger", "histograms", "batches"]
TOLD: Final[tuple[Part, ...]] = ("gradients", "boundary", "modules", "batches", "units")
"""Parts whose cost is told step by step, beside the fixed cost of a step, which is called the ledger's."""
RECENT: Final = 9
LEAST_LOOKS: Final = 3
"""Looks at a part before anything is concluded from them."""
LEAST_COMPARED: Final = 5
"""Steps with one part alone that are compared with others."""
ORDINARY_KEPT: Final = 33


class PartCosts:
    """The latest costs of every part, in milliseconds."""

    def __init__(self) -> None:
        self._host: dict[Part, deque[float]] = {}
        self._device: dict[Part, deque[float]] = {}
        self._longer: dict[Part, deque[float]] = {}
        """By what steps with one part took longer than those before them with none."""
        self._ordinary: deque[float] = deque(maxlen=ORDINARY_KEPT)
        self._background: deque[float] = deque(maxlen=RECENT)
        self.compares = False
        """Whether steps with one part are compared with those with none; in a run's first steps that is mostly noise."""
        self.behind = False
        """Whether the device still worked on a step when its last call returned: then the host's time is free."""

    @property
    def has_device(self) -> bool:
        """Whether anything was measured on a device."""
        return bool(self._device)

    def forget(self) -> None:
        """What was noted so far says nothing about the rest."""
        for costs in (self._host, self._device, self._longer):
            costs.clear()
        self._ordinary.clear()

    def forget_part(self, part: Part) -> None:
        """One look at this part is another thing from now on."""
        for costs in (self._host, self._device, self._longer):
            costs.pop(part, None)

    def note(self, spent_ms: Mapping[str, float], due: Iterable[Part], *, histogram: bool, on_device: bool) -> None:
        """What the parts that were due took in one step. With histograms everything takes longer: what is more is theirs."""
        costs = self._device if on_device else self._host
        parts = [part for part in due if spent_ms.get(part)]
        if not histogram:
            for part in parts:
                _note(costs, part, spent_ms[part])
        elif all(part in costs for part in parts):
            usual = sum(_typical(costs[part]) for part in parts)
            _note(costs, "histograms", max(sum(spent_ms[part] for part in parts) - usual, 0.0))

    def note_fixed(self, milliseconds: float) -> None:
        """What a step took of ours that looked at nothing but gradients, without these."""
        _note(self._host, "ledger", milliseconds)

    def note_background(self, milliseconds: float) -> None:
        """What other threads of ours do for a step, in the mean over a while."""
        self._background.append(milliseconds)

    @property
    def background_ms(self) -> float:
        """What other threads of ours do for a step."""
        return _typical(self._background) if self._background else 0.0

    def note_plain(self, milliseconds: float, fixed_ms: float) -> None:
        """How long a step took that looked at nothing but gradients, and what of ours that was beside these."""
        self._ordinary.append(milliseconds)
        if fixed := self._host.get("ledger"):
            fixed.append(fixed_ms)
        else:
            _note(self._host, "ledger", fixed_ms)

    def note_step(self, milliseconds: float, alone: Part | None, *, is_ordinary: bool) -> None:
        """How long a whole step took; `alone` is the one part beside gradients that it looked at."""
        if is_ordinary:
            self._ordinary.append(milliseconds)
        elif alone is not None and len(self._ordinary) >= LEAST_COMPARED:
            _note(self._longer, alone, milliseconds - _middle(self._ordinary))

    def device_ms(self, parts: Iterable[Part]) -> float:
        """What the device spends on these, as far as known."""
        return sum((_typical(self._device[part]) for part in parts if part in self._device), start=0.0)

    def of(self, part: Part) -> float | None:
        """Of one look: the device's time, and the host's where the device waits for it; None where nothing is known."""
        host, device = self._host.get(part), self._device.get(part)
        mine = _typical(host) if host else None
        if self.compares and not self.behind:
            mine = self._compared(part, mine)
        if not device:
            return mine
        return _typical(device) + (0.0 if self.behind or mine is None else mine)

    def is_known(self, part: Part) -> bool:
        """Whether it was looked at often enough to say what it costs.

        One look that a busy machine held up would put off the next one for so long that nobody finds out.
        """
        return max(len(self._host.get(part, ())), len(self._device.get(part, ()))) >= LEAST_LOOKS

    def _compared(self, part: Part, mine: float | None) -> float | None:
        """Our own clock's, or what steps with this part take longer where that is more and beyond their noise."""
        longer = self._longer.get(part)
        if mine is None or longer is None or len(longer) < LEAST_COMPARED:
            return mine
        usual = _middle(self._ordinary)
        noise = _middle([abs(one - usual) for one in self._ordinary])
        more = _middle(longer)
        return max(mine, more) if more > 2 * noise else mine


def _note(costs: dict[Part, deque[float]], part: Part, milliseconds: float) -> None:
    costs.setdefault(part, deque(maxlen=RECENT)).append(milliseconds)


def _typical(values: Iterable[float]) -> float:
    """The mean, without the largest third: a busy machine takes the processor away now and then, which is not our cost."""
    ordered = sorted(values)
    kept = ordered[: max(1, math.ceil(len(ordered) * 2 / 3))]
    return sum(kept) / len(kept)


def _middle(values: Iterable[float]) -> float:
    ordered = sorted(values)
    return ordered[len(ordered) // 2]
