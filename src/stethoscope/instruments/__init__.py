"""The named instruments, each usable alone on arrays: NumPy, torch, JAX, lists.

Names load when first used, so that a program that draws nothing imports nothing that draws.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from stethoscope.instruments.animator import GradientFlowAnimator as GradientFlowAnimator
    from stethoscope.instruments.flow import GradientFlowVisualizer as GradientFlowVisualizer
    from stethoscope.instruments.flow_types import GradientHistory as GradientHistory
    from stethoscope.instruments.flow_types import GradientVisualizationConfig as GradientVisualizationConfig
    from stethoscope.instruments.visualizer import DebugVisualizer as DebugVisualizer
    from stethoscope.instruments.visualizer import TerminalVisualizer as TerminalVisualizer
    from stethoscope.instruments.visualizer import VisualizationConfig as VisualizationConfig
    from stethoscope.instruments.weights import WeightAnalyzer as WeightAnalyzer

_HOMES = {
    "GradientFlowAnimator": "animator",
    "GradientFlowVisualizer": "flow",
    "GradientHistory": "flow_types",
    "GradientVisualizationConfig": "flow_types",
    "DebugVisualizer": "visualizer",
    "TerminalVisualizer": "visualizer",
    "VisualizationConfig": "visualizer",
    "WeightAnalyzer": "weights",
}

__all__ = sorted(_HOMES)  # pyright: ignore[reportUnsupportedDunderAll]


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'stethoscope.instruments' has no attribute {name!r}")
    value = getattr(import_module(f"stethoscope.instruments.{home}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*globals(), *_HOMES])
