"""The named instruments, each usable alone on arrays: NumPy, torch, JAX, lists.

Each judges by limits of its own (`limits.py`), and says so; nothing that finds or explains a run's problems uses them.
Names load when first used, so that a program that draws nothing imports nothing that draws.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from stethoscope.instruments.animator import GradientFlowAnimator as GradientFlowAnimator
    from stethoscope.instruments.architecture import ModelArchitectureInfo as ModelArchitectureInfo
    from stethoscope.instruments.architecture import analyze_architecture as analyze_architecture
    from stethoscope.instruments.comparison import compare as compare
    from stethoscope.instruments.diagnostics import ModelDiagnostics as ModelDiagnostics
    from stethoscope.instruments.diagnostics import ModelPerformanceMetrics as ModelPerformanceMetrics
    from stethoscope.instruments.flow import GradientFlowVisualizer as GradientFlowVisualizer
    from stethoscope.instruments.flow_types import GradientHistory as GradientHistory
    from stethoscope.instruments.flow_types import GradientVisualizationConfig as GradientVisualizationConfig
    from stethoscope.instruments.gradient_debugger import GradientDebugger as GradientDebugger
    from stethoscope.instruments.inspector import TensorInspector as TensorInspector
    from stethoscope.instruments.leaks import LeakDetector as LeakDetector
    from stethoscope.instruments.profiler import Profiler as Profiler
    from stethoscope.instruments.summary import inspect as inspect
    from stethoscope.instruments.visualizer import DebugVisualizer as DebugVisualizer
    from stethoscope.instruments.visualizer import TerminalVisualizer as TerminalVisualizer
    from stethoscope.instruments.visualizer import VisualizationConfig as VisualizationConfig
    from stethoscope.instruments.weights import WeightAnalyzer as WeightAnalyzer

_HOMES = {
    "GradientDebugger": "gradient_debugger",
    "GradientFlowAnimator": "animator",
    "GradientFlowVisualizer": "flow",
    "GradientHistory": "flow_types",
    "GradientVisualizationConfig": "flow_types",
    "DebugVisualizer": "visualizer",
    "LeakDetector": "leaks",
    "ModelArchitectureInfo": "architecture",
    "ModelDiagnostics": "diagnostics",
    "ModelPerformanceMetrics": "diagnostics",
    "Profiler": "profiler",
    "TensorInspector": "inspector",
    "analyze_architecture": "architecture",
    "compare": "comparison",
    "inspect": "summary",
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
