"""Every command against one run folder, each in a forked child: seconds, memory, how it ended."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import resource
import signal
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path

TOKEN = "t" * 43
_HELD_S = 40
"""A child that takes longer is ended."""


@dataclasses.dataclass(frozen=True)
class Ending:
    """What one command did to one folder."""

    cpu_s: float
    wall_s: float
    peak_mb: float
    code: int
    """The exit code, negative for a signal."""
    said: str

    @property
    def is_clean(self) -> bool:
        """Neither killed nor ended in a traceback."""
        return self.code in (0, 1, 2, 3) and "Traceback" not in self.said


def cli(*words: str) -> Callable[[Path], int]:
    """A command of the command line; {run}, {base} and {out} are put in."""

    def call(run: Path) -> int:
        from stethoscope.cli import main

        put = {"run": str(run), "base": str(run.parent), "out": str(run.parent.parent / "written")}
        return main([word.format(**put) for word in words])

    return call


def page(run: Path) -> int:
    """The page's list, which must hold the good run too, and every question about the hostile one."""
    from starlette.testclient import TestClient

    from stethoscope.views.pagedata.screens import questions
    from stethoscope.views.server import make_app
    from stethoscope.views.server.access import AccessPolicy
    from stethoscope.views.server.run_cache import opaque_id

    app = make_app(run.parent, AccessPolicy.at("127.0.0.1", 7654, token=TOKEN))
    client = TestClient(app, base_url="http://127.0.0.1:7654", headers={"authorization": f"Bearer {TOKEN}"})
    listed = client.get("/api/runs")
    assert listed.status_code == 200, listed.status_code
    names = {row["name"] for row in listed.json()["runs"]}
    assert "good" in names, names
    asked = {name: "?path=blocks.0" if name == "layer" else "" for name in sorted(questions())}
    answers = {
        name: client.get(f"/api/runs/{opaque_id(run)}/{name}".rstrip("/") + words).status_code
        for name, words in asked.items()
    }
    assert all(code < 500 and code != 404 for code in answers.values()), answers
    return 0


def watch(run: Path) -> int:
    """Training goes on in the run, and what a companion does to it: sealing, thinning."""
    import torch

    import stethoscope
    from stethoscope.record import RunError
    from stethoscope.store import seal, thin

    torch.manual_seed(0)
    model = torch.nn.Linear(4, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    session = stethoscope.watch(model, optimizer, run=run, companion="inline", quiet=True)
    for _ in range(3):
        loss = model(torch.ones(2, 4)).sum()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    session.stop()
    with contextlib.suppress(RunError, OSError):
        seal(run, final=True)
    with contextlib.suppress(RunError, OSError):
        thin(run, 10_000)
    return 0


COMMANDS: dict[str, Callable[[Path], int]] = {
    "show": cli("show", "{run}"),
    "diagnose": cli("diagnose", "{run}"),
    "list": cli("list", "{base}"),
    "ui": page,
    "doctor": cli("doctor", "{run}"),
    "export": cli("export", "{run}", "--format", "csv", "-o", "{out}-csv"),
    "report": cli("report", "{run}", "-o", "{out}.html"),
    "query": cli("query", "{run}", "select count(*), max(norm), count(module) from rows"),
    "get": cli("get", "{run}", "*", "--csv"),
    "animate": cli("animate", "{run}", "-o", "{out}-film.txt"),
    "resume": cli("resume", "{run}"),
    "watch": watch,
    "prune": cli("prune", "--keep", "0", "--yes"),
    "rm": cli("rm", "{run}", "--yes"),
}
"""In this order: `watch` writes to the folder, the last two take it away."""


def attempt(command: Callable[[Path], int], run: Path, said: Path) -> Ending:
    """Runs one command on one folder in a child of its own."""
    begun = time.monotonic()
    child = os.fork()
    if not child:
        _run_child(command, run, said)
    killer = signal.SIGKILL
    deadline = begun + _HELD_S
    while True:
        done, status, used = os.wait4(child, os.WNOHANG)
        if done:
            break
        if time.monotonic() > deadline:
            os.kill(child, killer)
            deadline = float("inf")
        time.sleep(0.005)
    code = os.waitstatus_to_exitcode(status)
    text = said.read_text(encoding="utf-8", errors="replace")
    return Ending(used.ru_utime + used.ru_stime, time.monotonic() - begun, used.ru_maxrss / 1024, code, text)


def _run_child(command: Callable[[Path], int], run: Path, said: Path) -> None:
    code = 70
    try:
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        os.environ["STETHOSCOPE_DIR"] = str(run.parent)
        os.chdir(run.parent.parent)
        file = os.open(said, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(file, 2)
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        sys.stdout, sys.stderr = os.fdopen(1, "w"), os.fdopen(2, "w", errors="backslashreplace")
        code = command(run)
    except BaseException:
        traceback.print_exc()
    finally:
        with contextlib.suppress(BaseException):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(code)
