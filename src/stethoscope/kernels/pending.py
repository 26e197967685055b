"""Measurements on their way: what was asked for, and the rows once they are there."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

import numpy as np
import numpy.typing as npt

from stethoscope.kernels.columns import INDEX, Table, empty_rows, merge
from stethoscope.kernels.histogram import NUM_BINS, ZERO_BIN
from stethoscope.kernels.sketch import SKETCH_WIDTH

Histograms = npt.NDArray[np.uint32]
Sketches = npt.NDArray[np.float32]


@dataclasses.dataclass(frozen=True, slots=True)
class Extras:
    """What is measured beside the row, on a schedule because it costs more."""

    histogram: bool = False
    sketch: bool = False
    seed: int = 0
    """Of the sketch: only sketches of one seed can be compared."""


@dataclasses.dataclass(eq=False, slots=True)
class Measured:
    """One row per tensor, in the order they were handed in."""

    rows: Table
    histograms: Histograms | None = None
    sketches: Sketches | None = None
    unsupported: tuple[int, ...] = ()
    """Places whose row is empty because the tensor's layout, dtype or device cannot be read."""


class Part(Protocol):
    """Some of the tensors of a call, measured together on one device."""

    def ready(self) -> bool:
        """Whether `result` would return without waiting."""

    def result(self) -> Measured:
        """The rows of these tensors."""


class Done:
    """A part that was measured at once."""

    __slots__ = ("_measured",)

    def __init__(self, measured: Measured) -> None:
        self._measured = measured

    def ready(self) -> bool:
        """Always."""
        return True

    def result(self) -> Measured:
        """The rows."""
        return self._measured


class Assembled:
    """Parts measured in different places, put back into the order of the call."""

    def __init__(
        self,
        num_rows: int,
        parts: Sequence[tuple[Sequence[int], Part]],
        implicit_zeros: Mapping[int, int],
        unsupported: Sequence[int],
    ) -> None:
        self._num_rows, self._parts = num_rows, parts
        self._implicit_zeros, self._unsupported = implicit_zeros, unsupported

    def ready(self) -> bool:
        """Whether every part is."""
        return all(part.ready() for _, part in self._parts)

    def result(self) -> Measured:
        """All rows, with the zeros of sparse tensors that were never stored added in."""
        rows = empty_rows(self._num_rows)
        histograms: Histograms | None = None
        sketches: Sketches | None = None
        unsupported = list(self._unsupported)
        for positions, part in self._parts:
            measured = part.result()
            rows[positions] = measured.rows
            unsupported.extend(positions[index] for index in measured.unsupported)
            if measured.histograms is not None:
                if histograms is None:
                    histograms = np.zeros((self._num_rows, NUM_BINS), dtype=np.uint32)
                histograms[positions] = measured.histograms
            if measured.sketches is not None:
                if sketches is None:
                    sketches = np.zeros((self._num_rows, SKETCH_WIDTH), dtype=np.float32)
                sketches[positions] = measured.sketches
        for position, num_zeros in self._implicit_zeros.items():
            rows[position] = merge(rows[position], zero_row(num_zeros))
            if histograms is not None:
                total = int(histograms[position, ZERO_BIN]) + num_zeros
                histograms[position, ZERO_BIN] = min(total, int(np.iinfo(np.uint32).max))
        return Measured(rows, histograms, sketches, tuple(sorted(unsupported)))


class Pending:
    """Rows that may still be under way on a device."""

    __slots__ = ("_finish", "_part", "is_here")

    def __init__(self, part: Part, finish: Callable[[Measured], Measured] | None = None) -> None:
        self._part, self._finish = part, finish
        self.is_here = type(part) is Done
        """Whether it was measured at once, as everything on a CPU is."""

    def ready(self) -> bool:
        """Whether `result` returns at once. Never waits."""
        return self._part.ready()

    def again(self, positions: Sequence[int]) -> Pending:
        """The same rows, and those of these places once more after them."""

        def finish(measured: Measured) -> Measured:
            found = measured if self._finish is None else self._finish(measured)
            order = [*range(len(found.rows)), *positions]
            histograms = None if found.histograms is None else found.histograms[order]
            sketches = None if found.sketches is None else found.sketches[order]
            twice = [len(found.rows) + n for n, position in enumerate(positions) if position in found.unsupported]
            return Measured(found.rows[order], histograms, sketches, (*found.unsupported, *twice))

        return Pending(self._part, finish)

    def device_ms(self) -> float | None:
        """What the device spent on it, where that was asked for and is known by now."""
        ask = getattr(self._part, "device_ms", None)
        return None if ask is None else ask()

    def result(self) -> Measured:
        """The rows; waits for the device where they are not there yet, so not for the training thread."""
        measured = self._part.result()
        return measured if self._finish is None else self._finish(measured)


def zero_row(num_zeros: int) -> Table:
    """The row of this many zeros."""
    out: Table = empty_rows(1)[0]
    if num_zeros:
        out[INDEX["count"]] = out[INDEX["num_zero"]] = num_zeros
        for name in ("min", "max", "abs_max", "mean", "mean_abs", "norm", "std"):
            out[INDEX[name]] = 0.0
    return out
