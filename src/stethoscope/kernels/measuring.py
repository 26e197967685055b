"""Which kernel measures what: the one place where arrays of any origin become rows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import numpy.typing as npt

from stethoscope.kernels import cpu, launching, portable, reference, triton
from stethoscope.kernels.columns import NUM_COLUMNS, Table, empty_rows
from stethoscope.kernels.fetching import FewNumbers
from stethoscope.kernels.pending import Assembled, Done, Extras, Measured, Part, Pending
from stethoscope.kernels.pointers import CODE, Collected, array_dtype_name, collect, collect_arrays
from stethoscope.kernels.tensors import is_tensor, plain
from stethoscope.kernels.variants import needed, useful

if TYPE_CHECKING:
    import torch

Limits = Sequence[float | None]
MAX_FEW: Final = 4


def backend() -> str:
    """What measures tensors here, for people to read; imports neither torch nor triton."""
    return f"CPU: {cpu.backend()}; CUDA: {launching.backend()}"


def prepare(tensors: Sequence[torch.Tensor]) -> None:
    """Have at hand what measuring tensors like these takes on their devices, before a training begins; returns at once.

    Device code that no process of this machine compiled so far is compiled beside: see `can_measure`.
    """
    dtypes: dict[Any, dict[str, None]] = {}
    for tensor in tensors:
        if tensor.is_cuda and tensor.is_floating_point():
            dtypes.setdefault(tensor.device, {})[str(tensor.dtype).removeprefix("torch.")] = None
    for device, names in dtypes.items():
        known = [name for name in names if name in CODE]
        if launching.serves_devices() and launching.is_driven(device):
            launching.prepare(device, needed(known), useful(known))


def uses_devices() -> bool:
    """Whether `prepare` was asked for tensors on a device."""
    return launching.is_asked_for()


def can_measure(*, everything: bool = False) -> bool:
    """Whether device code is there for what `prepare` was asked for, or never will be; torch's operations serve then.

    Without `everything`: for gradients, weights and their changes, though perhaps not yet for outputs, histograms and sketches.
    """
    return all(found.has_all if everything else found.has_needed for found in launching.preparations())


def measure(arrays: Sequence[Any], *, limits: Limits | None = None) -> Table:
    """One row per array, now: float64 [n, NUM_COLUMNS].

    Takes NumPy arrays, torch tensors, JAX arrays, lists and numbers, mixed.
    Raises `UnsupportedArrayError` where one of them holds no numbers that can be read.
    """
    tensors = [position for position, array in enumerate(arrays) if is_tensor(array)]
    others = [position for position, array in enumerate(arrays) if not is_tensor(array)]
    out = np.empty((len(arrays), NUM_COLUMNS))
    if tensors:
        out[tensors] = _measure_tensors([arrays[position] for position in tensors], _pick(limits, tensors))
    if others:
        out[others] = _measure_arrays([arrays[position] for position in others], _pick(limits, others))
    return out


def measure_async(
    tensors: Sequence[torch.Tensor],
    *,
    limits: Limits | None = None,
    extras: Extras | None = None,
    timed: bool = False,
) -> Pending:
    """Begins to measure torch tensors of any devices, dtypes and layouts; one row per tensor.

    Tensors on the CPU are measured before this returns, so the caller may change them at once. Elsewhere the
    work is queued on the current stream and nothing is synchronised. `timed` asks for the device's own time.
    """
    if not tensors:
        return Pending(Done(Measured(empty_rows(0))))
    table = collect(tensors, ordered=extras is not None and extras.sketch)
    if table is not None and table.device < 0 and extras is None and (loaded := cpu.library()) is not None:
        return Pending(Done(Measured(cpu.rows(loaded, table, limits))))
    part = None if table is None else _measure_table(table, limits, extras, timed=timed)
    return _start_mixed(tensors, limits, extras) if part is None else Pending(part)


def _start_mixed(tensors: Sequence[Any], limits: Limits | None, extras: Extras | None) -> Pending:
    """For what the pointer table does not take as it is: looks at each tensor, then goes device by device."""
    positions: dict[Any, list[int]] = {}
    sources: list[Any] = []
    implicit_zeros: dict[int, int] = {}
    unsupported: list[int] = []
    for position, tensor in enumerate(tensors):
        found = plain(tensor)
        sources.append(None if found is None else found.tensor)
        if found is None:
            unsupported.append(position)
            continue
        if found.implicit_zeros:
            implicit_zeros[position] = found.implicit_zeros
        positions.setdefault(found.tensor.device, []).append(position)
    parts: list[tuple[Sequence[int], Part]] = [
        (members, _launch([sources[position] for position in members], _pick(limits, members), extras))
        for members in positions.values()
    ]
    return Pending(Assembled(len(sources), parts, implicit_zeros, unsupported))


def _launch(tensors: list[Any], limits: Limits | None, extras: Extras | None) -> Part:
    """Measures plain tensors of one device with the best kernel there is for it."""
    ordered = extras is not None and extras.sketch
    table = collect(tensors, ordered=ordered)
    if table is None:
        table = collect([tensor.contiguous() for tensor in tensors], ordered=ordered)
    part = None if table is None else _measure_table(table, limits, extras)
    if part is not None:
        return part
    launched = portable.launch(tensors, limits, extras)
    return Done(launched.result()) if tensors[0].device.type == "cpu" else launched


def _measure_table(
    table: Collected, limits: Limits | None, extras: Extras | None, *, timed: bool = False
) -> Part | None:
    """With the C library or with Triton; None where neither serves this device."""
    if table.device >= 0:
        return _measure_on_device(table, limits, extras, timed)
    loaded = cpu.library()
    if loaded is None:
        return None
    rows = cpu.rows(loaded, table, limits)
    if extras is None:
        return Done(Measured(rows))
    histograms = cpu.histograms(loaded, table) if extras.histogram else None
    sketches = cpu.sketches(loaded, table, extras.seed) if extras.sketch else None
    return Done(Measured(rows, histograms, sketches))


def _measure_on_device(table: Collected, limits: Limits | None, extras: Extras | None, timed: bool) -> Part | None:
    is_bare = extras is None and limits is None and len(table) <= MAX_FEW
    if is_bare and table.owners[0].is_cuda and sum(table.counts) <= FewNumbers.MAX_ELEMENTS:
        return FewNumbers(table.owners, lambda hosts: Measured(_measure_tensors(hosts, None)))
    if not triton.serves(table):
        return None
    try:
        return triton.launch(table, limits, extras, timed=timed)
    except Exception as problem:  # a compiler and a driver we do not know: torch's own operations still work
        launching.give_up(problem)
        return None


def _measure_tensors(tensors: list[Any], limits: Limits | None) -> Table:
    measured = measure_async(tensors, limits=limits).result()
    if measured.unsupported:
        tensor = tensors[measured.unsupported[0]]
        raise reference.UnsupportedArrayError(
            "the numbers of a tensor cannot be read",
            where=f"{tensor.dtype} on {tensor.device}, {tensor.layout}",
            do="Hand in a dense, unquantised tensor that holds data",
        )
    return measured.rows


def _measure_arrays(arrays: list[Any], limits: Limits | None) -> Table:
    loaded = cpu.library()
    readable = [_readable(array) for array in arrays]
    if loaded is None or any(array is None for array in readable):
        return reference.rows(arrays, limits)
    return cpu.rows(loaded, collect_arrays([a for a in readable if a is not None]), limits)


def _readable(array: Any) -> npt.NDArray[Any] | None:
    """The array in a form the library reads, elements in any order; None where only the reference can."""
    try:
        found = np.asarray(array)
    except (ValueError, TypeError) as problem:
        raise reference.UnsupportedArrayError(
            f"this is not an array of numbers ({problem})", do="Hand in numbers, or arrays of them"
        ) from problem
    name = array_dtype_name(found.dtype)
    if name in ("complex64", "complex128"):
        found = np.ascontiguousarray(found).view("f4" if name == "complex64" else "f8")
        name = array_dtype_name(found.dtype)
    if name not in CODE or not found.dtype.isnative:
        return None
    return found if found.flags.forc else np.ascontiguousarray(found)


def _pick(limits: Limits | None, positions: list[int]) -> Limits | None:
    return None if limits is None else [limits[position] for position in positions]
