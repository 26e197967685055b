"""CUDA tensors: a few launches measure all of them, and nothing waits.

Tensors are cut into chunks; which chunk belongs to which tensor depends on their sizes alone, so those tables
stay on the device from call to call, and a call uploads only the pointers, from pinned memory. The finished
sums come back on a side stream, and the rows are worked out on the host when they are asked for.
"""

from __future__ import annotations

import dataclasses
import functools
import importlib.util
import logging
import sys
from collections import OrderedDict
from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from stethoscope.kernels import histogram as bins
from stethoscope.kernels.columns import INDEX, Table, empty_rows
from stethoscope.kernels.pending import Extras, Measured
from stethoscope.kernels.pointers import KINDS, Collected
from stethoscope.kernels.reference import SMALLEST_NORMAL
from stethoscope.kernels.sketch import SKETCH_WIDTH, stream
from stethoscope.record import printable

CHUNK: Final = 8192
WIDE_CHUNK: Final = 4096
SKETCH_ROWS: Final = 64
SKETCH_TILES: Final = 16
WARPS: Final = 8
MERGE_LANES: Final = 512
GATHER_LANES: Final = 256
MAX_PLANS: Final = 64
FUSED: Final = {"enable_fp_fusion": True}
"""Said outright because triton warns that its default will change; the kernels are right either way."""

WIDE: Final = frozenset({"float64", "int32", "int64"})
NARROW: Final = frozenset({"float32", "bfloat16", "float16", "int8", "uint8", "int16"})
UPCAST: Final = {
    "bool": "uint8", "uint16": "int32", "uint32": "int64", "uint64": "float64",
    **{name: "float32" for name in SMALLEST_NORMAL if name.startswith("float8")},
}  # fmt: skip
"""What the device code does not read is converted first, exactly (uint64 beyond 2**53 is rounded)."""


@functools.cache
def available() -> bool:
    """Whether triton can be imported; says nothing about a device."""
    return importlib.util.find_spec("triton") is not None


@dataclasses.dataclass(frozen=True, eq=False, slots=True)
class Plan:
    """Which chunk is part `number` of which tensor; on the device."""

    owners: Any
    numbers: Any
    starts: Any
    counts: Any
    num_chunks: int


@dataclasses.dataclass(frozen=True, eq=False, slots=True)
class Group:
    """Tensors of one dtype that are all aligned to 16 bytes, or all not."""

    name: str
    aligned: bool
    pointers: npt.NDArray[np.int64]
    counts: npt.NDArray[np.int64]


_plans: OrderedDict[tuple[Any, ...], Plan] = OrderedDict()
_gather_plans: OrderedDict[tuple[Any, ...], GatherPlan] = OrderedDict()
_streams: dict[Any, Any] = {}
_given_up: list[str] = []
_NEEDS_UPCAST: Final = np.array([name in UPCAST for name in KINDS])


def _plan(device: Any, counts: npt.NDArray[np.int64], chunk: int) -> Plan:
    key = (device, chunk, counts.tobytes())
    found = _plans.get(key)
    if found is None:
        pieces = -(-counts // chunk)
        starts = np.concatenate([[0], np.cumsum(pieces)])
        owners = np.repeat(np.arange(len(counts)), pieces)
        numbers = np.arange(starts[-1]) - starts[:-1][owners]
        found = Plan(
            _upload(owners.astype(np.int32), device),
            _upload(numbers.astype(np.int32), device),
            _upload(starts.astype(np.int32), device),
            _upload(counts, device),
            int(starts[-1]),
        )
        _plans[key] = found
        if len(_plans) > MAX_PLANS:
            _plans.popitem(last=False)
    else:
        _plans.move_to_end(key)
    return found


def _upload(values: npt.NDArray[Any], device: Any) -> Any:
    """To the device from pinned memory; torch keeps the pinned block until the copy is done."""
    torch = sys.modules["torch"]
    tensor = torch.from_numpy(np.ascontiguousarray(values))
    if device.type == "cpu":  # triton's interpreter
        return tensor
    return tensor.pin_memory().to(device, non_blocking=True)


class Launched:
    """Sums of some tensors on their way to the host."""

    def __init__(self, num_rows: int, groups: list[tuple[list[int], dict[str, Any]]]) -> None:
        self._num_rows = num_rows
        self._event: Any = None
        self._groups = [(places, self._fetch(tables)) for places, tables in groups]
        if self._event is not None:
            self._event.record(self._side)

    def _fetch(self, tables: dict[str, Any]) -> dict[str, Any]:
        torch = sys.modules["torch"]
        device = next(iter(tables.values())).device
        if device.type == "cpu":
            return tables
        if self._event is None:
            if device not in _streams:
                _streams[device] = torch.cuda.Stream(device)
            self._side = _streams[device]
            self._side.wait_stream(torch.cuda.current_stream(device))
            self._event = torch.cuda.Event()
        fetched = {}
        with torch.cuda.stream(self._side):
            for name, table in tables.items():
                fetched[name] = torch.empty(table.shape, dtype=table.dtype, pin_memory=True)
                fetched[name].copy_(table, non_blocking=True)
                table.record_stream(self._side)
        return fetched

    def ready(self) -> bool:
        """Whether the sums have arrived."""
        return self._event is None or bool(self._event.query())

    def result(self) -> Measured:
        """The rows, worked out from the sums; waits for them."""
        if self._event is not None:
            self._event.synchronize()
        rows = empty_rows(self._num_rows)
        histograms: Any = None
        sketches: Any = None
        for places, tables in self._groups:
            rows[places] = rows_of_sums(tables["sums"].numpy())
            if "histograms" in tables:
                if histograms is None:
                    histograms = np.zeros((self._num_rows, bins.NUM_BINS), dtype=np.uint32)
                counts = tables["histograms"].numpy()[:, : bins.NUM_BINS]
                histograms[places] = np.minimum(counts, np.iinfo(np.uint32).max)
            if "sketches" in tables:
                if sketches is None:
                    sketches = np.zeros((self._num_rows, SKETCH_WIDTH), dtype=np.float32)
                with np.errstate(over="ignore"):
                    sketches[places] = tables["sketches"].numpy().astype(np.float32)
        return Measured(rows, histograms, sketches)


def rows_of_sums(sums: npt.NDArray[np.float64]) -> Table:
    """Rows from the lines of `tensor_sums`."""
    rows = empty_rows(len(sums))
    n = sums[:, 0]
    rows[:, 0] = n + sums[:, 1] + sums[:, 2] + sums[:, 3]
    rows[:, 1:7] = sums[:, 1:7]
    some = n > 0
    s, count = sums[some], n[some]
    exponent = -np.frexp(s[:, 10])[1] + 1
    mean, var = s[:, 11], np.maximum(s[:, 13], 0.0) / count
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        std = np.sqrt(var)
        flat = (s[:, 7] == s[:, 8]) | (var <= 0)
        out = {
            "min": s[:, 7],
            "max": s[:, 8],
            "abs_max": np.maximum(np.abs(s[:, 7]), np.abs(s[:, 8])),
            "abs_min": np.where(np.isinf(s[:, 9]), np.nan, s[:, 9]),
            "mean": np.where(s[:, 7] == s[:, 8], s[:, 7], np.ldexp(mean, exponent)),
            "mean_abs": np.ldexp(s[:, 12] / count, exponent),
            "norm": np.ldexp(np.sqrt(s[:, 13] + count * mean * mean), exponent),
            "std": np.where(flat, 0.0, np.ldexp(std, exponent)),
            "skewness": np.where(flat, np.nan, s[:, 14] / count / (std * var)),
            "kurtosis": np.where(flat, np.nan, s[:, 15] / count / (var * var) - 3.0),
        }
    for name, values in out.items():
        rows[some, INDEX[name]] = values
    return rows


def backend() -> str:
    """What measures CUDA tensors, for people to read."""
    if _given_up:
        return f"torch operations; Triton failed: {_given_up[0]}"
    return "Triton" if available() else "torch operations; triton is not installed"


def give_up(problem: Exception) -> None:
    """From now on torch operations are used; said once."""
    if not _given_up:
        logging.getLogger("stethoscope").warning("The Triton kernel cannot be used: %s", problem)
    _given_up.append(f"{type(problem).__name__}: {printable(str(problem))}")


def serves(table: Collected) -> bool:
    """Whether these tensors can be measured here: triton is there, and they are on a CUDA device."""
    return not _given_up and available() and bool(table.owners[0].is_cuda)


def launch(table: Collected, limits: Sequence[float | None] | None, extras: Extras | None) -> Launched:
    """Measures the tensors of one device, on its current stream."""
    torch = sys.modules["torch"]
    device = table.owners[0].device
    pointers = np.frombuffer(table.pointers, dtype=np.int64).copy()
    counts = np.frombuffer(table.counts, dtype=np.int64)
    kinds = np.frombuffer(table.kinds, dtype=np.uint8)
    converted = []
    for place in np.flatnonzero(_NEEDS_UPCAST[kinds]).tolist():
        source = table.owners[place].detach()
        if place in table.bent:
            source = source.as_strided((source.numel(),), (1,))
        converted.append(source.to(getattr(torch, UPCAST[KINDS[kinds[place]]])))
        pointers[place] = converted[-1].data_ptr()
    keys = kinds.astype(np.int64) * 2 + (pointers % 16 == 0)
    tables = []
    for key in np.unique(keys).tolist():
        places = np.flatnonzero(keys == key)
        chosen = None if limits is None else [limits[place] for place in places.tolist()]
        group = Group(KINDS[key // 2], bool(key % 2), pointers[places], counts[places])
        tables.append((places.tolist(), _launch_group(device, group, chosen, extras)))
    return Launched(len(table), tables)


def gather(
    table: Collected, starts: npt.NDArray[np.int64], offsets: npt.NDArray[np.int64], key: tuple[Any, ...]
) -> Any:
    """Elements at offsets of each tensor, on the device; see `cpu.gather`. Tables are kept under `key`."""
    torch = sys.modules["torch"]
    from stethoscope.kernels import triton_kernels as code

    device = table.owners[0].device
    out = torch.empty(int(starts[-1]), dtype=torch.float64, device=device)
    kinds = np.frombuffer(table.kinds, dtype=np.uint8)
    pointers = _upload(np.frombuffer(table.pointers, dtype=np.int64).copy(), device)
    with _on(device):
        for kind in np.unique(kinds).tolist():
            name = KINDS[kind]
            if name in UPCAST:
                for place in np.flatnonzero(kinds == kind).tolist():
                    begin, end = int(starts[place]), int(starts[place + 1])
                    chosen = _upload(offsets[begin:end], device)
                    source = table.owners[place].detach()
                    flat = source.as_strided((source.numel(),), (1,))
                    out[begin:end] = flat.to(getattr(torch, UPCAST[name]))[chosen]
                continue
            plan = _gather_plan(device, (*key, kind), np.flatnonzero(kinds == kind), starts, offsets)
            if plan.num_programs:
                code.gather_values[(plan.num_programs,)](
                    pointers, plan.owners, plan.begins, plan.ends, plan.offsets, out,
                    DTYPE=_element_type(name), LANES=GATHER_LANES, **FUSED,
                )  # fmt: skip
    return out


@dataclasses.dataclass(frozen=True, eq=False, slots=True)
class GatherPlan:
    """Which program fetches which coordinates; on the device."""

    owners: Any
    begins: Any
    ends: Any
    offsets: Any
    num_programs: int


def _gather_plan(
    device: Any,
    key: tuple[Any, ...],
    members: npt.NDArray[Any],
    starts: npt.NDArray[np.int64],
    offsets: npt.NDArray[np.int64],
) -> GatherPlan:
    found = _gather_plans.get((device, *key))
    if found is None:
        pieces = -(-(starts[members + 1] - starts[members]) // GATHER_LANES)
        owners = np.repeat(members, pieces)
        ranks = np.arange(len(owners)) - np.repeat(np.cumsum(pieces) - pieces, pieces)
        begins = starts[owners] + ranks * GATHER_LANES
        found = GatherPlan(
            _upload(owners.astype(np.int32), device),
            _upload(begins.astype(np.int64), device),
            _upload(starts[owners + 1].astype(np.int64), device),
            _upload(offsets, device),
            len(owners),
        )
        _gather_plans[(device, *key)] = found
        if len(_gather_plans) > MAX_PLANS:
            _gather_plans.popitem(last=False)
    return found


def _launch_group(
    device: Any, group: Group, limits: Sequence[float | None] | None, extras: Extras | None
) -> dict[str, Any]:
    """All tensors of one dtype: the sums, and what else was asked for."""
    torch = sys.modules["torch"]
    from stethoscope.kernels import triton_kernels as code

    name = UPCAST.get(group.name, group.name)
    tiny = SMALLEST_NORMAL.get(group.name, 0.0)
    wide = name in WIDE
    chunk = WIDE_CHUNK if wide else CHUNK
    num_tensors = len(group.counts)
    plan = _plan(device, group.counts, chunk)
    pointers = _upload(group.pointers, device)
    bound = pointers if limits is None else _upload(_limit_table(limits), device)
    number = np.array(tiny, dtype=np.float64 if wide else np.float32)
    tiny_bits = int(number.view(np.int64 if wide else np.int32))
    sums = torch.empty((num_tensors, int(code.NUM_SUMS.value)), dtype=torch.float64, device=device)
    width = int(code.NUM_PARTIALS.value)
    partials = torch.empty((plan.num_chunks, width), dtype=torch.float64, device=device)
    reading = {"DTYPE": _element_type(name), "WIDE": wide, "ALIGNED": group.aligned, "CHUNK": chunk, **FUSED}
    places = (pointers, plan.counts, plan.owners, plan.numbers)
    out = {"sums": sums}
    with _on(device):
        if plan.num_chunks:
            code.chunk_partials[(plan.num_chunks,)](
                *places, bound, partials, tiny_bits, HAS_LIMITS=limits is not None, num_warps=WARPS, **reading
            )
        code.tensor_sums[(num_tensors,)](partials, plan.starts, sums, LANES=MERGE_LANES, num_warps=4, **FUSED)
        if extras is not None and extras.histogram:
            out["histograms"] = torch.zeros((num_tensors, 512), dtype=torch.int64, device=device)
            if plan.num_chunks:
                code.chunk_histograms[(plan.num_chunks,)](
                    *places, out["histograms"], LOWEST=bins.MIN_EXPONENT, HIGHEST=bins.MAX_EXPONENT,
                    num_warps=WARPS, **reading,
                )  # fmt: skip
        if extras is not None and extras.sketch:
            out["sketches"] = _sketch_group(device, pointers, group.counts, name, extras.seed)
    return out


def _sketch_group(device: Any, pointers: Any, counts: npt.NDArray[np.int64], name: str, seed: int) -> Any:
    torch = sys.modules["torch"]
    from stethoscope.kernels import triton_kernels as code

    plan = _plan(device, counts, SKETCH_TILES * SKETCH_ROWS * SKETCH_WIDTH)
    parts = torch.empty((plan.num_chunks, SKETCH_WIDTH), dtype=torch.float64, device=device)
    sketches = torch.empty((len(counts), SKETCH_WIDTH), dtype=torch.float64, device=device)
    seeds = _upload(np.array([stream(seed)], dtype=np.uint64).view(np.int64), device)
    if plan.num_chunks:
        code.chunk_sketches[(plan.num_chunks,)](
            pointers, plan.counts, plan.owners, plan.numbers, seeds, parts, DTYPE=_element_type(name),
            TILES=SKETCH_TILES, ROWS=SKETCH_ROWS, WIDTH=SKETCH_WIDTH, num_warps=WARPS, **FUSED,
        )  # fmt: skip
    code.tensor_sketches[(len(counts),)](
        parts, plan.starts, sketches, WIDTH=SKETCH_WIDTH, num_warps=1, **FUSED
    )
    return sketches


def _limit_table(limits: Sequence[float | None]) -> npt.NDArray[np.float64]:
    table = np.array([np.inf if limit is None else limit for limit in limits])
    return np.where(np.isnan(table), np.inf, table)


def _element_type(name: str) -> Any:
    import triton.language as tl

    return getattr(tl, name)


def _on(device: Any) -> Any:
    """Triton launches on the current device, which need not be the tensors'."""
    torch = sys.modules["torch"]
    return torch.cuda.device(device) if device.type == "cuda" else torch.no_grad()
