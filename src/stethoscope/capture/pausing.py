"""A watched model without our hooks for a while: for what cannot bear any hook, such as torch.jit.script."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any, Final

import torch

from stethoscope.capture.taps import Inert, InputTap

HOOKS: Final = (
    "_forward_hooks",
    "_forward_hooks_with_kwargs",
    "_forward_hooks_always_called",
    "_forward_pre_hooks",
    "_forward_pre_hooks_with_kwargs",
)


@contextlib.contextmanager
def without_hooks(root: torch.nn.Module) -> Iterator[None]:
    """Take our hooks off every module below, and put them back where they still belong."""
    taken: list[tuple[Any, int, Any]] = []
    for module in root.modules():
        ours = {
            key
            for name in ("_forward_hooks", "_forward_pre_hooks")
            for key, hook in list(module.__dict__.get(name, {}).items())
            if isinstance(hook, Inert) or _is_remnant(hook)
        }
        for name in HOOKS:
            held = module.__dict__.get(name)
            taken += [(held, key, held.pop(key)) for key in ours if held is not None and key in held]
    resting = {id(parts): parts for _, _, hook in taken if isinstance(hook, InputTap) for parts in [hook.parts]}
    for parts in resting.values():
        parts.num_paused += 1
    try:
        yield
    finally:
        for parts in resting.values():
            parts.num_paused -= 1
        for held, key, hook in taken:
            # What a copy carried in place of ours does nothing, and need not come back.
            if not _is_remnant(hook):
                held[key] = hook


def _is_remnant(hook: Any) -> bool:
    return isinstance(getattr(hook, "__self__", None), contextlib.nullcontext)
