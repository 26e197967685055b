"""The device code in all its variants: what each one is called, and how it is compiled.

A variant is one kernel for one way of reading elements. Its name says everything that was decided before it was compiled,
so that a file can be called by it; `source` is what a compiler needs, the same for every process and device of a kind.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterable
from typing import Any, Final, NamedTuple

from stethoscope.kernels import histogram as bins
from stethoscope.kernels.reference import SMALLEST_NORMAL
from stethoscope.kernels.sketch import SKETCH_WIDTH

UNROLL: Final = 8
HISTOGRAM_CHUNK: Final = 8192
WIDE_HISTOGRAM_CHUNK: Final = 4096
SKETCH_ROWS: Final = 64
SKETCH_TILES: Final = 16
GATHER_LANES: Final = 256
PLAN_LANES: Final = 256
MERGE_LANES: Final = 128
WARPS: Final = 4
HISTOGRAM_WARPS: Final = 8
REGISTERS: Final = 72
DOUBLE_REGISTERS: Final = 96
"""So many of a thread's registers at most, that what is seldom done does not take room from what is done always."""
FUSED: Final = {"enable_fp_fusion": True}
"""Said outright because triton warns that its default will change; the kernels are right either way."""
PAIRS_SINCE: Final = 80
"""NVIDIA's devices compare two 16-bit floats at once since this capability, Ampere's."""

CONVERTS_SINCE: Final = 89
"""And make two 16-bit floats of two 8-bit ones at once since this one, Ada's."""

DOUBLES: Final = frozenset({"float64", "int32", "int64", "uint32", "uint64"})
"""What float32 does not hold is calculated with as float64 (integers beyond 2**53 are rounded)."""
BYTES: Final = {name: name.removeprefix("float8_") for name in SMALLEST_NORMAL if name.startswith("float8")}
"""What the device code knows the 8-bit floats by: it reads their bytes, which every device can."""
LANE_WIDTH: Final = dict.fromkeys(DOUBLES, 2)
"""Elements that a thread reads at once, 4 but for these: more would take registers that hide the memory's latency."""

AUTOCAST: Final = ("bfloat16", "float16")
"""What a model of float32 computes in."""


class Variant(NamedTuple):
    """One kernel, for one dtype where it has several."""

    kernel: str
    dtype: str = ""
    aligned: bool = False
    """Whether every tensor begins at a multiple of 16 bytes."""
    limited: bool = False
    """Whether values over a limit are counted."""

    @property
    def name(self) -> str:
        """As a file is called, and as a process is asked for it."""
        flags = ["aligned"] * self.aligned + ["limited"] * self.limited
        return "-".join([self.kernel, *filter(None, [self.dtype]), *flags])


def variant_of(name: str) -> Variant:
    """The variant of this name."""
    kernel, *rest = name.split("-")
    dtype = rest[0] if rest and rest[0] not in ("aligned", "limited") else ""
    return Variant(kernel, dtype, "aligned" in rest, "limited" in rest)


def needed(dtypes: Iterable[str]) -> list[Variant]:
    """What gradients, weights, updates and optimizer state of these dtypes take; the slowest to compile first."""
    some = dict.fromkeys(dtypes)
    rows = [Variant("tensor_sums", dtype, aligned=True) for dtype in some]
    changes = [Variant("tensor_sums", "float64", aligned) for aligned in (False, True)]
    chosen = [Variant("gather_values", dtype) for dtype in some]
    return [*dict.fromkeys([*rows, *changes, *chosen])]


def useful(dtypes: Iterable[str]) -> list[Variant]:
    """What else comes up in every training: module outputs under autocast, histograms and sketches, token numbers, views."""
    floats = [*dict.fromkeys([*dtypes, *AUTOCAST])]
    rows = [Variant("tensor_sums", dtype, aligned=True) for dtype in (*floats, "int64")]
    views = [Variant("tensor_sums", dtype) for dtype in floats]
    extras = [Variant("chunk_histograms", dtype, aligned=True) for dtype in floats]
    sketches = [Variant("tensor_sketches"), *(Variant("chunk_sketches", dtype) for dtype in floats)]
    first = set(needed(dtypes))
    return [variant for variant in dict.fromkeys([*rows, *extras, *sketches, *views]) if variant not in first]


@dataclasses.dataclass(frozen=True, slots=True)
class Source:
    """What a compiler is given."""

    function: Any
    types: tuple[str, ...]
    """Of what is handed over at a launch, in order."""
    constants: dict[str, Any]
    options: dict[str, Any]


def is_double(dtype: str) -> bool:
    """Whether elements of this dtype are calculated with as float64."""
    return dtype in DOUBLES


def histogram_chunk(dtype: str) -> int:
    """Elements that one program counts."""
    return WIDE_HISTOGRAM_CHUNK if is_double(dtype) else HISTOGRAM_CHUNK


@functools.cache
def source(variant: Variant, capability: int | None) -> Source:
    """The device code of a variant; `capability` is that of an NVIDIA device (90 is Hopper), None is any other."""
    return _SOURCES[variant.kernel](variant, capability)


def element_type(name: str) -> dict[str, Any]:
    """A dtype as the device code knows it: what is loaded, and how it is read."""
    import triton.language as tl

    if name in BYTES or name == "bool":
        return {"DTYPE": tl.uint8, "READ": BYTES.get(name, "single")}
    return {"DTYPE": getattr(tl, name), "READ": "double" if is_double(name) else "single"}


def _tensor_sums(variant: Variant, capability: int | None) -> Source:
    from stethoscope.kernels.triton_kernels import tensor_sums

    double = is_double(variant.dtype)
    constants = {
        **element_type(variant.dtype),
        "PAIRED": capability is not None and capability >= PAIRS_SINCE,
        "CONVERTS": capability is not None and capability >= CONVERTS_SINCE,
        "ALIGNED": variant.aligned,
        "HAS_LIMITS": variant.limited,
        "BLOCK": 32 * WARPS * LANE_WIDTH.get(variant.dtype, 4),
        "UNROLL": UNROLL,
        "LANES": MERGE_LANES,
    }
    limits, bits = "*fp64" if variant.limited else "*i64", "i64" if double else "i32"
    types = ("*i64", "*i32", "*i64", "*i32", "*i32", "*i32", "*i32", limits, "*fp64", "*fp64", bits)
    few = {} if capability is None else {"maxnreg": DOUBLE_REGISTERS if double else REGISTERS}
    return Source(tensor_sums, types, constants, {"num_warps": WARPS, **few, **FUSED})


def _chunk_histograms(variant: Variant, capability: int | None) -> Source:  # noqa: ARG001 - as all of _SOURCES
    from stethoscope.kernels.triton_extras import chunk_histograms

    constants = {
        **element_type(variant.dtype),
        "ALIGNED": variant.aligned,
        "SPAN": histogram_chunk(variant.dtype),
        "LOWEST": bins.MIN_EXPONENT,
        "HIGHEST": bins.MAX_EXPONENT,
    }
    types = ("*i64", "*i32", "*i64", "*i32", "*i64")
    return Source(chunk_histograms, types, constants, {"num_warps": HISTOGRAM_WARPS, **FUSED})


def _chunk_sketches(variant: Variant, capability: int | None) -> Source:  # noqa: ARG001
    from stethoscope.kernels.triton_extras import chunk_sketches

    constants = {**element_type(variant.dtype), "TILES": SKETCH_TILES, "ROWS": SKETCH_ROWS, "WIDTH": SKETCH_WIDTH}
    types = ("*i64", "*i32", "*i64", "*i32", "*i64", "*fp64")
    return Source(chunk_sketches, types, constants, {"num_warps": HISTOGRAM_WARPS, **FUSED})


def _tensor_sketches(variant: Variant, capability: int | None) -> Source:  # noqa: ARG001
    from stethoscope.kernels.triton_extras import tensor_sketches

    return Source(tensor_sketches, ("*fp64", "*i32", "*fp64"), {"WIDTH": SKETCH_WIDTH}, {"num_warps": 1, **FUSED})


def _gather_values(variant: Variant, capability: int | None) -> Source:  # noqa: ARG001
    from stethoscope.kernels.triton_extras import gather_values

    constants = {**element_type(variant.dtype), "LANES": GATHER_LANES}
    return Source(gather_values, ("*i64", "*i32", "*i64", "*i64", "*i64", "*fp64"), constants, dict(FUSED))


def _write_plan(variant: Variant, capability: int | None) -> Source:  # noqa: ARG001
    from stethoscope.kernels.triton_extras import write_plan

    types = ("i64", "i64", "i32", "i32", "*i64", "*i32")
    return Source(write_plan, types, {"LANES": PLAN_LANES}, {"num_warps": 1, **FUSED})


_SOURCES: Final = {
    "tensor_sums": _tensor_sums,
    "chunk_histograms": _chunk_histograms,
    "chunk_sketches": _chunk_sketches,
    "tensor_sketches": _tensor_sketches,
    "gather_values": _gather_values,
    "write_plan": _write_plan,
}
