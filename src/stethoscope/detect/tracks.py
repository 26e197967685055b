"""What detectors remember of a run of any length, in memory that does not grow with it.

A track keeps everything up to its limit; then every second value, then every fourth, and so on, chosen by their number alone, so
that how a run was cut into spans changes nothing. What a rule asks of the beginning and of the latest values stays exact.
Medians, shares and trends over a part of the run lose little: they are taken of some thousand values instead of all.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import Final, Generic, TypeVar

import numpy as np

from stethoscope.record import FloatArray, IntArray

LIMIT: Final = 8192
_ENDS: Final = 64
_T = TypeVar("_T")


class Track:
    """Rows of numbers in order, `width` in each: often a step and a value."""

    def __init__(self, width: int = 1, *, limit: int = LIMIT, ends: int = _ENDS) -> None:
        self._limit, self._ends = limit, ends
        self._rows: FloatArray = np.empty((min(16, limit), width))
        self._num_kept = 0
        self._first: list[tuple[float, ...]] = []
        self._last: deque[tuple[float, ...]] = deque(maxlen=ends)
        self.stride = 1
        """One of so many is kept."""
        self.num = 0
        """How many there were."""

    def __len__(self) -> int:
        return self.num

    def add(self, *numbers: float) -> None:
        """One more row."""
        if self.num % self.stride == 0:
            self._keep_row(numbers)
        if len(self._first) < self._ends:
            self._first.append(numbers)
        self._last.append(numbers)
        self.num += 1

    def _keep_row(self, numbers: tuple[float, ...]) -> None:
        if self._num_kept == self._limit:
            half = self._rows[: self._num_kept : 2].copy()
            self._rows[: len(half)] = half
            self._num_kept = len(half)
            self.stride *= 2
            if self.num % self.stride:
                return
        if self._num_kept == len(self._rows):
            grown = np.empty((min(2 * len(self._rows), self._limit), self._rows.shape[1]))
            grown[: self._num_kept] = self._rows
            self._rows = grown
        self._rows[self._num_kept] = numbers
        self._num_kept += 1

    @property
    def rows(self) -> FloatArray:
        """What is kept, evenly over all there were: [kept, width]."""
        return self._rows[: self._num_kept]

    def column(self, index: int) -> FloatArray:
        """One of the numbers of each row that is kept."""
        return self._rows[: self._num_kept, index]

    @property
    def values(self) -> FloatArray:
        """The last number of each row that is kept."""
        return self.column(-1)

    @property
    def steps(self) -> IntArray:
        """The first number of each row that is kept, as a step."""
        return self.column(0).astype(np.int64)

    def first(self, number: int) -> FloatArray:
        """The first rows, exactly."""
        return self._as_rows(self._first[:number])

    def last(self, number: int) -> FloatArray:
        """The latest rows, exactly."""
        return self._as_rows(list(self._last)[-number:])

    def _as_rows(self, rows: list[tuple[float, ...]]) -> FloatArray:
        return np.array(rows, dtype=np.float64).reshape(-1, self._rows.shape[1])

    @property
    def latest(self) -> tuple[float, ...]:
        """The latest row; IndexError where there is none."""
        return self._last[-1]


class SampledHistory(Generic[_T]):
    """As a track, of anything: the kept ones in order, the latest few always among them."""

    def __init__(self, *, limit: int = 512, ends: int = 8) -> None:
        self._limit = limit
        self._kept: list[tuple[int, _T]] = []
        self._last: deque[tuple[int, _T]] = deque(maxlen=ends)
        self._stride = 1
        self.num = 0
        """How many there were."""

    def __len__(self) -> int:
        return self.num

    def append(self, item: _T) -> None:
        """One more."""
        if self.num % self._stride == 0:
            if len(self._kept) == self._limit:
                del self._kept[1::2]
                self._stride *= 2
            if self.num % self._stride == 0:
                self._kept.append((self.num, item))
        self._last.append((self.num, item))
        self.num += 1

    def __iter__(self) -> Iterator[_T]:
        found = dict(self._kept) | dict(self._last)
        return (found[number] for number in sorted(found))

    def to_list(self) -> list[_T]:
        """The kept ones, in order."""
        return list(self)
