"""Dead units: outputs of a layer that never fire.

A unit is dead when no row of any batch recorded so far moved it: its largest magnitude stays at or under the
tolerance. Counted unit by unit on the full matrices, so the answer is a fact about what was seen, not an
estimate.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from stethoscope.instruments.array_input import ArrayError, as_numpy
from stethoscope.record import FloatArray


@dataclass(frozen=True, slots=True)
class DeadUnits:
    """Which units of a layer never fired."""

    layer: str
    num_units: int
    dead: tuple[int, ...]
    """Their indices."""
    num_batches: int
    num_rows: int

    @property
    def ratio(self) -> float:
        """The share of units that never fired."""
        return len(self.dead) / self.num_units if self.num_units else 0.0


class UnitCounter:
    """The largest magnitude each unit of one layer has shown."""

    def __init__(self, layer: str) -> None:
        self.layer = layer
        self.num_batches = 0
        self.num_rows = 0
        self._largest: FloatArray | None = None

    def add(self, matrix: Any, *, unit_axis: int = -1) -> None:
        """Takes in one batch of activations or of their gradients, [rows..., units] unless `unit_axis` says
        else."""
        array = as_numpy(matrix, self.layer)
        if array.ndim < 2:
            raise ArrayError(
                f"{self.layer} has shape {list(array.shape)}, which names no units",
                where=self.layer,
                do="Give a matrix [rows, units], or the whole activation and unit_axis=1 for channels",
            )
        by_unit = np.moveaxis(array, unit_axis, -1).reshape(-1, array.shape[unit_axis])
        # A NaN is no sign of death: fmax lets it pass as "unknown", and the alerts speak of it.
        largest = np.abs(by_unit).max(axis=0, initial=0.0) if by_unit.size else np.zeros(by_unit.shape[1])
        largest = np.where(np.isnan(largest), np.inf, largest).astype(np.float64)
        if self._largest is None or len(self._largest) != len(largest):
            self._largest, self.num_batches, self.num_rows = np.zeros_like(largest), 0, 0
        self._largest = np.maximum(self._largest, largest)
        self.num_batches += 1
        self.num_rows += len(by_unit)

    def dead(self, tolerance: float = 0.0) -> DeadUnits:
        """The units whose magnitude never exceeded `tolerance`."""
        largest = np.zeros(0) if self._largest is None else self._largest
        indices = tuple(int(i) for i in np.flatnonzero(largest <= tolerance)) if self.num_rows else ()
        return DeadUnits(self.layer, len(largest), indices, self.num_batches, self.num_rows)
