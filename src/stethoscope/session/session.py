"""DebugSession: the live attachment. Wiring, nothing else.

`watch(model, optimizer)` attaches; `stop()` detaches and leaves nothing behind. No exception of ours reaches the
training loop; wrong arguments to `watch` itself are told at once.
"""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from stethoscope.capture.guard import can_be_kept, warn
from stethoscope.config import DebugConfig
from stethoscope.instruments.wording import plural
from stethoscope.record import Finding, StopTraining, WatchError, events
from stethoscope.record.metrics import EVALUATION
from stethoscope.session import arguments, endings, messages
from stethoscope.session.companion_handle import CompanionHandle
from stethoscope.session.continuation import find_continuation, next_step
from stethoscope.session.deadline import Deadline
from stethoscope.session.description import describe_training, note_checkup, root_of
from stethoscope.session.kit import Kit
from stethoscope.session.location import RunLocation, locate_run, write_elsewhere
from stethoscope.session.logged import note_metric
from stethoscope.session.report import SessionReport
from stethoscope.session.shield import in_words, never_raises
from stethoscope.store.locate import is_run
from stethoscope.store.losses import LOST_STEPS

if TYPE_CHECKING:
    import torch

    from stethoscope.capture.guard import Guard
    from stethoscope.capture.watcher import Watcher
    from stethoscope.explain import Diagnosis
    from stethoscope.hooks import HookManager
    from stethoscope.instruments.animator import GradientFlowAnimator
    from stethoscope.instruments.architecture import ArchitectureAnalysis
    from stethoscope.instruments.flow_types import GradientFlowVisualization, GradientVisualizationConfig
    from stethoscope.instruments.reading import Readings
    from stethoscope.record.wire import EventBody
    from stethoscope.session.attachment import Attachment
    from stethoscope.store import Run, RunWriter

STOP_SECONDS: Final = 10.0
"""What `stop` may take in all, where the process goes on. Where it ends, less: `endings.END_SECONDS`."""
READ_SECONDS: Final = 5.0
"""How long an instrument that is asked waits for what was measured last to be on the disk."""
_SESSIONS: dict[int, DebugSession] = {}
"""Running sessions by the address of each model they watch, and keep alive. Not by the model: it may define `__eq__`."""


class DebugSession(Kit):
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
        super().__init__(config or DebugConfig.load(), model)
        self._optimizers = list(optimizers)
        self._run_folder = Path(run) if run is not None else None
        self._ema = ema
        self._writer: RunWriter | None = None
        self._place: RunLocation | None = None
        self._watcher: Watcher | None = None
        self._companion: CompanionHandle | None = None
        self._attachment: Attachment | None = None
        self._run: Run | None = None
        self._started = self._stopped = False
        self._num_evaluations = 0
        self.has_said_end = False
        """Whether the last line was said: who ends the process without waiting any longer says it otherwise."""
        self.closing_words = messages.closing
        """What is said at the end, from the diagnosis, the run's folder and the run."""

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
        except BaseException as error:  # whatever is wrong with us, the script that is about to train must go on
            if not can_be_kept(error):
                raise
            warn(
                f"this model cannot be watched ({type(error).__name__}: {in_words(error)}). "
                "Training goes on without us; `stethoscope doctor` says what is installed"
            )
            self._give_up()
        return self

    def _give_up(self) -> None:
        """Attaching failed half way: take off what is on."""
        if self._watcher is not None:
            self._guard(self._watcher.stop)
        if self._writer is not None:
            self._guard(self._writer.close, "exception", {"exception": "WatchError"})
        self._watcher, self._writer, self._stopped = None, None, True

    def _attach(self) -> None:
        """Open the run, put the taps on, start the companion."""
        from stethoscope.capture.watcher import Watcher
        from stethoscope.session.attachment import Attachment
        from stethoscope.store import RunWriter

        place = locate_run(self.config, self._run_folder)
        info = describe_training(self._model, self._optimizers, self.config, place)
        before = find_continuation(place.folder, place.rank, self._model, self._optimizers)
        self._writer = RunWriter.create(
            place.folder, info, rank=place.rank, world_size=place.world_size, disk_bytes=self.config.disk
        )
        if self._writer.state == "memory":
            place, self._writer = write_elsewhere(self._writer, place, info, self.config)
        self._place = place
        first_step = next_step(before.last_step, self._optimizers)
        if before.how:
            self._writer.tell(
                first_step, events.Continuation(how=before.how, other=before.other, after=before.last_step)
            )
        self._watcher = Watcher(self._model, self._optimizers, self.config, self._writer, first_step=first_step)
        self._watcher.notes.averages.given = self._ema
        self._watcher.guard(note_checkup, self._model, self._writer, first_step)
        self._watcher.start()
        self._attachment = Attachment(self, self._watcher)
        self._readings = self._read_from(first_step, place.rank)
        arguments.warn_of_gaps(self._model, self._optimizers, self._watcher)
        notices = self._writer.take_notices
        self._companion = CompanionHandle(
            place.folder, self.config, self._say_of_rank, rank=place.rank, notices=notices
        )
        self._companion.start(spawn=self._writer.state == "writing")
        endings.remember(self)
        warning = before.in_words(messages.shown(place.folder), first_step)
        self._say_of_rank(f"stethoscope: {warning}" if warning else "")
        self._say(messages.opening(place.folder, self._watcher.names.roots))
        if not self._watcher.can_measure:
            self._say(messages.compiling())

    def _read_from(self, first_step: int, rank: int) -> Readings:
        """What the instruments take in: what this process records from its first step on."""
        from stethoscope.hooks.memory import memory_total_bytes
        from stethoscope.instruments import reading

        assert self._watcher is not None
        assert self._attachment is not None
        cost, layer_times = self._watcher.cost, self._attachment.layer_times
        recorded = reading.RecordedRun(self._readable_run, rank, first_step)
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

    def _readable_run(self) -> Run | None:
        """The run for an instrument that is asked, maybe by the training loop: it waits for no disk that does not answer."""
        if self._writer is None or self._writer.state == "memory":
            return None
        if not self._stopped and not self._writer.trouble:
            self.flush(READ_SECONDS)
        return self._opened_run() if is_run(self._folder) else None

    def stop(self, ended: str = "finished", reason: dict[str, Any] | None = None) -> SessionReport:
        """Detach, write the end, let the last findings come in, say one line."""
        self.close(ended, reason, Deadline(STOP_SECONDS))
        return self._report()

    def close(self, ended: str, reason: dict[str, Any] | None, deadline: Deadline) -> None:
        """As `stop`, within a given time: what cannot be had by then is left to the companion, and that is said."""
        if self._stopped or not self._started:
            if self._writer is not None:  # another thread is at it, or was interrupted
                self._writer.close(ended, reason, deadline.left())
            return
        self._stopped = True
        try:
            self._close(ended, reason, deadline)
        finally:
            for model in [model for model, session in _SESSIONS.items() if session is self]:
                del _SESSIONS[model]
            self._guard(endings.forget, self)

    def _close(self, ended: str, reason: dict[str, Any] | None, deadline: Deadline) -> None:
        # Each part behind the guard for itself: what fails in one of them must not keep the others from being done.
        if self._attachment is not None:
            self._guard(self._attachment.close, deadline.left(0.5))
        if self._watcher is not None and self._writer is not None:
            self._guard(self._watcher.stop, deadline.left(0.5))
            # A disk that hangs must leave time to say so.
            self._guard(self._writer.close, ended, reason, deadline.left(0.7))
            if self._companion is not None:
                # Where the end is not on the disk the companion waits for it in vain.
                self._guard(self._companion.finish, deadline if self._writer.is_on_disk else Deadline(0.0))
            self._guard(self._say_end, deadline)
        if self.config.enable_visualization:
            self._draw(deadline)
        self._guard(self._close_webhook, deadline)

    def _close_webhook(self, deadline: Deadline) -> None:
        if self._webhook is not None:
            self._webhook.close(deadline.left())
            lost = self._webhook.num_failed + self._webhook.num_dropped
            if lost:
                self._say(f"stethoscope: {lost} of the alerts did not reach the webhook")

    def _say_end(self, deadline: Deadline) -> None:
        """One line: what was found, and what of the run never reached the disk."""
        self._say_last_words(deadline)
        self.has_said_end = True

    def _say_last_words(self, deadline: Deadline) -> None:
        assert self._writer is not None
        if self.config.quiet:
            return
        lost, num_known = self._writer.unwritten(), 0
        said = messages.unwritten(lost, self._writer.last_trouble)
        if self._writer.state != "closed":  # the disk hangs, and whoever reads from it would too
            self._say_of_rank(f"stethoscope: {self.unfinished_words()}. {said}")
            return
        if not is_run(self._folder):
            self._say_of_rank(f"stethoscope: {said or 'no step was recorded.'} There is no run to read")
            return
        try:
            with _collections_put_off():
                diagnosis = self._diagnose(deadline)
                words = self.closing_words(diagnosis, self._folder)
            num_known = diagnosis.looked_at.num_steps_lost
        except TimeoutError:
            words = f"stethoscope: {self.unfinished_words()}"
        self._say(words)
        if lost.get(LOST_STEPS, 0) > num_known:  # else the run itself tells
            self._say_of_rank(f"stethoscope: {said}")

    def say_unfinished(self) -> None:
        """What is said in place of the last line where the process cannot wait for it."""
        self._say_of_rank(f"stethoscope: {self.unfinished_words()}")

    def unfinished_words(self) -> str:
        """What is said where the process ends before everything is known."""
        command = f"stethoscope diagnose {messages.shown(self._folder)}"
        if self._writer is not None and self._writer.state != "closed":
            return f"the run's last steps are not on the disk yet (it does not answer); what was written: {command}"
        if self._companion is not None and self._companion.is_at_work:
            return f"{plural(self.step, 'step')} recorded; findings are still being computed: {command}"
        return f"{plural(self.step, 'step')} recorded; there was no time left to look for problems in them: {command}"

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
        name = type(root_of(self._model)).__name__ if self._model is not None else "no model"
        return f"DebugSession({name}), {state}", f"step {self.step:,}" if self._watcher is not None else ""

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
        if self._watcher is not None:
            return self._watcher.guard
        from stethoscope.capture.guard import Guard

        return Guard()

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
        if self._watcher is None or self._writer is None or self._stopped:
            return
        prefix = EVALUATION if self._watcher.evaluating else ""
        plain: dict[str, float] = {}
        for name, value in metrics.items():
            note_metric(self._watcher, plain, prefix + name, value)
        if plain:
            self._writer.scalars(self._watcher.log_step, plain)

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

        with contextlib.ExitStack() as hooks_off:
            self._guard(hooks_off.enter_context, without_hooks(watcher.names.root))
            yield

    @never_raises(False)
    def flush(self, timeout: float = 30.0) -> bool:
        """Wait until everything recorded so far is durable; False where that could not be had."""
        if self._watcher is None or self._writer is None:
            return True
        return self._watcher.ring.drain(timeout) and self._writer.flush(timeout)

    # ---- reading ----

    @property
    def run(self) -> Run:
        """The run as a reader sees it, up to what was flushed."""
        if self._writer is None:
            raise WatchError("this session watches no model", do="Use stethoscope.watch(model, optimizer)")
        if not self._stopped:
            self.flush()
        return self._opened_run()

    def _opened_run(self) -> Run:
        from stethoscope.store import open_run

        if self._run is None:
            self._run = open_run(self._folder)
        else:
            self._run.refresh()
        return self._run

    @property
    def diagnosis(self) -> Diagnosis:
        """Causes and findings of what was recorded so far."""
        return self._diagnose(None)

    def _diagnose(self, deadline: Deadline | None) -> Diagnosis:
        from stethoscope.explain import Diagnosis, diagnose

        if self._writer is None or self._writer.state == "memory" or not is_run(self._folder):
            return Diagnosis()
        if deadline is not None and deadline.has_passed:
            raise TimeoutError
        run = self.run
        arguments.use_detectors(self.config.detectors)
        has_all = self._companion is not None and self._companion.has_concluded and not self._companion.left_out
        found = run.findings() if has_all else None
        return diagnose(run, findings=found, is_late=None if deadline is None else lambda: deadline.has_passed)

    @property
    def findings(self) -> tuple[Finding, ...]:
        """Everything found so far."""
        return self.diagnosis.findings

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
        if example is None and self._attachment is not None and not self._attachment.several_models:
            example = self._attachment.first_batch.example()
        return self.model_diagnostics.analyze_architecture(root_of(self._model), example)

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

    def _note_event(self, step: int, said: EventBody) -> None:
        if self._writer is not None:
            self._writer.tell(step, said)

    def _listen(self, hooks: HookManager) -> None:
        if self._attachment is not None:
            self._attachment.listen(hooks)

    def _draw(self, deadline: Deadline) -> None:
        """The pictures of a session that was asked for them; a fault in one of them costs that picture only."""
        from stethoscope.session import pictures

        if deadline.has_passed:
            self._say("stethoscope: no pictures were drawn: there was no time left at the end")
            return
        try:
            self._say(pictures.draw(self.visualizer, self.run if self._writer is not None else None))
        except Exception as error:
            warn(f"the session's pictures could not be drawn: {error!r}")

    def _say(self, line: str) -> None:
        if line and not self.config.quiet and (self._place is None or self._place.rank == 0):
            messages.say(line)

    def _say_of_rank(self, line: str) -> None:
        """What concerns this process alone, so that every rank says it for itself."""
        rank = self._place.rank if self._place is not None else 0
        if line and not self.config.quiet:
            messages.say(line.replace("stethoscope:", f"stethoscope: rank {rank}:", 1) if rank else line)

    def _report(self) -> SessionReport:
        return SessionReport(self, self.folder, self.step, lambda: self.diagnosis)


@contextlib.contextmanager
def _collections_put_off() -> Iterator[None]:
    """While a run is read nothing of it is garbage, and each look for some goes over the whole model, too."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


def watch(
    model: torch.nn.Module | Mapping[str, torch.nn.Module] | Sequence[torch.nn.Module],
    optimizer: Any = None,
    *,
    run: str | Path | None = None,
    name: str | None = None,
    ema: Any = None,
    expect: Any = None,
    ignore: Any = None,
    detectors: Sequence[type | str] | None = None,
    config: DebugConfig | None = None,
    **config_fields: Any,
) -> DebugSession:
    """Watch a model train: every step recorded, findings as they appear. Returns the started session.

    `model` may be several, as a dict of names or a list (a GAN): one run then holds them all.
    `optimizer` may be one, a list, or None (then every optimizer that holds a parameter of the model counts).
    `run` continues or names a run folder. Watching the same model again replaces its session.
    `ema` is an average of the weights that the script keeps itself.
    `detectors` are further classes of `stethoscope.detect.Detector`, or their names as "module:Class".
    """
    arguments.refuse_not_needed(config_fields)
    names = arguments.use_detectors(detectors) if detectors is not None else None
    settings = DebugConfig.load(config, name=name, expect=expect, ignore=ignore, detectors=names, **config_fields)
    arguments.use_detectors(settings.detectors)
    try:
        given: list[Any] = list(model.values()) if isinstance(model, Mapping) else [model]
        given = list(model) if isinstance(model, (list, tuple)) else given
        model = arguments.check_model(model)
        optimizers = arguments.check_optimizers(optimizer)
        arguments.check_average(ema)
    except WatchError:
        raise
    except BaseException as error:
        if not can_be_kept(error):
            raise
        raise WatchError(f"watch cannot use what it was given ({type(error).__name__}: {in_words(error)})") from error
    for one in given:
        old = _SESSIONS.pop(id(one), None)
        if old is not None:
            old.stop()
    session = DebugSession(settings, model=model, optimizers=optimizers, run=run, ema=ema).start()
    if session._started and not session._stopped:
        _SESSIONS.update(dict.fromkeys(map(id, given), session))
    return session


def debug_session(config: DebugConfig | None = None) -> DebugSession:
    """A session without a model: the instruments, to be fed by hand."""
    return DebugSession(config)
