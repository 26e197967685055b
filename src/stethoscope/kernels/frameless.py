"""A call that is looked at afterwards, without a frame of ours on the stack while it runs."""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable
from typing import Any

from stethoscope.kernels import cpu


def call_and_show(mode: Any) -> Callable[..., Any] | None:
    """A `__torch_function__` for this mode that calls the function and returns `mode.show(function, args, kwargs, result)`.

    None where the C library is missing: then a Python function must do, and warnings blame its line.
    """
    make = _maker()
    return None if make is None else make(mode)


@functools.cache
def _maker() -> Any:
    if cpu.library() is None:
        return None
    # Unlike CDLL this keeps Python's lock and passes on what was raised.
    make = getattr(ctypes.PyDLL(str(cpu.PATH)), "stethoscope_frameless", None)
    if make is not None:
        make.argtypes, make.restype = [ctypes.py_object], ctypes.py_object
    return make
