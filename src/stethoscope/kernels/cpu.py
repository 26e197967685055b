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
from typing import TYPE_CHECKING, Any, Final, cast

import numpy as np
import numpy.typing as npt

from stethoscope.kernels.columns import NUM_COLUMNS, Table
from stethoscope.kernels.histogram import NUM_BINS
from stethoscope.kernels.pending import Histograms, Sketches
from stethoscope.kernels.sketch import SKETCH_WIDTH, stream

if TYPE_CHECKING:
    import torch

KINDS: Final = (
    "float32", "bfloat16", "float16", "float64", "bool", "uint8", "int8", "uint16", "int16", "uint32",
    "int32", "uint64", "int64", "float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz",
    "float8_e8m0fnu",
)  # fmt: skip
"""The dtypes the library reads, in the order of its `enum kind`."""

CODE: Final = {name: code for code, name in enumerate(KINDS)}
FIRST_TABLE_CODE: Final = CODE["float8_e4m3fn"]
ABI: Final = 1
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


class Collected:
    """A table of pointers for the library, and the owners that keep them valid."""

    __slots__ = ("bent", "counts", "kinds", "owners", "pointers")

    def __init__(
        self,
        pointers: array[int],
        counts: array[int],
        kinds: bytes,
        owners: Sequence[Any],
        bent: Sequence[int] = (),
    ) -> None:
        """`bent`: places of the tensors whose elements do not lie in logical order."""
        self.pointers, self.counts, self.kinds, self.owners, self.bent = pointers, counts, kinds, owners, bent

    def __len__(self) -> int:
        return len(self.kinds)


def num_threads() -> int:
    """Threads for large calls: the cores this process may use, fewer where OMP_NUM_THREADS says so."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    asked = os.environ.get("OMP_NUM_THREADS", "")
    return max(1, min(cores, int(asked) if asked.isdigit() else cores, 16))


@functools.cache
def _load() -> Library | str:
    """The library, or why there is none."""
    path = Path(__file__).with_name("_cpu.so")
    try:
        return Library(path)
    except (OSError, AttributeError) as problem:
        return str(problem) if path.exists() else "it was not compiled when the package was installed"


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


@functools.cache
def _torch_parts() -> tuple[Any, dict[Any, int], frozenset[type]]:
    """torch's tensor base, the code of each dtype, and the types that are plain tensors."""
    torch = sys.modules["torch"]
    codes = {getattr(torch, name): code for name, code in CODE.items() if hasattr(torch, name)}
    names = ("Parameter", "Buffer")
    plain = {torch.Tensor, *(getattr(torch.nn, name) for name in names if hasattr(torch.nn, name))}
    return torch._C.TensorBase, codes, frozenset(plain)


def collect(tensors: Sequence[torch.Tensor], *, ordered: bool = False) -> Collected | None:
    """The table of these tensors, or None where one of them needs a closer look (`tensors.plain`).

    `ordered` asks for elements in logical order; without it any dense layout is taken as it lies.
    About 0.35 microseconds a tensor: each attribute of a tensor costs 60 nanoseconds, so none is read twice.
    """
    base, codes, plain_types = _torch_parts()
    if not plain_types.issuperset(map(type, tensors)):
        return None
    try:
        kinds = bytes([codes[tensor.dtype] for tensor in tensors])
        pointers = list(map(base.data_ptr, tensors))
        counts = list(map(base.numel, tensors))
        contiguous = list(map(base.is_contiguous, tensors))
        # A negated view is strided, so contiguous only where it has one element.
        if 1 in counts and any(t.is_neg() for t, n in zip(tensors, counts, strict=True) if n == 1):
            return None
        if tensors and max(map(base.get_device, tensors)) >= 0:
            return None
    except (KeyError, RuntimeError, NotImplementedError):
        return None  # complex or unreadable dtypes, sparse layouts, tensors inside transforms
    owners: Sequence[Any] = tensors
    bent = () if all(contiguous) else tuple(place for place, flag in enumerate(contiguous) if not flag)
    if bent:
        owners = list(tensors)
        for place in bent:
            tensor = owners[place]
            if tensor.is_neg() or (not ordered and not is_dense(tuple(tensor.shape), tensor.stride())):
                return None
            if ordered:
                owners[place] = tensor.detach().contiguous()
                pointers[place] = owners[place].data_ptr()
    # Low addresses: no storage (meta, freed by sharding; an offset may hide the null), or an old-style heap.
    if pointers and min(pointers) < 1 << 32 and not _all_stored(owners, pointers, counts):
        return None
    if kinds and max(kinds) >= FIRST_TABLE_CODE:
        _fill_tables(owners, kinds)
    return Collected(array("Q", pointers), array("q", counts), kinds, owners, () if ordered else bent)


def _all_stored(tensors: Sequence[Any], pointers: list[int], counts: list[int]) -> bool:
    for tensor, pointer, count in zip(tensors, pointers, counts, strict=True):
        if pointer < 1 << 32 and count:
            needed = (tensor.storage_offset() + count) * tensor.element_size()
            if tensor.is_meta or tensor.untyped_storage().nbytes() < needed:
                return False
    return True


@functools.lru_cache(maxsize=4096)
def is_dense(shape: tuple[int, ...], strides: tuple[int, ...]) -> bool:
    """Whether the elements fill one stretch of memory without gaps or overlaps, in any order."""
    expected = 1
    pairs = zip(strides, shape, strict=True)
    for stride, size in sorted(pair for pair in pairs if pair[1] != 1):
        if stride != expected:
            return False
        expected *= size
    return True


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


def collect_arrays(arrays: Sequence[npt.NDArray[Any]]) -> Collected:
    """The table of NumPy arrays whose dtypes are in KINDS and whose elements are contiguous."""
    kinds = bytes([CODE[item.dtype.name] for item in arrays])
    _fill_tables(arrays, kinds)
    return Collected(
        array("Q", [item.__array_interface__["data"][0] for item in arrays]),
        array("q", [item.size for item in arrays]),
        kinds,
        arrays,
    )


def collect_pieces(flat: npt.NDArray[np.float64], starts: npt.NDArray[np.int64]) -> Collected:
    """The table of the stretches `flat[starts[i]:starts[i + 1]]`."""
    pointers, counts = array("Q"), array("q")
    pointers.frombytes((starts[:-1] * 8 + flat.__array_interface__["data"][0]).astype(np.uint64).tobytes())
    counts.frombytes(np.diff(starts).tobytes())
    return Collected(pointers, counts, bytes([CODE["float64"]]) * len(counts), [flat])


def rows(loaded: Library, table: Collected, limits: Sequence[float | None] | None = None) -> Table:
    """One row per tensor of the table."""
    out = np.empty((len(table), NUM_COLUMNS))
    chosen = None
    if limits is not None:
        chosen = array("d", [float("nan") if limit is None else limit for limit in limits])
    loaded.rows(
        *_arguments(loaded, table),
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
    return (
        loaded.level,
        loaded.num_threads,
        len(table),
        table.pointers.buffer_info()[0],
        table.counts.buffer_info()[0],
        table.kinds,
    )
