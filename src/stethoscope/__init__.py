"""Stethoscope: listens to a training run, says what is wrong, where and since when.

The public names, loaded when first used (PEP 562), so that importing costs little and never imports torch.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

_HOMES = {
    "watch": "session",
    "DebugSession": "session",
    "debug_session": "session",
    "DebugConfig": "config",
    "open_run": "store",
    "Run": "store",
    "checkup": "checkup",
    "diagnose": "explain",
    "Diagnosis": "explain",
    "Finding": "record",
    "Evidence": "record",
    "Severity": "record",
    "Kind": "record",
    "Site": "record",
    "Series": "record",
    "StethoscopeError": "record",
    "StethoscopeWarning": "record",
    "ConfigError": "record",
    "WatchError": "record",
    "RunError": "record",
    "RunNotFoundError": "record",
    "RunFormatError": "record",
    "RunDamagedError": "record",
    "StopTraining": "record",
}

__all__ = sorted(_HOMES)  # pyright: ignore[reportUnsupportedDunderAll]

if TYPE_CHECKING:
    from stethoscope.checkup import checkup as checkup
    from stethoscope.config import DebugConfig as DebugConfig
    from stethoscope.explain import Diagnosis as Diagnosis
    from stethoscope.explain import diagnose as diagnose
    from stethoscope.record import ConfigError as ConfigError
    from stethoscope.record import Evidence as Evidence
    from stethoscope.record import Finding as Finding
    from stethoscope.record import Kind as Kind
    from stethoscope.record import RunDamagedError as RunDamagedError
    from stethoscope.record import RunError as RunError
    from stethoscope.record import RunFormatError as RunFormatError
    from stethoscope.record import RunNotFoundError as RunNotFoundError
    from stethoscope.record import Series as Series
    from stethoscope.record import Severity as Severity
    from stethoscope.record import Site as Site
    from stethoscope.record import StethoscopeError as StethoscopeError
    from stethoscope.record import StethoscopeWarning as StethoscopeWarning
    from stethoscope.record import StopTraining as StopTraining
    from stethoscope.record import WatchError as WatchError
    from stethoscope.session import DebugSession as DebugSession
    from stethoscope.session import debug_session as debug_session
    from stethoscope.session import watch as watch
    from stethoscope.store import Run as Run
    from stethoscope.store import open_run as open_run


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'stethoscope' has no attribute {name!r}")
    value = getattr(import_module(f"stethoscope.{home}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*globals(), *_HOMES])
