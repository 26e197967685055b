"""A process that imported torch once and forks for each try, so that a try costs a tenth of a second and not seconds.

The child is the training: it has its own folder, environment and output files, runs a script as `__main__` and ends as any
Python process does, with its own exit code or signal. No thread runs before the fork.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import runpy
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from tests.forking import prepare

ROOT = Path(__file__).parents[2]
MOST_DELAYED = 5


def run_delay_s(pid: int) -> float:
    """How long a process was ready to run and had to wait for a core: what a busy machine, and not we, made it wait."""
    try:
        return int(Path(f"/proc/{pid}/schedstat").read_text().split()[1]) / 1e9
    except (OSError, IndexError):
        return 0.0


class Child:
    """One process of a try, from outside."""

    def __init__(self, forks: Forks, pid: int, out: Path, err: Path) -> None:
        self._forks, self.pid, self._out, self._err = forks, pid, out, err
        self.code: int | None = None
        self.ended_at = 0.0
        """When it had ended, without the time that it waited for a core; `own_clock` tells the time alike."""
        self._run_delay_s = 0.0

    def own_clock(self) -> float:
        """The time now, without the time that the process has waited for a core so far."""
        return time.monotonic() - max(run_delay_s(self.pid), self._run_delay_s)

    def poll(self) -> int | None:
        """The exit code, negative for a signal; None while it runs."""
        if self.code is None:
            self._run_delay_s = max(run_delay_s(self.pid), self._run_delay_s)
            status = self._forks.ask({"wait": self.pid})["status"]
            if status is not None:
                self.code, self.ended_at = os.waitstatus_to_exitcode(status), time.monotonic() - self._run_delay_s
        return self.code

    def wait(self, timeout: float = 60.0) -> int | None:
        """The exit code; None where it had to be killed because it did not end in time.

        What it waits for a core does not count, up to `MOST_DELAYED` times as long.
        """
        until, at_last = self.own_clock() + timeout, time.monotonic() + MOST_DELAYED * timeout
        while self.poll() is None:
            if self.own_clock() > until or time.monotonic() > at_last:
                self.send(signal.SIGKILL)
                while self.poll() is None:
                    time.sleep(0.01)
                return None
            time.sleep(0.01)
        return self.code

    def send(self, number: int) -> None:
        """Send a signal; one that has ended gets none."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, number)

    def wait_for(self, word: str, timeout: float = 60.0) -> bool:
        """Whether it printed a line that begins with the word before it ended."""
        until = time.monotonic() + timeout
        while time.monotonic() < until:
            if any(line.startswith(word) for line in self.out.splitlines()):
                return True
            if self.poll() is not None:
                return False
            time.sleep(0.005)
        return False

    @property
    def out(self) -> str:
        """What it printed so far."""
        return self._out.read_text(errors="replace")

    @property
    def err(self) -> str:
        """What it printed to stderr so far."""
        return self._err.read_text(errors="replace")


class Forks:
    """The process that forks; started at the first try."""

    def __init__(self, shim: Path | None) -> None:
        ours, theirs = socket.socketpair()
        environment = os.environ | {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"}
        environment = {name: value for name, value in environment.items() if not name.startswith("STETHOSCOPE")}
        environment["PYTHONPATH"] = os.pathsep.join([str(ROOT / "src"), str(ROOT)])
        if shim is not None:
            environment["LD_PRELOAD"] = str(shim)
        self._process = subprocess.Popen(
            [sys.executable, str(Path(__file__)), str(theirs.fileno())],
            pass_fds=[theirs.fileno()],
            env=environment,
            cwd=ROOT,
            stdin=subprocess.DEVNULL,
        )
        theirs.close()
        self._socket, self._channel = ours, ours.makefile("rw")

    def ask(self, question: dict[str, Any]) -> dict[str, Any]:
        """Send one question and read its answer."""
        self._channel.write(json.dumps(question) + "\n")
        self._channel.flush()
        return dict(json.loads(self._channel.readline()))

    def start(self, folder: Path, script: Path, given: dict[str, Any], environment: dict[str, str]) -> Child:
        """Fork a child that runs the script in the folder, with `given` as JSON in its first argument."""
        folder.mkdir(parents=True, exist_ok=True)
        number = len(list(folder.glob("out-*")))
        out, err = folder / f"out-{number}", folder / f"err-{number}"
        question = {"folder": str(folder), "script": str(script), "given": given, "environment": environment}
        pid = self.ask(question | {"out": str(out), "err": str(err)})["pid"]
        return Child(self, pid, out, err)

    def close(self) -> None:
        """End it, and every child that still runs."""
        self._channel.close()
        self._socket.close()
        self._process.wait(10)


def serve(channel: socket.socket) -> dict[str, Any] | None:
    """Answer until the other end closes; in a forked child, return what it is to do."""
    reader, running = channel.makefile("rw"), set()
    for line in reader:
        asked = json.loads(line)
        if "wait" in asked:
            pid, status = os.waitpid(asked["wait"], os.WNOHANG)
            running.discard(pid)
            answer = {"status": status if pid else None}
        else:
            for name in ("out", "err"):
                Path(asked[name]).touch()
            pid = os.fork()
            if pid == 0:
                os.close(channel.detach())
                return dict(asked)
            running.add(pid)
            answer = {"pid": pid}
        reader.write(json.dumps(answer) + "\n")
        reader.flush()
    for pid in running:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    return None


def become(asked: dict[str, Any]) -> None:
    """Turn the forked child into the process that was asked for."""
    for number, name in ((1, "out"), (2, "err")):
        descriptor = os.open(asked[name], os.O_WRONLY | os.O_APPEND)
        os.dup2(descriptor, number)
        os.close(descriptor)
    os.environ.update(asked["environment"])
    os.chdir(asked["folder"])
    tempfile.tempdir = None  # found again from the new environment
    with contextlib.suppress(AttributeError):  # no shim: no compiler here
        ctypes.CDLL(None).faults_load()
    sys.argv = [asked["script"], json.dumps(asked["given"])]
    runpy.run_path(asked["script"], run_name="__main__")


def main() -> None:
    """Entry of `python tests/robustness/forks.py DESCRIPTOR`: a script, since Python ends others otherwise after Ctrl-C."""
    del sys.path[0]
    prepare()
    asked = serve(socket.socket(fileno=int(sys.argv[1])))
    if asked is not None:
        become(asked)


if __name__ == "__main__":
    main()
