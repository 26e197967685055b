"""What stays of a segment's tables when old steps are thinned out.

Rows: the last of each site's bucket, exact as it was. Vectors: of each site every so many-th. Scalars, once rows are far apart: the
least, the largest and the last of each bucket, and what is not finite. Events: facts stay; samples that are taken again and again
thin out with the rows. Steps to keep whole are kept in every table.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import numpy.typing as npt

from stethoscope.record import IntArray, events
from stethoscope.store.tables import SortedRows

Kept = list[tuple[int, int]]
Mask = npt.NDArray[np.bool_]

REPEATED_LOOKS: Final = frozenset(
    kind.KIND
    for kind in (
        events.Attention,
        events.Backward,
        events.Batch,
        events.EvalBatch,
        events.Governor,
        events.LossGraph,
        events.Units,
    )
)
"""Kinds of events of which there is one every few steps, each a sample of the same thing."""
SCALARS_FROM: Final = 64
"""Steps per bucket of rows from which on scalars thin out too."""
_SCALARS_FINER: Final = 4
"""Buckets of scalars are this much smaller than those of rows."""


def kept_rows(rows: SortedRows, bucket: int, kept: Kept) -> Mask:
    """The last row of each site's bucket, and every row of the steps to keep."""
    starts = rows.steps // bucket
    mask = np.ones(len(rows), bool)
    mask[:-1] = (starts[1:] != starts[:-1]) | (rows.sites[1:] != rows.sites[:-1])
    return mask | _within_ranges(rows.steps, kept)


def slim_vectors(table: Any, factor: int, kept: Kept) -> Any:
    """Of vectors sorted by site, then step, the last of every `factor` of a site."""
    steps, sites = table.column("step").to_numpy(), table.column("site").to_numpy()
    if not len(steps):
        return table
    edge = np.ones(len(sites), bool)
    edge[1:] = sites[1:] != sites[:-1]
    first = np.flatnonzero(edge)
    counts = np.diff(np.append(first, len(sites)))
    index = np.arange(len(sites)) - np.repeat(first, counts)
    # Counted from the last one: the newest of a segment always stays.
    mask = (np.repeat(counts, counts) - 1 - index) % factor == 0
    return _filter_table(table, mask | _within_ranges(steps, kept))


def slim_scalars(table: Any, bucket: int, kept: Kept) -> Any:
    """The least, the largest and the last value of each scalar's bucket, and its first that is not finite."""
    size = bucket // _SCALARS_FINER
    if bucket < SCALARS_FROM or not len(table):
        return table
    steps, values = table.column("step").to_numpy(), table.column("value").to_numpy()
    names = table.column("name").combine_chunks()
    codes = (names if hasattr(names, "indices") else names.dictionary_encode()).indices.to_numpy()
    buckets = steps // size
    mask = _within_ranges(steps, kept)
    last = _smallest_of_each(codes, buckets, -np.arange(len(steps)))
    mask[last] = True
    finite = np.isfinite(values)
    for sign in (1.0, -1.0):
        extreme = _smallest_of_each(codes, buckets, np.where(finite, sign * values, np.inf))
        mask[extreme[sign * values[extreme] < sign * values[last]]] = True
    odd = _smallest_of_each(codes, buckets, finite)
    mask[odd[~finite[odd]]] = True
    return _filter_table(table, mask)


def slim_events(table: Any, bucket: int, kept: Kept) -> Any:
    """Every fact, and of repeated looks the last of each kind's bucket."""
    if not len(table):
        return table
    steps, kinds = table.column("step").to_numpy(), table.column("kind").to_pylist()
    mask = _within_ranges(steps, kept)
    seen: set[tuple[str, int]] = set()
    for index in range(len(kinds) - 1, -1, -1):
        kind = kinds[index]
        where = kind, int(steps[index]) // bucket
        if kind not in REPEATED_LOOKS or where not in seen:
            mask[index] = True
        seen.add(where)
    return _filter_table(table, mask)


def _smallest_of_each(codes: IntArray, buckets: IntArray, values: npt.NDArray[Any]) -> IntArray:
    """Of each code and bucket the index of the smallest value; always in the same order of code and bucket."""
    order = np.lexsort((values, buckets, codes))
    edge = np.ones(len(order), bool)
    edge[1:] = (codes[order][1:] != codes[order][:-1]) | (buckets[order][1:] != buckets[order][:-1])
    return order[edge]


def _within_ranges(steps: IntArray, kept: Kept) -> Mask:
    mask = np.zeros(len(steps), bool)
    for first, last in kept:
        mask |= (steps >= first) & (steps <= last)
    return mask


def _filter_table(table: Any, mask: Mask) -> Any:
    import pyarrow as pa

    return table if mask.all() else table.filter(pa.array(mask))
