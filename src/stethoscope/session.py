"""DebugSession: the live attachment. Wiring, nothing else.

`watch(model, optimizer)` attaches; `stop()` detaches and leaves nothing behind. No exception of ours reaches the
training loop; wrong arguments to `watch` itself are told at once.
"""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stethoscope.config import DebugConfig
from stethoscope.live import endings, launch, voice
from stethoscope.live.companions import CompanionHandle
from stethoscope.live.kit import Kit
from stethoscope.live.report import SessionReport
from stethoscope.record import Finding, StopTraining, WatchError

if TYPE_CHECKING:
    import torch

    from stethoscope.capture import Watcher
    from stethoscope.explain import Diagnosis
    from stethoscope.hooks import HookManager
    from stethoscope.instruments.animator import GradientFlowAnimator
    from stethoscope.instruments.architecture import ArchitectureAnalysis
    from stethoscope.instruments.flow_types import GradientFlowVisualization, GradientVisualizationConfig
    from stethoscope.live.attachment import Attachment
    from stethoscope.store import Run, RunWriter

_SESSIONS: weakref.WeakKeyDictionary[Any, DebugSession] = weakref.WeakKeyDictionary()


class DebugSession(Kit):
    """A model under observation, or the instruments alone where there is no model."""

    def __init__(
        self,
        config: DebugConfig | None = None,
        *,
        model: Any = None,
        optimizers: Sequence[Any] = (),
        run: str | Path | None = None,
        extras: dict[str, Any] | None = None,
    ) -> None:
        super().__init__(config or DebugConfig.load(), model)
        self._optimizers = list(optimizers)
        self._run_folder = Path(run) if run is not None else None
        self._extras = extras or {}
        self._writer: RunWriter | None = None
        self._place: launch.Place | None = None
        self._watcher: Watcher | None = None
        self._companion: CompanionHandle | None = None
        self._attachment: Attachment | None = None
        self._run: Run | None = None
        self._started = self._stopped = False
        self.closing_words = voice.closing
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
            self._attach()
        except Exception as error:  # whatever is wrong with us, the script that is about to train must go on
            launch.warn(
                f"this model cannot be watched ({error!r}). Training goes on without us; `stethoscope doctor` says what is installed"
            )
            self._give_up()
        return self

    def _give_up(self) -> None:
        """Attaching failed half way: take off what is on."""
        if self._watcher is not None:
            self._watcher.guard(self._watcher.stop)
        if self._writer is not None:
            self._writer.close("exception", {"exception": "WatchError"})
        self._watcher, self._writer, self._stopped = None, None, True

    def _attach(self) -> None:
        """Open the run, put the taps on, start the companion."""
        from stethoscope.capture import Watcher
        from stethoscope.live.attachment import Attachment
        from stethoscope.live.feed import Feed
        from stethoscope.store import RunWriter

        place = launch.place(self.config, self._run_folder)
        info = launch.describe(self._model, self._optimizers, self.config, place)
        before = launch.last_recorded(place.folder, place.rank)
        self._writer = RunWriter.create(
            place.folder, info, rank=place.rank, world_size=place.world_size, disk_bytes=self.config.disk
        )
        if self._writer.state == "memory":
            place, self._writer = launch.write_elsewhere(self._writer, place, info, self.config)
        self._place = place
        self._feed = Feed(
            self._writer,
            max_history=self.config.max_gradient_history,
            keep_gradients=self.config.enable_gradient_debugging,
            keep_metrics=self.config.enable_model_diagnostics,
            max_looks=self.config.max_tracked_tensors if self.config.enable_tensor_inspection else 0,
            keep_times=self.config.enable_profiling,
        )
        first_step = launch.next_step(before, self._optimizers)
        self._watcher = Watcher(self._model, self._optimizers, self.config, self._feed, first_step=first_step)
        self._watcher.notes.averages.given = self._extras.get("ema")
        self._watcher.guard(launch.note_checkup, self._model, self._writer, first_step)
        self._watcher.start()
        self._attachment = Attachment(self, self._watcher, self._feed)
        launch.complain(self._model, self._optimizers, self._watcher)
        self._companion = CompanionHandle(place.folder, self.config, self._say, rank=place.rank)
        if self._writer.state == "writing":
            self._companion.start()
        endings.remember(self)
        self._say(voice.opening(place.folder, self._watcher.names.roots))

    def stop(self, ended: str = "finished", reason: dict[str, Any] | None = None) -> SessionReport:
        """Detach, write the end, let the last findings come in, say one line."""
        if self._stopped or not self._started:
            return self._report()
        self._stopped = True
        endings.forget(self)
        if self._attachment is not None:
            self._attachment.close()
        if self._watcher is not None and self._writer is not None:
            self._watcher.stop()
            kept = self._writer.state == "writing"
            self._writer.close(ended, reason)
            if self._companion is not None:
                self._companion.finish()
            if kept:
                self._watcher.guard(self._say_end)
        for model in [model for model, session in _SESSIONS.items() if session is self]:
            del _SESSIONS[model]
        if self.config.enable_visualization:
            self._draw()
        if self._webhook is not None:
            self._webhook.close()
            lost = self._webhook.num_failed + self._webhook.num_dropped
            if lost:
                self._say(f"stethoscope: {lost} of the alerts did not reach the webhook")
        return self._report()

    def _say_end(self) -> None:
        self._say(self.closing_words(self.diagnosis, self._folder))

    def abandon(self) -> None:
        """In a forked child: the run is the parent's, so do nothing from now on."""
        self._stopped = True
        if self._watcher is not None:
            self._watcher.taps.recording = self._watcher.taps.open = False
        if self._companion is not None:
            self._companion.abandon()

    def __repr__(self) -> str:
        return " ".join(part for part in self._in_words() if part)

    def _repr_html_(self) -> str:
        from stethoscope.views.notebook import session_html

        return session_html(*self._in_words(), self.folder)

    def _in_words(self) -> tuple[str, str]:
        """What is watched, and how it stands."""
        state = "stopped" if self._stopped else "watching" if self._watcher is not None else "not watching"
        name = type(launch.root_of(self._model)).__name__ if self._model is not None else "no model"
        return f"DebugSession({name}), {state}", f"step {self.step:,}" if self._watcher is not None else ""

    def __enter__(self) -> DebugSession:
        return self.start()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: Any) -> None:
        if kind is None or kind is SystemExit:
            self.stop()
        elif issubclass(kind, StopTraining):
            self.stop("finished", {"stopped": str(error)[:500]})
        else:
            self.stop("exception", {"exception": kind.__name__, "message": str(error)[:500]})

    # ---- while training ----

    @property
    def step(self) -> int:
        """How many steps the optimizer has taken."""
        return self._watcher.clock.step if self._watcher is not None else 0

    def log(self, **metrics: Any) -> None:
        """Record metrics of the current step; tensors are read without a synchronisation."""
        if self._watcher is None or self._writer is None or self._stopped:
            return
        prefix = "eval/" if self._watcher.evaluating else ""
        plain: dict[str, float] = {}
        for name, value in metrics.items():
            if hasattr(value, "detach") and hasattr(value, "device"):
                self._watcher.guard(self._watcher.log, prefix + name, value)
            else:
                launch.note_number(plain, prefix + name, value)
        if plain:
            (self._feed or self._writer).scalars(self._watcher.log_step, plain)

    def log_batch(self, inputs: Any, targets: Any = None) -> None:
        """Record what goes in: statistics of inputs and targets, and a fingerprint of every sample."""
        if self._watcher is not None and not self._stopped:
            self._watcher.guard(self._watcher.log_batch, inputs, targets)

    @contextlib.contextmanager
    def evaluating(self) -> Iterator[None]:
        """Mark validation: nothing inside counts as training, and metrics logged inside are validation's."""
        watcher, writer = self._watcher, self._writer
        if watcher is None or writer is None:
            yield
            return
        before = watcher.evaluating
        watcher.evaluating = True
        watcher.guard(watcher.evaluation_begins)
        try:
            yield
        finally:
            watcher.evaluating = before
            watcher.guard(watcher.evaluation_ends)

    def watch_leaks(self, every: int = 16) -> None:
        """Watch every n-th Step for tensors that live on after it; `leaks()` names the lines that made them."""
        if self._attachment is None:
            raise WatchError(
                "this session watches no model",
                do="Use `with session.tensor_inspector.leak_detector.step():` around each step",
            )
        self._attachment.watch_leaks(every)

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        """Take every hook of ours off the model for a while, for tools that cannot bear any; metrics still come in."""
        watcher = self._watcher
        if watcher is None or self._stopped:
            yield
            return
        from stethoscope.capture.pausing import without_hooks

        with without_hooks(watcher.names.root):
            yield

    def flush(self, timeout: float = 30.0) -> bool:
        """Wait until everything recorded so far is durable; False where that could not be had."""
        if self._watcher is None or self._writer is None:
            return True
        return self._watcher.ring.drain(timeout) and self._writer.flush(timeout)

    # ---- reading ----

    @property
    def run(self) -> Run:
        """The run as a reader sees it, up to what was flushed."""
        from stethoscope.store import open_run

        if self._writer is None:
            raise WatchError("this session watches no model", do="Use stethoscope.watch(model, optimizer)")
        if not self._stopped:
            self.flush()
        if self._run is None:
            self._run = open_run(self._folder)
        else:
            self._run.refresh()
        return self._run

    @property
    def diagnosis(self) -> Diagnosis:
        """Causes and findings of what was recorded so far."""
        from stethoscope.explain import Diagnosis, diagnose

        if self._writer is None or self._writer.state == "memory":
            return Diagnosis()
        run = self.run
        has_all = self._companion is not None and self._companion.has_concluded
        return diagnose(run, findings=run.findings() if has_all else None)

    @property
    def findings(self) -> tuple[Finding, ...]:
        """Everything found so far."""
        return self.diagnosis.findings

    def flow_visualization(
        self, config: GradientVisualizationConfig | None = None
    ) -> GradientFlowVisualization:
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
            raise WatchError(
                "this session watches no model", do="Use model_diagnostics.analyze_architecture(model)"
            )
        if example is None and self._attachment is not None and not self._attachment.several_models:
            example = self._attachment.first_batch.example()
        return self.model_diagnostics.analyze_architecture(launch.root_of(self._model), example)

    @property
    def folder(self) -> Path | None:
        """Where the run lies; None for a session that writes none."""
        return self._place.folder if self._place is not None else None

    @property
    def _folder(self) -> Path:
        assert self._place is not None
        return self._place.folder

    def _own_folder(self) -> Path | None:
        return self.folder

    def _world_size(self) -> int | None:
        return self._place.world_size if self._place is not None else None

    def _listen(self, hooks: HookManager) -> None:
        if self._attachment is not None:
            self._attachment.listen(hooks)

    def _draw(self) -> None:
        """The pictures of a session that was asked for them; a fault in one of them costs that picture only."""
        from stethoscope.live import pictures

        try:
            self._say(pictures.draw(self.visualizer, self.run if self._writer is not None else None))
        except Exception as error:
            launch.warn(f"the session's pictures could not be drawn: {error!r}")

    def _say(self, line: str) -> None:
        if line and not self.config.quiet and (self._place is None or self._place.rank == 0):
            voice.say(line)

    def _report(self) -> SessionReport:
        return SessionReport(self, self.folder, self.step, lambda: self.diagnosis)


def watch(
    model: torch.nn.Module | Mapping[str, torch.nn.Module] | Sequence[torch.nn.Module],
    optimizer: Any = None,
    *,
    run: str | Path | None = None,
    name: str | None = None,
    scaler: Any = None,
    scheduler: Any = None,
    ema: Any = None,
    loss_fn: Any = None,
    expect: Any = None,
    ignore: Any = None,
    config: DebugConfig | None = None,
    **config_fields: Any,
) -> DebugSession:
    """Watch a model train: every step recorded, findings as they appear. Returns the started session.

    `model` may be several, as a dict of names or a list (a GAN): one run then holds them all.
    `optimizer` may be one, a list, or None (then every optimizer that holds a parameter of the model counts).
    `run` continues or names a run folder. Watching the same model again replaces its session.
    """
    settings = DebugConfig.load(config, name=name, expect=expect, ignore=ignore, **config_fields)
    given: list[Any] = list(model.values()) if isinstance(model, Mapping) else [model]
    given = list(model) if isinstance(model, (list, tuple)) else given
    model = launch.check_model(model)
    optimizers = launch.check_optimizers(optimizer)
    extras = {"scaler": scaler, "scheduler": scheduler, "ema": ema, "loss_fn": loss_fn}
    launch.check_extras(extras)
    for one in given:
        old = _SESSIONS.pop(one, None)
        if old is not None:
            old.stop()
    session = DebugSession(settings, model=model, optimizers=optimizers, run=run, extras=extras)
    for one in given:
        _SESSIONS[one] = session
    return session.start()


def debug_session(config: DebugConfig | None = None) -> DebugSession:
    """A session without a model: the instruments, to be fed by hand."""
    return DebugSession(config)
