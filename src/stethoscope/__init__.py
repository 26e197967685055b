"""Stethoscope: listens to a training run, says what is wrong, where and since when.

The public names, loaded when first used (PEP 562), so that importing costs little and never imports torch.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

_NAMES = {
    "session": "DebugSession SessionReport debug_session watch",
    "config": "DebugConfig",
    "store": "Run open_run",
    "checkup": "checkup",
    "explain": "Diagnosis diagnose",
    "record": "ConfigError Evidence Finding Kind RunDamagedError RunError RunFormatError RunNotFoundError "
    "Series Severity Site StethoscopeError StethoscopeWarning StopTraining WatchError",
    "hooks": "Alert AlertSeverity Comparison Hook HookAction HookBuilder HookCondition HookContext "
    "HookManager HookResult HookStatus HookTrigger",
    "instruments.animator": "GradientFlowAnimator GradientFlowSummary GradientFrame GradientHealth LayerGradientInfo",
    "instruments.architecture": "ArchitectureAnalysis ModelArchitectureInfo analyze_architecture",
    "instruments.bottlenecks": "Bottleneck BottleneckType",
    "instruments.comparison": "TensorComparison compare",
    "instruments.diagnostics": "ConvergenceStatus DiagnosticsReport ModelDiagnostics ModelHealth ModelPerformanceMetrics "
    "TrainingDynamics TrainingStability",
    "instruments.flow": "GradientFlowVisualizer",
    "instruments.flow_types": "ColorScheme CriticalGradientPath EdgeType ExplodingRegion ExplodingSeverity FlowDirection "
    "FlowEdge FlowNode GradientDeadZone GradientDirection GradientFlowNetwork "
    "GradientFlowVisualization GradientHistory GradientLayerFlow GradientVisualizationConfig "
    "NetworkMetrics NodeType RecoveryPotential RegionExtent TemporalGradientFlow "
    "VanishingRegion VanishingSeverity",
    "instruments.gradient_debugger": "GradientDebugger",
    "instruments.gradient_health": "GradientFlowAnalysis LayerHealth",
    "instruments.inspector": "TensorInfo TensorInspector TensorStats",
    "instruments.leaks": "Leak LeakDetector",
    "instruments.profiler": "Profiler",
    "instruments.summary": "inspect",
    "instruments.visualizer": "DebugVisualizer TerminalVisualizer VisualizationConfig",
    "instruments.weights": "WeightAnalyzer",
    "instruments.weight_types": "DistributionHealth DistributionHealthStatus ExplodingLayer ExplosionSeverity "
    "GradientExplosionAnalysis LayerWeightAnalysis OutlierSeverity WeightDistributionAnalysis "
    "WeightDriftAnalysis WeightDriftSeverity WeightHealth WeightOutlier WeightStatistics",
}
"""From a module to the public names that live in it."""

_HOMES = {name: home for home, names in _NAMES.items() for name in names.split()}

__all__ = sorted(_HOMES)  # pyright: ignore[reportUnsupportedDunderAll]

if TYPE_CHECKING:
    from stethoscope.checkup import checkup as checkup
    from stethoscope.config import DebugConfig as DebugConfig
    from stethoscope.explain import Diagnosis as Diagnosis
    from stethoscope.explain import diagnose as diagnose
    from stethoscope.hooks import Alert as Alert
    from stethoscope.hooks import AlertSeverity as AlertSeverity
    from stethoscope.hooks import Comparison as Comparison
    from stethoscope.hooks import Hook as Hook
    from stethoscope.hooks import HookAction as HookAction
    from stethoscope.hooks import HookBuilder as HookBuilder
    from stethoscope.hooks import HookCondition as HookCondition
    from stethoscope.hooks import HookContext as HookContext
    from stethoscope.hooks import HookManager as HookManager
    from stethoscope.hooks import HookResult as HookResult
    from stethoscope.hooks import HookStatus as HookStatus
    from stethoscope.hooks import HookTrigger as HookTrigger
    from stethoscope.instruments.animator import GradientFlowAnimator as GradientFlowAnimator
    from stethoscope.instruments.animator import GradientFlowSummary as GradientFlowSummary
    from stethoscope.instruments.animator import GradientFrame as GradientFrame
    from stethoscope.instruments.animator import GradientHealth as GradientHealth
    from stethoscope.instruments.animator import LayerGradientInfo as LayerGradientInfo
    from stethoscope.instruments.architecture import ArchitectureAnalysis as ArchitectureAnalysis
    from stethoscope.instruments.architecture import ModelArchitectureInfo as ModelArchitectureInfo
    from stethoscope.instruments.architecture import analyze_architecture as analyze_architecture
    from stethoscope.instruments.bottlenecks import Bottleneck as Bottleneck
    from stethoscope.instruments.bottlenecks import BottleneckType as BottleneckType
    from stethoscope.instruments.comparison import TensorComparison as TensorComparison
    from stethoscope.instruments.comparison import compare as compare
    from stethoscope.instruments.diagnostics import ConvergenceStatus as ConvergenceStatus
    from stethoscope.instruments.diagnostics import DiagnosticsReport as DiagnosticsReport
    from stethoscope.instruments.diagnostics import ModelDiagnostics as ModelDiagnostics
    from stethoscope.instruments.diagnostics import ModelHealth as ModelHealth
    from stethoscope.instruments.diagnostics import ModelPerformanceMetrics as ModelPerformanceMetrics
    from stethoscope.instruments.diagnostics import TrainingDynamics as TrainingDynamics
    from stethoscope.instruments.diagnostics import TrainingStability as TrainingStability
    from stethoscope.instruments.flow import GradientFlowVisualizer as GradientFlowVisualizer
    from stethoscope.instruments.flow_types import ColorScheme as ColorScheme
    from stethoscope.instruments.flow_types import CriticalGradientPath as CriticalGradientPath
    from stethoscope.instruments.flow_types import EdgeType as EdgeType
    from stethoscope.instruments.flow_types import ExplodingRegion as ExplodingRegion
    from stethoscope.instruments.flow_types import ExplodingSeverity as ExplodingSeverity
    from stethoscope.instruments.flow_types import FlowDirection as FlowDirection
    from stethoscope.instruments.flow_types import FlowEdge as FlowEdge
    from stethoscope.instruments.flow_types import FlowNode as FlowNode
    from stethoscope.instruments.flow_types import GradientDeadZone as GradientDeadZone
    from stethoscope.instruments.flow_types import GradientDirection as GradientDirection
    from stethoscope.instruments.flow_types import GradientFlowNetwork as GradientFlowNetwork
    from stethoscope.instruments.flow_types import GradientFlowVisualization as GradientFlowVisualization
    from stethoscope.instruments.flow_types import GradientHistory as GradientHistory
    from stethoscope.instruments.flow_types import GradientLayerFlow as GradientLayerFlow
    from stethoscope.instruments.flow_types import GradientVisualizationConfig as GradientVisualizationConfig
    from stethoscope.instruments.flow_types import NetworkMetrics as NetworkMetrics
    from stethoscope.instruments.flow_types import NodeType as NodeType
    from stethoscope.instruments.flow_types import RecoveryPotential as RecoveryPotential
    from stethoscope.instruments.flow_types import RegionExtent as RegionExtent
    from stethoscope.instruments.flow_types import TemporalGradientFlow as TemporalGradientFlow
    from stethoscope.instruments.flow_types import VanishingRegion as VanishingRegion
    from stethoscope.instruments.flow_types import VanishingSeverity as VanishingSeverity
    from stethoscope.instruments.gradient_debugger import GradientDebugger as GradientDebugger
    from stethoscope.instruments.gradient_health import GradientFlowAnalysis as GradientFlowAnalysis
    from stethoscope.instruments.gradient_health import LayerHealth as LayerHealth
    from stethoscope.instruments.inspector import TensorInfo as TensorInfo
    from stethoscope.instruments.inspector import TensorInspector as TensorInspector
    from stethoscope.instruments.inspector import TensorStats as TensorStats
    from stethoscope.instruments.leaks import Leak as Leak
    from stethoscope.instruments.leaks import LeakDetector as LeakDetector
    from stethoscope.instruments.profiler import Profiler as Profiler
    from stethoscope.instruments.summary import inspect as inspect
    from stethoscope.instruments.visualizer import DebugVisualizer as DebugVisualizer
    from stethoscope.instruments.visualizer import TerminalVisualizer as TerminalVisualizer
    from stethoscope.instruments.visualizer import VisualizationConfig as VisualizationConfig
    from stethoscope.instruments.weight_types import DistributionHealth as DistributionHealth
    from stethoscope.instruments.weight_types import DistributionHealthStatus as DistributionHealthStatus
    from stethoscope.instruments.weight_types import ExplodingLayer as ExplodingLayer
    from stethoscope.instruments.weight_types import ExplosionSeverity as ExplosionSeverity
    from stethoscope.instruments.weight_types import GradientExplosionAnalysis as GradientExplosionAnalysis
    from stethoscope.instruments.weight_types import LayerWeightAnalysis as LayerWeightAnalysis
    from stethoscope.instruments.weight_types import OutlierSeverity as OutlierSeverity
    from stethoscope.instruments.weight_types import WeightDistributionAnalysis as WeightDistributionAnalysis
    from stethoscope.instruments.weight_types import WeightDriftAnalysis as WeightDriftAnalysis
    from stethoscope.instruments.weight_types import WeightDriftSeverity as WeightDriftSeverity
    from stethoscope.instruments.weight_types import WeightHealth as WeightHealth
    from stethoscope.instruments.weight_types import WeightOutlier as WeightOutlier
    from stethoscope.instruments.weight_types import WeightStatistics as WeightStatistics
    from stethoscope.instruments.weights import WeightAnalyzer as WeightAnalyzer
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
    from stethoscope.session import SessionReport as SessionReport
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
