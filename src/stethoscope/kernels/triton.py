"""CUDA tensors: a few launches measure all of them, and nothing waits.

Tensors are cut into chunks; which chunk belongs to which tensor depends on their sizes alone, so those tables
stay on the device from call to call, and a call uploads only the pointers, from pinned memory. The finished
sums come back on a side stream, and the rows are worked out on the host when they are asked for.
"""

from __future__ import annotations

import dataclasses
import sys
from collections import OrderedDict
from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from stethoscope.kernels import histogram as bins
from stethoscope.kernels import launching
from stethoscope.kernels.columns import INDEX, Table, empty_rows
from stethoscope.kernels.fetching import Fetched, Stopwatch, stream_number, upload, upload_once
from stethoscope.kernels.pending import Extras, Measured
from stethoscope.kernels.pointers import KINDS, Collected
from stethoscope.kernels.reference import SMALLEST_NORMAL
from stethoscope.kernels.sketch import SKETCH_WIDTH, stream
from stethoscope.kernels.variants import SKETCH_ROWS, SKETCH_TILES, Variant, histogram_chunk, is_double

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
MAX_PLANS: Final = 64
NUM_SUMS: Final = 16
"""What the device code leaves of a span, and of a tensor."""


@dataclasses.dataclass(frozen=True, eq=False, slots=True)
class Plan:
    """Which chunk is what part of which tensor; on the device."""

    owners: Any
    firsts: Any
    lengths: Any
    starts: Any
    """Of each tensor, its first chunk, and the number of all."""
    done: Any
    """Of each tensor, how many groups of its chunks were combined: zero between two launches, which is why a plan is one stream's."""
    counted: Any
    """Of each such group, by its first chunk, how many chunks were read; zero likewise."""
    num_chunks: int


@dataclasses.dataclass(frozen=True, eq=False, slots=True)
class Group:
    """Tensors of one dtype that are all aligned to 16 bytes, or all not."""

    name: str
    aligned: bool
    pointers: npt.NDArray[np.int64]
    counts: npt.NDArray[np.int64]


_plans: OrderedDict[tuple[Any, ...], Plan] = OrderedDict()


def make_plan(device: Any, counts: npt.NDArray[np.int64], chunk: int, last: int = 0) -> Plan:
    """Cut tensors of these sizes into chunks, those at the end into shorter ones, and upload which is whose: all in one piece."""
    torch = sys.modules["torch"]
    owners, firsts, lengths, starts = cut(counts, chunk, last or chunk)
    zeros = np.zeros(len(counts) + len(owners), dtype=np.int64)
    narrow = np.concatenate([owners, lengths, starts, zeros]).astype(np.int32)
    table = upload(np.concatenate([firsts.view(np.uint8), narrow.view(np.uint8)]), device)
    wide = table[: firsts.nbytes].view(torch.int64)
    ends = np.cumsum([len(owners), len(lengths), len(starts), len(counts)]).tolist()
    parts = table[firsts.nbytes :].view(torch.int32).tensor_split(ends)
    return Plan(parts[0], wide, parts[1], parts[2], parts[3], parts[4], len(owners))


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


def plan_for(device: Any, counts: npt.NDArray[np.int64], chunk: int, last: int = 0) -> Plan:
    """The plan of tensors of these sizes, kept from the last time where it can be."""
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


def serves(table: Collected) -> bool:
    """Whether these tensors can be measured here: triton is there, and they are on a CUDA device."""
    return launching.serves_devices() and bool(table.owners[0].is_cuda)


def launch(
    table: Collected, limits: Sequence[float | None] | None, extras: Extras | None, *, timed: bool = False
) -> Fetched[Measured] | None:
    """Measures the tensors of one device, on its current stream; None where that takes what is still being compiled."""
    device = table.owners[0].device
    groups = _groups(table)
    wanted = [variant for _, group in groups for variant in _variants(group, limits is not None, extras)]
    if not launching.are_available(device, wanted):
        return None
    watch = Stopwatch(device) if timed and device.type == "cuda" else None
    tables: list[Any] = []
    left_by: list[tuple[list[int], tuple[str, ...]]] = []
    for positions, group in groups:
        chosen = None if limits is None else [limits[position] for position in positions]
        left = _launch_group(device, group, chosen, extras)
        tables.extend(left.values())
        left_by.append((positions, tuple(left)))
    return Fetched(tables, Assembly(len(table), left_by), watch)


def _groups(table: Collected) -> list[tuple[list[int], Group]]:
    """Tensors that one launch takes, with their positions."""
    pointers = np.frombuffer(table.pointers, dtype=np.int64)
    counts = np.frombuffer(table.counts, dtype=np.int64)
    keys = np.frombuffer(table.kinds, dtype=np.uint8).astype(np.int64) * 2 + (pointers % 16 == 0)
    found = []
    for key in np.unique(keys).tolist():
        positions = np.flatnonzero(keys == key)
        group = Group(KINDS[key // 2], bool(key % 2), pointers[positions], counts[positions])
        found.append((positions.tolist(), group))
    return found


def _variants(group: Group, limited: bool, extras: Extras | None) -> list[Variant]:
    """What measuring a group takes."""
    found = [Variant("tensor_sums", group.name, group.aligned, limited)]
    if extras is not None and extras.histogram:
        found.append(Variant("chunk_histograms", group.name, group.aligned))
    if extras is not None and extras.sketch:
        found += [Variant("chunk_sketches", group.name), Variant("tensor_sketches")]
    return found


def _launch_group(
    device: Any, group: Group, limits: Sequence[float | None] | None, extras: Extras | None
) -> dict[str, Any]:
    """All tensors of one dtype: the sums, and what else was asked for."""
    torch = sys.modules["torch"]
    num_tensors = len(group.counts)
    plan = plan_for(device, group.counts, span_of(int(group.counts.sum())), LAST_SPAN)
    pointers = upload_once(group.pointers, device, stream_number(device))
    bound = None if limits is None else upload(_limit_table(limits), device)
    # Nobody writes the line of a tensor without elements.
    fresh = torch.empty if group.counts.all() else torch.zeros
    out = {"sums": fresh((num_tensors, NUM_SUMS), dtype=torch.float64, device=device)}
    queue_rows(device, group.name, group.aligned, pointers, plan, bound, out["sums"])
    if extras is not None and extras.histogram:
        out["histograms"] = _histogram_group(device, pointers, group)
    if extras is not None and extras.sketch:
        out["sketches"] = _sketch_group(device, pointers, group, extras.seed)
    return out


def queue_rows(device: Any, name: str, aligned: bool, pointers: Any, plan: Plan, limits: Any, sums: Any) -> None:
    """Queue the launch that measures tensors of one dtype, which are all aligned or all not."""
    torch = sys.modules["torch"]
    double = is_double(name)
    number = np.array(SMALLEST_NORMAL.get(name, 0.0), dtype=np.float64 if double else np.float32)
    tiny_bits = int(number.view(np.int64 if double else np.int32))
    partials = torch.empty((NUM_SUMS, plan.num_chunks), dtype=torch.float64, device=device)
    if plan.num_chunks:
        launching.queue(
            device,
            Variant("tensor_sums", name, aligned, limits is not None),
            plan.num_chunks,
            pointers,
            plan.owners,
            plan.firsts,
            plan.lengths,
            plan.starts,
            plan.done,
            plan.counted,
            pointers if limits is None else limits,
            partials,
            sums,
            tiny_bits,
        )


def _histogram_group(device: Any, pointers: Any, group: Group) -> Any:
    torch = sys.modules["torch"]
    plan = plan_for(device, group.counts, histogram_chunk(group.name))
    histograms = torch.zeros((len(group.counts), 512), dtype=torch.int64, device=device)
    if plan.num_chunks:
        launching.queue(
            device,
            Variant("chunk_histograms", group.name, group.aligned),
            plan.num_chunks,
            pointers,
            plan.owners,
            plan.firsts,
            plan.lengths,
            histograms,
        )
    return histograms


def _sketch_group(device: Any, pointers: Any, group: Group, seed: int) -> Any:
    torch = sys.modules["torch"]
    plan = plan_for(device, group.counts, SKETCH_TILES * SKETCH_ROWS * SKETCH_WIDTH)
    parts = torch.empty((plan.num_chunks, SKETCH_WIDTH), dtype=torch.float64, device=device)
    sketches = torch.empty((len(group.counts), SKETCH_WIDTH), dtype=torch.float64, device=device)
    seeds = np.array([stream(seed)], dtype=np.uint64).view(np.int64)
    seeds = upload_once(seeds, device, stream_number(device))
    if plan.num_chunks:
        launching.queue(
            device,
            Variant("chunk_sketches", group.name),
            plan.num_chunks,
            pointers,
            plan.owners,
            plan.firsts,
            plan.lengths,
            seeds,
            parts,
        )
    launching.queue(device, Variant("tensor_sketches"), len(group.counts), parts, plan.starts, sketches)
    return sketches


def _limit_table(limits: Sequence[float | None]) -> npt.NDArray[np.float64]:
    table = np.array([np.inf if limit is None else limit for limit in limits])
    return np.where(np.isnan(table), np.inf, table)
