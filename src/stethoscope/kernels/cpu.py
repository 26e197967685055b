"""The C kernel: rows, histograms, sketches and samples of many CPU tensors, one call each.

The library beside this file is compiled when the package is built (`build_kernels.py`). Where it is missing
`available()` is false and callers use `portable`. Calls may come from any thread, also in a forked child.
"""

from __future__ import annotations

import ctypes
import functools
import os
import sys
from array import array
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final, cast

import numpy as np
import numpy.typing as npt

from stethoscope.kernels.columns import NUM_COLUMNS, Table
from stethoscope.kernels.histogram import NUM_BINS
from stethoscope.kernels.pending import Histograms, Sketches
from stethoscope.kernels.pointers import FIRST_TABLE_CODE, KINDS, Collected
from stethoscope.kernels.sketch import SKETCH_WIDTH, stream

ABI: Final = 1
PATH: Final = Path(__file__).with_name("_cpu.so")
LEVELS: Final = ("no vector extensions assumed", "AVX2", "AVX-512")

_tables = np.zeros((len(KINDS) - FIRST_TABLE_CODE, 256), dtype=np.float32)
_tables_address: Final = _tables.ctypes.data
_tables_filled: set[int] = set()


class Library:
    """The loaded library, with what every call passes along."""

    def __init__(self, path: Path) -> None:
        self._c = ctypes.CDLL(str(path))
        if self._c.stethoscope_abi() != ABI:
            raise OSError(f"{path} was compiled from another version of its source")
        self.level = int(self._c.stethoscope_level())
        self.num_threads = num_threads()
        pointer, word = ctypes.c_void_p, ctypes.c_int64
        table = [ctypes.c_int, ctypes.c_int, word, pointer, pointer, pointer]
        self.rows = self._declared("stethoscope_rows", [*table, pointer, pointer, pointer])
        self.histograms = self._declared("stethoscope_histograms", [*table, pointer, pointer])
        self.sketches = self._declared("stethoscope_sketches", [*table, pointer, ctypes.c_uint64, pointer])
        self.gather = self._declared("stethoscope_gather", [word, *[pointer] * 6])

    def _declared(self, name: str, arguments: list[Any]) -> Any:
        function = getattr(self._c, name)
        function.argtypes, function.restype = arguments, None
        return function


def num_threads() -> int:
    """Threads for large calls: the cores this process may use, fewer where OMP_NUM_THREADS says so."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    asked = os.environ.get("OMP_NUM_THREADS", "")
    return max(1, min(cores, int(asked) if asked.isdigit() else cores, 16))


@functools.cache
def _load() -> Library | str:
    """The library, or why there is none."""
    try:
        return Library(PATH)
    except (OSError, AttributeError) as problem:
        return str(problem) if PATH.exists() else "it was not compiled when the package was installed"


@functools.cache
def library() -> Library | None:
    """The library where it could be loaded."""
    loaded = _load()
    return loaded if isinstance(loaded, Library) else None


def backend() -> str:
    """One line for people: what measures tensors on the CPU here."""
    loaded = _load()
    if isinstance(loaded, Library):
        threads = "1 thread" if loaded.num_threads == 1 else f"{loaded.num_threads} threads"
        return f"C library, {LEVELS[loaded.level]}, {threads}"
    return f"torch operations; no C library: {loaded}"


def _fill_tables(owners: Sequence[Any], kinds: bytes) -> None:
    """The 256 values of each 8-bit floating dtype among these, by the upcast of whoever made the array."""
    for owner, kind in zip(owners, kinds, strict=True):
        if kind < FIRST_TABLE_CODE or kind in _tables_filled:
            continue
        codes = np.arange(256, dtype=np.uint8)
        if isinstance(owner, np.ndarray):
            values = codes.view(owner.dtype).astype(np.float32)
        else:
            torch = sys.modules["torch"]
            values = torch.from_numpy(codes).view(owner.dtype).to(torch.float32).numpy()
        _tables[kind - FIRST_TABLE_CODE] = values
        _tables_filled.add(kind)


def rows(loaded: Library, table: Collected, limits: Sequence[float | None] | None = None) -> Table:
    """One row per tensor of the table."""
    count = len(table.kinds)
    out = np.empty((count, NUM_COLUMNS))
    if not count:
        return out
    if max(table.kinds) >= FIRST_TABLE_CODE:
        _fill_tables(table.owners, table.kinds)
    chosen = None
    if limits is not None:
        chosen = array("d", [float("nan") if limit is None else limit for limit in limits])
    # Written out, unlike its neighbours: this is called in every step.
    loaded.rows(
        loaded.level,
        loaded.num_threads,
        count,
        table.pointers.buffer_info()[0],
        table.counts.buffer_info()[0],
        table.kinds,
        None if chosen is None else chosen.buffer_info()[0],
        _tables_address,
        _into(out),
    )
    return out


def histograms(loaded: Library, table: Collected) -> Histograms:
    """One exponent histogram per tensor of the table."""
    out = np.empty((len(table), NUM_BINS), dtype=np.uint32)
    loaded.histograms(*_arguments(loaded, table), _tables_address, _into(out))
    return out


def sketches(loaded: Library, table: Collected, seed: int) -> Sketches:
    """One sketch per tensor of the table, whose elements must be in logical order."""
    out = np.empty((len(table), SKETCH_WIDTH), dtype=np.float32)
    loaded.sketches(*_arguments(loaded, table), _tables_address, stream(seed), _into(out))
    return out


def gather(
    loaded: Library, table: Collected, starts: npt.NDArray[np.int64], offsets: npt.NDArray[np.int64]
) -> npt.NDArray[np.float64]:
    """The elements at `offsets[starts[i]:starts[i + 1]]` (in elements from its pointer) of each tensor i."""
    out = np.empty(len(offsets))
    if table.kinds and max(table.kinds) >= FIRST_TABLE_CODE:
        _fill_tables(table.owners, table.kinds)
    loaded.gather(
        len(table),
        table.pointers.buffer_info()[0],
        table.kinds,
        _tables_address,
        starts.ctypes.data,
        offsets.ctypes.data,
        _into(out),
    )
    return out


def _into(out: npt.NDArray[Any]) -> Any:
    """A pointer to an array that is not empty; ten times cheaper than `out.ctypes`."""
    return ctypes.byref(ctypes.c_char.from_buffer(cast(Any, out))) if out.size else None


def _arguments(loaded: Library, table: Collected) -> tuple[Any, ...]:
    if table.kinds and max(table.kinds) >= FIRST_TABLE_CODE:
        _fill_tables(table.owners, table.kinds)
    return (
        loaded.level,
        loaded.num_threads,
        len(table),
        table.pointers.buffer_info()[0],
        table.counts.buffer_info()[0],
        table.kinds,
    )
