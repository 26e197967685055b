"""Tensors that are seen one by one and measured together: one call for many costs little more than for one.

A tensor that waits may be changed in place before it is measured. Its version counter tells, so nothing wrong is
ever recorded: a site that was changed while it waited loses that one row, is counted, and is measured at once from then on.
On a CPU, where a call for one tensor costs little, sites are measured at once until they have been left alone a few times;
on a device, where three hundred such calls would hold up the first steps, they wait from the beginning.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Sequence
from typing import Any, Final

import numpy as np
import torch

from stethoscope.capture.ring import MeasuredGroup
from stethoscope.kernels import Pending, measure_async

CLEAN_LOOKS: Final = 2
"""How often a site must have been left alone before it is made to wait."""
CHANGED: Final = -1
MAX_WAITING: Final = 512
HOST_BYTES: Final = 4 << 20
"""What waits on a CPU should still be in its cache."""
DEVICE_SHARE: Final = 64
"""One part in so many of a device's memory may be kept alive for longer than training itself keeps it; most
outputs are kept for the backward pass anyway."""


Same = Sequence[tuple[int, int]]


@functools.cache
def _limit_bytes(device: int) -> int:
    """What may wait on the CPU (-1), or on a device."""
    if device < 0 or not torch.cuda.is_available():
        return HOST_BYTES
    return int(torch.cuda.get_device_properties(device).total_memory) // DEVICE_SHARE


def _clean_at_first(tensor: torch.Tensor) -> int:
    """As how often left alone a site counts that was never seen."""
    return CLEAN_LOOKS if tensor.is_cuda else 0


class Collector:
    """Module outputs, or their gradients, on their way to one measurement."""

    def __init__(self, emit: Callable[[MeasuredGroup], None]) -> None:
        self._emit = emit
        self.extras: Any = None
        self.timed = False
        """Whether the device's own time is asked for."""
        self.num_lost = 0
        """Rows that are missing because their tensor was changed while it waited."""
        self.holds_any = False
        """Whether something may wait."""
        self._clean: dict[int, int] = {}
        self._positions: list[int] = []
        self._tensors: list[torch.Tensor] = []
        self._versions: list[int] = []
        self._same: list[tuple[int, int]] = []
        """Sites whose tensor is one that waits already, and its number."""
        self._scale: Pending | None = None
        self._learning: list[tuple[int, torch.Tensor, int]] = []
        self._num_bytes = 0
        self._lock = threading.RLock()  # a backward pass runs on a thread per device

    def add(self, position: int, tensor: torch.Tensor, scale: Pending | None = None) -> None:
        """A tensor of this site, its rows to be divided by `scale` where there is one."""
        with self._lock:
            self.holds_any = True
            if type(tensor) is not torch.Tensor or tensor.layout is not torch.strided:
                # A subclass, sparse or nested: whether it is changed while it waits cannot be known.
                self._measure([position], [tensor], scale)
                return
            tensor = tensor.detach()
            clean = self._clean.get(position, _clean_at_first(tensor))
            if clean < CLEAN_LOOKS or tensor.is_inference():
                self._measure([position], [tensor], scale)
                if clean == CHANGED or tensor.is_inference():
                    return
                self._learning.append((position, tensor, tensor._version))
            else:
                if scale is not self._scale:
                    self.flush()
                    self._scale, self.holds_any = scale, True
                if self._is_last(tensor):
                    self._same.append((position, len(self._tensors) - 1))
                    return
                self._positions.append(position)
                self._tensors.append(tensor)
                self._versions.append(tensor._version)
            self._num_bytes += tensor.nbytes
            if self._num_bytes > _limit_bytes(tensor.get_device()) or len(self._positions) >= MAX_WAITING:
                self.flush()

    def measure(self, position: int, tensor: torch.Tensor, scale: Pending | None = None) -> None:
        """Measure this one now: whoever owns its memory will use it for something else."""
        with self._lock:
            self._measure([position], [tensor], scale)

    def _is_last(self, tensor: torch.Tensor) -> bool:
        """Whether this is the tensor that came last: a module that returns what its last child returned."""
        if not self._tensors:
            return False
        last = self._tensors[-1]
        return (
            tensor.data_ptr() == last.data_ptr()
            and tensor.shape == last.shape
            and tensor.dtype == last.dtype
            and tensor.stride() == last.stride()
            and tensor._version == self._versions[-1]
        )

    def flush(self) -> None:
        """Measure what waits, and let go of it."""
        with self._lock:
            self.holds_any = False
            for position, tensor, version in self._learning:
                self._clean[position] = self._clean.get(position, 0) + 1 if tensor._version == version else CHANGED
            self._learning.clear()
            self._num_bytes = 0
            if not self._positions:
                return
            positions, tensors, versions, same = self._positions, self._tensors, self._versions, self._same
            self._positions, self._tensors, self._versions, self._same = [], [], [], []
            if [tensor._version for tensor in tensors] != versions:
                positions, tensors, same = self._left_alone(positions, tensors, versions, same)
            if positions:
                self._measure(positions, tensors, self._scale, same)

    def _left_alone(
        self, positions: list[int], tensors: list[torch.Tensor], versions: list[int], same: Same
    ) -> tuple[list[int], list[torch.Tensor], list[tuple[int, int]]]:
        """What was not changed while it waited."""
        moved: dict[int, int] = {}
        for number, (tensor, version) in enumerate(zip(tensors, versions, strict=True)):
            if tensor._version == version:
                moved[number] = len(moved)
        changed = [position for number, position in enumerate(positions) if number not in moved]
        changed += [position for position, number in same if number not in moved]
        self._clean.update(dict.fromkeys(changed, CHANGED))
        self.num_lost += len(changed)
        kept = [(position, moved[number]) for position, number in same if number in moved]
        return [positions[number] for number in moved], [tensors[number] for number in moved], kept

    def _measure(
        self, positions: list[int], tensors: list[torch.Tensor], scale: Pending | None, same: Same = ()
    ) -> None:
        pending = measure_async(tensors, extras=self.extras, timed=self.timed)
        if same:
            pending = pending.again([number for _, number in same])
            positions = [*positions, *(position for position, _ in same)]
        self._emit(MeasuredGroup(np.array(positions, dtype=np.uint32), pending, scale, part="modules"))
