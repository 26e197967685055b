"""The last line of a session: what was found, and what of the run never reached the disk."""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from stethoscope.record import plural
from stethoscope.session import messages
from stethoscope.session.deadline import Deadline
from stethoscope.store.locate import is_run
from stethoscope.store.losses import LOST_STEPS

if TYPE_CHECKING:
    from stethoscope.explain import Diagnosis
    from stethoscope.session.recording import Recording

Closing = Callable[["Diagnosis", Path], str]
"""The words from the diagnosis and the run's folder."""


def say_last_words(recording: Recording, speaker: messages.Speaker, closing: Closing, deadline: Deadline) -> None:
    """One line, or two where the run itself does not tell what is missing."""
    if speaker.is_quiet:
        return
    writer, folder = recording.writer, recording.folder
    lost, num_known = writer.unwritten(), 0
    said = messages.unwritten(lost, writer.last_trouble)
    if writer.state != "closed":  # the disk hangs, and whoever reads from it would too
        speaker.say_of_rank(f"stethoscope: {unfinished_words(recording)}. {said}")
        return
    if not is_run(folder):
        speaker.say_of_rank(f"stethoscope: {said or 'no step was recorded.'} There is no run to read")
        return
    try:
        with _collections_put_off():
            diagnosis = recording.diagnose(deadline)
            words = closing(diagnosis, folder)
        num_known = diagnosis.looked_at.num_steps_lost
    except TimeoutError:
        words = f"stethoscope: {unfinished_words(recording)}"
    speaker.say(words)
    if lost.get(LOST_STEPS, 0) > num_known:  # else the run itself tells
        speaker.say_of_rank(f"stethoscope: {said}")


def unfinished_words(recording: Recording) -> str:
    """What is said where the process ends before everything is known."""
    command = f"stethoscope diagnose {messages.shown(recording.folder)}"
    if recording.writer.state != "closed":
        return f"the run's last steps are not on the disk yet (it does not answer); what was written: {command}"
    steps = plural(recording.watcher.clock.step, "step")
    if recording.companion.is_at_work:
        return f"{steps} recorded; findings are still being computed: {command}"
    return f"{steps} recorded; there was no time left to look for problems in them: {command}"


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
