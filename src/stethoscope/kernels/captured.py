"""Rows that are written inside of compiled graphs, also by CUDA graphs, which write them again at every replay.

Inside of a graph that may be captured nothing can be uploaded and nothing that is allocated may be kept, and when it is
replayed no Python runs. So a kernel writes the tables that the others need, and the finished line goes to a slot of
a table that was there before. A slot that nothing was written to since the last fetch says so.
"""

from __future__ import annotations

import sys
from typing import Any, Final

import numpy as np

from stethoscope.kernels import launching, triton
from stethoscope.kernels.fetching import Fetched
from stethoscope.kernels.pending import Measured, Pending
from stethoscope.kernels.pointers import KINDS, collect
from stethoscope.kernels.variants import PLAN_LANES, Variant

MAX_SLOTS: Final = 8192
UNWRITTEN: Final = -1.0
WRITE_PLAN: Final = Variant("write_plan")


class Slots:
    """A table on one device: captured graphs own lines from its beginning, other calls use lines from its end once."""

    def __init__(self, device: Any) -> None:
        torch = sys.modules["torch"]
        self._device = device
        self._lines = torch.full((MAX_SLOTS, triton.NUM_SUMS), UNWRITTEN, dtype=torch.float64, device=device)
        self._owned: list[int] = []
        self._once: list[int] = []

    def record(self, tensor: Any, label: int, *, captured: bool) -> bool:
        """Queue the measurement of a tensor, its row to be known by a label; False where that cannot be."""
        table = collect([tensor])
        full = len(self._owned) + len(self._once) >= MAX_SLOTS
        if table is None or full or not tensor.numel() or not launching.serves_devices():
            return False
        name = KINDS[table.kinds[0]]
        wanted = Variant("tensor_sums", name, tensor.data_ptr() % 16 == 0), WRITE_PLAN
        if not launching.are_available(self._device, wanted):
            return False
        slot = len(self._owned) if captured else MAX_SLOTS - 1 - len(self._once)
        self._queue(tensor, name, self._lines[slot : slot + 1])
        (self._owned if captured else self._once).append(label)
        return True

    def __len__(self) -> int:
        return len(self._owned) + len(self._once)

    def fetch(self) -> tuple[list[int], Pending]:
        """Labels and rows of what was written since the last time; rows that were not are `unsupported`."""
        torch = sys.modules["torch"]
        owned, once = len(self._owned), len(self._once)
        found = torch.cat((self._lines[:owned], self._lines[MAX_SLOTS - once :].flip(0)))
        self._lines[:owned, 0].fill_(UNWRITTEN)
        labels, self._once = [*self._owned, *self._once], []
        return labels, Pending(Fetched([found], _finish))

    def _queue(self, tensor: Any, name: str, line: Any) -> None:
        torch = sys.modules["torch"]
        count, span = tensor.numel(), triton.span_of(tensor.numel())
        spans = -(-count // span)
        wide = torch.empty(1 + spans, dtype=torch.int64, device=self._device)
        narrow = torch.empty(3 * spans + 3, dtype=torch.int32, device=self._device)
        programs = -(-spans // PLAN_LANES)
        launching.queue(self._device, WRITE_PLAN, programs, tensor.data_ptr(), count, spans, span, wide, narrow)
        lengths, owners, counted = narrow[: 3 * spans].view(3, spans)
        plan = triton.Plan(owners, wide[1:], lengths, narrow[-3:-1], narrow[-1:], counted, spans)
        triton.queue_rows(self._device, name, tensor.data_ptr() % 16 == 0, wide, plan, None, line)


def _finish(tables: list[Any]) -> Measured:
    lines = tables[0]
    unwritten = lines[:, 0] < 0
    lines = np.where(unwritten[:, None], 0.0, lines)
    return Measured(triton.rows_of_sums(lines), unsupported=tuple(np.flatnonzero(unwritten).tolist()))
