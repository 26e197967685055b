"""Where the tries happen: a folder, the shim, the process that forks; and what a training must look like afterwards."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import itertools
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from stethoscope.store import Run, find_runs, open_run
from tests.robustness.forks import Child, Forks

HERE = Path(__file__).parent
MOST_EXIT_S = 5.0


class SkipRowError(Exception):
    """The fault cannot be made on this machine; the message says why."""


@dataclasses.dataclass
class Outcome:
    """How one promise was kept, over all tries."""

    row: int
    fault: str
    tries: int = 0
    lost: int = 0
    """Steps that were acknowledged as durable and cannot be read."""
    wrong: int = 0
    """Wrong numbers, and losses that nobody was told of."""
    harmed: int = 0
    """Tries whose losses, weights or exit code are not those of a plain training."""
    exit_s: float | None = None
    """The longest time from the end of training to the end of the process, without the time that it waited for a core."""
    notes: list[str] = dataclasses.field(default_factory=list)
    skipped: str = ""
    """Why the fault was not made."""

    @property
    def is_kept(self) -> bool:
        """Whether the promise held; also true of a row that could not be tried, which the table shows as such."""
        return not (self.lost or self.wrong or self.harmed or (self.exit_s or 0.0) > MOST_EXIT_S)

    def expect(self, holds: bool, field: str, why: str) -> bool:
        """Count a promise that did not hold under lost, wrong or harmed, and remember why."""
        if not holds:
            setattr(self, field, getattr(self, field) + 1)
            self.notes.append(f"{field}: {why}")
        return holds

    def try_it(self, field: str, function: Callable[..., object], *given: Any) -> None:
        """One try whose promises are the assertions of a test function."""
        self.tries += 1
        try:
            function(*given)
        except AssertionError as error:
            self.expect(False, field, f"{function.__name__}: {str(error)[:300]}")

    def note_exit(self, seconds: float) -> None:
        """Keep the longest."""
        self.exit_s = max(self.exit_s or 0.0, seconds)


@dataclasses.dataclass(frozen=True)
class Training:
    """What a training said: its losses by step, its weights, the last step it knows to be durable."""

    losses: list[str]
    step_ms: list[float]
    step_at: list[float]
    weights: str
    kept: int
    ending_at: float | None

    @classmethod
    def parse(cls, out: str) -> Training:
        """From what `train.py` printed."""
        words = [line.split() for line in out.splitlines() if line]
        steps = [line for line in words if line[0] == "step" and len(line) == 5]

        def last(word: str) -> str:
            return next((line[1] for line in reversed(words) if line[0] == word and len(line) > 1), "")

        return cls(
            [line[2] for line in steps],
            [float(line[3]) for line in steps],
            [float(line[4]) for line in steps],
            last("weights"),
            int(last("kept") or -1),
            float(last("ending")) if last("ending") else None,
        )


class Try:
    """One training under one fault."""

    def __init__(self, lab: Lab, folder: Path, given: dict[str, Any]) -> None:
        self.lab, self.folder, self.given = lab, folder, given
        self.runs, self.control, self.log = folder / "runs", folder / "control", folder / "calls"
        self.child: Child

    def rules(self, *lines: str) -> None:
        """Switch faults on, or off with no lines; the file is replaced whole, so no half of it is read."""
        beside = self.control.with_suffix(".new")
        beside.write_text("".join(line + "\n" for line in lines))
        beside.replace(self.control)

    def start(self, script: str = "train.py", **environment: str) -> Try:
        """Fork the training."""
        paths = {"FAULTS_BELOW": self.runs, "FAULTS_CONTROL": self.control, "TMPDIR": self.folder / "tmp"}
        (self.folder / "tmp").mkdir(exist_ok=True)
        environment = {name: str(path) for name, path in paths.items()} | environment
        self.child = self.lab.forks.start(self.folder, HERE / script, self.given, environment)
        return self

    def go(self) -> None:
        """Let a training that waits go on."""
        (self.folder / "go").touch()

    @property
    def training(self) -> Training:
        """What it said so far."""
        return Training.parse(self.child.out)

    @property
    def run_folder(self) -> Path | None:
        """The one run that it wrote, wherever that went."""
        found = [one for base in (self.runs, *self.folder.glob("tmp/*")) for one in find_runs(base)]
        return found[-1] if found else None

    def companions(self) -> list[int]:
        """The companion processes that the training started and that still run."""
        found = []
        for place in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                words = (place / "cmdline").read_bytes().split(b"\0")
                if b"stethoscope.companion" in words and str(self.child.pid).encode() in words:
                    found.append(int(place.name))
        return found

    def finish(self, outcome: Outcome, *, code: int = 0, timeout: float = 40.0, since: float | None = None) -> Training:
        """Wait for the end and compare it with a plain training's; `since` is when a signal was sent."""
        ended = self.child.wait(timeout)
        done, plain = self.training, self.lab.plain(self.given)
        outcome.tries += 1
        why = f"exit code {ended}, not {code}: {self.child.err[-300:]!r}"
        outcome.expect(ended == code, "harmed", why if ended is not None else f"hangs for {timeout} s")
        same = done.losses == plain.losses[: len(done.losses)] and done.weights in ("", plain.weights)
        outcome.expect(same, "harmed", "losses or weights differ from those of a plain training")
        if code == 0:
            outcome.expect(len(done.losses) == len(plain.losses), "harmed", f"{len(done.losses)} steps trained")
        began = since if since is not None else done.ending_at
        if began is not None:
            outcome.note_exit(self.child.ended_at - began)
        return done

    def check_run(self, outcome: Outcome, *, folder: Path | None = None) -> Run | None:
        """Every acknowledged step is there, every number is right; what is missing is told."""
        done, folder = self.training, folder or self.run_folder
        if folder is None:
            outcome.expect(done.kept < 0, "lost", "there is no run")
            return None
        run = open_run(folder)
        clean = self.lab.clean_rows(self.given)
        losses, block = run.metric("loss"), run.block(0, len(done.losses))
        kept = dict(zip(losses.steps.tolist(), losses.values.tolist(), strict=True))
        there = {step for at, step in enumerate(block.steps.tolist()) if block.present[at].any()}
        missing = [step for step in range(done.kept + 1) if step not in there or step not in kept]
        outcome.lost += len(missing)
        if missing:
            outcome.notes.append(f"lost: acknowledged steps {missing[:5]}")
        said = dict(enumerate(map(float.fromhex, done.losses)))
        false = [step for step, loss in kept.items() if float(loss) != said.get(step)]
        for column, info in enumerate(block.sites):
            if (0, str(info.site)) not in clean:
                continue  # a loader's batches are sites of their own
            for at, step in enumerate(block.steps.tolist()):
                expected = clean.get((step, str(info.site)))
                if block.present[at, column] and (
                    expected is None or not np.array_equal(block.rows[at, column], expected, True)
                ):
                    false.append(step)
        outcome.expect(not false, "wrong", f"numbers of steps {false[:5]} are not those of a clean recording")
        return run

    def check_told(self, outcome: Outcome, run: Run | None) -> None:
        """Steps that are missing are counted in the run and said on stderr."""
        trained = len(self.training.losses)
        missing = trained - (len(run.steps) if run is not None else 0)
        if missing <= 0:
            return
        said = [line for line in self.child.err.splitlines() if "stethoscope" in line.lower()]
        told = any(word in line for line in said for word in TOLD)
        outcome.expect(told, "wrong", f"{missing} of {trained} steps are missing and stderr says only {said}")
        if run is not None:
            shown = [fact for fact in doctor(run) if not fact[2]]
            outcome.expect(bool(shown), "wrong", f"{missing} steps are missing and doctor finds everything fine")


TOLD = (
    "not recorded",
    "never reached",
    "did not reach",
    "not on disk",
    "not on the disk",
    "not written",
    "lost",
    "memory only",
    "deleted",
    "without us",
)


def wait_for_all(tries: list[Try], timeout: float = 40.0) -> None:
    """Look at each in turn until all have ended, so that the time of each end is known; what takes longer is left to `finish`."""
    until = time.monotonic() + timeout
    while time.monotonic() < until and any(one.child.poll() is None for one in tries):
        time.sleep(0.01)


def doctor(run: Run) -> list[tuple[str, str, bool]]:
    """What `stethoscope doctor RUN` says: what, how it stands, whether that is fine."""
    from stethoscope.cli.doctor import recording
    from stethoscope.explain import diagnose

    return recording(run, diagnose(run).looked_at)


class Lab:
    """The tools of all rows. Close it: it holds a process and a folder."""

    def __init__(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="stethoscope-faults-")).resolve()
        self._numbers = itertools.count()
        self._plain: dict[str, Training] = {}
        self._clean: dict[str, dict[tuple[int, str], Any]] = {}

    @functools.cached_property
    def shim(self) -> Path | None:
        """The compiled shim, None where there is no compiler."""
        compiler = shutil.which("cc") or shutil.which("gcc")
        if compiler is None or sys.platform != "linux":
            return None
        built = self.folder / "shim.so"
        subprocess.run([compiler, "-O1", "-shared", "-fPIC", "-o", str(built), str(HERE / "shim.c")], check=True)
        return built

    @functools.cached_property
    def forks(self) -> Forks:
        """The process that forks."""
        return Forks(self.shim)

    def need_shim(self) -> None:
        """Skip the row where system calls cannot be made to fail."""
        if self.shim is None:
            raise SkipRowError("no C compiler here to build the shim that makes system calls fail")

    def new_folder(self) -> Path:
        """An empty folder for one try."""
        folder = self.folder / f"try-{next(self._numbers)}"
        folder.mkdir()
        return folder

    def prepare(self, *, steps: int = 40, watch: dict[str, Any] | None = None, **given: Any) -> Try:
        """A try that is not started yet: a training that is watched, with the settings of `watch` on top of ours."""
        folder = self.new_folder()
        settings = {"dir": str(folder / "runs"), "companion": "off", "every": 1} | (watch or {})
        return Try(self, folder, {"steps": steps, "watch": settings, **given})

    def plain(self, given: dict[str, Any]) -> Training:
        """The same training without us."""
        alike = {name: given[name] for name in ("steps", "layers", "workers") if name in given}
        key = json.dumps(alike)
        if key not in self._plain:
            child = self.forks.start(self.new_folder(), HERE / "train.py", alike, {})
            assert child.wait() == 0, child.err
            self._plain[key] = Training.parse(child.out)
        return self._plain[key]

    def clean_rows(self, given: dict[str, Any]) -> dict[tuple[int, str], Any]:
        """Every row of the same training recorded without a fault."""
        key = json.dumps({name: given[name] for name in ("steps", "layers") if name in given})
        if key not in self._clean:
            one = self.prepare(**json.loads(key)).start()
            assert one.child.wait() == 0, one.child.err
            assert one.run_folder is not None, one.child.err
            block = open_run(one.run_folder).block(0, given["steps"])
            assert block.present.all()
            self._clean[key] = {
                (int(step), str(info.site)): block.rows[at, column]
                for at, step in enumerate(block.steps)
                for column, info in enumerate(block.sites)
            }
        return self._clean[key]

    @contextlib.contextmanager
    def small_disk(self, folder: Path, options: str) -> Iterator[Path]:
        """A tmpfs of its own at the folder."""
        folder.mkdir(parents=True, exist_ok=True)
        command = ["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(folder)]
        if os.geteuid() or subprocess.run(command, capture_output=True, check=False).returncode:
            raise SkipRowError("a small tmpfs cannot be mounted here: that needs root")
        try:
            yield folder
        finally:
            subprocess.run(["umount", "-l", str(folder)], check=True)

    def close(self) -> None:
        """End the processes, remove the folder."""
        if "forks" in vars(self):
            self.forks.close()
        shutil.rmtree(self.folder, ignore_errors=True)
