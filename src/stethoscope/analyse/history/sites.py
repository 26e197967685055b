"""One statistic of each site as it was recorded, by steps or in buckets of them; and several sites put together as one.

Promises: of steps a group's value is what one tensor of all its sites would have; of buckets it is put together from
the sites' means, lowest and highest values, which is exact for one site and close for several.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from stethoscope.analyse.bins import Mark, MarkArray
from stethoscope.analyse.grouping import row_name
from stethoscope.analyse.recorded import Recorded
from stethoscope.analyse.tree import Node
from stethoscope.kernels import columns
from stethoscope.kernels.statistics import STATISTICS, Across, statistic
from stethoscope.record import FloatArray, IntArray, Kind, Site, SiteInfo
from stethoscope.store import BucketMatrix, Matrix
from stethoscope.store.downsample.dense import INF, NAN

Floats = npt.NDArray[np.floating[Any]]
"""float64 of rows, float32 of buckets."""

_MERGE_STEPS: Final = 256


@dataclasses.dataclass(frozen=True, eq=False, slots=True)
class SiteValues:
    """Tables of steps (or of buckets) by sites, [S, N]."""

    steps: IntArray
    sites: tuple[SiteInfo, ...]
    values: Floats
    present: npt.NDArray[np.bool_]
    broken: npt.NDArray[np.uint8]
    """1 where an element was infinite, 2 where one was NaN."""


def sites_by_step(run: Recorded, kind: Kind, stat: str, pattern: str, first: int, last: int) -> SiteValues:
    """The rows of these steps."""
    found = run.matrix(kind, stat, pattern=pattern, first=first, last=last)
    broken = np.zeros_like(found.missing, dtype=np.uint8)
    for name in STATISTICS["num_nonfinite"].inputs:  # one after the other: each is as large as all else
        counted = run.matrix(kind, name, pattern=pattern, first=first, last=last)
        is_broken = counted.values > 0
        if not np.array_equal(counted.steps, found.steps) or counted.sites != found.sites:
            is_broken = _aligned(is_broken, counted, found)
        np.maximum(broken, is_broken.view(np.uint8) * np.uint8(NAN if name == "num_nan" else INF), out=broken)
    return SiteValues(found.steps, tuple(found.sites), found.values, ~found.missing, broken)


def _aligned(flags: npt.NDArray[np.bool_], given: Matrix, wanted: Matrix) -> npt.NDArray[np.bool_]:
    """The same flags at the other table's steps and sites: reading one column may show that a file cannot be trusted."""
    out = np.zeros(wanted.values.shape, dtype=np.bool_)
    _, to_rows, from_rows = np.intersect1d(wanted.steps, given.steps, return_indices=True)
    indices = {info.site: index for index, info in enumerate(given.sites)}
    for column, info in enumerate(wanted.sites):
        if info.site in indices:
            out[to_rows, column] = flags[from_rows, indices[info.site]]
    return out


def sites_by_bucket(source: BucketMatrix) -> SiteValues:
    """Stored buckets, with the mean of each."""
    return SiteValues(source.starts, source.sites, source.mean.T, source.rows.T > 0, source.broken.T)


def members_of(nodes: Sequence[Node], sites: Sequence[Site]) -> list[IntArray]:
    """For each node the indices of its sites."""
    found: dict[tuple[int, str], list[int]] = {}
    depths = sorted({node.depth for node in nodes})
    for index, site in enumerate(sites):
        for depth in depths:
            found.setdefault((depth, row_name(site, depth)), []).append(index)
    return [np.array(found.get((node.depth, node.path), ()), dtype=np.int64) for node in nodes]


def values_together(table: Floats, members: Sequence[IntArray], across: Across) -> FloatArray:
    """The statistic of each group of sites, [S, R]; NaN where none of them has a value.

    Where only whole rows could be merged, the mean over the sites stands for it.
    """
    out = np.full((len(table), len(members)), np.nan)
    for group, part in enumerate(members):
        if len(part) == 1:
            out[:, group] = table[:, part[0]]
        elif len(part):
            inside = table[:, part]
            out[:, group] = np.where(np.isnan(inside).all(axis=1), np.nan, _TOGETHER[across](inside))
    return out


def _root_sum_squares(values: Floats) -> FloatArray:
    values = np.where(np.isnan(values), values.dtype.type(0), values)
    if values.dtype == np.float32:  # its squares fit in float64; those of rows, which are float64, may not
        return np.asarray(np.sqrt(np.square(values, dtype=np.float64).sum(axis=1)))
    return np.asarray(np.hypot.reduce(values, axis=1))


def _nan_sum(values: Floats) -> FloatArray:
    return np.asarray(np.nansum(values, axis=1, dtype=np.float64))


def _nan_mean(values: Floats) -> FloatArray:
    return np.asarray(_nan_sum(values) / np.maximum((~np.isnan(values)).sum(axis=1), 1))


_TOGETHER: Final[Mapping[Across, Callable[[Floats], FloatArray]]] = {
    Across.ROOT_SUM_SQUARES: _root_sum_squares,
    Across.LARGEST: lambda values: np.fmax.reduce(values, axis=1),
    Across.SMALLEST: lambda values: np.fmin.reduce(values, axis=1),
    Across.SUM: _nan_sum,
    Across.MERGED: _nan_mean,
}


def rows_together(run: Recorded, source: SiteValues, stat: str, members: Sequence[IntArray]) -> FloatArray:
    """As `values_together` by merging whole rows: exact for statistics that do not add up by themselves."""
    out = np.full((len(source.steps), len(members)), np.nan)
    for begin in range(0, len(source.steps), _MERGE_STEPS):
        steps = source.steps[begin : begin + _MERGE_STEPS]
        block = run.block(int(steps[0]), int(steps[-1]))
        number = {info.site: index for index, info in enumerate(block.sites)}
        inside = begin + np.searchsorted(steps, block.steps)
        for group, part in enumerate(members):
            table = columns.empty_rows(len(block.steps))
            for column in (number[source.sites[index].site] for index in part.tolist()):
                rows = np.where(block.present[:, column, None], block.rows[:, column], columns.empty_rows(1))
                table = columns.merge(table, rows)
            if len(part):
                out[inside, group] = columns.stat(table, stat)
    return out


def marks_together(source: SiteValues, members: Sequence[IntArray], stat: str, largest: FloatArray) -> MarkArray:
    """What each group is where it is no plain number, [S, R]; DEAD where even its `largest` value is zero."""
    out = np.full((len(source.steps), len(members)), Mark.MISSING, dtype=np.uint8)
    for group, part in enumerate(members):
        if not len(part):
            continue
        out[source.present[:, part].any(axis=1), group] = Mark.PLAIN
        if statistic(stat).is_size:
            out[(largest[:, group] == 0) & (out[:, group] == Mark.PLAIN), group] = Mark.DEAD
        if not statistic(stat).is_count:
            worst = source.broken[:, part].max(axis=1)
            out[worst == INF, group], out[worst == NAN, group] = Mark.INF, Mark.NAN
    return out
