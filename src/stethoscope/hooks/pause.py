"""PauseTraining: waits at a prompt, or for `stethoscope resume RUN` from elsewhere.

Refuses where waiting would be worse than going on: with several ranks the others would hang in their next
collective, and without a terminal there might never be an answer.
"""

from __future__ import annotations

import contextlib
import os
import select
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Final, TextIO

from stethoscope.record import StopTraining, printable
from stethoscope.store.inside import read_file, remove_file
from stethoscope.store.private import create_file

RESUME_FILE: Final = "resume"
PAUSED_FILE: Final = "paused"
"""Holds the reason, for as long as training waits."""
POLL_S: Final = 0.5
_MOST_REASON: Final = 64 << 10
STOP_WORDS: Final = frozenset({"stop", "s", "q", "quit"})

Poll = Callable[[float], str | None]
"""Waits up to so many seconds for a line at the prompt; None where none came."""


class Pauser:
    """Holds training until it is told to go on."""

    def __init__(
        self,
        run_folder: Path | None = None,
        *,
        world_size: int | None = None,
        stdin: TextIO | None = None,
        output: TextIO | None = None,
        poll: Poll | None = None,
    ) -> None:
        self.run_folder = run_folder
        self.world_size = _world_size() if world_size is None else world_size
        self._stdin = stdin
        self._output = output
        self._poll = poll or self._poll_stdin

    def refusal(self, *, waits: bool = True) -> str:
        """Why training is not held here; empty where it can be."""
        if self.world_size > 1:
            return f"{self.world_size} ranks are training together and the others would hang"
        if waits and not self._has_terminal():
            return "there is no terminal to answer at"
        return ""

    def wait(self, reason: str) -> str:
        """Waits for Enter or the resume file; raises StopTraining where the answer is to stop. Says who
        answered."""
        resume = None if self.run_folder is None else self.run_folder / RESUME_FILE
        if resume is not None:
            resume.unlink(missing_ok=True)  # left over from an earlier pause
        self._print(f"stethoscope: training is paused: {printable(reason)}")
        elsewhere = f"; or elsewhere: stethoscope resume {self.run_folder}" if resume is not None else ""
        self._print(f"stethoscope: Enter goes on, stop ends training{elsewhere}")
        self._mark_run(reason)
        try:
            return self._wait_for_answer(resume, reason)
        finally:
            self._unmark_run()

    def _mark_run(self, reason: str) -> None:
        """Say in the run that training waits; where it cannot be written only the prompt is left."""
        if self.run_folder is not None:
            mark = self.run_folder / PAUSED_FILE
            with contextlib.suppress(OSError):
                mark.unlink(missing_ok=True)
                with os.fdopen(create_file(mark), "w", encoding="utf-8") as file:
                    file.write(printable(reason) + "\n")

    def _unmark_run(self) -> None:
        if self.run_folder is not None:
            with contextlib.suppress(OSError):
                (self.run_folder / PAUSED_FILE).unlink(missing_ok=True)

    def _wait_for_answer(self, resume: Path | None, reason: str) -> str:
        while True:
            line = self._poll(POLL_S)
            if line is not None:
                if line.strip().lower() in STOP_WORDS:
                    raise StopTraining(f"stopped at the prompt: {reason}")
                return "resumed at the prompt"
            if resume is not None and resume.exists():
                resume.unlink(missing_ok=True)
                self._print("stethoscope: training goes on")
                return "resumed by the resume file"

    def _has_terminal(self) -> bool:
        stream = self._stdin or sys.stdin
        try:
            return stream is not None and stream.isatty()
        except ValueError:  # closed
            return False

    def _print(self, text: str) -> None:
        stream = self._output or sys.stderr
        stream.write(text + "\n")
        stream.flush()

    def _poll_stdin(self, seconds: float) -> str | None:
        stream = self._stdin or sys.stdin
        if sys.platform == "win32":  # select takes sockets only there
            return stream.readline()
        ready, _, _ = select.select([stream], [], [], seconds)
        return stream.readline() if ready else None


def paused_reason(run_folder: Path) -> str | None:
    """Why training waits in this run; None where it does not."""
    try:
        return read_file(run_folder, PAUSED_FILE, _MOST_REASON).decode(errors="replace").strip()
    except OSError:
        return None


def go_on(run_folder: Path) -> None:
    """Leave the file that the paused training waits for; OSError where a folder stands in its place."""
    with contextlib.suppress(FileNotFoundError):
        remove_file(run_folder, RESUME_FILE)  # a link itself, not what it leads to
    os.close(create_file(run_folder / RESUME_FILE))


def _world_size() -> int:
    """How many ranks a launcher says there are."""
    text = os.environ.get("WORLD_SIZE", "1")
    return int(text) if text.isdigit() else 1
