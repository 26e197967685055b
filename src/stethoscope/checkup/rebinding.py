"""Functions that a copied model still shares with the original, made to work on the copy.

`copy.deepcopy` copies bound methods and partials with what they hold, but takes a plain function as it is. A forward that
was replaced on the instance is mostly such a function: it closes over the original model or its old forward, or finds
them among its globals. The copy would then run the original's weights, and every experiment would see a model whose own
weights do nothing.
"""

from __future__ import annotations

import contextlib
import functools
import types
from collections.abc import Iterator, Mapping
from typing import Any, Final

import torch
from torch.nn.modules.module import register_module_forward_pre_hook

MAX_DEPTH: Final = 8
OWNED: Final = (torch.nn.Module, torch.Tensor)


class Rebinder:
    """Replaces references to an original by references to its copy."""

    def __init__(self, memo: Mapping[int, Any]) -> None:
        """`memo` as `copy.deepcopy` left it: from the id of each original to its copy."""
        self._memo = memo
        self._functions: dict[int, types.FunctionType] = {}

    def rebind_model(self, copied: torch.nn.Module) -> None:
        """Mend what the modules of a copy hold in their own attributes: forwards, hooks, functions in lists."""
        for module in copied.modules():
            held = vars(module)
            for name, value in list(held.items()):
                if name not in ("_modules", "_parameters", "_buffers"):
                    held[name] = self.rebound(value)

    def rebound(self, value: Any, depth: int = 0) -> Any:
        """The same value, with the copy in place of the original; the value itself where it does not hold it."""
        if isinstance(value, OWNED):
            return self._memo.get(id(value), value)
        if depth > MAX_DEPTH:
            return value
        if isinstance(value, types.FunctionType):
            return self._rebind_function(value, depth)
        if isinstance(value, types.MethodType):
            function, owner = self.rebound(value.__func__, depth + 1), self.rebound(value.__self__, depth + 1)
            same = function is value.__func__ and owner is value.__self__
            return value if same else types.MethodType(function, owner)
        if isinstance(value, functools.partial):
            function = self.rebound(value.func, depth + 1)
            args, kwargs = self.rebound(value.args, depth + 1), self.rebound(value.keywords, depth + 1)
            same = function is value.func and args is value.args and kwargs is value.keywords
            return value if same else type(value)(function, *args, **kwargs)
        return self._rebind_container(value, depth)

    def _rebind_container(self, value: Any, depth: int) -> Any:
        if type(value) in (list, tuple):
            items = [self.rebound(item, depth + 1) for item in value]
            return value if all(map(_is, items, value)) else type(value)(items)
        if isinstance(value, dict):
            found = {key: self.rebound(item, depth + 1) for key, item in value.items()}
            changed = {key: item for key, item in found.items() if item is not value[key]}
            if changed:
                value = value.copy()
                value.update(changed)
        return value

    def _rebind_function(self, function: types.FunctionType, depth: int) -> types.FunctionType:
        known = self._functions.get(id(function))
        if known is not None:
            return known
        self._functions[id(function)] = function  # one that holds itself is not followed in a circle
        cells = [_cell_contents(cell) for cell in function.__closure__ or ()]
        named = {
            name: function.__globals__[name]
            for name in _global_names(function.__code__)
            if name in function.__globals__
        }
        given = [cells, named, function.__defaults__, function.__kwdefaults__]
        found = [self.rebound(part, depth + 1) for part in given]
        if all(map(_is, found, given)):
            return function
        closure = tuple(
            old if item is before else types.CellType(item)
            for old, item, before in zip(function.__closure__ or (), found[0], cells, strict=True)
        )
        spaces = function.__globals__ if found[1] is named else {**function.__globals__, **found[1]}
        made = types.FunctionType(function.__code__, spaces, function.__name__, found[2], closure or None)
        made.__kwdefaults__, made.__dict__ = found[3], dict(function.__dict__)
        self._functions[id(function)] = made
        return made


@contextlib.contextmanager
def calls_of(original: torch.nn.Module) -> Iterator[list[str]]:
    """The paths of the original's own modules that are called while this is open: by an experiment on a copy, none."""
    paths = {id(module): path for path, module in original.named_modules()}
    called: list[str] = []

    def note(module: torch.nn.Module, args: Any) -> None:  # noqa: ARG001 - torch's signature
        if id(module) in paths:
            called.append(paths[id(module)])

    handle = register_module_forward_pre_hook(note)
    try:
        yield called
    finally:
        handle.remove()


def _is(first: Any, second: Any) -> bool:
    return first is second


def _global_names(code: types.CodeType) -> set[str]:
    """The global names that a function, or one that it defines, may read."""
    inner = [const for const in code.co_consts if isinstance(const, types.CodeType)]
    return set(code.co_names).union(*map(_global_names, inner))


def _cell_contents(cell: types.CellType) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # not filled yet
        return None
