"""Start a fetched program in a copy of its repository, watched, and read what was recorded and printed."""

from __future__ import annotations

import contextlib
import dataclasses
import importlib
import json
import os
import re
import runpy
import shutil
import signal
import subprocess
import sys
import time
import traceback
from pathlib import Path
from typing import Any, Final

import numpy as np
from benchmarks.strangers.program import Program

STANDINS: Final = Path(__file__).parent / "standins"
ROOT: Final = Path(__file__).parents[2]
LIMIT_SECONDS: Final = 240
QUIETLY: Final = {"STETHOSCOPE_COMPANION": "off", "STETHOSCOPE_QUIET": "true"}
PRELOADED: Final = (
    "torch",
    "sklearn.datasets",
    "PIL.Image",
    "stethoscope",
    "stethoscope.session",
    "stethoscope.explain.verdict",
)
_LEFT_OUT: Final = shutil.ignore_patterns(
    "*.ipynb", "*.gif", "*.png", "*.jpg", "*.jpeg", "*.pdf", ".git*", "figures", "docs", "*.mp4", "st"
)


@dataclasses.dataclass
class Ran:
    """What one start of a program gave."""

    key: str
    repository: str
    seed: int
    operator: str = ""
    state: str = ""
    message: str = ""
    causes: list[list[Any]] = dataclasses.field(default_factory=list)
    symptoms: list[str] = dataclasses.field(default_factory=list)
    suspected: list[str] = dataclasses.field(default_factory=list)
    live: list[str] = dataclasses.field(default_factory=list)
    metric: float | None = None
    loss: list[float] = dataclasses.field(default_factory=list)
    num_steps: int = 0
    seconds: float = 0.0
    exit: int = 0
    error: str = ""
    folder: str = ""


def work_copy(program: Program, fetched: Path, into: Path, changed: dict[str, str]) -> Path:
    """A copy of the repository with its data, and with files that a mutation changed."""
    source = fetched / program.repository.replace("/", "+")
    shutil.copytree(source, into, ignore=_LEFT_OUT, dirs_exist_ok=True)
    folder = (into / program.script).parent
    if program.prepare is not None:
        program.prepare(folder)
    for name, text in changed.items():
        (into / name).write_text(text)
    return folder


def environment(program: Program, seed: int, folder: Path) -> dict[str, str]:
    """Of the program's process; the repository counts as installed."""
    root = folder.parents[len(Path(program.script).parents) - 2] if "/" in program.script else folder
    return os.environ | {
        "PYTHONPATH": os.pathsep.join(map(str, (ROOT / "src", ROOT, STANDINS, root))),
        "STRANGERS": "1",
        "STRANGERS_STEPS": str(program.steps),
        "STRANGERS_SEED": str(seed),
        "STRANGERS_SAMPLES": str(program.samples),
        "STETHOSCOPE_DIR": str(folder / "st"),
        "OMP_NUM_THREADS": "1",
        "MPLBACKEND": "template",  # draws nothing
        # Scripts of the time before torch.load asked whom it may trust; what they load, they wrote themselves.
        "TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD": "1",
        "PYTHONDONTWRITEBYTECODE": "1",
    }


def run_as_a_user(program: Program, seed: int, folder: Path) -> tuple[int, str, str]:
    """`python -m stethoscope run SCRIPT ARGS` in a process of its own, with all that a user would see."""
    words = [sys.executable, "-m", "stethoscope", "run", Path(program.script).name, *program.args.split()]
    with subprocess.Popen(
        words,
        cwd=folder,
        env=environment(program, seed, folder),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
    ) as process:
        try:
            out, err = process.communicate(timeout=LIMIT_SECONDS)
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGINT)
            out, err = process.communicate()
    return process.returncode, out, err


def run_forked(program: Program, seed: int, folder: Path) -> tuple[int, str, str]:
    """The same without a companion, in a fork that has torch already: a few seconds less of every run."""
    out, err = folder / "out.txt", folder / "err.txt"
    for name in PRELOADED:
        importlib.import_module(name)
    child = os.fork()
    if not child:
        code = 1
        try:
            os.setsid()
            os.environ |= environment(program, seed, folder) | QUIETLY
            os.chdir(folder)
            for number, path in ((1, out), (2, err)):
                os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), number)
            sys.stdout, sys.stderr = os.fdopen(1, "w", buffering=1), os.fdopen(2, "w", buffering=1)
            signal.signal(signal.SIGALRM, lambda *_: os.kill(os.getpid(), signal.SIGINT))
            signal.alarm(LIMIT_SECONDS)
            sys.path.insert(1, str(STANDINS))
            runpy.run_path(str(STANDINS / "sitecustomize.py"))
            from stethoscope.cli import main

            code = main(["run", Path(program.script).name, *program.args.split()])
        except SystemExit as stop:
            code = stop.code if isinstance(stop.code, int) else 1
        except BaseException:
            traceback.print_exc()
        finally:
            with contextlib.suppress(Exception):
                import atexit

                atexit._run_exitfuncs()
                sys.stdout.flush()
                sys.stderr.flush()
            os._exit(code or 0)
    _, status = os.waitpid(child, 0)
    return os.waitstatus_to_exitcode(status), out.read_text(errors="replace"), err.read_text(errors="replace")


def run(program: Program, seed: int, fetched: Path, into: Path, operator: str, changed: dict[str, str]) -> Ran:
    """One start, judged as `diagnose` does. A healthy program runs as a user runs it."""
    ran = Ran(program.key, program.repository, seed, operator)
    began = time.perf_counter()
    folder = work_copy(program, fetched, into, changed)
    start = run_as_a_user if not operator else run_forked
    ran.exit, out, err = start(program, seed, folder)
    ran.seconds = time.perf_counter() - began
    (into / "stdout.txt").write_text(out)
    (into / "stderr.txt").write_text(err)
    ran.live = [line for line in err.splitlines() if line.startswith(("stethoscope: ", "  stethoscope"))]
    found = re.findall(program.metric, out) if program.metric else []
    with contextlib.suppress(ValueError):
        ran.metric = float(found[-1]) if found else None
    try:
        _read(ran, folder / "st")
    except Exception:
        ran.error = traceback.format_exc(limit=-2)
    if "KeyboardInterrupt" not in err and ran.exit not in (0, 130, -signal.SIGINT) and not ran.error:
        ran.error = "\n".join(err.splitlines()[-3:])
    return ran


def _read(ran: Ran, folder: Path) -> None:
    import stethoscope
    from stethoscope.store import find_runs, open_run

    runs = sorted(find_runs(folder))
    if not runs:
        ran.error = "no run was recorded"
        return
    # Of several trainings in one script, the longest.
    opened = max((open_run(path) for path in runs), key=lambda one: len(one.steps))
    ran.folder, ran.num_steps = str(opened.path), len(opened.steps)
    diagnosis = stethoscope.diagnose(opened)
    ran.state, ran.message = str(diagnosis.verdict.state), diagnosis.verdict.message
    ran.causes = [[c.code, str(c.severity), c.first_step, list(c.sites[:3]), c.message] for c in diagnosis.causes]
    ran.symptoms = [symptom.name for symptom in diagnosis.verdict.symptoms]
    ran.suspected = [one.text for one in diagnosis.verdict.suspected]
    values = opened.metric("loss").values if "loss" in opened.metrics() else np.empty(0)
    if len(values):
        tenth = max(len(values) // 10, 1)
        ran.loss = [float(np.median(values[:tenth])), float(np.median(values[-tenth:]))]


def save(rows: list[Ran], path: Path) -> None:
    """As JSON."""
    path.write_text(json.dumps([dataclasses.asdict(row) for row in rows], indent=1) + "\n")
