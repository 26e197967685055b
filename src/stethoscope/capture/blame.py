"""Whose line a warning blames while a pass is followed.

Torch calls its Python functions twice while a `TorchFunctionMode` is on: the caller's call goes through
`torch.overrides.handle_torch_function` and the mode to a second one. A `stacklevel` counted from in there ends in torch. While
a pass is followed `warnings.warn` counts past these frames, so that the line, its registry and the filters that apply are those
of a training without us.
"""

from __future__ import annotations

import functools
import sys
import threading
import types
import warnings
from typing import Any

from torch.overrides import TorchFunctionMode, handle_torch_function

_lock = threading.Lock()
_num_open = 0
_original: Any = None


class Counting:
    """Open while a mode of ours is on; closing twice does nothing."""

    def __init__(self, kind: type[TorchFunctionMode]) -> None:
        global _num_open, _original
        self._kind, self._open = kind, True
        with _lock:
            _num_open += 1
            if _num_open == 1:
                _original, warnings.warn = warnings.warn, _counting(warnings.warn, kind)

    def remove(self) -> None:
        """Count as Python does again."""
        global _num_open
        with _lock:
            _num_open -= self._open
            if self._open and _num_open == 0 and getattr(warnings.warn, "__wrapped__", None) is _original:
                setattr(warnings, "warn", _original)  # noqa: B010 - typed as what it is without us
            self._open = False


def _counting(original: Any, kind: type[TorchFunctionMode]) -> Any:
    @functools.wraps(original)
    def warn(message: Any, category: Any = None, stacklevel: Any = 1, source: Any = None, **more: Any) -> Any:
        if isinstance(stacklevel, int):
            stacklevel += 1 + _num_added(sys._getframe(1), stacklevel, kind)
        return original(message, category, stacklevel, source, **more)

    return warn


def _num_added(frame: types.FrameType | None, stacklevel: int, kind: type[TorchFunctionMode]) -> int:
    """How many frames up to this level are there only because a mode of ours is on."""
    added = 0
    for _ in range(stacklevel - 1):
        frame = _caller(frame)
        while frame is not None and (more := _frames_of_mode(frame, kind)):
            added += more
            for _ in range(more):
                frame = _caller(frame)
    return added


def _caller(frame: types.FrameType | None) -> types.FrameType | None:
    """The next frame that warnings count."""
    frame = frame.f_back if frame is not None else None
    while frame is not None and "importlib" in frame.f_code.co_filename and "_bootstrap" in frame.f_code.co_filename:
        frame = frame.f_back
    return frame


def _frames_of_mode(frame: types.FrameType, kind: type[TorchFunctionMode]) -> int:
    if frame.f_code is handle_torch_function.__code__ and isinstance(frame.f_locals.get("mode"), kind):
        return 2  # this one, and the first call of the function that is called again
    return int(frame.f_code is kind.__torch_function__.__code__)
