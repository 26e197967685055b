"""Series folded into buckets of 2**level steps: minimum, maximum, mean and last value of each.

BucketTable begin at multiples of their size, so those of two runs, or of two pieces of one run, fit together.
Segments store the level `BASE_LEVEL`; coarser ones follow from it, finer ones from the rows. NaN (null)
values are left out of minimum, maximum and mean; a bucket of nothing else stays NaN.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any, Final

import numpy as np

from stethoscope.kernels.columns import COLUMNS
from stethoscope.record import FloatArray, IntArray, SiteInfo
from stethoscope.store.encoding import round_to_24_bits
from stethoscope.store.tables import SortedRows, float_column, site_strings

BASE_LEVEL: Final = 6


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class SiteBuckets:
    """One statistic in buckets; `steps` are the first steps that the buckets could hold."""

    level: int
    steps: IntArray
    min: FloatArray
    max: FloatArray
    mean: FloatArray
    last: FloatArray
    count: IntArray
    """Values that are not null."""

    def __len__(self) -> int:
        return len(self.steps)


@dataclasses.dataclass(slots=True)
class BucketTable:
    """Folded columns: all arrays [buckets, columns]; `sites` and `steps` [buckets]."""

    sites: IntArray
    steps: IntArray
    low: FloatArray
    high: FloatArray
    mean: FloatArray
    last: FloatArray
    count: IntArray


def fold_rows(rows: SortedRows) -> BucketTable:
    """Rows sorted by site, then step, in buckets of the smallest size."""
    there = (~np.isnan(rows.table)).astype(np.int64)
    table = rows.table
    return refold(BucketTable(rows.sites, rows.steps, table, table, table, table, there), BASE_LEVEL)


def refold(given: BucketTable, level: int) -> BucketTable:
    """BucketTable (or rows, as buckets of one) sorted by site, then step, in larger buckets."""
    if not len(given.steps):
        return given
    starts = (given.steps >> level) << level
    edge = np.ones(len(starts), bool)
    edge[1:] = (starts[1:] != starts[:-1]) | (given.sites[1:] != given.sites[:-1])
    first = np.flatnonzero(edge)
    ends = np.append(first[1:], len(starts)) - 1
    shape = len(first), given.low.shape[1]
    low, high, mean, count = np.empty(shape), np.empty(shape), np.empty(shape), np.empty(shape, np.int64)
    for k in range(shape[1]):  # a column at a time, side by side in memory: reduceat is five times as fast
        values, there = np.ascontiguousarray(given.mean[:, k]), np.ascontiguousarray(given.count[:, k])
        low[:, k] = np.fmin.reduceat(np.ascontiguousarray(given.low[:, k]), first)
        high[:, k] = np.fmax.reduceat(np.ascontiguousarray(given.high[:, k]), first)
        count[:, k] = np.add.reduceat(there, first)
        with np.errstate(invalid="ignore", divide="ignore", over="ignore"):
            total = np.add.reduceat(np.where(there > 0, values, 0.0) * there, first)
            mean[:, k] = np.where(count[:, k] > 0, total / count[:, k], np.nan)
    return BucketTable(given.sites[first], starts[first], low, high, mean, given.last[ends], count)


def fold_series(steps: IntArray, values: FloatArray, level: int) -> SiteBuckets:
    """One series in buckets."""
    column = values[:, None]
    there = (~np.isnan(column)).astype(np.int64)
    zeros = np.zeros(len(steps), np.int64)
    return one_column(refold(BucketTable(zeros, steps, column, column, column, column, there), level), 0, level)


def one_column(buckets: BucketTable, index: int, level: int) -> SiteBuckets:
    """One statistic of buckets that are all of one site."""
    return SiteBuckets(
        level,
        buckets.steps,
        buckets.low[:, index],
        buckets.high[:, index],
        buckets.mean[:, index],
        buckets.last[:, index],
        buckets.count[:, index],
    )


def join(parts_given: Sequence[SiteBuckets], level: int) -> SiteBuckets:
    """SiteBucketss of pieces of one series, in order of writing, as one; shared buckets are joined."""
    parts = [part for part in parts_given if len(part)]
    if not parts:
        empty = np.empty(0)
        return SiteBuckets(level, np.empty(0, np.int64), empty, empty, empty, empty, np.empty(0, np.int64))
    steps = np.concatenate([part.steps for part in parts])
    order = np.argsort(steps, kind="stable")

    def column(name: str) -> Any:
        return np.concatenate([getattr(part, name) for part in parts])[order][:, None]

    zeros = np.zeros(len(steps), np.int64)
    given = BucketTable(
        zeros, steps[order], column("min"), column("max"), column("mean"), column("last"), column("count")
    )
    return one_column(refold(given, level), 0, level)


def buckets_table(buckets: BucketTable, infos: Sequence[SiteInfo], ordinal: int) -> Any:
    """The Arrow table of buckets: `norm_min`, `norm_max`, `norm_mean`, `norm_last`, `norm_count`, ..."""
    import pyarrow as pa

    columns: dict[str, Any] = {
        "step": pa.array(buckets.steps, pa.int64()),
        "site": pa.array(buckets.sites.astype(np.uint32)),
        **site_strings(buckets.sites, infos),
        "start": pa.array(np.full(len(buckets.steps), ordinal, np.int32)),
    }
    for index, name in enumerate(COLUMNS):
        for part, values in (("min", buckets.low), ("max", buckets.high), ("last", buckets.last)):
            columns[f"{name}_{part}"] = pa.array(float_column(np.ascontiguousarray(values[:, index])))
        columns[f"{name}_mean"] = pa.array(float_column(round_to_24_bits(buckets.mean[:, index])))
        columns[f"{name}_count"] = pa.array(buckets.count[:, index].astype(np.uint32))
    return pa.table(columns)
