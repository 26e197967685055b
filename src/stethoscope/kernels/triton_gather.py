"""Chosen elements of many CUDA tensors by one launch a dtype, for what a step changed; nothing waits."""

from __future__ import annotations

import dataclasses
import sys
from collections import OrderedDict
from typing import Any

import numpy as np
import numpy.typing as npt

from stethoscope.kernels import launching
from stethoscope.kernels.fetching import stream_number, upload, upload_once
from stethoscope.kernels.pointers import KINDS, Collected
from stethoscope.kernels.triton import MAX_PLANS
from stethoscope.kernels.variants import GATHER_LANES, Variant

_gather_plans: OrderedDict[tuple[Any, ...], GatherPlan] = OrderedDict()


def gather(
    table: Collected, starts: npt.NDArray[np.int64], offsets: npt.NDArray[np.int64], key: tuple[Any, ...]
) -> Any:
    """Elements at offsets of each tensor, on the device; see `cpu.gather`. Tables are kept under `key`.

    None where that takes what is still being compiled.
    """
    torch = sys.modules["torch"]
    device = table.owners[0].device
    kinds = np.frombuffer(table.kinds, dtype=np.uint8)
    variants = {kind: Variant("gather_values", KINDS[kind]) for kind in np.unique(kinds).tolist()}
    if not launching.are_available(device, variants.values()):
        return None
    out = torch.empty(int(starts[-1]), dtype=torch.float64, device=device)
    pointers = upload_once(np.frombuffer(table.pointers, dtype=np.int64), device, stream_number(device))
    for kind, variant in variants.items():
        plan = _gather_plan(device, (*key, kind), np.flatnonzero(kinds == kind), starts, offsets)
        if plan.num_programs:
            launching.queue(
                device,
                variant,
                plan.num_programs,
                pointers,
                plan.owners,
                plan.begins,
                plan.ends,
                plan.offsets,
                out,
            )
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
    key = (device, stream_number(device), *key)
    found = _gather_plans.get(key)
    if found is None:
        pieces = -(-(starts[members + 1] - starts[members]) // GATHER_LANES)
        owners = np.repeat(members, pieces)
        ranks = np.arange(len(owners)) - np.repeat(np.cumsum(pieces) - pieces, pieces)
        begins = starts[owners] + ranks * GATHER_LANES
        found = GatherPlan(
            upload(owners.astype(np.int32), device),
            upload(begins.astype(np.int64), device),
            upload(starts[owners + 1].astype(np.int64), device),
            upload(offsets, device),
            len(owners),
        )
        _gather_plans[key] = found
        if len(_gather_plans) > MAX_PLANS:
            _gather_plans.popitem(last=False)
    return found
