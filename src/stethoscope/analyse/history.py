"""Each site against its own history: ratios to its median, groups of sites, steps in bins.

Promises: a group's value is the statistic of its sites taken together (norms add in quadrature); a bin shows
the worst thing in it (NaN over Inf over the value farthest from usual); what was not measured is never a
number.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import numpy.typing as npt

from stethoscope.analyse.bins import Bins, Mark, MarkArray, bins_over
from stethoscope.kernels import columns
from stethoscope.record import ROOT_NAME, FloatArray, IntArray, Kind, Site, SiteInfo, select

if TYPE_CHECKING:
    from stethoscope.store import Run

BoolArray = npt.NDArray[np.bool_]

SIZES: Final = frozenset({"norm", "abs_max", "mean_abs", "rms"})
"""Statistics whose zero says that every element is zero."""


@dataclasses.dataclass(frozen=True, slots=True)
class Row:
    """One line of the picture: a module or a tensor, and the sites that make it up."""

    name: str
    sites: tuple[Site, ...]
    frozen: bool = False
    """No site of this kind exists although the weights do: nothing asked for this gradient."""


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
        return dataclasses.replace(
            self, steps=self.steps[keep], values=self.values[keep], marks=self.marks[keep]
        )

    def take(self, places: Sequence[int]) -> History:
        """Only these rows, in this order."""
        at = np.asarray(places, dtype=np.int64)
        return dataclasses.replace(
            self, rows=tuple(self.rows[place] for place in places), values=self.values[:, at],
            marks=self.marks[:, at], usual=self.usual[at],
        )  # fmt: skip

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
    frozen = _frozen_sites(run.sites, source.kind, pattern) if infos else []
    rows, members = _rows([info.site for info in infos], frozen, depth, max_rows)
    asleep = np.array([info.measured == "frozen" for info in infos], dtype=bool)
    rows = tuple(
        dataclasses.replace(row, frozen=bool(asleep[part].all()))
        for row, part in zip(rows, members, strict=True)
    )
    steps = np.asarray(matrix.steps, dtype=np.int64)
    present = ~np.asarray(matrix.missing, dtype=bool)
    values = _combined(source, matrix, members)
    marks = _marks(source, present, members)
    marks[:, [row.frozen for row in rows]] = Mark.FROZEN
    if stat in SIZES:
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
    distance = np.abs(source.ratios)
    at = bins.index(source.steps)
    for place in range(len(bins)):
        inside = at == place
        if not inside.any():
            continue
        marks[:, place] = _worst_marks(source.marks[inside])
        levels[:, place] = _farthest(values[inside], distance[inside])
    marks[[row.frozen for row in source.rows], :] = Mark.FROZEN
    return Grid(source, bins, marks, levels)


def _worst_marks(marks: MarkArray) -> MarkArray:
    """One mark a row for the marks [S, R] of a bin."""
    plain = (marks == Mark.PLAIN).any(axis=0)
    out: MarkArray = np.where(plain, np.uint8(Mark.PLAIN), marks.max(axis=0)).astype(np.uint8)
    for mark in (Mark.INF, Mark.NAN):
        out[(marks == mark).any(axis=0)] = mark
    return out


def _farthest(values: FloatArray, distance: FloatArray) -> FloatArray:
    """Of each column's values the one farthest from usual; NaN where there is none."""
    far = np.where(np.isnan(distance), -1.0, distance)
    place = far.argmax(axis=0)
    picked: FloatArray = np.take_along_axis(values, place[None, :], axis=0)[0]
    return picked


def row_name(site: Site, depth: int) -> str:
    """The site's path cut to its first `depth` parts."""
    return ".".join(site.path.split(".")[:depth]) or ROOT_NAME


def fitting_depth(sites: Iterable[Site], max_rows: int = 24) -> int:
    """The deepest grouping by modules with at most `max_rows` rows; one deeper where that says too little."""
    modules = [site.module.split(".") if site.module else [site.name] for site in sites]
    deepest = max((len(parts) for parts in modules), default=1)
    sizes = {depth: len({tuple(parts[:depth]) for parts in modules}) for depth in range(1, deepest + 1)}
    chosen = max((depth for depth, rows in sizes.items() if rows <= max_rows), default=1)
    deeper = sizes.get(chosen + 1, 0)
    return chosen + 1 if sizes[chosen] < 5 and max_rows < deeper <= 400 else chosen


def _rows(
    sites: Sequence[Site], frozen: Sequence[Site], depth: int | None, max_rows: int
) -> tuple[tuple[Row, ...], list[IntArray]]:
    """The rows in the order of the model, and for each the columns of the matrix that belong to it."""
    by_modules = depth is None
    depth = fitting_depth([*sites, *frozen], max_rows) if depth is None else max(1, depth)
    groups: dict[str, list[int]] = {}
    members: dict[str, list[Site]] = {}
    for site in frozen:
        members.setdefault(_group_name(site, depth, by_modules), [])
    for place, site in enumerate(sites):
        name = _group_name(site, depth, by_modules)
        groups.setdefault(name, []).append(place)
        members.setdefault(name, []).append(site)
    order = _model_order(list(members), sites, frozen, depth, by_modules)
    rows = tuple(Row(name, tuple(members[name]), frozen=name not in groups) for name in order)
    return rows, [np.array(groups.get(name, []), dtype=np.int64) for name in order]


def _group_name(site: Site, depth: int, by_modules: bool) -> str:
    if by_modules and site.module:
        return ".".join(site.module.split(".")[:depth])
    return row_name(site, depth)


def _model_order(
    names: list[str], sites: Sequence[Site], frozen: Sequence[Site], depth: int, by_modules: bool
) -> list[str]:
    """Names in the order their sites were registered; frozen ones carry their place in the weights' order."""
    if not frozen:
        return names
    place = {_group_name(site, depth, by_modules): at for at, site in reversed(list(enumerate(frozen)))}
    known = {_group_name(site, depth, by_modules) for site in sites}
    out = [name for name in names if name in known]
    for name in sorted((n for n in names if n not in known), key=lambda n: place[n]):
        later = [at for at, other in enumerate(out) if _natural(other) > _natural(name)]
        out.insert(later[0] if later else len(out), name)
    return out


def _natural(name: str) -> tuple[tuple[int, int, str], ...]:
    return tuple((0, int(part), "") if part.isdecimal() else (1, 0, part) for part in name.split("."))


def _frozen_sites(infos: Sequence[SiteInfo], kind: Kind, pattern: str) -> list[Site]:
    """Weights that have no gradient (or update) site, although others do: nothing asked for theirs."""
    if kind not in (Kind.GRADIENT, Kind.UPDATE):
        return []
    seen = {info.site.path for info in infos if info.site.kind == kind}
    return [info.site for info in select(infos, pattern, Kind.WEIGHT) if info.site.path not in seen]


def _combined(source: _Source, matrix: Any, members: Sequence[IntArray]) -> FloatArray:
    """The statistic of each group at each step, [S, R]."""
    values = np.asarray(matrix.values, dtype=np.float64)
    out = np.full((len(matrix.steps), len(members)), np.nan)
    together = _REDUCERS.get(source.stat)
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
    "norm": _quadrature, "max": _largest, "abs_max": _largest, "min": _smallest, "abs_min": _smallest,
    "num_nonfinite": _sum, **dict.fromkeys(columns.COUNTS, _sum),
}  # fmt: skip


def _marks(source: _Source, present: BoolArray, members: Sequence[IntArray]) -> MarkArray:
    """PLAIN, MISSING, INF or NAN for each step and group."""
    out = np.full((len(present), len(members)), Mark.MISSING, dtype=np.uint8)
    nonfinite = np.nan_to_num(source.matrix("num_nonfinite").values)
    nans = nonfinite
    if nonfinite.any():
        nans = np.nan_to_num(source.matrix("num_nan").values)
    counted = source.stat in columns.COUNTS or source.stat == "num_nonfinite"
    for place, part in enumerate(members):
        if not len(part):
            continue
        out[present[:, part].any(axis=1), place] = Mark.PLAIN
        if not counted:
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
