"""Which parameters get a gradient now, as against those that keep one from before they were asked about."""

from __future__ import annotations

import weakref
from typing import Any, Final

CHECK_AFTER: Final = 2
"""Steps after which a gradient that was there at first has changed if another one came."""


class GradientArrivals:
    """Remembers each parameter's gradient as it was first seen; only another one, or more in it, has arrived since.

    A layer that was trained before and is left out on purpose keeps its last gradient for as long as nobody clears it.
    """

    def __init__(self) -> None:
        self._first: dict[int, tuple[weakref.ref[Any], weakref.ref[Any] | None, int]] = {}
        self.check_at = -1
        """The step at which what was there at first should be looked at again."""

    def has_arrived(self, parameter: Any, step: int) -> bool | None:
        """Whether this parameter has a gradient that came since it was first asked about; None where that is only being asked."""
        gradient = parameter.grad
        known = self._first.get(id(parameter))
        if known is None or known[0]() is not parameter:
            held = weakref.ref(gradient) if gradient is not None else None
            self._first[id(parameter)] = weakref.ref(parameter), held, _version(gradient)
            if gradient is not None:
                self.check_at = step + CHECK_AFTER
            return None if gradient is not None else False
        _, held, version = known
        return gradient is not None and (held is None or held() is not gradient or _version(gradient) != version)


def _version(tensor: Any) -> int:
    """How often a tensor was written to; 0 for one that keeps no count, as those of inference mode."""
    try:
        return int(tensor._version)
    except (AttributeError, RuntimeError):
        return 0
