"""The session's end of the companion: start it, hear what it finds, and do without it where it cannot be had."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Final

import stethoscope
from stethoscope.config import DebugConfig
from stethoscope.live import voice
from stethoscope.record import Finding, RunError, Severity

POLL_SECONDS: Final = 1.0
FINISH_SECONDS: Final = 10.0


class CompanionHandle:
    """Spawns the companion of rank 0 and follows its findings on a thread of its own."""

    def __init__(
        self, folder: Path, config: DebugConfig, say: Callable[[str], None], *, rank: int = 0
    ) -> None:
        self._folder, self._config, self._say = folder, config, say
        self._process: subprocess.Popen[bytes] | None = None
        self._stopping = threading.Event()
        self._thread: threading.Thread | None = None
        self._wanted = config.companion == "process" and rank == 0
        self._said: set[tuple[str, int]] = set()
        self.on_findings: list[Callable[[list[Finding]], None]] = []

    def start(self) -> None:
        """Spawn it; a machine that cannot spawn does without."""
        if not self._wanted:
            return
        # A worker that spawns or a frozen main must not import torch: the companion is told where we live, no more.
        home = str(Path(stethoscope.__file__).parent.parent)
        path = os.pathsep.join([home, *filter(None, [os.environ.get("PYTHONPATH")])])
        command = [sys.executable, "-m", "stethoscope.companion", str(self._folder.resolve())]
        command += ["--parent", str(os.getpid()), "--disk", str(self._config.disk)]
        try:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
                env=os.environ | {"PYTHONPATH": path, "OMP_NUM_THREADS": "1"},
            )
        except OSError as error:
            self._say(f"stethoscope: no companion process ({error}); findings come at the end")
            return
        self._thread = threading.Thread(target=self._follow, name="stethoscope-ear", daemon=True)
        self._thread.start()

    def finish(self) -> None:
        """Let it take in the end; after a while go on without it."""
        self._stopping.set()
        if self._thread is not None:
            self._thread.join(POLL_SECONDS * 2)
        if self._process is not None:
            try:
                self._process.wait(FINISH_SECONDS)
            except subprocess.TimeoutExpired:
                return

    def abandon(self) -> None:
        """In a forked child: not ours."""
        self._process, self._thread = None, None

    def _follow(self) -> None:
        from stethoscope.explain.circumstances import circumstances
        from stethoscope.explain.ranking import silence, split
        from stethoscope.store import open_run
        from stethoscope.store.findings import FindingsReader

        reader = FindingsReader(self._folder)
        known: frozenset[tuple[str, int]] = frozenset()
        while not self._stopping.wait(POLL_SECONDS):
            try:
                if not reader.update():
                    continue
                found = silence(reader.findings(), self._config.ignore, self._config.expect)
                # The run is opened only for something new: a finding that goes on is written again and again.
                now = frozenset((finding.code, finding.first_step) for finding in found)
                causes: tuple[Finding, ...] = ()
                if now != known:
                    with open_run(self._folder) as run:
                        causes, _ = split(found, circumstances(run))
                    known = now
            except (OSError, RunError):
                continue
            for listener in self.on_findings:
                listener(found)
            for cause in causes:
                key = (cause.code, cause.first_step)
                if key not in self._said and cause.severity is not Severity.INFO:
                    self._said.add(key)
                    self._say(voice.cause(cause))
