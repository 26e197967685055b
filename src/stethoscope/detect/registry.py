"""Every detector there is: ours, found by a scan of this folder; those of installed packages; those that were given.

A package of a user's own names its classes under the entry point group `stethoscope.detectors`; a script or a setting
gives one to `use`. What cannot be loaded, or claims a code that is taken, is left out and named in `load_errors`: it
costs itself, nothing else. Nothing that stands in a run folder is ever loaded.
"""

from __future__ import annotations

import dataclasses
import functools
import importlib
import inspect
import pkgutil
from collections.abc import Iterable, Mapping
from importlib import metadata
from typing import Final

import stethoscope.detect as room
from stethoscope.detect.detector import Code, Detector

GROUP: Final = "stethoscope.detectors"


@dataclasses.dataclass(frozen=True)
class Registry:
    """Detectors in a fixed order, and what could not be loaded."""

    detectors: tuple[type[Detector], ...]
    load_errors: Mapping[str, str] = dataclasses.field(default_factory=dict)

    @functools.cached_property
    def codes(self) -> dict[str, Code]:
        """What is declared about each code."""
        return {code.name: code for detector in self.detectors for code in detector.codes}

    def owner(self, code: str) -> type[Detector] | None:
        """The detector that finds this code."""
        return next((d for d in self.detectors if any(code == known.name for known in d.codes)), None)

    def with_more(self, candidates: Iterable[tuple[str, object]]) -> Registry:
        """With further detectors, each under a name for messages; what is none is an error under that name."""
        taken, added, errors = set(self.codes), list(self.detectors), dict(self.load_errors)
        for name, candidate in candidates:
            if candidate in added:
                continue
            if not (isinstance(candidate, type) and issubclass(candidate, Detector)):
                errors[name] = "is not a subclass of stethoscope.detect.Detector"
                continue
            trouble = _why_not(candidate, taken)
            if trouble:
                errors[name] = trouble
                continue
            added.append(candidate)
            taken |= {code.name for code in candidate.codes}
        return Registry(tuple(added), errors)


def _why_not(candidate: type[Detector], taken: set[str]) -> str:
    """What keeps a class from being used, "" where nothing does."""
    if inspect.isabstract(candidate) or not candidate.codes:
        return "declares no codes, or lacks observe() or findings()"
    twice = sorted(code.name for code in candidate.codes if code.name in taken)
    return f"claims codes that another detector has: {', '.join(twice)}" if twice else ""


@functools.cache
def builtin() -> Registry:
    """The detectors of this package: every class in this folder that declares codes."""
    found: list[type[Detector]] = []
    for module in sorted(info.name for info in pkgutil.iter_modules(room.__path__)):
        members = vars(importlib.import_module(f"{room.__name__}.{module}")).values()
        found += [
            m
            for m in members
            if isinstance(m, type) and issubclass(m, Detector) and m.codes and m.__module__.endswith(f".{module}")
        ]
    return Registry(tuple(found))


_given: dict[str, type | None] = {}
"""By name, `module:Class`; None for one that is still to be imported."""


def use(detectors: Iterable[type | str]) -> list[str]:
    """These are the further detectors of this process from now on, in place of those given before: classes, or names.

    Returns their names, by which another process finds them. What was given as a class stays known by its name.
    """
    given = [(one, None) if isinstance(one, str) else (name_of(one), one) for one in detectors]
    chosen = {name: kind or _classes.get(name) for name, kind in given}
    _classes.update({name: kind for name, kind in chosen.items() if kind is not None})
    if chosen != _given:
        _given.clear()
        _given.update(chosen)
        known.cache_clear()
    return list(chosen)


_classes: dict[str, type] = {}
"""Detectors that were given as classes; one of a script itself cannot be imported by its name."""


def name_of(detector: type) -> str:
    """`module:Class`, by which another process can import it, unless it stands in the script itself."""
    return f"{detector.__module__}:{detector.__qualname__}"


@functools.cache
def known() -> Registry:
    """Ours, those of installed packages, and those that were given."""
    points = sorted(metadata.entry_points(group=GROUP), key=lambda point: point.name)
    candidates: dict[str, object] = {}
    errors: dict[str, str] = {}
    for name, given in [*((point.value, None) for point in points), *_given.items()]:
        try:
            candidates[name] = _import(name) if given is None else given
        except Exception as error:  # whatever a stranger's package does when it is imported
            errors[name] = repr(error)
    found = builtin().with_more(candidates.items())
    return Registry(found.detectors, {**found.load_errors, **errors})


def _import(name: str) -> object:
    module, _, attributes = name.partition(":")
    return functools.reduce(getattr, attributes.split("."), importlib.import_module(module))
