"""The session's end of the companion: start it, hear what it finds, and do without it where it cannot be had."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

import stethoscope
from stethoscope.config import DebugConfig
from stethoscope.record import RunError, Severity, printable
from stethoscope.session import messages
from stethoscope.session.deadline import Deadline
from stethoscope.store import companion_log
from stethoscope.store.findings import FILES, FOLDER, SEALING, FindingsReader
from stethoscope.store.private import open_file

POLL_SECONDS: Final = 1.0
MOST_RESTARTS: Final = 2
"""Of a companion that was killed; one that fails by itself would do so again."""
FINISH_SECONDS: Final = 1.0
"""How long the end waits for the companion's last findings and its last seal. What was recorded is durable already: a companion that is
behind needs nobody to wait for it, and a reader need not know what is sealed."""
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
    """Spawns the companion of rank 0 and listens, on a thread of its own: to its findings, its end, and the run's writer."""

    def __init__(
        self,
        folder: Path,
        config: DebugConfig,
        say: Callable[[str], None],
        *,
        rank: int = 0,
        notices: Callable[[], list[str]] = list,
    ) -> None:
        """`notices` gives what the writer has to tell the user, each once."""
        self._folder, self._config, self._say, self._notices = folder, config, say, notices
        self._num_restarts = 0
        self._failures_said: set[str] = set()
        self.trouble = ""
        """Why there is no companion any more, where there should be one."""
        self._process: subprocess.Popen[bytes] | None = None
        self._stopping = threading.Event()
        self._thread: threading.Thread | None = None
        self._wanted = config.companion == "process" and rank == 0
        self._earlier: set[str] = set()
        self._has_concluded = False
        self._said: set[tuple[str, int]] = set()
        self.left_out = [name for name in config.detectors if name.startswith("__main__:")]
        """Detectors that stand in the script itself: another process cannot import them, so they look at the end."""

    def start(self, *, spawn: bool = True) -> None:
        """Listen, and spawn it; a machine that cannot spawn does without."""
        if spawn and self._wanted:
            self._spawn()
        self._thread = threading.Thread(target=self._follow, name="stethoscope-ear", daemon=True)
        self._thread.start()

    def _spawn(self) -> None:
        self._earlier = {path.name for path in (self._folder / FOLDER).glob(FILES)}
        # A worker that spawns or a frozen main must not import torch: the companion is told where we live, no more.
        home = str(Path(stethoscope.__file__).parent.parent)
        # The script's own folder, too, where a detector of the user's may stand.
        script = [sys.path[0]] if self._config.detectors and sys.path else []
        path = os.pathsep.join([home, *script, *filter(None, [os.environ.get("PYTHONPATH")])])
        command = [sys.executable, "-m", "stethoscope.companion", str(self._folder.resolve())]
        command += ["--parent", str(os.getpid()), "--disk", str(self._config.disk)]
        for name in self._config.detectors:
            if name not in self.left_out:
                command += ["--detector", name]
        log = self._open_log()
        try:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=log,
                start_new_session=True,
                env=os.environ | {"PYTHONPATH": path, "OMP_NUM_THREADS": "1"} | GIVES_BACK,
            )
        except OSError as error:
            self._do_without(f"cannot be started: {error}")
        finally:
            if log >= 0:
                os.close(log)

    def _open_log(self) -> int:
        """Where the companion says what goes wrong, from the beginning of the file; nowhere, where none can be made."""
        try:
            log = open_file(self._folder / companion_log.NAME)
            os.ftruncate(log, 0)
        except OSError:
            return subprocess.DEVNULL
        return log

    def _check_process(self) -> None:
        """Notice that the companion is gone: start it again where it was killed, else say why it went."""
        process = self._process
        code = process.poll() if process is not None else None
        if code is None:
            return
        if not self._folder.is_dir():
            self._process = None  # it went with the folder, which the writer tells
        elif code >= 0:
            if code or not self._has_closed():
                self._do_without(f"failed: {companion_log.last_line(self._folder) or f'exit code {code}'}")
        elif self._num_restarts < MOST_RESTARTS:
            self._num_restarts += 1
            self._process = None
            self._spawn()
            self._say(f"stethoscope: the companion process was killed by {signal_name(-code)}; it is started again")
        else:
            self._do_without(f"was killed by {signal_name(-code)} again")

    def _do_without(self, why: str) -> None:
        self.trouble, self._process = f"the companion process {why}", None
        self._say(
            f"stethoscope: {self.trouble}. Nothing is sealed and no finding comes while the run goes on; this process looks for "
            "them at the end"
        )

    def _has_closed(self) -> bool:
        """Whether it has said its last word; a file that an earlier process closed is none."""
        reader = FindingsReader(self._folder)
        try:
            reader.update()
        except (OSError, RunError):
            return False
        return bool(reader.closed() - self._earlier)

    def finish(self, deadline: Deadline) -> None:
        """Hear what it found, where that comes soon; else it goes on without us, looks at the rest and seals it."""
        soon = Deadline(min(FINISH_SECONDS, deadline.left()))
        self._stopping.set()
        if self._thread is not None:
            self._thread.join(soon.left())
        self._say_notices()
        if self._process is None:
            return
        while not (self.has_concluded or soon.has_passed or self._process.poll() is not None):
            time.sleep(_LOOK_SECONDS)
        try:
            self._process.wait(soon.left() if self.has_concluded else 0)
        except subprocess.TimeoutExpired:
            # Somebody has to take its exit status, or it stays as a zombie for as long as this process lives.
            with contextlib.suppress(RuntimeError):  # which is not long where it can no longer make a thread
                threading.Thread(target=self._process.wait, name="stethoscope-reaper", daemon=True).start()

    @property
    def has_concluded(self) -> bool:
        """Whether it has seen every step to the end: what it found is all there is to find."""
        if not self._has_concluded and self._stopping.is_set() and self._process is not None:
            self._has_concluded = self._has_closed()
        return self._has_concluded

    @property
    def is_at_work(self) -> bool:
        """Whether the process is there and has not said its last word."""
        return self._process is not None and self._process.poll() is None and not self.has_concluded

    def abandon(self) -> None:
        """In a forked child: not ours."""
        self._process, self._thread = None, None

    def _say_notices(self) -> None:
        for notice in self._notices():
            self._say(f"stethoscope: {notice}")

    def _say_failures(self, failures: Mapping[str, str]) -> None:
        for name, error in failures.items():
            if name not in self._failures_said:
                self._failures_said.add(name)
                what = (
                    "the run cannot be sealed, and grows"
                    if name == SEALING
                    else f"detector {name} failed, and says nothing more"
                )
                self._say(f"stethoscope: {what} ({printable(error, limit=300)})")

    def _follow(self) -> None:
        reader = FindingsReader(self._folder)
        while not self._stopping.wait(POLL_SECONDS):
            self._say_notices()
            self._check_process()
            try:
                if not reader.update():
                    continue
                self._say_failures(reader.failures())
            except (OSError, RunError):
                continue
            for cause in reader.causes():
                key = (cause.code, cause.first_step)
                if key not in self._said and cause.severity is not Severity.INFO:
                    self._said.add(key)
                    self._say(messages.cause(cause))


def signal_name(number: int) -> str:
    """As the manual calls it; the number where it has no name."""
    return signal.Signals(number).name if number in {int(one) for one in signal.Signals} else f"signal {number}"
