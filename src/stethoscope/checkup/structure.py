"""Batches as users hand them over: tensors in tuples, dicts, dataclasses and other objects.

Promises: what is made here shares no memory with what came in; what cannot be taken apart is passed on whole.
"""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch

from stethoscope.capture.nested_tensors import tensors_in
from stethoscope.record import StethoscopeError

TARGET_KEYS = ("targets", "target", "labels", "label", "y")


class CheckupError(StethoscopeError, ValueError):
    """Something was handed to `checkup` that it cannot work with."""


def tensors(value: Any) -> list[torch.Tensor]:
    """Every tensor inside, in order."""
    return list(tensors_in(value))


def map_tensors(change: Callable[[torch.Tensor], Any], value: Any) -> Any:
    """The same structure with every tensor changed; objects of unknown kind are copied whole."""
    if isinstance(value, torch.Tensor):
        return change(value)
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*(map_tensors(change, part) for part in value))
    if isinstance(value, (list, tuple)):
        return type(value)(map_tensors(change, part) for part in value)
    if isinstance(value, Mapping):
        changed = {key: map_tensors(change, part) for key, part in value.items()}
        if type(value) is dict:
            return changed
        try:
            twin: Any = copy.copy(value)
            for key, part in changed.items():
                twin[key] = part
        except (TypeError, KeyError, AttributeError):
            return changed
        return twin
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        twin = copy.copy(value)
        for field in dataclasses.fields(value):
            # Frozen dataclasses too: the copy is ours.
            object.__setattr__(twin, field.name, map_tensors(change, getattr(value, field.name)))
        return twin
    if value is None or isinstance(value, (str, bytes, int, float, complex, type, torch.nn.Module)):
        return value
    try:
        return copy.deepcopy(value)
    except Exception:  # An object that cannot be copied is used as it is; the caller's forward does so too.
        return value


def is_open(value: Any) -> bool:
    """Whether every tensor inside can be reached by `map_tensors`."""
    reached: list[torch.Tensor] = []

    def note(tensor: torch.Tensor) -> torch.Tensor:
        reached.append(tensor)
        return tensor

    map_tensors(note, value)
    return bool(reached)


def clone(value: Any) -> Any:
    """The same numbers in memory of its own, without a history."""

    def own(tensor: torch.Tensor) -> torch.Tensor:
        return tensor.detach().clone().requires_grad_(tensor.requires_grad)

    return map_tensors(own, value)


def split_batch(batch: Any) -> tuple[Any, Any]:
    """Inputs and targets, from a pair, a longer tuple, a mapping or a dataclass; targets None where there are none."""
    if isinstance(batch, torch.utils.data.DataLoader):
        batch = next(iter(batch))
    if isinstance(batch, Iterator):
        raise CheckupError(
            "checkup takes one batch, and taking it from a generator would use it up",
            where=type(batch).__name__,
            do="Pass next(batches) yourself, or a DataLoader",
        )
    if isinstance(batch, (tuple, list)) and not hasattr(batch, "_fields"):
        if len(batch) == 2:
            return batch[0], batch[1]
        if len(batch) > 2:
            return tuple(batch[:-1]), batch[-1]
        if len(batch) == 1:
            return batch[0], None
        raise CheckupError("The batch is empty", do="Pass (inputs, targets)")
    names = list(batch) if isinstance(batch, Mapping) else getattr(batch, "_fields", None)
    if names is None and dataclasses.is_dataclass(batch):
        names = [field.name for field in dataclasses.fields(batch)]
    if names:
        return _split_named(batch, [str(name) for name in names])
    return batch, None


def _split_named(batch: Any, names: list[str]) -> tuple[Any, Any]:
    def get(name: str) -> Any:
        return batch[name] if isinstance(batch, Mapping) else getattr(batch, name)

    target = next((name for name in TARGET_KEYS if name in names), None)
    if target is None:
        return batch, None
    rest = [name for name in names if name != target]
    inputs = get(rest[0]) if len(rest) == 1 else {name: get(name) for name in rest}
    return inputs, get(target)


def batch_size(inputs: Any, targets: Any) -> int:
    """How many samples there are: the length of the targets where the inputs have an axis of that length."""
    sizes = [t.shape[0] for t in tensors(targets) if t.ndim]
    shapes = [t.shape for t in tensors(inputs) if t.ndim]
    for size in sizes:
        if any(size in shape[:2] for shape in shapes):
            return int(size)
    return int(shapes[0][0]) if shapes else (int(sizes[0]) if sizes else 0)


def batch_axis(tensor: torch.Tensor, size: int) -> int | None:
    """The axis that counts samples: 0, else 1 (time first), else none."""
    if tensor.ndim and tensor.shape[0] == size:
        return 0
    if tensor.ndim > 1 and tensor.shape[1] == size:
        return 1
    return None


def select(value: Any, size: int, rows: torch.Tensor) -> Any:
    """These samples of every tensor that has samples; ValueError where a tensor has no such axis."""

    def take(tensor: torch.Tensor) -> torch.Tensor:
        if not tensor.ndim:
            return tensor
        axis = batch_axis(tensor, size)
        if axis is None:
            raise ValueError(f"a tensor of shape {tuple(tensor.shape)} has no axis of {size} samples")
        return tensor.detach().index_select(axis, rows.to(tensor.device)).requires_grad_(tensor.requires_grad)

    return map_tensors(take, value)
