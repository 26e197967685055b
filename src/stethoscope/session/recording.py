"""One training under observation: what measures it, what writes its run, and the process that looks for problems."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from stethoscope.config import DebugConfig
from stethoscope.record import events
from stethoscope.record.metrics import EVALUATION
from stethoscope.session import arguments, messages
from stethoscope.session.companion_handle import CompanionHandle
from stethoscope.session.continuation import find_continuation, next_step
from stethoscope.session.deadline import Deadline
from stethoscope.session.description import describe_training, note_checkup
from stethoscope.session.location import RunLocation, locate_run, write_elsewhere
from stethoscope.session.logged import note_metric
from stethoscope.store.locate import is_run

if TYPE_CHECKING:
    from stethoscope.capture.guard import Guard
    from stethoscope.explain import Diagnosis
    from stethoscope.store import Run, RunWriter

READ_SECONDS: Final = 5.0
"""How long an instrument that is asked waits for what was measured last to be on the disk."""
QUICK_BYTES: Final = 4 << 20
"""A run that is not larger is looked through in about a second: at the end, where the companion is late, that is done here."""


class Recording:
    """Watcher, writer and companion of one run: put on by `start`, taken off by `finish`."""

    def __init__(
        self,
        model: Any,
        optimizers: Sequence[Any],
        config: DebugConfig,
        speaker: messages.Speaker,
        *,
        folder: Path | None = None,
        ema: Any = None,
    ) -> None:
        """Opens the run in this folder, or in a new one; nothing is attached yet."""
        from stethoscope.capture.watcher import Watcher

        self._model, self._optimizers = model, optimizers
        self._config, self._speaker = config, speaker
        location = locate_run(config, folder)
        before = find_continuation(location.folder, location.rank, model, optimizers)
        self.writer, self.location = _open(location, describe_training(model, optimizers, config, location), config)
        speaker.rank = self.location.rank
        self.first_step = next_step(before.last_step, optimizers)
        self._warning = before.in_words(messages.shown(self.folder), self.first_step)
        if before.how:
            said = events.Continuation(how=before.how, other=before.other, after=before.last_step)
            self.writer.tell(self.first_step, said)
        try:
            self.watcher = Watcher(model, list(optimizers), config, self.writer, first_step=self.first_step)
        except BaseException:
            self._close_unwatched()
            raise
        self.watcher.notes.averages.given = ema
        self.watcher.cost.background_s = lambda: self.writer.busy_s
        self.companion = CompanionHandle(
            self.folder, config, speaker.say_of_rank, rank=self.location.rank, notices=self.writer.take_notices
        )
        self._run: Run | None = None
        self.is_over = False
        """Whether it ended, or is a forked child's."""

    @property
    def folder(self) -> Path:
        """Where the run lies."""
        return self.location.folder

    @property
    def guard(self) -> Guard:
        """Keeps and counts the errors of what the training loop calls."""
        return self.watcher.guard

    # ---- life ----

    def start(self) -> None:
        """Attach to the model."""
        self.guard(note_checkup, self._model, self.writer, self.first_step)
        self.watcher.start()

    def follow(self) -> None:
        """Start the companion, where the run can be read by it, and hear what it finds."""
        arguments.warn_of_gaps(self._model, self._optimizers, self.watcher)
        self.companion.start(spawn=self.writer.state == "writing")

    def announce(self) -> None:
        """What is said at the start."""
        self._speaker.say_of_rank(f"stethoscope: {self._warning}" if self._warning else "")
        self._speaker.say(messages.opening(self.folder, self.watcher.names.roots))
        if not self.watcher.can_measure:
            self._speaker.say(messages.compiling())

    def give_up(self) -> None:
        """Attaching failed half way: take off what is on."""
        self.is_over = True
        self.guard(self.watcher.stop)
        self.guard(self._close_unwatched)

    def _close_unwatched(self) -> None:
        self.writer.close("exception", {"exception": "WatchError"})

    def finish(self, ended: str, reason: dict[str, Any] | None, deadline: Deadline) -> None:
        """Detach, write the end, let the last findings come in, within the time that is left."""
        # Each part behind the guard for itself: what fails in one of them must not keep the others from being done.
        self.guard(self.watcher.stop, deadline.left(0.5))
        # A disk that hangs must leave time to say so.
        self.guard(self.writer.close, ended, reason, deadline.left(0.7))
        # Where the end is not on the disk the companion waits for it in vain.
        self.guard(self.companion.finish, deadline if self.writer.is_on_disk else Deadline(0.0))

    def let_go(self) -> None:
        """Take everything off at once; `finish` may still be called for the rest."""
        self.is_over = True
        self.guard(self.watcher.let_go)

    def abandon(self) -> None:
        """In a forked child: the run is the parent's."""
        self.is_over = True
        self.watcher.taps.record(False)
        self.watcher.taps.open = False
        self.companion.abandon()

    # ---- writing ----

    def log(self, named: Mapping[str, Any]) -> None:
        """Metrics of the current step; those of an evaluation by their own names."""
        prefix = EVALUATION if self.watcher.evaluating else ""
        plain: dict[str, float] = {}
        for name, value in named.items():
            note_metric(self.watcher, plain, prefix + name, value)
        if plain:
            self.writer.scalars(self.watcher.log_step, plain)

    def flush(self, timeout: float) -> bool:
        """Wait until everything recorded so far is durable; False where that could not be had."""
        return self.watcher.ring.drain(timeout) and self.writer.flush(timeout)

    # ---- reading ----

    def run(self) -> Run:
        """The run with everything that is on the disk by now."""
        from stethoscope.store import open_run

        if self._run is None:
            self._run = open_run(self.folder)
        else:
            self._run.refresh()
        return self._run

    def readable_run(self) -> Run | None:
        """The run for an instrument that is asked, maybe by the training loop: it waits for no disk that does not answer."""
        if self.writer.state == "memory":
            return None
        if not self.is_over and not self.writer.trouble:
            self.flush(READ_SECONDS)
        return self.run() if is_run(self.folder) else None

    @property
    def _is_left_to_the_companion(self) -> bool:
        """Whether it is still looking, and nobody else would be done sooner."""
        return self.companion.is_at_work and self.writer.counters.get("bytes_written", 0) > QUICK_BYTES

    def diagnose(self, deadline: Deadline | None = None) -> Diagnosis:
        """Causes and findings of what was recorded so far; TimeoutError where they cannot be had in time."""
        from stethoscope.explain import Diagnosis, diagnose

        if self.writer.state == "memory" or not is_run(self.folder):
            return Diagnosis()
        if deadline is not None and (deadline.has_passed or self._is_left_to_the_companion):
            raise TimeoutError
        if not self.is_over:
            self.flush(30.0)
        # Before the run is read: what the companion says at its end is read with it.
        has_all = self.companion.has_concluded and not self.companion.left_out
        run = self.run()
        arguments.use_detectors(self._config.detectors)
        found = run.findings() if has_all else None
        return diagnose(run, findings=found, is_late=None if deadline is None else lambda: deadline.has_passed)


def _open(location: RunLocation, info: dict[str, Any], config: DebugConfig) -> tuple[RunWriter, RunLocation]:
    """The run's writer, here or where it can write."""
    from stethoscope.store import RunWriter

    writer = RunWriter.create(
        location.folder, info, rank=location.rank, world_size=location.world_size, disk_bytes=config.disk
    )
    if writer.state == "memory":
        location, writer = write_elsewhere(writer, location, info, config)
    return writer, location
