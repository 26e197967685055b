"""DebugSession: the live attachment. A recording of the run, and the instruments that read it.

`watch(model, optimizer)` attaches; `stop()` detaches and leaves nothing behind. No exception of ours reaches the
training loop; wrong arguments to `watch` itself are told at once.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from stethoscope.capture.guard import Guard, can_be_kept, warn
from stethoscope.config import DebugConfig
from stethoscope.record import Finding, StopTraining, WatchError
from stethoscope.session import closing, endings, messages, running
from stethoscope.session.deadline import Deadline
from stethoscope.session.description import root_of
from stethoscope.session.instruments import Instruments
from stethoscope.session.report import SessionReport
from stethoscope.session.shield import in_words, never_raises

if TYPE_CHECKING:
    from stethoscope.capture.watcher import Watcher
    from stethoscope.explain import Diagnosis
    from stethoscope.hooks import HookManager
    from stethoscope.instruments.animator import GradientFlowAnimator
    from stethoscope.instruments.architecture import ArchitectureAnalysis
    from stethoscope.instruments.diagnostics import ModelDiagnostics
    from stethoscope.instruments.flow_types import GradientFlowVisualization, GradientVisualizationConfig
    from stethoscope.instruments.gradient_debugger import GradientDebugger
    from stethoscope.instruments.inspector import TensorInspector
    from stethoscope.instruments.leaks import Leak
    from stethoscope.instruments.profiler import Profiler
    from stethoscope.instruments.visualizer import DebugVisualizer
    from stethoscope.session.recording import Recording
    from stethoscope.store import Run

STOP_SECONDS: Final = 10.0
"""What `stop` may take in all, where the process goes on. Where it ends, less: `endings.END_SECONDS`."""


class DebugSession:
    """A model under observation, or the instruments alone where there is no model."""

    def __init__(
        self,
        config: DebugConfig | None = None,
        *,
        model: Any = None,
        optimizers: Sequence[Any] = (),
        run: str | Path | None = None,
        ema: Any = None,
    ) -> None:
        self.config = config or DebugConfig.load()
        self._model, self._optimizers, self._ema = model, list(optimizers), ema
        self._run_folder = Path(run) if run is not None else None
        self._speaker = messages.Speaker(is_quiet=self.config.quiet)
        self._instruments = Instruments(self.config, model, self._speaker)
        self._recording: Recording | None = None
        self._started = self._stopped = False
        self._was_interrupted = False
        """While it stopped: the rest is done by the next `stop`, or when the process ends."""
        self._num_evaluations = 0
        self.has_said_end = False
        """Whether the last line was said: who ends the process without waiting any longer says it otherwise."""
        self.closing_words: closing.Closing = messages.closing
        """What is said at the end, from the diagnosis and the run's folder."""

    # ---- life ----

    def start(self) -> DebugSession:
        """Attach. Starting twice does nothing."""
        if self._started or self.config.mode == "off":
            return self
        self._started = True
        if self._model is None:
            return self
        try:
            self._unseen(self._attach)
        except BaseException as error:  # whatever is wrong with us, the script that is about to train must go on
            if not can_be_kept(error):
                self._let_go()
                if self._recording is not None:
                    self._recording.give_up()
                raise
            warn(
                f"this model cannot be watched ({type(error).__name__}: {in_words(error)}). "
                "Training goes on without us; `stethoscope doctor` says what is installed"
            )
            if self._recording is not None:
                self._recording.give_up()
            self._recording, self._stopped = None, True
        return self

    def _unseen(self, work: Callable[..., None], *args: Any) -> None:
        """Without what the user has on to see operations."""
        if self._model is None:
            work(*args)
            return
        from stethoscope.capture import modes

        modes.unseen(work, *args)

    def _attach(self) -> None:
        """Open the run, put the taps on, start the companion."""
        from stethoscope.session.recording import Recording

        recording = self._recording = Recording(
            self._model, self._optimizers, self.config, self._speaker, folder=self._run_folder, ema=self._ema
        )
        recording.start()
        self._instruments.attach(recording)
        recording.follow()
        endings.remember(self)
        recording.announce()

    @property
    def is_watching(self) -> bool:
        """Whether it was started and has not been stopped."""
        return self._started and not self._stopped

    def stop(self, ended: str = "finished", reason: dict[str, Any] | None = None) -> SessionReport:
        """Detach, write the end, let the last findings come in, say one line."""
        self.close(ended, reason, Deadline(STOP_SECONDS))
        return SessionReport(self._instruments, self.folder, self.step, lambda: self.diagnosis)

    def close(self, ended: str, reason: dict[str, Any] | None, deadline: Deadline) -> None:
        """As `stop`, within a given time: what cannot be had by then is left to the companion, and that is said."""
        if not self.is_watching and not self._was_interrupted:
            if self._recording is not None:  # another thread is at it, or was interrupted
                self._recording.writer.close(ended, reason, deadline.left())
            return
        self._stopped, self._was_interrupted = True, False
        try:
            self._unseen(self._close, ended, reason, deadline)
        except BaseException:  # Ctrl-C, or what a signal handler of the user's raised
            self._was_interrupted = True
            self._let_go()
            raise
        finally:
            running.forget(self)
            if not self._was_interrupted:
                self._guard(endings.forget, self)

    def _let_go(self) -> None:
        """Whoever interrupts us wants no more of us: nothing of ours stays on the model."""
        self._stopped = True
        self._guard(self._instruments.let_go)
        if self._recording is not None:
            self._recording.let_go()

    def _close(self, ended: str, reason: dict[str, Any] | None, deadline: Deadline) -> None:
        recording = self._recording
        if recording is not None:
            recording.is_over = True
            self._guard(self._instruments.detach, deadline.left(0.5))
            recording.finish(ended, reason, deadline)
            self._guard(self._say_end, recording, deadline)
        if self.config.enable_visualization:
            self._draw(deadline)
        self._guard(self._instruments.close_webhook, deadline)

    def _say_end(self, recording: Recording, deadline: Deadline) -> None:
        closing.say_last_words(recording, self._speaker, self.closing_words, deadline)
        self.has_said_end = True

    def say_unfinished(self) -> None:
        """What is said in place of the last line where the process cannot wait for it."""
        if self._recording is not None:
            self._speaker.say_of_rank(f"stethoscope: {closing.unfinished_words(self._recording)}")

    def _draw(self, deadline: Deadline) -> None:
        """The pictures of a session that was asked for them; a fault in one of them costs that picture only."""
        from stethoscope.session import pictures

        if deadline.has_passed:
            self._speaker.say("stethoscope: no pictures were drawn: there was no time left at the end")
            return
        try:
            self._speaker.say(pictures.draw(self.visualizer, self.run if self._recording is not None else None))
        except Exception as error:
            warn(f"the session's pictures could not be drawn: {error!r}")

    def abandon(self) -> None:
        """In a forked child: the run is the parent's, so do nothing from now on."""
        self._stopped = True
        if self._recording is not None:
            self._recording.abandon()

    def __repr__(self) -> str:
        return " ".join(part for part in self._in_words() if part)

    def _repr_html_(self) -> str:
        from stethoscope.views.notebook import session_html

        return session_html(*self._in_words(), self.folder)

    def _in_words(self) -> tuple[str, str]:
        """What is watched, and how it stands."""
        has_run = self._recording is not None
        state = "stopped" if self._stopped else "watching" if has_run else "not watching"
        name = type(root_of(self._model)).__name__ if self._model is not None else "no model"
        return f"DebugSession({name}), {state}", f"step {self.step:,}" if has_run else ""

    def __enter__(self) -> DebugSession:
        return self.start()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: Any) -> None:
        if kind is None or kind is SystemExit:
            self.stop()
        elif issubclass(kind, StopTraining):
            self.stop("finished", {"stopped": in_words(error)})
        elif issubclass(kind, KeyboardInterrupt):
            with contextlib.suppress(KeyboardInterrupt):  # a second one ends the wait; the first one is on its way
                self.stop("exception", endings.described(error))
        else:
            self.stop("exception", endings.described(error))

    @property
    def _guard(self) -> Guard:
        """Keeps and counts the errors of what the training loop calls."""
        return self._recording.guard if self._recording is not None else Guard()

    @property
    def _watcher(self) -> Watcher | None:
        return self._recording.watcher if self._recording is not None else None

    # ---- while training ----

    @property
    def trained_in(self) -> int:
        """The thread that took the last step; 0 where none was taken."""
        return self._watcher.trained_in if self._watcher is not None else 0

    @property
    def step(self) -> int:
        """How many steps the optimizer has taken."""
        return self._watcher.clock.step if self._watcher is not None else 0

    @never_raises(None)
    def log(self, /, **metrics: Any) -> None:
        """Record metrics of the current step; tensors are read without a synchronisation."""
        if self._recording is not None and not self._stopped:
            self._recording.log(metrics)

    @never_raises(None)
    def log_batch(self, inputs: Any, targets: Any = None) -> None:
        """Record what goes in: statistics of inputs and targets, and a fingerprint of every sample."""
        if self._watcher is not None and not self._stopped:
            self._watcher.log_batch(inputs, targets)

    @contextlib.contextmanager
    def evaluating(self) -> Iterator[None]:
        """Mark validation: nothing inside counts as training, and metrics logged inside are validation's."""
        self.begin_evaluation()
        try:
            yield
        finally:
            self.end_evaluation()

    @never_raises(None)
    def begin_evaluation(self) -> None:
        """Mark validation until `end_evaluation()`, where no `with` fits, as in a framework's callbacks. Calls nest."""
        self._num_evaluations += 1
        if self._watcher is not None:
            self._watcher.evaluating = True
            self._watcher.guard(self._watcher.evaluation_begins)

    @never_raises(None)
    def end_evaluation(self) -> None:
        """Training again; does nothing where no validation was begun."""
        if self._num_evaluations == 0:
            return
        self._num_evaluations -= 1
        if self._watcher is not None:
            self._watcher.evaluating = self._num_evaluations > 0
            self._watcher.guard(self._watcher.evaluation_ends)

    @never_raises(None)
    def watch_leaks(self, every: int = 16) -> None:
        """Watch every n-th Step for tensors that live on after it; `leaks()` names the lines that made them."""
        if self._instruments.attachment is None:
            raise WatchError(
                "this session watches no model",
                do="Use `with session.tensor_inspector.leak_detector.step():` around each step",
            )
        self._instruments.attachment.watch_leaks(every)

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        """Take every hook of ours off the model for a while, for tools that cannot bear any; metrics still come in."""
        watcher = self._watcher
        if watcher is None or self._stopped:
            yield
            return
        from stethoscope.capture.pausing import without_hooks

        with contextlib.ExitStack() as hooks_off:
            self._guard(hooks_off.enter_context, without_hooks(watcher.names.root))
            yield

    @never_raises(False)
    def flush(self, timeout: float = 30.0) -> bool:
        """Wait until everything recorded so far is durable; False where that could not be had."""
        return self._recording is None or self._recording.flush(timeout)

    # ---- reading ----

    @property
    def run(self) -> Run:
        """The run as a reader sees it, up to what was flushed."""
        if self._recording is None:
            raise WatchError("this session watches no model", do="Use stethoscope.watch(model, optimizer)")
        if not self._stopped:
            self.flush()
        return self._recording.run()

    @property
    def folder(self) -> Path | None:
        """Where the run lies; None for a session that writes none."""
        return self._recording.folder if self._recording is not None else None

    @property
    def diagnosis(self) -> Diagnosis:
        """Causes and findings of what was recorded so far."""
        from stethoscope.explain import Diagnosis

        return self._recording.diagnose() if self._recording is not None else Diagnosis()

    @property
    def findings(self) -> tuple[Finding, ...]:
        """Everything found so far."""
        return self.diagnosis.findings

    # ---- the instruments: of the training, and of what is handed in ----

    @property
    def tensor_inspector(self) -> TensorInspector:
        """Statistics and memory of tensors."""
        return self._instruments.tensor_inspector

    @property
    def gradient_debugger(self) -> GradientDebugger:
        """Gradient flow by parameter."""
        return self._instruments.gradient_debugger

    @property
    def model_diagnostics(self) -> ModelDiagnostics:
        """Training dynamics and architecture."""
        return self._instruments.model_diagnostics

    @property
    def hooks(self) -> HookManager:
        """The user's own rules."""
        return self._instruments.hooks

    @property
    def profiler(self) -> Profiler:
        """Times of steps, their parts and layers."""
        return self._instruments.profiler

    @property
    def visualizer(self) -> DebugVisualizer:
        """Plots of whatever numbers there are."""
        return self._instruments.visualizer

    @property
    def output_folder(self) -> Path:
        """Where instruments write: `output_dir`, else `plots` in the run, else a folder here."""
        return self._instruments.output_folder

    def on(self, *args: Any, **kwargs: Any) -> Any:
        """A hook the Python way, as `hooks.on`: `@session.on(every=10, layers=...)`, `session.on(condition, action)`."""
        return self.hooks.on(*args, **kwargs)

    def leaks(self) -> list[Leak]:
        """Lines whose tensors pile up from step to step, as far as steps were watched."""
        return self._instruments.leaks()

    def flow_visualization(self, config: GradientVisualizationConfig | None = None) -> GradientFlowVisualization:
        """How the gradient flows through the model's own graph, over what was recorded so far."""
        from stethoscope.instruments.flow import GradientFlowVisualizer

        return GradientFlowVisualizer(config).visualize_run(self.run)

    def animation(self) -> GradientFlowAnimator:
        """Every parameter's gradient over the steps recorded so far, to play or to export."""
        from stethoscope.instruments.animator import GradientFlowAnimator

        return GradientFlowAnimator.from_run(self.run)

    def analyze_architecture(self, example: Any = None) -> ArchitectureAnalysis:
        """Parameters, FLOPs and memory of the watched model, for a batch or for one shaped like the first it got."""
        if self._model is None:
            raise WatchError("this session watches no model", do="Use model_diagnostics.analyze_architecture(model)")
        attachment = self._instruments.attachment
        if example is None and attachment is not None and not attachment.several_models:
            example = attachment.first_batch.example()
        return self.model_diagnostics.analyze_architecture(root_of(self._model), example)
