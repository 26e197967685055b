"""Tables of pointers: many tensors handed to a kernel in one call.

Collecting is what a step on a small model pays most for, so it reads few attributes, each once: a tensor's
attribute costs 60 nanoseconds, a tensor of the table 350.
"""

from __future__ import annotations

import functools
import sys
from array import array
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    import torch

KINDS: Final = (
    "float32",
    "bfloat16",
    "float16",
    "float64",
    "bool",
    "uint8",
    "int8",
    "uint16",
    "int16",
    "uint32",
    "int32",
    "uint64",
    "int64",
    "float8_e4m3fn",
    "float8_e4m3fnuz",
    "float8_e5m2",
    "float8_e5m2fnuz",
    "float8_e8m0fnu",
)
"""The dtypes that are read, in the order of the C library's `enum kind`."""

CODE: Final = {name: code for code, name in enumerate(KINDS)}
FIRST_TABLE_CODE: Final = CODE["float8_e4m3fn"]


class Collected:
    """A table of pointers, and the owners that keep them valid."""

    __slots__ = ("counts", "device", "kinds", "noncontiguous", "owners", "pointers")

    def __init__(
        self,
        pointers: array[int],
        counts: array[int],
        kinds: bytes,
        owners: Sequence[Any],
        noncontiguous: Sequence[int] = (),
        device: int = -1,
    ) -> None:
        """`noncontiguous`: positions of tensors whose elements do not lie in logical order; `device`: -1 is the CPU."""
        self.pointers, self.counts, self.kinds, self.owners = pointers, counts, kinds, owners
        self.noncontiguous, self.device = noncontiguous, device

    def __len__(self) -> int:
        return len(self.kinds)


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
    All must be on one device.
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
        devices = set(map(base.get_device, tensors))
        if len(devices) > 1:
            return None
    except (KeyError, RuntimeError, NotImplementedError):
        return None  # complex or unreadable dtypes, sparse layouts, tensors inside transforms
    owners: Sequence[Any] = tensors
    noncontiguous = () if all(contiguous) else tuple(position for position, flag in enumerate(contiguous) if not flag)
    if noncontiguous:
        owners = list(tensors)
        for position in noncontiguous:
            tensor = owners[position]
            if tensor.is_neg() or (not ordered and not is_dense(tuple(tensor.shape), tensor.stride())):
                return None
            if ordered:
                owners[position] = tensor.detach().contiguous()
                pointers[position] = owners[position].data_ptr()
    # Low addresses: no storage (meta, freed by sharding; an offset may hide the null), or an old-style heap.
    if pointers and min(pointers) < 1 << 32 and not _all_stored(owners, pointers, counts):
        return None
    noncontiguous = () if ordered else noncontiguous
    return Collected(array("Q", pointers), array("q", counts), kinds, owners, noncontiguous, max(devices, default=-1))


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


@functools.lru_cache(maxsize=256)
def array_dtype_name(dtype: np.dtype[Any]) -> str:
    """NumPy puts a dtype's name together anew each time, which takes longer than reading a small array."""
    return dtype.name


def collect_arrays(arrays: Sequence[npt.NDArray[Any]]) -> Collected:
    """The table of NumPy arrays whose dtypes are in KINDS and whose elements are contiguous."""
    kinds = bytes([CODE[array_dtype_name(item.dtype)] for item in arrays])
    return Collected(
        array("Q", [item.__array_interface__["data"][0] for item in arrays]),
        array("q", [item.size for item in arrays]),
        kinds,
        arrays,
    )


def collect_pieces(flat: Any, starts: npt.NDArray[np.int64]) -> Collected:
    """The table of the stretches `flat[starts[i]:starts[i + 1]]` of a float64 array or tensor."""
    pointers, counts = array("Q"), array("q")
    is_array = isinstance(flat, np.ndarray)
    base = flat.__array_interface__["data"][0] if is_array else flat.data_ptr()
    pointers.frombytes((starts[:-1] * 8 + base).astype(np.uint64).tobytes())
    counts.frombytes(np.diff(starts).tobytes())
    kinds = bytes([CODE["float64"]]) * len(counts)
    return Collected(pointers, counts, kinds, [flat], device=-1 if is_array else flat.get_device())
