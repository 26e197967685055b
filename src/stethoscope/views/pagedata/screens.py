"""The page's screens in one table: each module of this folder that declares a SCREEN is one, found by a scan.

From this table the server takes its routes and the page its tabs, addresses and types (frontend/make_types.py). What a
screen NAME draws is `frontend/src/screens/NAME.tsx`.
"""

from __future__ import annotations

import dataclasses
import importlib
import pkgutil
from collections.abc import Callable, Mapping
from typing import Any

from stethoscope.views import pagedata
from stethoscope.views.common.open_run import OpenRun
from stethoscope.views.pagedata.query import QueryParams

Answer = Callable[[OpenRun, QueryParams], Any]
"""From an open run and what is asked of it to JSON values; the annotated result is the page's type."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Screen:
    """One screen of a run."""

    name: str
    """In the address, and the file that draws it."""
    title: str
    """On its tab."""
    order: int
    """Tabs stand in this order."""
    key: str = ""
    """Opens it from any other screen."""
    icon: str = ""
    """Of its tab on a phone; screens without one are under More."""
    count: str = ""
    """Which of the run's counts stands beside the title."""
    questions: Mapping[str, Answer] = dataclasses.field(default_factory=dict)
    """What it asks: the last part of /api/runs/RUN/…, and who answers."""


def screens() -> tuple[Screen, ...]:
    """Every screen, in the order of the tabs."""
    modules = [
        importlib.import_module(f"{pagedata.__name__}.{info.name}") for info in pkgutil.iter_modules(pagedata.__path__)
    ]
    found = [module.SCREEN for module in modules if isinstance(getattr(module, "SCREEN", None), Screen)]
    return tuple(sorted(found, key=lambda screen: screen.order))


def questions() -> dict[str, Answer]:
    """Every question of every screen."""
    return {name: answer for screen in screens() for name, answer in screen.questions.items()}
