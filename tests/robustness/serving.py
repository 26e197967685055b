"""Rows 44, 45, 47 and 50: clients that never read, a thousand of them, a dashboard that dies; the page is a process of its own."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import re
import resource
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

from tests.robustness.forks import ROOT
from tests.robustness.lab import Lab, Outcome, SkipRowError
from tests.robustness.registry import row

READ_S = 20.0
"""How long the server waits for a client that takes nothing."""


class Page:
    """`stethoscope ui` in a process of its own."""

    def __init__(self, folder: Path) -> None:
        for package in ("starlette", "uvicorn"):
            if importlib.util.find_spec(package) is None:
                raise SkipRowError(f"{package} is not installed")
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        self.log = folder.with_name("page.log")
        command = [sys.executable, "-m", "stethoscope", "ui", str(folder), "--no-browser", "--port", str(self.port)]
        environment = os.environ | {"PYTHONPATH": str(ROOT / "src"), "PYTHONUNBUFFERED": "1"}
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(command, stdout=log, stderr=log, env=environment)
        self.token = self._wait_for_token()

    def _wait_for_token(self) -> str:
        until = time.monotonic() + 60
        while time.monotonic() < until:
            found = re.search(r"token=([\w.-]+)", self.log.read_text())
            if found:
                return found[1]
            assert self.process.poll() is None, self.log.read_text()
            time.sleep(0.05)
        raise AssertionError(f"no link was printed: {self.log.read_text()}")

    def request(self, path: str) -> bytes:
        """One HTTP request with the token."""
        lines = (f"GET {path} HTTP/1.1", f"Host: 127.0.0.1:{self.port}", f"Authorization: Bearer {self.token}", "", "")
        return "\r\n".join(lines).encode()

    def connect(self, path: str, *, receive_bytes: int | None = None) -> socket.socket:
        """A client that has sent one request."""
        client = socket.socket()
        if receive_bytes is not None:
            client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_bytes)
        client.settimeout(10)
        client.connect(("127.0.0.1", self.port))
        client.sendall(self.request(path))
        return client

    def answers(self) -> bool:
        """Whether the list of runs comes within a few seconds."""
        asked = urllib.request.Request(
            f"http://127.0.0.1:{self.port}/api/runs", headers={"Authorization": f"Bearer {self.token}"}
        )
        with contextlib.suppress(OSError), urllib.request.urlopen(asked, timeout=15) as answer:
            return bool(answer.status == 200)
        return False

    def resident_bytes(self) -> int:
        """The memory that the server holds."""
        return int(Path(f"/proc/{self.process.pid}/statm").read_text().split()[1]) * resource.getpagesize()


@contextlib.contextmanager
def page_of(lab: Lab) -> Iterator[Page]:
    """The page of a folder with one run."""
    from tests.store.run_making import make_run

    folder = lab.new_folder() / "runs"
    make_run(folder / "20261116-120000-made-aaaaaa", num_steps=50, num_sites=200)
    page = Page(folder)
    try:
        yield page
    finally:
        page.process.kill()
        page.process.wait()


@row(44, "a dashboard client that never reads", short=0, long=3)
def never_read(lab: Lab, tries: int, outcome: Outcome) -> None:
    """It asks again and again and takes nothing: what waits for it is bounded, and then it is let go."""
    with page_of(lab) as page:
        assert page.answers()
        before = page.resident_bytes()
        clients = [page.connect("/app.js", receive_bytes=4096) for _ in range(tries)]
        for client in clients:
            client.settimeout(0.5)
            with contextlib.suppress(OSError):
                for _ in range(200):
                    client.sendall(page.request("/app.js"))
        began = time.monotonic()
        for client in clients:
            outcome.tries += 1
            outcome.expect(page.answers(), "harmed", "the page answers nobody else meanwhile")
            outcome.expect(
                is_let_go(client, began + 3 * READ_S), "harmed", f"a client that never reads is kept for {3 * READ_S} s"
            )
        grown = page.resident_bytes() - before
        outcome.expect(grown < 100 << 20, "harmed", f"the server grew by {grown >> 20} MB")
        for client in clients:
            client.close()


def is_let_go(client: socket.socket, until: float) -> bool:
    """Whether the other end closed or reset the connection, without taking what it sent."""
    import select

    poll = select.poll()
    poll.register(client, select.POLLRDHUP)
    while time.monotonic() < until:
        if poll.poll(200):
            return True
    return False


@row(45, "1,000 dashboard clients (300 in the short form)", short=300, long=1000)
def open_many_streams(lab: Lab, tries: int, outcome: Outcome) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(max(soft, 4096), hard), hard))
    clients: list[socket.socket] = []
    with page_of(lab) as page:
        assert page.answers()
        statuses: dict[str, int] = {}
        for _ in range(tries):
            outcome.tries += 1
            with contextlib.suppress(OSError):
                clients.append(page.connect("/api/stream"))
        for client in clients:
            client.settimeout(20)
            status = "closed"
            with contextlib.suppress(OSError):
                status = (client.recv(64).split() or [b"", b"closed"])[1].decode()
            statuses[status] = statuses.get(status, 0) + 1
        told = set(statuses) <= {"200", "429"} and statuses.get("429", 0) > 0
        outcome.expect(told and len(clients) == tries, "harmed", f"{len(clients)} connected, answers {statuses}")
        for client in clients:
            client.close()
        outcome.expect(page.answers(), "harmed", "the page answers nobody afterwards")
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@row(47, "object store answers 503, 412, slowly", short=1, long=1)
def use_an_object_store(lab: Lab, tries: int, outcome: Outcome) -> None:
    raise SkipRowError("no such feature: runs are written to file systems only")


@row(50, "the dashboard dies while training goes on", short=1, long=5)
def kill_the_dashboard(lab: Lab, tries: int, outcome: Outcome) -> None:
    for _ in range(tries):
        one = lab.prepare(steps=60, wait_at=20, pause_s=0.01)
        one.runs.mkdir()
        one.start()
        assert one.child.wait_for("waiting"), one.child.err
        page = Page(one.runs)
        with contextlib.closing(page.connect("/api/stream")):
            outcome.expect(page.answers(), "harmed", "the page does not answer")
            one.go()
            one.child.wait_for("step 30")
            page.process.send_signal(signal.SIGKILL)
            page.process.wait()
        done = one.finish(outcome)
        run = one.check_run(outcome)
        outcome.expect(run is not None and len(run.steps) == len(done.losses), "lost", "steps are missing")
