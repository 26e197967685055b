"""The user's hooks on a live model: each layer a hook speaks of is listened to, the others are left alone.

A model without such a hook carries nothing of this. With one: its first output tensor, and that tensor's
gradient, without a copy and without a change. Passes that activation checkpointing runs again are not heard twice,
nor is validation (`session.evaluating()`, or no gradients and a module in evaluation mode). Inside torch.compile no
Python runs, so compiled layers are not heard.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch

from stethoscope.capture.taps import Inert, tensors_in
from stethoscope.record import ROOT_NAME

if TYPE_CHECKING:
    from stethoscope.capture.watcher import Watcher
    from stethoscope.hooks import HookManager


class LayerRule(Inert):
    """The forward hook of one layer that the user's hooks speak of."""

    def __init__(self, rules: LayerRules, layer: str) -> None:
        self._rules, self._layer = rules, layer

    def __call__(self, module: Any, args: Any, output: Any) -> None:  # noqa: ARG002 - torch's signature
        """Let the hooks see the output."""
        if torch.compiler.is_compiling() or not self._rules.hears(module):
            return
        self._rules.guard(self._show, output)

    def _show(self, output: Any) -> None:
        hooks, step = self._rules.hooks, self._rules.step
        forward, backward = (hooks.wants(self._layer, is_forward, step) for is_forward in (True, False))
        tensor = next((t for _, t in tensors_in(output)), None) if forward or backward else None
        if tensor is None:
            return
        if backward and tensor.requires_grad:
            tensor.register_hook(GradientRule(self._rules, self._layer))
        if forward:
            self._rules.execute(self._layer, tensor.detach(), is_forward=True)


class GradientRule(Inert):
    """The hook on the gradient of one output."""

    def __init__(self, rules: LayerRules, layer: str) -> None:
        self._rules, self._layer = rules, layer

    def __call__(self, gradient: Any) -> None:
        """Let the hooks see the gradient; it passes as it is."""
        if self._rules.open and isinstance(gradient, torch.Tensor):
            self._rules.guard(self._show, gradient.detach())

    def _show(self, gradient: torch.Tensor) -> None:
        self._rules.execute(self._layer, gradient, is_forward=False)


class LayerRules:
    """Listens to the layers of one watched model, as the hooks come and go."""

    def __init__(self, watcher: Watcher, hooks: HookManager) -> None:
        self._watcher, self.hooks = watcher, hooks
        self.open = True
        self._handles: dict[int, tuple[torch.nn.Module, Any]] = {}
        self.refresh()

    @property
    def guard(self) -> Callable[..., None]:
        """The wall around everything that the framework calls."""
        return self._watcher.guard

    @property
    def step(self) -> int:
        """The Step that is under way."""
        return self._watcher.clock.step

    def hears(self, module: torch.nn.Module) -> bool:
        """Whether a forward pass of this module is one of training's own."""
        if not self.open or self._watcher.evaluating or torch._C._current_graph_task_id() != -1:
            return False
        return torch.is_grad_enabled() or module.training

    def execute(self, layer: str, tensor: torch.Tensor, *, is_forward: bool) -> None:
        """Run the hooks that speak of this layer; those that speak of the Step run at its end."""
        shape = tuple(tensor.shape)
        self.hooks.execute_hooks(layer, tensor, shape, is_forward, self.step, layers_only=True)

    def refresh(self) -> None:
        """Listen to the layers that hooks speak of now, and to no other."""
        if self.open:
            self.guard(self._refresh)

    def _refresh(self) -> None:
        wanted: dict[int, tuple[str, torch.nn.Module]] = {}
        if not self.hooks.is_idle:
            for path, module in self._watcher.names.root.named_modules():
                if self.hooks.listens_to(path or ROOT_NAME):
                    wanted[id(module)] = path or ROOT_NAME, module
        for key in [key for key in self._handles if key not in wanted]:
            self._handles.pop(key)[1].remove()
        for key, (path, module) in wanted.items():
            if key not in self._handles:
                self._handles[key] = module, module.register_forward_hook(LayerRule(self, path))

    def close(self) -> None:
        """Take everything off."""
        self.open = False
        for _, handle in self._handles.values():
            handle.remove()
        self._handles.clear()
