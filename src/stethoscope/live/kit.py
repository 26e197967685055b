"""The instruments a session carries, each made when first used."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, Any

from stethoscope.config import DebugConfig

if TYPE_CHECKING:
    from stethoscope.hooks import HookManager
    from stethoscope.instruments.diagnostics import ModelDiagnostics
    from stethoscope.instruments.gradient_debugger import GradientDebugger
    from stethoscope.instruments.inspector import TensorInspector
    from stethoscope.instruments.profiler import Profiler


class Kit:
    """Plain attributes: `tensor_inspector`, `gradient_debugger`, `model_diagnostics`, `hooks`, `profiler`."""

    def __init__(self, config: DebugConfig) -> None:
        self.config = config

    @cached_property
    def tensor_inspector(self) -> TensorInspector:
        """Statistics of tensors handed in by hand."""
        from stethoscope.instruments.inspector import TensorInspector

        return TensorInspector(max_tracked_tensors=self.config.max_tracked_tensors)

    @cached_property
    def gradient_debugger(self) -> GradientDebugger:
        """Gradient flow by layer."""
        from stethoscope.instruments.gradient_debugger import GradientDebugger

        return GradientDebugger(max_history=self.config.max_gradient_history)

    @cached_property
    def model_diagnostics(self) -> ModelDiagnostics:
        """Training dynamics and architecture."""
        from stethoscope.instruments.diagnostics import ModelDiagnostics

        return ModelDiagnostics()

    @cached_property
    def hooks(self) -> HookManager:
        """The user's own rules."""
        from stethoscope.hooks import HookManager

        return HookManager()

    @cached_property
    def profiler(self) -> Profiler:
        """Timers."""
        from stethoscope.instruments.profiler import Profiler

        return Profiler()

    def facts(self) -> dict[str, Any]:
        """What the instruments that were used have to say."""
        return {
            name: True
            for name in ("tensor_inspector", "gradient_debugger", "model_diagnostics", "hooks", "profiler")
            if name in self.__dict__
        }
