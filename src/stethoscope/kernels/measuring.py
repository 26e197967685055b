"""Which kernel measures what: the one place where arrays of any origin become rows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from stethoscope.kernels import portable, reference
from stethoscope.kernels.columns import Table, empty_rows
from stethoscope.kernels.pending import Assembled, Done, Extras, Part, Pending
from stethoscope.kernels.tensors import is_tensor, plain

if TYPE_CHECKING:
    import torch

Limits = Sequence[float | None]


def measure(arrays: Sequence[Any], *, limits: Limits | None = None) -> Table:
    """One row per array, now: float64 [n, NUM_COLUMNS].

    Takes NumPy arrays, torch tensors, JAX arrays, lists and numbers, mixed.
    Raises `UnsupportedArrayError` where one of them holds no numbers that can be read.
    """
    out = empty_rows(len(arrays))
    tensors = [place for place, array in enumerate(arrays) if is_tensor(array)]
    if tensors:
        chosen = None if limits is None else [limits[place] for place in tensors]
        measured = start([arrays[place] for place in tensors], limits=chosen).result()
        if measured.unsupported:
            place = tensors[measured.unsupported[0]]
            raise reference.UnsupportedArrayError(
                f"the numbers of tensor {place} cannot be read",
                where=f"{arrays[place].dtype} on {arrays[place].device}, {arrays[place].layout}",
                do="Hand in a dense, unquantised tensor that holds data",
            )
        out[tensors] = measured.rows
    for place in sorted(set(range(len(arrays))) - set(tensors)):
        limit = None if limits is None else limits[place]
        out[place] = reference.row(arrays[place], limit)
    return out


def start(
    tensors: Sequence[torch.Tensor], *, limits: Limits | None = None, extras: Extras | None = None
) -> Pending:
    """Begins to measure torch tensors of any devices, dtypes and layouts; one row per tensor.

    Tensors on the CPU are measured before this returns, so the caller may change them at once. Elsewhere the
    work is queued on the current stream and nothing is synchronised.
    """
    places: dict[Any, list[int]] = {}
    sources: list[Any] = []
    implicit_zeros: dict[int, int] = {}
    unsupported: list[int] = []
    for place, tensor in enumerate(tensors):
        found = plain(tensor)
        sources.append(None if found is None else found.tensor)
        if found is None:
            unsupported.append(place)
            continue
        if found.implicit_zeros:
            implicit_zeros[place] = found.implicit_zeros
        places.setdefault(found.tensor.device, []).append(place)
    parts: list[tuple[Sequence[int], Part]] = []
    for device, members in places.items():
        chosen = None if limits is None else [limits[place] for place in members]
        parts.append((members, _launch(device, [sources[place] for place in members], chosen, extras)))
    return Pending(Assembled(len(sources), parts, implicit_zeros, unsupported))


def _launch(device: Any, tensors: list[Any], limits: Limits | None, extras: Extras | None) -> Part:
    launched = portable.launch(tensors, limits, extras)
    return Done(launched.result()) if device.type == "cpu" else launched
