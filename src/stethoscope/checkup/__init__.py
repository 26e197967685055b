"""The experiments before training, one a file.

`stethoscope.checkup` is both this package and the function that users call, whichever of the two was imported first:
the package itself can be called.
"""

from __future__ import annotations

import sys
import types
from typing import Any

from stethoscope.checkup.runner import checkup
from stethoscope.checkup.structure import CheckupError
from stethoscope.explain.diagnosis import Diagnosis

__all__ = ["CheckupError", "checkup"]


class _CallablePackage(types.ModuleType):
    """A module that does what its function does."""

    def __call__(self, *args: Any, **kwargs: Any) -> Diagnosis:
        """`checkup(...)`."""
        return checkup(*args, **kwargs)


sys.modules[__name__].__class__ = _CallablePackage
