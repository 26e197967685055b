"""Each site against its own history: ratios to its median, groups of sites, steps in bins.

Promises: a group's value is the statistic of its sites taken together (norms add in quadrature); a bin shows
the worst thing in it (NaN over Inf over an extreme), but not the tail of its own noise; what was not measured
is never a number.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import numpy.typing as npt

from stethoscope.analyse.bins import Bins, Mark, MarkArray, bins_over
from stethoscope.analyse.grouping import Row, frozen_sites, group_rows
from stethoscope.kernels import columns
from stethoscope.kernels.statistics import Across, statistic
from stethoscope.record import FloatArray, IntArray, Kind, SiteInfo

if TYPE_CHECKING:
    from stethoscope.store import Run

BoolArray = npt.NDArray[np.bool_]


@dataclasses.dataclass(frozen=True, eq=False, slots=True)
class History:
    """One statistic of several rows over steps, with what is usual for each."""

    kind: Kind
    stat: str
    steps: IntArray
    rows: tuple[Row, ...]
    values: FloatArray
    """[S, R]; NaN where there is no finite value."""
    marks: MarkArray
    """[S, R]; a Mark for each step and row."""
    usual: FloatArray
    """[R]; the median of the size of each row's values, NaN where there is none."""

    @property
    def ratios(self) -> FloatArray:
        """log2 of each value's size over what is usual there, [S, R]; 0 where both are zero."""
        return log_ratios(self.values, self.usual)

    def window(self, first: int | None = None, last: int | None = None) -> History:
        """The same rows over fewer steps; what is usual stays what it was."""
        keep = np.ones(len(self.steps), dtype=bool)
        if first is not None:
            keep &= self.steps >= first
        if last is not None:
            keep &= self.steps <= last
        return dataclasses.replace(self, steps=self.steps[keep], values=self.values[keep], marks=self.marks[keep])

    def take(self, places: Sequence[int]) -> History:
        """Only these rows, in this order."""
        at = np.asarray(places, dtype=np.int64)
        return dataclasses.replace(
            self,
            rows=tuple(self.rows[place] for place in places),
            values=self.values[:, at],
            marks=self.marks[:, at],
            usual=self.usual[at],
        )

    def last(self, row: int) -> tuple[int, float] | None:
        """The step and value of the row's latest record; NaN or Inf where that is what it held."""
        seen = np.flatnonzero(self.marks[:, row] != Mark.MISSING)
        if not len(seen) or self.rows[row].frozen:
            return None
        place = int(seen[-1])
        mark = self.marks[place, row]
        value = {int(Mark.NAN): np.nan, int(Mark.INF): np.inf}.get(int(mark), self.values[place, row])
        return int(self.steps[place]), float(value)


@dataclasses.dataclass(frozen=True, eq=False, slots=True)
class Grid:
    """A history in bins: one mark and one level for each row and bin."""

    history: History
    bins: Bins
    marks: MarkArray
    """[R, C]"""
    levels: FloatArray
    """[R, C]; log2 ratio, or the value itself; meant only where the mark is PLAIN."""


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
    for place in range(values.shape[1]):
        column = size[:, place]
        column = column[np.isfinite(column)]
        if not len(column):
            continue
        middle = float(np.median(column))
        positive = column[column > 0]
        out[place] = float(np.median(positive)) if middle == 0 and len(positive) else middle
    return out


def _types(run: Run) -> dict[str, str]:
    """The types of the modules whose names are numbers."""
    model = getattr(run, "info", {}).get("model")
    modules = model.get("modules", []) if isinstance(model, dict) else []
    return {
        str(module.get("path")): str(module.get("type", ""))
        for module in modules
        if isinstance(module, dict) and str(module.get("path")).isdecimal()
    }


def history(
    run: Run,
    kind: Kind | str = Kind.GRADIENT,
    stat: str = "norm",
    *,
    pattern: str = "*",
    depth: int | None = None,
    usual_before: int | None = None,
    max_rows: int = 24,
    rank: int | None = None,
) -> History:
    """The history of the run's sites of one kind, grouped at `depth` path parts (None: as deep as fits).

    `usual_before` takes the median over the steps before it alone, where there are at least eight: what was
    usual until a fault began.
    """
    source = _Source(run, Kind(kind), stat, pattern, rank)
    matrix = source.matrix(stat)
    infos: tuple[SiteInfo, ...] = tuple(matrix.sites)
    frozen = frozen_sites(run.sites, source.kind, pattern) if infos else []
    rows, members = group_rows([info.site for info in infos], frozen, depth, max_rows)
    asleep = np.array([info.measured == "frozen" for info in infos], dtype=bool)
    types = _types(run)
    rows = tuple(
        dataclasses.replace(row, frozen=bool(asleep[part].all()), type=types.get(row.name, ""))
        for row, part in zip(rows, members, strict=True)
    )
    steps = np.asarray(matrix.steps, dtype=np.int64)
    present = ~np.asarray(matrix.missing, dtype=bool)
    values = _combined(source, matrix, members)
    marks = _marks(source, present, members)
    marks[:, [row.frozen for row in rows]] = Mark.FROZEN
    if statistic(stat).is_size:
        marks[(values == 0) & (marks == Mark.PLAIN)] = Mark.DEAD
    values[marks == Mark.MISSING] = np.nan
    _mark_skipped(run, steps, marks)
    past = values[steps < usual_before] if usual_before is not None else values
    if len(past) < 8:
        past = values
    usual = usual_of(np.where(np.isin(marks[: len(past)], (Mark.NAN, Mark.INF)), np.nan, past))
    return History(source.kind, stat, steps, rows, values, marks, usual)


@dataclasses.dataclass(frozen=True, slots=True)
class _Source:
    """What is read, so that several statistics of the same sites can be."""

    run: Run
    kind: Kind
    stat: str
    pattern: str
    rank: int | None

    def matrix(self, stat: str) -> Any:
        return self.run.matrix(self.kind, stat, pattern=self.pattern, rank=self.rank)


def grid(source: History, width: int, *, raw: bool = False) -> Grid:
    """The history in at most `width` bins, as ratios to the usual or (`raw`) as values."""
    bins = bins_over(source.steps, width)
    shape = (len(source.rows), len(bins))
    marks = np.full(shape, Mark.MISSING, dtype=np.uint8)
    levels = np.full(shape, np.nan)
    values = source.values if raw else source.ratios
    ratios = source.ratios
    limits = extreme_limits(ratios)
    for part, inside in _bins_of_a_size(bins.index(source.steps), len(bins)):
        marks[:, part] = _worst_marks(source.marks[inside]).T
        levels[:, part] = _typical_or_extreme(values[inside], ratios[inside], limits).T
    marks[[row.frozen for row in source.rows], :] = Mark.FROZEN
    return Grid(source, bins, marks, levels)


def _bins_of_a_size(at: IntArray, num_bins: int) -> Iterator[tuple[IntArray, IntArray]]:
    """Bins with the same number of steps together: which, and the places of their steps [B, S]. `at` must be sorted."""
    begins = np.searchsorted(at, np.arange(num_bins + 1))
    amounts = np.diff(begins)
    for amount in np.unique(amounts[amounts > 0]).tolist():
        part = np.flatnonzero(amounts == amount)
        yield part, begins[part, None] + np.arange(amount)


def _worst_marks(marks: MarkArray) -> MarkArray:
    """One mark a row for the marks of bins [B, S, R]."""
    plain = (marks == Mark.PLAIN).any(axis=1)
    worst = marks.max(axis=1)
    out: MarkArray = np.where(plain & (worst < Mark.INF), np.uint8(Mark.PLAIN), worst).astype(np.uint8)
    return out


def extreme_limits(ratios: FloatArray) -> FloatArray:
    """How far from usual, in log2, a value of each row must be to stand for its whole bin.

    The farthest of many noisy values is always far: a wide bin would call every healthy row strange. So it
    takes a factor of three, and seven times what the row's own values usually stray from each other.
    """
    with np.errstate(invalid="ignore"):  # infinite values, about an infinite middle
        spread = _lower_median(np.abs(ratios - _lower_median(ratios)[None, :]))
    limits: FloatArray = np.fmax(np.log2(3.0), 7.0 * np.where(np.isfinite(spread), spread, 0.0))
    return limits


def _typical_or_extreme(values: FloatArray, ratios: FloatArray, limits: FloatArray) -> FloatArray:
    """Of each row of the bins [B, S, R] the value farthest from usual where that is past its limit, else the middle one."""
    if values.shape[1] == 1:
        only: FloatArray = values[:, 0]
        return only
    distance = np.where(np.isnan(ratios), -1.0, np.abs(ratios))
    place = distance.argmax(axis=1)[:, None]
    farthest = np.take_along_axis(values, place, axis=1)[:, 0]
    is_extreme = np.take_along_axis(distance, place, axis=1)[:, 0] > limits
    out: FloatArray = np.where(is_extreme, farthest, _lower_median(values, axis=1))
    return out


def _lower_median(values: FloatArray, axis: int = 0) -> FloatArray:
    """The middle value along an axis, one that is there; NaN where there is none."""
    ordered = np.sort(values, axis=axis)
    middle = np.maximum((~np.isnan(values)).sum(axis=axis, keepdims=True) - 1, 0) // 2
    if not values.shape[axis]:
        return np.full(np.delete(values.shape, axis), np.nan)
    out: FloatArray = np.take_along_axis(ordered, middle, axis=axis).squeeze(axis)
    return out


def _combined(source: _Source, matrix: Any, members: Sequence[IntArray]) -> FloatArray:
    """The statistic of each group at each step, [S, R]."""
    values = np.asarray(matrix.values, dtype=np.float64)
    out = np.full((len(matrix.steps), len(members)), np.nan)
    together = _REDUCERS.get(statistic(source.stat).across)
    if together is None and any(len(part) > 1 for part in members):
        return _merged(source, matrix, members)
    for place, part in enumerate(members):
        if len(part) == 1:
            out[:, place] = values[:, part[0]]
        elif len(part) and together is not None:
            inside = values[:, part]
            empty = np.isnan(inside).all(axis=1)
            out[:, place] = np.where(empty, np.nan, together(inside))
    return out


def _merged(source: _Source, matrix: Any, members: Sequence[IntArray]) -> FloatArray:
    """As `_combined`, by merging whole rows: exact for statistics that do not add up by themselves."""
    steps = np.asarray(matrix.steps, dtype=np.int64)
    out = np.full((len(steps), len(members)), np.nan)
    for begin in range(0, len(steps), _MERGE_STEPS):
        part = steps[begin : begin + _MERGE_STEPS]
        block = source.run.block(int(part[0]), int(part[-1]), rank=source.rank)
        place_of = {info.site: at for at, info in enumerate(block.sites)}
        at = np.searchsorted(part, block.steps)
        for place, member in enumerate(members):
            table = columns.empty_rows(len(block.steps))
            for site in (matrix.sites[int(column)].site for column in member):
                there, rows = block.present[:, place_of[site], None], block.rows[:, place_of[site]]
                table = columns.merge(table, np.where(there, rows, columns.empty_rows(1)))
            if len(member):
                out[begin + at, place] = columns.stat(table, source.stat)
    return out


_MERGE_STEPS: Final = 256


def _quadrature(values: FloatArray) -> FloatArray:
    out: FloatArray = np.hypot.reduce(np.nan_to_num(values, nan=0.0), axis=1)
    return out


def _sum(values: FloatArray) -> FloatArray:
    out: FloatArray = np.nansum(values, axis=1)
    return out


def _largest(values: FloatArray) -> FloatArray:
    out: FloatArray = np.fmax.reduce(values, axis=1)
    return out


def _smallest(values: FloatArray) -> FloatArray:
    out: FloatArray = np.fmin.reduce(values, axis=1)
    return out


_REDUCERS: Final = {
    Across.ROOT_SUM_SQUARES: _quadrature,
    Across.LARGEST: _largest,
    Across.SMALLEST: _smallest,
    Across.SUM: _sum,
}


def _marks(source: _Source, present: BoolArray, members: Sequence[IntArray]) -> MarkArray:
    """PLAIN, MISSING, INF or NAN for each step and group."""
    out = np.full((len(present), len(members)), Mark.MISSING, dtype=np.uint8)
    nonfinite = np.nan_to_num(source.matrix("num_nonfinite").values)
    nans = nonfinite
    if nonfinite.any():
        nans = np.nan_to_num(source.matrix("num_nan").values)
    for place, part in enumerate(members):
        if not len(part):
            continue
        out[present[:, part].any(axis=1), place] = Mark.PLAIN
        if not statistic(source.stat).is_count:
            out[(nonfinite[:, part] > 0).any(axis=1), place] = Mark.INF
            out[(nans[:, part] > 0).any(axis=1), place] = Mark.NAN
    return out


def _mark_skipped(run: Run, steps: IntArray, marks: MarkArray) -> None:
    """Steps that the optimizer skipped, where nothing else is known of them."""
    skipped = [event.step for event in run.events("skipped_step")]
    if skipped:
        rows = np.isin(steps, skipped)
        inside = marks[rows]
        inside[inside == Mark.MISSING] = Mark.SKIPPED
        marks[rows] = inside
