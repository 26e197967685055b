"""The tensors inside of what a function takes or gives back."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import torch

MAX_TENSORS: Final = 512
MAX_DEPTH: Final = 4
PLAIN: Final = (str, bytes, int, float, complex, type, torch.dtype, torch.device)
"""What holds no tensors and is met often."""


def tensors_in(value: Any) -> list[torch.Tensor]:
    """Every tensor inside arguments or outputs: sequences, mappings, dataclasses, plain objects."""
    found: list[torch.Tensor] = []
    _collect(value, found, 0)
    return found


def _collect(value: Any, found: list[torch.Tensor], depth: int) -> None:
    if issubclass(type(value), torch.Tensor):
        found.append(value)
        return
    if value is None or depth >= MAX_DEPTH or issubclass(type(value), PLAIN):
        return
    for part in _parts(value, depth):
        _collect(part, found, depth + 1)


def _parts(value: Any, depth: int) -> list[Any]:
    """What a container or an object holds; nothing where it does not let itself be looked into."""
    try:
        if isinstance(value, (tuple, list)):
            return list(value)[:MAX_TENSORS]
        if isinstance(value, (dict, Mapping)):
            return list(value.values())[:MAX_TENSORS]
        if depth < 2 and not isinstance(value, torch.nn.Module):
            return list(getattr(value, "__dict__", {}).values())[:MAX_TENSORS]
    except Exception:
        return []
    return []
