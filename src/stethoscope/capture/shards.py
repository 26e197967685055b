"""The parameters of a sharded model, as its optimizer holds them.

FSDP swaps `module._parameters` entries: between steps they are this rank's shards, during forward and backward whole
tensors in storage that FSDP frees and fills again. Those may be neither read nor kept, so whoever wants a module's
parameters asks here and gets the shards at any moment. torch has no public way to ask; where its private attributes are
not as known, the parameter is left out.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import torch

Shards = dict[tuple[int, str], torch.nn.Parameter | None]
"""From a module's id and a parameter's name to the shard that stands there between steps."""


def unsharded_now(modules: Iterable[torch.nn.Module]) -> Shards:
    """The shards of every parameter for which a whole tensor stands in its module right now."""
    found: Shards = {}
    for module in modules:
        if hasattr(type(module), "_get_fsdp_state"):
            try:
                found.update(_of_fully_shard(module))
            except AttributeError:
                found.update(_plain_under(module))
        elif type(module).__name__ == "FullyShardedDataParallel":
            found.update(_of_flat_parameter(module.__dict__.get("_handle")))
    return found


def own_parameters(module: torch.nn.Module, shards: Shards) -> Iterator[tuple[str, torch.nn.Parameter]]:
    """A module's own parameters by name, shards in place of whole tensors."""
    for name, parameter in module._parameters.items():
        held = shards.get((id(module), name), parameter) if shards else parameter
        if held is not None:
            yield name, held


def is_flattened(parameter: torch.Tensor) -> bool:
    """Whether FullyShardedDataParallel put it into one flat tensor: the same object is a shard or whole, as training goes."""
    return getattr(parameter, "_fsdp_flattened", False) is True


def is_shard(tensor: Any) -> bool:
    """Whether this rank holds a part of it only: a DTensor that is not replicated, or a flat parameter."""
    placements = getattr(tensor, "placements", None)
    if placements is None or not hasattr(tensor, "_local_tensor"):
        return is_flattened(tensor)
    return not all(placement.is_replicate() for placement in placements)


def _of_fully_shard(module: Any) -> Shards:
    state = module._get_fsdp_state()
    groups = getattr(state, "_fsdp_param_groups", None)
    if groups is None:  # an older torch, with at most one
        groups = [group] if (group := getattr(state, "_fsdp_param_group", None)) is not None else []
    found: Shards = {}
    for held in [held for group in groups for held in group.fsdp_params]:
        if held.sharded_state.name == "SHARDED":
            continue
        info = held._module_info
        found[id(info.module), info.param_name] = held.sharded_param
        for other, name in zip(info.shared_modules, info.shared_param_names, strict=True):
            found[id(other), name] = held.sharded_param
    return found


def _plain_under(module: torch.nn.Module) -> Shards:
    """What may be whole, where nothing more can be known."""
    return {
        (id(part), name): None
        for part in module.modules()
        for name, parameter in part._parameters.items()
        if not hasattr(parameter, "_local_tensor")
    }


def _of_flat_parameter(handle: Any) -> Shards:
    """With `use_orig_params=True` the modules hold views of the flat tensor in forward and backward."""
    flat: Any = getattr(handle, "flat_param", None)
    if getattr(flat, "_params", None) is None:
        return {}
    found: Shards = {
        (id(info.module), info.param_name): held for info, held in zip(flat._param_infos, flat._params, strict=True)
    }
    for info, held in zip(flat._shared_param_infos, flat._shared_params or (), strict=False):
        found[id(info.module), info.param_name] = held
    return found
