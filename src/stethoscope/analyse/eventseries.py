"""Series that live in events: attention entropy and the like, reported by module now and then."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from stethoscope.record import Series
from stethoscope.store import Run


def module_series(run: Run, kind: str, field: str, module: str) -> Series:
    """One field of one module over the events of a kind that hold `modules`."""
    found: dict[int, float] = {}
    for event in run.events(kind):
        modules = event.body.get("modules")
        body = modules.get(module) if isinstance(modules, Mapping) else None
        value = body.get(field) if isinstance(body, Mapping) else None
        if isinstance(value, int | float):
            found[event.step] = float(value)
    steps = sorted(found)
    return Series(np.array(steps, np.int64), np.array([found[step] for step in steps]))


def entropy(run: Run, module: str) -> Series:
    """The entropy of a module's attention, in nats."""
    return module_series(run, "attention", "entropy", module)


def attention_modules(run: Run, path: str) -> list[str]:
    """The modules in (or at) a path whose attention was measured."""
    names: dict[str, None] = {}
    for event in run.events("attention")[:4]:
        modules = event.body.get("modules")
        if isinstance(modules, Mapping):
            names |= dict.fromkeys(str(name) for name in modules)
    return [name for name in names if name == path or name.startswith(path + ".")]
