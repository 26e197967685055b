"""The session's end of the companion: start it, hear what it finds, and do without it where it cannot be had."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

import stethoscope
from stethoscope.config import DebugConfig
from stethoscope.live import voice
from stethoscope.record import Finding, RunError, Severity
from stethoscope.store.findings import FILES, FOLDER, FindingsReader

POLL_SECONDS: Final = 1.0
FINISH_SECONDS: Final = 10.0
"""How long the end waits for the last findings."""
SEALING_SECONDS: Final = 2.0
"""How long it waits then for the last seal: what was recorded is durable already, and a reader need not know where it lies."""
_LOOK_SECONDS: Final = 0.05
GIVES_BACK: Final = {
    "PYTHONMALLOC": "malloc",
    "MALLOC_ARENA_MAX": "1",
    "MALLOC_MMAP_THRESHOLD_": "65536",
    "MALLOC_TRIM_THRESHOLD_": "131072",
}
"""How the companion takes memory: by pages that go back to the system. Python's own arenas, and a threshold that grows with what was
asked for, keep what a seal needed for a moment, and the process grows with every one."""


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
        self._earlier: set[str] = set()
        self.has_concluded = False
        """Whether it has seen every step to the end: what it found is all there is to find."""
        self._said: set[tuple[str, int]] = set()
        self.on_findings: list[Callable[[list[Finding]], None]] = []

    def start(self) -> None:
        """Spawn it; a machine that cannot spawn does without."""
        if not self._wanted:
            return
        self._earlier = {path.name for path in (self._folder / FOLDER).glob(FILES)}
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
                env=os.environ | {"PYTHONPATH": path, "OMP_NUM_THREADS": "1"} | GIVES_BACK,
            )
        except OSError as error:
            self._say(f"stethoscope: no companion process ({error}); findings come at the end")
            return
        self._thread = threading.Thread(target=self._follow, name="stethoscope-ear", daemon=True)
        self._thread.start()

    def finish(self) -> None:
        """Let it take in the end and say what it found; after a while go on without it. It seals the rest alone."""
        self._stopping.set()
        if self._thread is not None:
            self._thread.join(POLL_SECONDS * 2)
        if self._process is None:
            return
        self.has_concluded = self._wait_for_findings(self._process)
        if self._process.poll() is None:
            try:
                self._process.wait(SEALING_SECONDS if self.has_concluded else 0)
            except subprocess.TimeoutExpired:
                # Somebody has to take its exit status, or it stays as a zombie for as long as this process lives.
                threading.Thread(target=self._process.wait, name="stethoscope-reaper", daemon=True).start()

    def _wait_for_findings(self, process: subprocess.Popen[bytes]) -> bool:
        """Whether its last word came in time. A file that an earlier process closed is none."""
        reader = FindingsReader(self._folder)
        until = time.monotonic() + FINISH_SECONDS
        while True:
            has_ended = process.poll() is not None or time.monotonic() > until
            try:
                reader.update()
            except (OSError, RunError):
                return False
            if reader.closed() - self._earlier:
                return True
            if has_ended:
                return False
            time.sleep(_LOOK_SECONDS)

    def abandon(self) -> None:
        """In a forked child: not ours."""
        self._process, self._thread = None, None

    def _follow(self) -> None:
        from stethoscope.explain.circumstances import circumstances
        from stethoscope.explain.ranking import silence, split
        from stethoscope.store import open_run

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
