"""What the model was first called with, as shapes: enough to count its FLOPs later, and none of the user's data."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from stethoscope.capture.guard import never_compiled
from stethoscope.capture.taps import Inert
from stethoscope.instruments.architecture import Call
from stethoscope.record import WatchError

PLAIN = (bool, int, float, str, type(None), torch.dtype, torch.device)


@dataclass(frozen=True, slots=True)
class _Shape:
    """A tensor without its values."""

    shape: tuple[int, ...]
    dtype: torch.dtype
    device: torch.device


class FirstBatch(Inert):
    """The root's forward pre-hook; it notes one call and takes itself off."""

    def __init__(self, root: torch.nn.Module, guard: Callable[..., None]) -> None:
        self._guard = guard
        self._seen: tuple[Any, Any] | None = None
        self._strange = ""
        self._handle: Any = root.register_forward_pre_hook(self, with_kwargs=True)

    def __call__(self, module: Any, args: Any, kwargs: Any = None) -> None:  # noqa: ARG002 - torch's signature
        """Note the shapes of this call."""
        if torch.compiler.is_compiling():
            return
        self.close()
        # A thread that called the model at the same moment may find the hook half taken off: then without keywords.
        if self._seen is None and kwargs is not None:
            self._guard(self._note, args, kwargs)

    def _note(self, args: Any, kwargs: Any) -> None:
        self._seen = self._shapes(args), self._shapes(kwargs)

    def close(self) -> None:
        """Take it off."""
        handle, self._handle = self._handle, None
        if handle is not None:
            handle.remove()

    def example(self) -> Call:
        """Arguments of the same shapes, all zero: indices stay valid."""
        if self._seen is None:
            raise WatchError(
                "the model has not been called yet",
                do="Run one step first, or give analyze_architecture a batch",
            )
        if self._strange:
            raise WatchError(
                "the model takes something that cannot be made up",
                where=self._strange,
                do="Give analyze_architecture a batch",
            )
        args, kwargs = self._seen
        return Call(tuple(_made(args)), _made(kwargs))

    def _shapes(self, value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            if value.layout is not torch.strided or value.is_nested:
                self._strange = f"a {value.layout} tensor"
                return None
            return _Shape(tuple(value.shape), value.dtype, value.device)
        if isinstance(value, Mapping):
            return {key: self._shapes(item) for key, item in value.items()}
        if isinstance(value, tuple | list):
            return [self._shapes(item) for item in value]
        if not isinstance(value, PLAIN):
            self._strange = type(value).__name__
            return None
        return value


never_compiled(FirstBatch.__call__)


def _made(value: Any) -> Any:
    if isinstance(value, _Shape):
        return torch.zeros(value.shape, dtype=value.dtype, device=value.device)
    if isinstance(value, dict):
        return {key: _made(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_made(item) for item in value]
    return value
