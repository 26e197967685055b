"""Modes of the user's own (a FLOP counter, a logger of operations) see what the training does, not what we compute beside it."""

from __future__ import annotations

import contextlib
import functools
import threading
from collections.abc import Callable, Iterator
from typing import Any, Concatenate, ParamSpec, TypeVar

import torch
from torch._C import _len_torch_dispatch_stack as num_dispatch_modes
from torch._C import _len_torch_function_stack as num_function_modes
from torch.overrides import _get_current_function_mode_stack as function_modes
from torch.overrides import _pop_mode as _pop_function_mode
from torch.overrides import _push_mode as _push_function_mode
from torch.utils._device import DeviceContext
from torch.utils._python_dispatch import _disable_current_modes, _pop_mode, _push_mode
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack as dispatch_modes

Owner = TypeVar("Owner")
Given = ParamSpec("Given")

_own = threading.local()


def any_on() -> bool:
    """Whether anything listens to operations on this thread: asked at every entry, so it costs a tenth of a microsecond."""
    return bool(num_dispatch_modes() or num_function_modes())


def unseen(function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> None:
    """Run it without the modes of the user's."""
    modes = dispatch_modes()
    # A mode of torch's own machinery (fake tensors, tracing) is part of what the values are: with one of them on, all stay.
    if any(map(_is_foreign, modes)) and all(getattr(mode, "_mode_key", None) is None for mode in modes):
        _without(modes, function, args, kwargs)
    elif any(map(_is_foreign, function_modes())):
        with torch._C.DisableTorchFunction():
            function(*args, **kwargs)
    else:
        function(*args, **kwargs)


def only_asks(method: Callable[Concatenate[Owner, Given], None]) -> Callable[Concatenate[Owner, Given], None]:
    """For a hook that asks of tensors what they are and computes nothing with them: nobody is told that it asked."""

    @functools.wraps(method)
    def inside(self: Owner, /, *args: Given.args, **kwargs: Given.kwargs) -> None:
        if torch.compiler.is_compiling():
            method(self, *args, **kwargs)
            return
        with torch._C.DisableTorchFunction():
            method(self, *args, **kwargs)

    return inside


@contextlib.contextmanager
def alone() -> Iterator[None]:
    """For a pass of our own, with modes of our own: the user's are off meanwhile."""
    functions = function_modes()
    for _ in functions:
        _pop_function_mode()
    try:
        with torch._C._EnableTorchFunction(), _disable_current_modes():
            yield
    finally:
        for mode in functions:
            _push_function_mode(mode)


def all_dispatch_modes() -> list[Any]:
    """The dispatch modes of this thread from the outermost on, also those that are taken off while we work."""
    return [*getattr(_own, "taken_off", ()), *dispatch_modes()]


def _without(modes: list[Any], function: Callable[..., Any], args: Any, kwargs: Any) -> None:
    """Whatever the function enters stays on, inside of what was on before."""
    before, _own.taken_off = getattr(_own, "taken_off", ()), [*getattr(_own, "taken_off", ()), *modes]
    _take_off()
    try:
        with torch._C.DisableTorchFunction():
            function(*args, **kwargs)
    finally:
        entered = _take_off()
        for mode in (*modes, *entered):
            _push_mode(mode)
        _own.taken_off = before


def _take_off() -> list[Any]:
    modes = dispatch_modes()
    for _ in modes:
        _pop_mode()
    return modes


def _is_foreign(mode: Any) -> bool:
    """Not ours, and not the one that `torch.set_default_device` leaves on for good."""
    return type(mode) is not DeviceContext and not type(mode).__module__.startswith("stethoscope.")
