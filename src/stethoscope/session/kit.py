"""The instruments a session carries: plain attributes, made when first used, alone or on a live model.

On a live model tensors, gradients, times and metrics come by themselves: an instrument reads the run when it is asked, so that
training does not pay for questions nobody has. An instrument that the configuration switches off is
there, answers, and keeps nothing.
"""

from __future__ import annotations

from functools import cached_property
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from stethoscope.config import DebugConfig
from stethoscope.hooks.alerts import Alert, EventSink, LoggingSink, WebhookSink
from stethoscope.record.wire import EventBody
from stethoscope.session import messages
from stethoscope.session.shield import never_raises

if TYPE_CHECKING:
    from stethoscope.capture.guard import Guard
    from stethoscope.hooks import HookManager
    from stethoscope.instruments.diagnostics import ModelDiagnostics
    from stethoscope.instruments.gradient_debugger import GradientDebugger
    from stethoscope.instruments.inspector import TensorInspector
    from stethoscope.instruments.leaks import Leak
    from stethoscope.instruments.profiler import Profiler
    from stethoscope.instruments.reading import Readings
    from stethoscope.instruments.visualizer import DebugVisualizer

DEFAULT_FOLDER: Final = "debug_output"
"""Where a session without a model writes when nothing else is said."""


class Kit:
    """`tensor_inspector`, `gradient_debugger`, `model_diagnostics`, `hooks`, `profiler`, `visualizer`."""

    def __init__(self, config: DebugConfig, model: Any = None) -> None:
        self.config = config
        self._model = model
        self._readings: Readings | None = None
        """What the instruments have taken in of the run, where one is written."""
        # Made at once: an address that cannot be used is told where it was given, not in the training loop.
        self._webhook = WebhookSink(config.webhook) if config.webhook else None

    @cached_property
    def tensor_inspector(self) -> TensorInspector:
        """Statistics and memory of tensors: what the session measured, what is handed in, what hooks show it."""
        from stethoscope.instruments.inspector import TensorInspector

        return TensorInspector(
            max(self.config.max_tracked_tensors, 1),
            enabled=self.config.enable_tensor_inspection,
            source=self._read_tensors,
        )

    @cached_property
    def gradient_debugger(self) -> GradientDebugger:
        """Gradient flow by parameter, from what the session measured and what is handed in."""
        from stethoscope.instruments.gradient_debugger import GradientDebugger

        return GradientDebugger(
            max(self.config.max_gradient_history, 1),
            enabled=self.config.enable_gradient_debugging,
            source=self._read_gradients,
        )

    @cached_property
    def model_diagnostics(self) -> ModelDiagnostics:
        """Training dynamics and architecture, from every Step and from what is handed in."""
        from stethoscope.instruments.architecture import analyze_architecture
        from stethoscope.instruments.diagnostics import ModelDiagnostics

        found = ModelDiagnostics(enabled=self.config.enable_model_diagnostics, source=self._read_metrics)
        if self._model is not None:
            found.record_architecture(analyze_architecture(self._model).info)
        return found

    @cached_property
    def hooks(self) -> HookManager:
        """The user's own rules."""
        from stethoscope.hooks import HookManager, Pauser

        manager = HookManager(
            inspector=self.tensor_inspector,
            gradient_debugger=self.gradient_debugger,
            sinks=[self._say_alert, LoggingSink(), EventSink(self._note_event)],
            pauser=Pauser(self._own_folder(), world_size=self._world_size()),
            folder=Path(self.config.output_dir) if self.config.output_dir else None,
            enabled=self.config.enable_hooks,
        )
        if self._webhook is not None:
            manager.sinks.append(self._webhook)
        self._listen(manager)
        return manager

    @cached_property
    def profiler(self) -> Profiler:
        """Times: every step's by its parts, layers' at a few steps, and the user's own timers."""
        from stethoscope.instruments.profiler import Profiler

        return Profiler(enabled=self.config.enable_profiling, source=self._read_times)

    @cached_property
    def visualizer(self) -> DebugVisualizer:
        """Plots of whatever numbers there are."""
        from stethoscope.instruments.visualizer import DebugVisualizer, VisualizationConfig

        formats: tuple[str, ...] = ()
        if self.config.enable_visualization:
            formats = ("png",) if find_spec("matplotlib") else ("txt",)
        title = self.config.name or (type(self._model).__name__ if self._model is not None else "Training")
        return DebugVisualizer(VisualizationConfig(output_directory=self.output_folder, formats=formats, title=title))

    def on(self, *args: Any, **kwargs: Any) -> Any:
        """A hook the Python way, as `hooks.on`: `@session.on(every=10, layers=...)`, `session.on(condition, action)`."""
        return self.hooks.on(*args, **kwargs)

    @property
    def output_folder(self) -> Path:
        """Where instruments write: `output_dir`, else `plots` in the run, else a folder here."""
        if self.config.output_dir:
            return Path(self.config.output_dir)
        own = self._own_folder()
        return own / "plots" if own is not None else Path(DEFAULT_FOLDER)

    def leaks(self) -> list[Leak]:
        """Lines whose tensors pile up from step to step, as far as steps were watched."""
        return self.tensor_inspector.detect_leaks() if self.used("tensor_inspector") else []

    @property
    def records(self) -> bool:
        """Whether there is a run that the instruments read."""
        return self._readings is not None

    def used(self, name: str) -> bool:
        """Whether an instrument was ever asked for."""
        return name in self.__dict__

    # ---- what a session knows ----

    def _own_folder(self) -> Path | None:
        return None

    def _world_size(self) -> int | None:
        return None

    def _listen(self, hooks: HookManager) -> None:
        """Hooks exist from now on."""

    def _note_event(self, step: int, said: EventBody) -> None:
        """A hook has something for the run."""

    def _say_alert(self, alert: Alert) -> None:
        self._say(f"stethoscope: {alert}")

    def _say(self, line: str) -> None:
        if not self.config.quiet:
            messages.say(line)

    @property
    def _guard(self) -> Guard:
        raise NotImplementedError

    # Whoever asks may be the training loop: a run that cannot be read is no reason to end it.

    @never_raises(None)
    def _read_gradients(self, debugger: GradientDebugger) -> None:
        if self._readings is not None:
            self._readings.gradients.take_in(debugger)

    @never_raises(None)
    def _read_tensors(self, inspector: TensorInspector) -> None:
        if self._readings is not None:
            self._readings.tensors.take_in(inspector)

    @never_raises(None)
    def _read_times(self, profiler: Profiler) -> None:
        if self._readings is not None:
            self._readings.times.take_in(profiler)

    @never_raises(None)
    def _read_metrics(self, diagnostics: ModelDiagnostics) -> None:
        if self._readings is not None:
            self._readings.metrics.take_in(diagnostics)
