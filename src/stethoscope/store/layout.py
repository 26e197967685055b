"""Rows laid out as steps by sites, from any number of pieces, process starts and ranks."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from stethoscope.kernels.columns import COLUMNS, INDEX, Table, merge
from stethoscope.kernels.statistics import derive, statistic
from stethoscope.record import FloatArray, IntArray, SiteInfo
from stethoscope.store.pieces import Chunk

_TOGETHER: Final = 64


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class Matrix:
    """One statistic: `values[s, n]` is of `steps[s]` and `sites[n]`, NaN where `missing[s, n]`."""

    steps: IntArray
    sites: tuple[SiteInfo, ...]
    values: FloatArray
    missing: npt.NDArray[np.bool_]


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class Block:
    """All statistics: `rows[s, n]` is the row of `steps[s]` and `sites[n]`, NaN where not `present[s, n]`."""

    steps: IntArray
    sites: tuple[SiteInfo, ...]
    rows: FloatArray
    present: npt.NDArray[np.bool_]
    calls: IntArray


@dataclasses.dataclass(slots=True, eq=False)
class Grid:
    """Values [steps, sites, columns] and which of them are there."""

    steps: IntArray
    values: Table
    present: npt.NDArray[np.bool_]
    calls: IntArray


def columns_of(name: str) -> tuple[int, ...]:
    """The columns that a statistic is read from; KeyError with the known names where there is none such."""
    return tuple(INDEX[column] for column in statistic(name).inputs or (name,))


def derive_statistic(values: Table, name: str, columns: tuple[int, ...]) -> FloatArray:
    """A statistic of rows that hold only these columns."""
    return derive(name, {COLUMNS[column]: values[..., at] for at, column in enumerate(columns)})


def lay_out(chunks: Iterable[Chunk], sites: IntArray, num_sites: int, width: int) -> Grid:
    """Chunks in order of writing as one grid: a later row replaces an earlier one of its step and site."""
    kept = list(_join_steps(chunks))
    steps = _all_steps(kept)
    column = np.full(num_sites, -1, np.int64)
    column[sites] = np.arange(len(sites))
    grid = _empty_grid(steps, len(sites), width)
    for chunk in kept:
        rows, columns = np.searchsorted(steps, chunk.steps), column[chunk.sites]
        if chunk.is_dense:
            where = _region_index(rows, columns)
            grid.values[where] = chunk.values.transpose(1, 0, 2)
            grid.present[where] = True
            grid.calls[where] = chunk.calls.T
        else:
            grid.values[rows, columns] = chunk.values
            grid.present[rows, columns] = True
            grid.calls[rows, columns] = chunk.calls
    return grid


def _join_steps(chunks: Iterable[Chunk]) -> Iterator[Chunk]:
    """Single steps of the same sites taken together: a step alone would be spread over the whole grid's memory."""
    some: list[Chunk] = []
    for chunk in chunks:
        is_single = isinstance(chunk.steps, int)
        if some and not (
            is_single and chunk.sites is some[0].sites and chunk.steps > some[-1].steps and len(some) < _TOGETHER
        ):
            yield _stack_chunks(some)
            some = []
        if is_single:
            some.append(chunk)
        else:
            yield chunk
    if some:
        yield _stack_chunks(some)


def _stack_chunks(some: list[Chunk]) -> Chunk:
    if len(some) == 1:
        return some[0]
    values = np.stack([chunk.values for chunk in some], axis=1)
    calls = np.stack([chunk.calls for chunk in some], axis=1)
    return Chunk(np.array([chunk.steps for chunk in some], np.int64), some[0].sites, values, calls, is_dense=True)


def _empty_grid(steps: IntArray, num_sites: int, width: int) -> Grid:
    """A grid without values. A site's steps lie side by side in memory, as in the segments."""
    return Grid(
        steps,
        np.full((num_sites, len(steps), width), np.nan).transpose(1, 0, 2),
        np.zeros((num_sites, len(steps)), bool).T,
        np.zeros((num_sites, len(steps)), np.int64).T,
    )


def _region_index(rows: IntArray, columns: IntArray) -> Any:
    """The index of a rectangle of the grid, by slices where it can be: those copy several times as fast."""
    parts = [
        slice(int(part[0]), int(part[0]) + len(part)) if bool((np.diff(part) == 1).all()) else part
        for part in (rows, columns)
    ]
    both_listed = not any(isinstance(part, slice) for part in parts)
    return np.ix_(*parts) if both_listed else tuple(parts)


def _all_steps(chunks: Sequence[Chunk]) -> IntArray:
    single = np.unique(np.array([chunk.steps for chunk in chunks if isinstance(chunk.steps, int)], np.int64))
    several = [
        chunk.steps if chunk.is_dense else np.unique(chunk.steps)
        for chunk in chunks
        if not isinstance(chunk.steps, int)
    ]
    return np.unique(np.concatenate([single, *several]))


def merge_ranks(grids: Sequence[Grid], is_shard: npt.NDArray[np.bool_]) -> Grid:
    """The grids of several ranks (all columns) added up, step by step and site by site.

    Where a rank's row is the first one's to the last bit, both hold the same tensor, which counts once: a replica, unless the
    site `is_shard`.
    """
    steps = np.unique(np.concatenate([grid.steps for grid in grids]))
    total = _spread_grid(grids[0], steps)
    first = total.values.copy()
    for grid in grids[1:]:
        other = _spread_grid(grid, steps)
        is_copy = ((first == other.values) | (np.isnan(first) & np.isnan(other.values))).all(axis=2) & ~is_shard
        both = total.present & other.present & ~is_copy
        only = other.present & ~total.present
        total.values[both] = merge(total.values[both], other.values[both])
        total.values[only] = other.values[only]
        total.calls += np.where(both | only, other.calls, 0)
        total.present |= other.present
    return total


def _spread_grid(grid: Grid, steps: IntArray) -> Grid:
    if len(grid.steps) == len(steps):
        return grid
    out = _empty_grid(steps, *grid.values.shape[1:])
    columns = np.searchsorted(steps, grid.steps)
    out.values[columns], out.present[columns], out.calls[columns] = grid.values, grid.present, grid.calls
    return out
