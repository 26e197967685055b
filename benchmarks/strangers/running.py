"""Start a fetched program in a copy of its repository, watched, and read what was recorded and printed."""

from __future__ import annotations

import contextlib
import importlib
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
from typing import Final

from benchmarks.strangers.program import Program
from benchmarks.strangers.reading import Ran, read

STANDINS: Final = Path(__file__).parent / "standins"
ROOT: Final = Path(__file__).parents[2]
LIMIT_SECONDS: Final = 240
PROCESSOR_SECONDS: Final = 60
"""Of a mutant and of what it is compared with."""
GRACE_SECONDS: Final = 30
ANSWERS: Final = "answers.txt"
"""What a script that asks is told."""
QUIETLY: Final = {"STETHOSCOPE_COMPANION": "off", "STETHOSCOPE_QUIET": "true"}
PRELOADED: Final = (
    "torch",
    "PIL.Image",
    "stethoscope",
    "stethoscope.session",
    "stethoscope.explain.verdict",
)
_LEFT_OUT: Final = shutil.ignore_patterns(
    "*.ipynb", "*.gif", "*.png", "*.jpg", "*.jpeg", "*.pdf", ".git*", "figures", "docs", "*.mp4", "st"
)


def work_copy(program: Program, fetched: Path, into: Path, changed: dict[str, str]) -> Path:
    """A copy of the repository with its data, and with files that a mutation changed."""
    shutil.copytree(program.folder(fetched), into, ignore=_LEFT_OUT, dirs_exist_ok=True)
    folder = (into / program.file).parent
    if program.file != program.script:
        (into / program.file).write_text(program.source(fetched, program.script))
    (folder / ANSWERS).write_text("y\n" * 9)
    if program.prepare is not None:
        program.prepare(folder)
    for name, text in changed.items():
        (into / name).write_text(text)
    return folder


def environment(program: Program, seed: int, folder: Path) -> dict[str, str]:
    """Of the program's process; the repository counts as installed."""
    root = folder.parents[len(Path(program.script).parents) - 2] if "/" in program.script else folder
    paths = (ROOT / "src", ROOT, STANDINS, root, os.environ.get("PYTHONPATH", ""))
    return os.environ | {
        "PYTHONPATH": os.pathsep.join(filter(None, map(str, paths))),
        "PATH": os.pathsep.join((str(STANDINS / "bin"), os.environ.get("PATH", ""))),
        "STRANGERS": "1",
        "STRANGERS_STEPS": str(program.steps),
        "STRANGERS_SEED": str(seed),
        "STRANGERS_SAMPLES": str(program.samples),
        "STETHOSCOPE_DIR": str(folder / "st"),
        "OMP_NUM_THREADS": "1",
        "CUDA_VISIBLE_DEVICES": "",
        "MPLBACKEND": "template",  # draws nothing
        # Scripts of the time before torch.load asked whom it may trust; what they load, they wrote themselves.
        "TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD": "1",
        "PYTHONDONTWRITEBYTECODE": "1",
    }


def run_as_a_user(program: Program, seed: int, folder: Path, limit: float) -> tuple[int, str, str]:
    """`python -m stethoscope run SCRIPT ARGS` in a process of its own, with all that a user would see."""
    words = [sys.executable, "-m", "stethoscope", "run", Path(program.file).name, *program.args.split()]
    out, err = folder / "out.txt", folder / "err.txt"
    with (
        (folder / ANSWERS).open() as answers,
        out.open("w") as to_out,
        err.open("w") as to_err,
        subprocess.Popen(
            words,
            cwd=folder,
            env=environment(program, seed, folder),
            stdin=answers,
            stdout=to_out,
            stderr=to_err,
            start_new_session=True,
        ) as process,
    ):
        for patience, then in ((limit, signal.SIGINT), (GRACE_SECONDS, signal.SIGKILL)):
            try:
                process.wait(patience)
                break
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, then)
    return process.returncode, out.read_text(errors="replace"), err.read_text(errors="replace")


def preload() -> None:
    """What a fork shall have already."""
    os.environ["CUDA_VISIBLE_DEVICES"] = ""
    for name in PRELOADED:
        importlib.import_module(name)


def run_forked(program: Program, seed: int, folder: Path, limit: float) -> tuple[int, str, str]:
    """The same without a companion, in a fork that has torch already: a few seconds less of every run."""
    out, err = folder / "out.txt", folder / "err.txt"
    preload()
    child = os.fork()
    if not child:
        _be_the_program(program, seed, folder, limit)
    until = time.monotonic() + limit + GRACE_SECONDS
    done, status = os.waitpid(child, os.WNOHANG)
    while not done:
        if time.monotonic() > until:
            os.killpg(child, signal.SIGKILL)
            until += GRACE_SECONDS
        time.sleep(0.05)
        done, status = os.waitpid(child, os.WNOHANG)
    return os.waitstatus_to_exitcode(status), out.read_text(errors="replace"), err.read_text(errors="replace")


def _be_the_program(program: Program, seed: int, folder: Path, limit: float) -> None:
    code = 1
    try:
        os.setsid()
        os.environ |= environment(program, seed, folder) | QUIETLY
        os.chdir(folder)
        os.dup2(os.open(folder / ANSWERS, os.O_RDONLY), 0)
        for number, path in ((1, folder / "out.txt"), (2, folder / "err.txt")):
            os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), number)
        sys.stdin = os.fdopen(0)
        sys.stdout, sys.stderr = os.fdopen(1, "w", buffering=1), os.fdopen(2, "w", buffering=1)
        for clock, number, seconds in (
            (signal.ITIMER_REAL, signal.SIGALRM, limit),
            (signal.ITIMER_PROF, signal.SIGPROF, PROCESSOR_SECONDS),
        ):
            signal.signal(number, lambda *_: os.kill(os.getpid(), signal.SIGINT))
            signal.setitimer(clock, seconds)
        sys.path[:] = [*environment(program, seed, folder)["PYTHONPATH"].split(os.pathsep), *sys.path]
        runpy.run_path(str(STANDINS / "sitecustomize.py"))
        from stethoscope.cli import main

        code = main(["run", Path(program.file).name, *program.args.split()])
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


def run(
    program: Program,
    seed: int,
    fetched: Path,
    into: Path,
    operator: str,
    changed: dict[str, str],
    limit: float = LIMIT_SECONDS,
) -> Ran:
    """One start, judged as `diagnose` does. A healthy program runs as a user runs it."""
    ran = Ran(program.key, program.repository, seed, operator)
    began, processor = time.perf_counter(), _processor_seconds()
    folder = work_copy(program, fetched, into, changed)
    start = run_as_a_user if not operator else run_forked
    ran.exit, out, err = start(program, seed, folder, limit)
    ran.seconds = time.perf_counter() - began
    used = _processor_seconds() - processor
    ran.is_cut = ran.seconds >= limit or (bool(operator) and used >= PROCESSOR_SECONDS)
    (into / "stdout.txt").write_text(out)
    (into / "stderr.txt").write_text(err)
    ran.live = re.findall("stethoscope: [^\r\n]*", err)  # a progress bar may stand before it on its line
    found = re.findall(program.metric, out) if program.metric else []
    with contextlib.suppress(ValueError):
        ran.metric = float(found[-1]) if found else None
    try:
        read(ran, folder / "st")
    except Exception:
        ran.error = traceback.format_exc(limit=-2)
    if "KeyboardInterrupt" not in err and ran.exit not in (0, 130, -signal.SIGINT) and not ran.error:
        ran.error = "\n".join(err.splitlines()[-3:])
    return ran


def _processor_seconds() -> float:
    times = os.times()
    return times.children_user + times.children_system
