"""Looks: a few numbers worked out where the tensors are, and read when they have come.

Whoever looks closely hands in small tensors and what to do with their values. What was handed in during a step travels
together, one parcel a device; nothing waits for it. On a CPU the values are there at once.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import torch

from stethoscope.capture.shards import is_flattened
from stethoscope.kernels.fetching import Fetched, Stopwatch

Values = npt.NDArray[np.float32]
Take = Callable[..., None]
PLAIN: Final = (torch.Tensor, torch.nn.Parameter)
DEVICES: Final = ("cpu", "cuda")
"""Where numbers can be had from without waiting."""


def can_defer(value: torch.Tensor) -> bool:
    """Whether a look at this tensor neither waits nor talks to other processes, as sharded ones would."""
    if type(value) not in PLAIN or value.layout is not torch.strided or value.device.type not in DEVICES:
        return False
    if type(value) is torch.nn.Parameter and is_flattened(value):
        return False
    if value.is_nested or value.is_quantized or (value.is_floating_point() and value.itemsize == 1):
        return False  # torch has hardly an operation for these
    return value.device.type == "cpu" or not torch.cuda.is_current_stream_capturing()


def is_here(value: torch.Tensor) -> bool:
    """Whether it can be read at once."""
    return value.device.type == "cpu"


@dataclasses.dataclass(slots=True)
class DeviceTransfer:
    """The values of one device, on their way."""

    fetched: Fetched[Values]
    takers: list[tuple[int, Take, tuple[Any, ...]]]
    """How many values each one gets and what else, in order."""

    def open(self) -> None:
        """Hands everyone their values; waits for them where they have not come."""
        values = self.fetched.result()
        begin = 0
        for amount, take, given in self.takers:
            take(*given, values[begin : begin + amount])
            begin += amount


@dataclasses.dataclass(slots=True)
class StepReads:
    """The looks of one step, and what is told when their values are there."""

    transfers: list[DeviceTransfer]
    tell: Callable[[], dict[str, float]]
    """Called once, after every value was taken; returns named numbers of the step."""
    watches: list[Stopwatch] = dataclasses.field(default_factory=list)

    def ready(self) -> bool:
        """Whether it can be opened without waiting."""
        return all(transfer.fetched.ready() for transfer in self.transfers)

    def open(self) -> dict[str, float]:
        """Takes every value and tells what they say."""
        for transfer in self.transfers:
            transfer.open()
        return self.tell()

    def device_ms(self) -> float | None:
        """What the device spent on the looks, where that was timed and is done."""
        times = [time for watch in self.watches if (time := watch.milliseconds()) is not None]
        return sum(times) if times and len(times) == len(self.watches) else None


class DeferredReads:
    """What is handed in during a step."""

    def __init__(self) -> None:
        self._asked: dict[torch.device, list[tuple[torch.Tensor, Take, tuple[Any, ...]]]] = {}
        self._watches: list[Stopwatch] = []
        self.timed = False
        """Whether the device's own time is asked for in this step."""

    @property
    def is_asked(self) -> bool:
        """Whether anything was handed in."""
        return bool(self._asked)

    def ask(self, numbers: torch.Tensor, take: Take, *given: Any) -> None:
        """Calls `take` with what is given and the values of a small tensor, flat and as float32, when they are there."""
        self._asked.setdefault(numbers.device, []).append((numbers.detach().reshape(-1), take, given))

    def stopwatch(self, device: torch.device) -> Stopwatch | None:
        """Begins to time what is looked at on a device, where that is wanted."""
        if not self.timed or device.type != "cuda":
            return None
        watch = Stopwatch(device)
        self._watches.append(watch)
        return watch

    def send(self, tell: Callable[[], dict[str, float]]) -> StepReads:
        """Everything of the step that ends now goes on its way."""
        asked, self._asked = self._asked, {}
        watches, self._watches = self._watches, []
        transfers = [
            DeviceTransfer(
                Fetched([_joined([numbers for numbers, _, _ in some])], _values),
                [(numbers.numel(), take, given) for numbers, take, given in some],
            )
            for some in asked.values()
        ]
        return StepReads(transfers, tell, watches)


def _joined(parts: Sequence[torch.Tensor]) -> torch.Tensor:
    floats = [part.float() for part in parts]
    return floats[0] if len(floats) == 1 else torch.cat(floats)


def _values(tables: list[Any]) -> Values:
    found: Values = tables[0]
    return found
