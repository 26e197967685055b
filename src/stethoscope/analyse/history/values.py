"""What a reader of history answers: one statistic of several rows over steps, and what is usual for each.

Promises: what was not measured is never a number; in buckets of steps the lowest and highest value stay beside the mean.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any, Final

import numpy as np

from stethoscope.analyse.bins import Mark, MarkArray
from stethoscope.analyse.grouping import Row
from stethoscope.record import FloatArray, IntArray, Kind, Series


@dataclasses.dataclass(frozen=True, eq=False, slots=True)
class History:
    """One statistic of several rows, step by step or in buckets of steps, with what is usual for each row."""

    kind: Kind
    stat: str
    steps: IntArray
    """The steps, or the first of each bucket."""
    rows: tuple[Row, ...]
    values: FloatArray
    """[S, R], the mean of a bucket; NaN where there is no finite value."""
    marks: MarkArray
    """[S, R]; a Mark for each step and row."""
    usual: FloatArray
    """[R]; the median of the size of each row's values, NaN where there is none."""
    low: FloatArray | None = None
    high: FloatArray | None = None
    """[S, R]; the lowest and highest value of each bucket."""
    bucket_steps: int = 1
    can_be_refined: bool = False
    """Whether the rows would show more, and are few enough for a reader that can wait."""

    @property
    def is_exact(self) -> bool:
        """Whether each value is of one step, not of a bucket of them."""
        return self.low is None

    @property
    def ratios(self) -> FloatArray:
        """log2 of each value's size over what is usual there, [S, R]; 0 where both are zero."""
        return log_ratios(self.values, self.usual)

    def window(self, first: int | None = None, last: int | None = None) -> History:
        """The same rows over fewer steps; what is usual stays what it was."""
        begin = 0 if first is None else int(np.searchsorted(self.steps, first - self.bucket_steps, side="right"))
        end = len(self.steps) if last is None else int(np.searchsorted(self.steps, last, side="right"))
        tables = {name: table[begin:end] for name, table in self._tables().items()}
        return dataclasses.replace(self, steps=self.steps[begin:end], **tables)

    def take(self, indices: Sequence[int]) -> History:
        """Only these rows, in this order."""
        columns = np.asarray(indices, dtype=np.int64)
        rows = tuple(self.rows[index] for index in indices)
        tables = {name: table[:, columns] for name, table in self._tables().items()}
        return dataclasses.replace(self, rows=rows, usual=self.usual[columns], **tables)

    def with_rows(self, other: History, index: int) -> History:
        """This with the rows of another over the same steps, in front of row `index`."""
        tables: dict[str, Any] = {
            name: np.hstack([table, getattr(other, name)]) for name, table in self._tables().items()
        }
        usual = np.concatenate([self.usual, other.usual])
        both = dataclasses.replace(self, rows=(*self.rows, *other.rows), usual=usual, **tables)
        own, added = range(len(self.rows)), range(len(self.rows), len(both.rows))
        return both.take([*own[:index], *added, *own[index:]])

    def series(self, row: int) -> Series:
        """One row where it was recorded, NaN and Inf where that is what it held."""
        seen = self.marks[:, row] != Mark.MISSING
        values, marks = self.values[seen, row], self.marks[seen, row]
        values[marks == Mark.INF], values[marks == Mark.NAN] = np.inf, np.nan
        return Series(self.steps[seen], values)

    def last(self, row: int) -> tuple[int, float] | None:
        """The step and value of the row's latest record; NaN or Inf where that is what it held."""
        series = self.series(row)
        if not len(series) or self.rows[row].frozen:
            return None
        return int(series.steps[-1]), float(series.values[-1])

    def _tables(self) -> dict[str, Any]:
        return {name: table for name in _TABLES if (table := getattr(self, name)) is not None}


_TABLES: Final = ("values", "marks", "low", "high")


def log_ratios(values: FloatArray, usual: FloatArray) -> FloatArray:
    """log2(|value| / usual) by column; -inf for a zero, +inf over a usual zero, 0 where both are zero."""
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        size = np.abs(values)
        out: FloatArray = np.log2(size) - np.log2(usual)[None, :]
    out[(size == 0) & (usual == 0)[None, :]] = 0.0
    return out


def usual_of(values: FloatArray) -> FloatArray:
    """The median size of each column's values: of the non-zero ones where most are zero, NaN without any."""
    size = np.abs(values)
    out = np.full(values.shape[1], np.nan)
    for index in range(values.shape[1]):
        column = size[:, index]
        column = column[np.isfinite(column)]
        if not len(column):
            continue
        middle = float(np.median(column))
        positive = column[column > 0]
        out[index] = float(np.median(positive)) if middle == 0 and len(positive) else middle
    return out


def usual_before(steps: IntArray, values: FloatArray, marks: MarkArray, before: int | None) -> FloatArray:
    """What is usual for each row over the steps before one, or over all where those are too few to tell."""
    num_past = len(steps) if before is None else int(np.searchsorted(steps, before))
    past = slice(num_past if num_past >= _MIN_PAST else len(steps))
    return usual_of(np.where(marks[past] >= Mark.INF, np.nan, values[past]))


_MIN_PAST: Final = 8
