"""Nothing of the user's is changed: random states and the original model are put back to the bit."""

from __future__ import annotations

import contextlib
import functools
import random
import types
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch


@contextlib.contextmanager
def undisturbed(modules: Sequence[torch.nn.Module]) -> Iterator[None]:
    """Random states, and values, modes and gradients of these modules, are afterwards what they were.

    Experiments run on copies; the modules are kept all the same, because a loss may call the original.
    """
    states = _random_states()
    kept = [_Kept(module) for module in modules]
    threads_warn = torch.is_grad_enabled()
    try:
        with torch.enable_grad():
            yield
    finally:
        torch.set_grad_enabled(threads_warn)
        for one in kept:
            one.restore()
        _restore_random(states)


def seed_all(seed: int) -> None:
    """The same random numbers for every experiment, without touching devices that were never used."""
    random.seed(seed)
    np.random.seed(seed % (1 << 32))
    torch.default_generator.manual_seed(seed)
    if torch.cuda.is_initialized():
        for generator in torch.cuda.default_generators:
            generator.manual_seed(seed)


def _random_states() -> tuple[Any, Any, torch.Tensor, list[torch.Tensor]]:
    cuda = [g.get_state() for g in torch.cuda.default_generators] if torch.cuda.is_initialized() else []
    return random.getstate(), np.random.get_state(), torch.default_generator.get_state(), cuda


def _restore_random(states: tuple[Any, Any, torch.Tensor, list[torch.Tensor]]) -> None:
    python, numpy, cpu, cuda = states
    random.setstate(python)
    np.random.set_state(numpy)
    torch.default_generator.set_state(cpu)
    for generator, state in zip(torch.cuda.default_generators if cuda else (), cuda, strict=True):
        generator.set_state(state)


def modules_of(function: Any, depth: int = 0) -> list[torch.nn.Module]:
    """The modules that a loss may call: itself, its owner, what it closes over, the globals that it names."""
    if isinstance(function, torch.nn.Module):
        return [function]
    if depth > 3:
        return []
    if isinstance(function, functools.partial):
        parts = [function.func, *function.args, *function.keywords.values()]
    elif isinstance(function, types.MethodType):
        parts = [function.__func__, function.__self__, *vars(function.__self__).values()] if _has_vars(function) else []
    elif isinstance(function, types.FunctionType):
        cells = [cell.cell_contents for cell in function.__closure__ or () if _is_filled(cell)]
        named = [function.__globals__[name] for name in function.__code__.co_names if name in function.__globals__]
        parts = [*cells, *named]
    else:
        return []
    found = [module for part in parts for module in modules_of(part, depth + 1)]
    return list({id(module): module for module in found}.values())


def _has_vars(method: types.MethodType) -> bool:
    return hasattr(method.__self__, "__dict__")


def _is_filled(cell: types.CellType) -> bool:
    try:
        cell.cell_contents  # noqa: B018 - an empty cell raises
    except ValueError:
        return False
    return True


class _Kept:
    """What a module was: values, modes, gradients."""

    def __init__(self, module: torch.nn.Module) -> None:
        self.modes = [(m, m.training) for m in module.modules()]
        tensors = [*module.parameters(), *module.buffers()]
        self.values = [(t, t.detach().clone()) for t in tensors]
        self.flags = [(p, p.requires_grad, p.grad) for p in module.parameters()]
        self.grads = [(p.grad, p.grad.detach().clone()) for p in module.parameters() if p.grad is not None]

    def restore(self) -> None:
        for module, training in self.modes:
            module.training = training
        for parameter, asks, grad in self.flags:
            if parameter.requires_grad is not asks:
                parameter.requires_grad_(asks)
            if parameter.grad is not grad:
                parameter.grad = grad
        with torch.no_grad():
            # Compared by value: BatchNorm's running statistics change without a new version. What is equal is not written.
            for tensor, value in self.values:
                if not torch.equal(tensor, value):
                    tensor.copy_(value)
            for grad, value in self.grads:
                if not torch.equal(grad, value):
                    grad.copy_(value)
