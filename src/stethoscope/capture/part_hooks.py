"""The hooks on a model's modules, and taking them off between looks.

A module with a hook leaves PyTorch's fast path, which on a slow host costs each of its calls some microseconds. Where nothing
is kept between looks the hooks rest: off their modules, and back in their old place before the next look.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch


class PartHooks:
    """Forward hooks of ours, one for each module."""

    def __init__(self) -> None:
        self._handles: list[Any] = []
        self._hooks: list[tuple[dict[int, Callable[..., Any]], int, Callable[..., Any]]] = []
        """Of each: the module's hooks, the number of ours among them, and ours."""
        self._ahead: dict[int, set[int]] = {}
        """While they rest, by number: the hooks of others that come before it."""
        self._rests = False
        self.num_paused = 0
        """How many ask that the model bear no hook of ours at all right now."""

    def __len__(self) -> int:
        return len(self._handles)

    def add(self, module: torch.nn.Module, hook: Callable[..., Any]) -> None:
        """One more, behind those that the module has."""
        handle = module.register_forward_hook(hook)
        self._handles.append(handle)
        self._hooks.append((module._forward_hooks, handle.id, hook))
        if self._rests:
            self._take_off(module._forward_hooks, handle.id)

    def rest(self) -> None:
        """Nobody looks until `wake`."""
        if self._rests:
            return
        self._rests = True
        for hooks, number, _ in self._hooks:
            self._take_off(hooks, number)

    def _take_off(self, hooks: dict[int, Callable[..., Any]], number: int) -> None:
        if number in hooks:
            if len(hooks) > 1:
                order = list(hooks)
                self._ahead[number] = set(order[: order.index(number)])
            del hooks[number]

    def wake(self) -> None:
        """Somebody looks at the next forward pass."""
        if not self._rests or self.num_paused:
            return
        self._rests = False
        for hooks, number, hook in self._hooks:
            ahead = self._ahead.get(number, set())
            behind = [other for other in hooks if other not in ahead]
            hooks[number] = hook
            for other in behind:
                hooks[other] = hooks.pop(other)
        self._ahead.clear()

    def remove(self) -> None:
        """All of them, for good."""
        for handle in self._handles:
            handle.remove()
        self._handles.clear()
        self._hooks.clear()
        self._ahead.clear()
