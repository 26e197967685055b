"""The scalars of a sealed segment: loss, learning rate and the like, taken apart by name."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import numpy.typing as npt

from stethoscope.record import FloatArray, IntArray
from stethoscope.store.json_payload import EncodingError
from stethoscope.store.pieces import FIRST_STEP
from stethoscope.store.tables import untext

if TYPE_CHECKING:
    from stethoscope.store.cache import ByteCache
    from stethoscope.store.sealed_table import SealedTable


_T = TypeVar("_T")


class SegmentScalars:
    """The scalars of one segment: read once, kept by name."""

    def __init__(self, table: SealedTable | None, cache: ByteCache[npt.NDArray[Any]]) -> None:
        self._table, self._cache = table, cache
        self._names: set[str] | None = None

    def names(self) -> set[str]:
        """The names of the scalars."""
        if self._names is None and self._table is not None:
            if self._cache.is_small:
                read = self._read_columns(["name"], FIRST_STEP)
                self._names = set() if read is None else self._taken_apart(_names, read) or set()
            else:
                self._read_all()
        return self._names or set()

    def metric(self, name: str, first: int) -> tuple[IntArray, FloatArray]:
        """Steps and values of one scalar; where only the latest steps are asked for, only those are read and none kept."""
        nothing = np.empty(0, np.int64), np.empty(0)
        if self._table is None or name not in self.names():
            return nothing
        path = self._table.sealed.path
        steps, values = (self._cache.get(path, f"{part} of {name}") for part in ("step", "value"))
        if steps is not None and values is not None:
            return steps, values
        if first == FIRST_STEP:
            return self._read_all().get(name, nothing)
        read = self._read_columns(["step", "name", "value"], first)
        return nothing if read is None else (self._taken_apart(_by_name, read) or {}).get(name, nothing)

    def _read_all(self) -> dict[str, tuple[IntArray, FloatArray]]:
        """All of them, kept as far as there is room: who wants one mostly wants the others too."""
        read = self._read_columns(["step", "name", "value"], FIRST_STEP)
        found = {} if read is None else self._taken_apart(_by_name, read) or {}
        if read is not None:
            self._names = set(found)
        assert self._table is not None
        for name, (steps, values) in found.items():
            self._cache.put(self._table.sealed.path, f"step of {name}", steps)
            self._cache.put(self._table.sealed.path, f"value of {name}", values)
        return found

    def _taken_apart(self, take: Callable[[Any], _T], read: Any) -> _T | None:
        """What a table holds, None where its names are none."""
        try:
            return take(read)
        except EncodingError as error:
            assert self._table is not None
            self._table.refuse(error)
            return None

    def _read_columns(self, columns: list[str], first: int) -> Any | None:
        groups = self._table.groups_since(first) if self._table is not None else []
        read = self._table.read(groups, columns) if self._table is not None and groups else None
        return read if read is not None and read.num_rows else None


def _names(read: Any) -> set[str]:
    """The names in a table of scalars."""
    chunks = read.unify_dictionaries().column("name").chunks
    return {untext(name) for chunk in chunks for name in chunk.dictionary.to_pylist()}


def _by_name(read: Any) -> dict[str, tuple[IntArray, FloatArray]]:
    """A table of scalars taken apart, each in order of writing."""
    whole = read.unify_dictionaries().combine_chunks()
    column = whole.column("name").chunk(0) if whole.num_rows else None
    if column is None:
        return {}
    codes = column.indices.to_numpy()
    steps, values = whole.column("step").to_numpy(), whole.column("value").to_numpy()
    out = {}
    for code, name in enumerate(column.dictionary.to_pylist()):
        mine = codes == code
        out[untext(name)] = steps[mine], values[mine]
    return out
