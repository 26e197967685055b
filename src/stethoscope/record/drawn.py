"""Objects that notebooks draw."""

from __future__ import annotations

from importlib import import_module
from typing import Any

DRAWING = "stethoscope.views.notebook"
"""Who draws for notebooks. By name and when asked: the rooms whose objects are drawn lie below it and know nothing of it."""


class Drawn:
    """An object that a notebook shows as a picture, and a terminal as text."""

    __slots__ = ()

    def _repr_html_(self) -> str:
        return str(import_module(DRAWING).html(self))

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, str]:
        found: dict[str, str] = import_module(DRAWING).bundle(self)
        return {
            name: text
            for name, text in found.items()
            if (not include or name in include) and name not in (exclude or ())
        }
