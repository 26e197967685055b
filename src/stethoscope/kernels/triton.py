"""CUDA tensors: a few launches measure all of them, and nothing waits.

Tensors are cut into chunks; which chunk belongs to which tensor depends on their sizes alone, so those tables
stay on the device from call to call, and a call uploads only the pointers, from pinned memory. The finished
sums come back on a side stream, and the rows are worked out on the host when they are asked for.
"""

from __future__ import annotations

import contextlib
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
from stethoscope.kernels.fetching import Fetched, Stopwatch, stream_number, upload, upload_once
from stethoscope.kernels.pending import Extras, Measured
from stethoscope.kernels.pointers import KINDS, Collected
from stethoscope.kernels.reference import SMALLEST_NORMAL
from stethoscope.kernels.sketch import SKETCH_WIDTH, stream
from stethoscope.record import printable

SPAN: Final = 65536
LEAST_SPAN: Final = 8192
WIDE_SPAN: Final = 131072
MANY_ELEMENTS: Final = 1 << 30
"""From here on longer spans still fill the device, and their beginnings weigh less."""
MANY_SPANS: Final = 1024
"""About as many are read at once by a large device."""
LAST_SPAN: Final = 24576
LAST_ELEMENTS: Final = 1 << 25
LAST_SHARE: Final = 0.3
"""The last elements of a call, so many or this share of all, are cut shorter: nobody waits long for whoever is done last."""
UNROLL: Final = 8
HISTOGRAM_CHUNK: Final = 8192
WIDE_HISTOGRAM_CHUNK: Final = 4096
SKETCH_ROWS: Final = 64
SKETCH_TILES: Final = 16
WARPS: Final = 4
HISTOGRAM_WARPS: Final = 8
MERGE_LANES: Final = 128
REGISTERS: Final = 72
DOUBLE_REGISTERS: Final = 96
MAX_PLANS: Final = 64
NUM_SUMS: Final = 16
"""What the device code leaves of a span, and of a tensor."""
FUSED: Final = {"enable_fp_fusion": True}
"""Said outright because triton warns that its default will change; the kernels are right either way."""

DOUBLES: Final = frozenset({"float64", "int32", "int64", "uint32", "uint64"})
"""What float32 does not hold is calculated with as float64 (integers beyond 2**53 are rounded)."""
BYTES: Final = {name: name.removeprefix("float8_") for name in SMALLEST_NORMAL if name.startswith("float8")}
"""What the device code knows the 8-bit floats by: it reads their bytes, which every device can."""
LANE_WIDTH: Final = dict.fromkeys(DOUBLES, 2)
"""Elements that a thread reads at once, 4 but for these: more would take registers that hide the memory's latency."""


@functools.cache
def available() -> bool:
    """Whether triton can be imported; says nothing about a device."""
    return importlib.util.find_spec("triton") is not None


@dataclasses.dataclass(frozen=True, eq=False, slots=True)
class Plan:
    """Which chunk is what part of which tensor; on the device."""

    owners: Any
    firsts: Any
    lengths: Any
    starts: Any
    """Of each tensor, its first chunk, and the number of all."""
    done: Any
    """Of each tensor, how many of its chunks were read: zero between two launches, which is why a plan is one stream's."""
    num_chunks: int


@dataclasses.dataclass(frozen=True, eq=False, slots=True)
class Group:
    """Tensors of one dtype that are all aligned to 16 bytes, or all not."""

    name: str
    aligned: bool
    pointers: npt.NDArray[np.int64]
    counts: npt.NDArray[np.int64]


_plans: OrderedDict[tuple[Any, ...], Plan] = OrderedDict()
_given_up: list[str] = []


def make_plan(device: Any, counts: npt.NDArray[np.int64], chunk: int, last: int = 0) -> Plan:
    """Cut tensors of these sizes into chunks, those at the end into shorter ones, and upload which is whose."""
    owners, firsts, lengths, starts = cut(counts, chunk, last or chunk)
    return Plan(
        upload(owners.astype(np.int32), device),
        upload(firsts, device),
        upload(lengths.astype(np.int32), device),
        upload(starts.astype(np.int32), device),
        upload(np.zeros(len(counts), dtype=np.int32), device),
        len(owners),
    )


Whole = npt.NDArray[np.int64]


def cut(counts: Whole, chunk: int, last: int) -> tuple[Whole, Whole, Whole, Whole]:
    """Of each chunk its tensor, its first element and its length; of each tensor its first chunk."""
    ends = np.cumsum(counts)
    total = int(counts.sum())
    until = total - min(int(LAST_SHARE * total), LAST_ELEMENTS) if last < chunk else total
    early = np.clip(until - (ends - counts), 0, counts)
    long = np.where(early == counts, -(-counts // chunk), early // chunk)
    pieces = long - -np.maximum(counts - long * chunk, 0) // last
    starts = np.concatenate([[0], np.cumsum(pieces)])
    owners = np.repeat(np.arange(len(counts)), pieces)
    rank = np.arange(starts[-1]) - starts[owners]
    later = np.maximum(rank - long[owners], 0)
    firsts = np.minimum(rank, long[owners]) * chunk + later * last
    lengths = np.minimum(counts[owners] - firsts, np.where(rank < long[owners], chunk, last))
    return owners, firsts, lengths, starts


def span_of(count: int) -> int:
    """How long the spans of so many elements are: short enough to keep a device busy, and long where there are many."""
    if count >= MANY_ELEMENTS:
        return WIDE_SPAN
    return min(max(-(-count // MANY_SPANS // LEAST_SPAN) * LEAST_SPAN, LEAST_SPAN), SPAN)


def _plan(device: Any, counts: npt.NDArray[np.int64], chunk: int, last: int = 0) -> Plan:
    key = (device, stream_number(device), chunk, last, counts.tobytes())
    found = _plans.get(key)
    if found is None:
        found = _plans[key] = make_plan(device, counts, chunk, last)
        if len(_plans) > MAX_PLANS:
            _plans.popitem(last=False)
    else:
        _plans.move_to_end(key)
    return found


class Assembly:
    """Makes rows of the tables that the groups of a call left."""

    def __init__(self, num_rows: int, groups: list[tuple[list[int], tuple[str, ...]]]) -> None:
        """Of each group: the places of its tensors, and which tables it left."""
        self._num_rows, self._groups = num_rows, groups

    def __call__(self, tables: list[Any]) -> Measured:
        """The tables of all groups, one after the other."""
        rows = empty_rows(self._num_rows)
        histograms: Any = None
        sketches: Any = None
        left = iter(tables)
        for positions, names in self._groups:
            for name in names:
                table = next(left)
                if name == "sums":
                    rows[positions] = rows_of_sums(table)
                elif name == "histograms":
                    if histograms is None:
                        histograms = np.zeros((self._num_rows, bins.NUM_BINS), dtype=np.uint32)
                    histograms[positions] = np.minimum(table[:, : bins.NUM_BINS], np.iinfo(np.uint32).max)
                else:
                    if sketches is None:
                        sketches = np.zeros((self._num_rows, SKETCH_WIDTH), dtype=np.float32)
                    with np.errstate(over="ignore"):
                        sketches[positions] = table.astype(np.float32)
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
    return serves_devices() and bool(table.owners[0].is_cuda)


def serves_devices() -> bool:
    """Whether triton is there and has not failed yet."""
    return not _given_up and available()


def launch(
    table: Collected, limits: Sequence[float | None] | None, extras: Extras | None, *, timed: bool = False
) -> Fetched[Measured]:
    """Measures the tensors of one device, on its current stream."""
    device = table.owners[0].device
    watch = Stopwatch(device) if timed and device.type == "cuda" else None
    pointers = np.frombuffer(table.pointers, dtype=np.int64)
    counts = np.frombuffer(table.counts, dtype=np.int64)
    kinds = np.frombuffer(table.kinds, dtype=np.uint8)
    keys = kinds.astype(np.int64) * 2 + (pointers % 16 == 0)
    tables: list[Any] = []
    groups: list[tuple[list[int], tuple[str, ...]]] = []
    for key in np.unique(keys).tolist():
        positions = np.flatnonzero(keys == key)
        chosen = None if limits is None else [limits[position] for position in positions.tolist()]
        group = Group(KINDS[key // 2], bool(key % 2), pointers[positions], counts[positions])
        left = _launch_group(device, group, chosen, extras)
        tables.extend(left.values())
        groups.append((positions.tolist(), tuple(left)))
    return Fetched(tables, Assembly(len(table), groups), watch)


def _launch_group(
    device: Any, group: Group, limits: Sequence[float | None] | None, extras: Extras | None
) -> dict[str, Any]:
    """All tensors of one dtype: the sums, and what else was asked for."""
    torch = sys.modules["torch"]
    num_tensors = len(group.counts)
    plan = _plan(device, group.counts, span_of(int(group.counts.sum())), LAST_SPAN)
    pointers = upload_once(group.pointers, device, stream_number(device))
    bound = None if limits is None else upload(_limit_table(limits), device)
    # Nobody writes the line of a tensor without elements.
    fresh = torch.empty if group.counts.all() else torch.zeros
    out = {"sums": fresh((num_tensors, NUM_SUMS), dtype=torch.float64, device=device)}
    reading = queue_rows(device, group.name, group.aligned, pointers, plan, bound, out["sums"])
    with on_device(device):
        if extras is not None and extras.histogram:
            out["histograms"] = _histogram_group(device, pointers, group.counts, reading)
        if extras is not None and extras.sketch:
            out["sketches"] = _sketch_group(device, pointers, group.counts, group.name, extras.seed)
    return out


def queue_rows(
    device: Any, name: str, aligned: bool, pointers: Any, plan: Plan, limits: Any, sums: Any
) -> dict[str, Any]:
    """Queue the launch that measures tensors of one dtype, which are all aligned or all not.

    Returns how their elements are read.
    """
    torch = sys.modules["torch"]
    from stethoscope.kernels.triton_kernels import tensor_sums

    reading = {**element_type(name), "ALIGNED": aligned, **FUSED}
    double = name in DOUBLES
    number = np.array(SMALLEST_NORMAL.get(name, 0.0), dtype=np.float64 if double else np.float32)
    tiny_bits = int(number.view(np.int64 if double else np.int32))
    partials = torch.empty((NUM_SUMS, plan.num_chunks), dtype=torch.float64, device=device)
    if plan.num_chunks:
        with on_device(device):
            tensor_sums[(plan.num_chunks,)](
                pointers,
                plan.owners,
                plan.firsts,
                plan.lengths,
                plan.starts,
                plan.done,
                pointers if limits is None else limits,
                partials,
                sums,
                tiny_bits,
                HAS_LIMITS=limits is not None,
                UNROLL=UNROLL,
                PAIRED=_compares_pairs(device),
                BLOCK=32 * WARPS * LANE_WIDTH.get(name, 4),
                LANES=MERGE_LANES,
                num_warps=WARPS,
                **_register_limit(device, double),
                **reading,
            )
    return reading


def _histogram_group(device: Any, pointers: Any, counts: npt.NDArray[np.int64], reading: dict[str, Any]) -> Any:
    torch = sys.modules["torch"]
    from stethoscope.kernels import triton_extras as more

    chunk = WIDE_HISTOGRAM_CHUNK if reading["READ"] == "double" else HISTOGRAM_CHUNK
    plan = _plan(device, counts, chunk)
    histograms = torch.zeros((len(counts), 512), dtype=torch.int64, device=device)
    if plan.num_chunks:
        more.chunk_histograms[(plan.num_chunks,)](
            pointers,
            plan.owners,
            plan.firsts,
            plan.lengths,
            histograms,
            LOWEST=bins.MIN_EXPONENT,
            HIGHEST=bins.MAX_EXPONENT,
            SPAN=chunk,
            num_warps=HISTOGRAM_WARPS,
            **reading,
        )
    return histograms


def _sketch_group(device: Any, pointers: Any, counts: npt.NDArray[np.int64], name: str, seed: int) -> Any:
    torch = sys.modules["torch"]
    from stethoscope.kernels import triton_extras as more

    plan = _plan(device, counts, SKETCH_TILES * SKETCH_ROWS * SKETCH_WIDTH)
    parts = torch.empty((plan.num_chunks, SKETCH_WIDTH), dtype=torch.float64, device=device)
    sketches = torch.empty((len(counts), SKETCH_WIDTH), dtype=torch.float64, device=device)
    seeds = np.array([stream(seed)], dtype=np.uint64).view(np.int64)
    seeds = upload_once(seeds, device, stream_number(device))
    if plan.num_chunks:
        more.chunk_sketches[(plan.num_chunks,)](
            pointers,
            plan.owners,
            plan.firsts,
            plan.lengths,
            seeds,
            parts,
            **element_type(name),
            TILES=SKETCH_TILES,
            ROWS=SKETCH_ROWS,
            WIDTH=SKETCH_WIDTH,
            num_warps=HISTOGRAM_WARPS,
            **FUSED,
        )
    more.tensor_sketches[(len(counts),)](parts, plan.starts, sketches, WIDTH=SKETCH_WIDTH, num_warps=1, **FUSED)
    return sketches


@functools.cache
def _compares_pairs(device: Any) -> bool:
    """Whether the device compares two 16-bit floats at once: NVIDIA's do since Ampere."""
    torch = sys.modules["torch"]
    return device.type == "cuda" and torch.version.hip is None and torch.cuda.get_device_capability(device) >= (8, 0)


@functools.cache
def _register_limit(device: Any, double: bool) -> dict[str, int]:
    """So many of a thread's registers at most, that what is seldom done does not take room from what is done always."""
    torch = sys.modules["torch"]
    is_nvidia = device.type == "cuda" and torch.version.hip is None
    return {"maxnreg": DOUBLE_REGISTERS if double else REGISTERS} if is_nvidia else {}


def _limit_table(limits: Sequence[float | None]) -> npt.NDArray[np.float64]:
    table = np.array([np.inf if limit is None else limit for limit in limits])
    return np.where(np.isnan(table), np.inf, table)


def element_type(name: str) -> dict[str, Any]:
    """A dtype as the device code knows it: what is loaded, and how it is read."""
    import triton.language as tl

    if name in BYTES or name == "bool":
        return {"DTYPE": tl.uint8, "READ": BYTES.get(name, "single")}
    return {"DTYPE": getattr(tl, name), "READ": "double" if name in DOUBLES else "single"}


def on_device(device: Any) -> Any:
    """Triton launches on the current device, which need not be the tensors'."""
    torch = sys.modules["torch"]
    if device.type == "cuda" and torch.cuda.current_device() != device.index:
        return torch.cuda.device(device)
    return contextlib.nullcontext()
