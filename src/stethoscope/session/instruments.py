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

from stethoscope.capture.guard import Guard
from stethoscope.config import DebugConfig
from stethoscope.hooks.alerts import Alert, EventSink, LoggingSink, WebhookSink
from stethoscope.record.wire import EventBody
from stethoscope.session.deadline import Deadline
from stethoscope.session.messages import Speaker
from stethoscope.session.shield import never_raises

if TYPE_CHECKING:
    from stethoscope.hooks import HookManager
    from stethoscope.instruments.diagnostics import ModelDiagnostics
    from stethoscope.instruments.gradient_debugger import GradientDebugger
    from stethoscope.instruments.inspector import TensorInspector
    from stethoscope.instruments.leaks import Leak
    from stethoscope.instruments.profiler import Profiler
    from stethoscope.instruments.reading import Readings
    from stethoscope.instruments.visualizer import DebugVisualizer
    from stethoscope.session.attachment import Attachment
    from stethoscope.session.recording import Recording

DEFAULT_FOLDER: Final = "debug_output"
"""Where a session without a model writes when nothing else is said."""


class Instruments:
    """`tensor_inspector`, `gradient_debugger`, `model_diagnostics`, `hooks`, `profiler`, `visualizer`."""

    def __init__(self, config: DebugConfig, model: Any, speaker: Speaker) -> None:
        self.config, self.model = config, model
        self._speaker = speaker
        self._recording: Recording | None = None
        self.attachment: Attachment | None = None
        """What they add to the watched model."""
        self._readings: Readings | None = None
        """What they have taken in of the run, where one is written."""
        # Made at once: an address that cannot be used is told where it was given, not in the training loop.
        self._webhook = WebhookSink(config.webhook) if config.webhook else None

    def attach(self, recording: Recording) -> None:
        """Read this recording's run from now on, and listen to its training."""
        from stethoscope.session.attachment import Attachment

        self._recording = recording
        self.attachment = Attachment(self, recording.watcher)
        self._readings = self._read_from(recording, self.attachment)

    @staticmethod
    def _read_from(recording: Recording, attachment: Attachment) -> Readings:
        """What this process records, from its first step on."""
        from stethoscope.hooks.memory import memory_total_bytes
        from stethoscope.instruments import reading

        cost, layer_times = recording.watcher.cost, attachment.layer_times
        recorded = reading.RecordedRun(recording.readable_run, recording.location.rank, recording.first_step)
        return reading.Readings(
            reading.GradientReading(recorded),
            reading.MetricReading(recorded),
            reading.TensorReading(recorded),
            reading.TimeReading(
                recorded,
                last_step_ended=lambda: cost.step_began,
                memory_total_bytes=memory_total_bytes,
                layer_times=None if layer_times is None else layer_times.arrived,
            ),
        )

    def detach(self, timeout_s: float) -> None:
        """Leave the training alone; the last Steps of a device are waited for no longer than this."""
        if self.attachment is not None:
            self.attachment.close(timeout_s)

    def let_go(self) -> None:
        """Leave the training alone at once."""
        if self.attachment is not None:
            self.attachment.let_go()

    def close_webhook(self, deadline: Deadline) -> None:
        """Send the alerts that wait, and say of those that did not arrive."""
        if self._webhook is None:
            return
        self._webhook.close(deadline.left())
        lost = self._webhook.num_failed + self._webhook.num_dropped
        if lost:
            self._speaker.say(f"stethoscope: {lost} of the alerts did not reach the webhook")

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
        if self.model is not None:
            found.record_architecture(analyze_architecture(self.model).info)
        return found

    @cached_property
    def hooks(self) -> HookManager:
        """The user's own rules."""
        from stethoscope.hooks import HookManager, Pauser

        manager = HookManager(
            inspector=self.tensor_inspector,
            gradient_debugger=self.gradient_debugger,
            sinks=[self._say_alert, LoggingSink(), EventSink(self._note_event)],
            pauser=Pauser(self.run_folder, world_size=self._world_size),
            folder=Path(self.config.output_dir) if self.config.output_dir else None,
            enabled=self.config.enable_hooks,
        )
        if self._webhook is not None:
            manager.sinks.append(self._webhook)
        if self.attachment is not None:
            self.attachment.listen(manager)
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
        title = self.config.name or (type(self.model).__name__ if self.model is not None else "Training")
        return DebugVisualizer(VisualizationConfig(output_directory=self.output_folder, formats=formats, title=title))

    @property
    def output_folder(self) -> Path:
        """Where instruments write: `output_dir`, else `plots` in the run, else a folder here."""
        if self.config.output_dir:
            return Path(self.config.output_dir)
        return self.run_folder / "plots" if self.run_folder is not None else Path(DEFAULT_FOLDER)

    def leaks(self) -> list[Leak]:
        """Lines whose tensors pile up from step to step, as far as steps were watched."""
        return self.tensor_inspector.detect_leaks() if self.used("tensor_inspector") else []

    @property
    def have_run(self) -> bool:
        """Whether there is a run that they read."""
        return self._readings is not None

    def used(self, name: str) -> bool:
        """Whether an instrument was ever asked for."""
        return name in self.__dict__

    # ---- what the recording knows ----

    @property
    def run_folder(self) -> Path | None:
        """Where the run lies, where one is written."""
        return self._recording.folder if self._recording is not None else None

    @property
    def _world_size(self) -> int | None:
        return self._recording.location.world_size if self._recording is not None else None

    @property
    def _guard(self) -> Guard:
        return self._recording.guard if self._recording is not None else Guard()

    def _note_event(self, step: int, said: EventBody) -> None:
        if self._recording is not None:
            self._recording.writer.tell(step, said)

    def _say_alert(self, alert: Alert) -> None:
        self._speaker.say(f"stethoscope: {alert}")

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
