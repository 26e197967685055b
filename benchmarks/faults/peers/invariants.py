"""TrainCheck: invariants learned from a healthy run of the catalogue, checked on the others.

TrainCheck instruments the source of a script and needs traces of runs that are known to be good; it learns from H17 (an
MLP on digits, a plain loop), which takes minutes, once. A program becomes a script: its own file, our session cut out, and
the call at the end.
"""

from __future__ import annotations

import functools
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Final

from benchmarks.faults.catalogue import Program, load_programs

REFERENCE: Final = "H17"
TIMEOUT: Final = 900
ROOT: Final = Path(__file__).resolve().parents[3]
STUB: Final = """
class _Nobody:
    path = None
    def log(self, **values): pass
    def log_batch(self, *args, **kwargs): pass
    def step(self, *args, **kwargs): pass
    def stop(self): return self
    def evaluating(self):
        import contextlib
        return contextlib.nullcontext()
class stethoscope:
    @staticmethod
    def watch(*args, **kwargs): return _Nobody()
"""


def script(program: Program, folder: Path) -> Path:
    """The program as a script of its own."""
    source = Path(sys.modules[program.run.__module__].__file__ or "").read_text(encoding="utf-8")
    source = source.replace("from __future__ import annotations\n", "").replace("\nimport stethoscope\n", STUB)
    head = f"import sys\nsys.path[:0] = [{str(ROOT)!r}, {str(ROOT / 'src')!r}]\n"
    path = folder / f"{program.key}.py"
    path.write_text(f"{head}{source}\n\n{program.run.__name__}(0)\n", encoding="utf-8")
    return path


def call(folder: Path, tool: str, *args: str) -> str:
    """One of TrainCheck's commands; what it printed."""
    command = [str(Path(sys.executable).parent / f"traincheck-{tool}"), *args]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=TIMEOUT, check=False)
    return done.stdout + done.stderr


@functools.cache
def invariants() -> Path:
    """What holds in the reference run."""
    folder = Path(tempfile.mkdtemp(prefix="traincheck-"))
    path = script(load_programs()[REFERENCE], folder)
    call(folder, "collect", "-p", path.name, "--models-to-track", "model", "--output-dir", "reference")
    call(folder, "infer", "-f", "reference", "-o", "invariants.json")
    return folder / "invariants.json"


def run(program: Program, seed: int) -> list[str]:
    """How many of the reference's invariants the program breaks."""
    known = invariants()
    with tempfile.TemporaryDirectory(prefix="traincheck-") as scratch:
        folder = Path(scratch)
        path = script(program, folder)
        call(
            folder,
            "collect",
            "-p",
            path.name,
            "--models-to-track",
            "model",
            "--invariants",
            str(known),
            "--output-dir",
            "target",
        )
        told = call(folder, "check", "-f", "target", "-i", str(known))
    counts = re.search(r"Total failed invariants: (\d+)/(\d+)", told)
    if counts is None:
        last = (told.strip().splitlines() or ["nothing was said"])[-1]
        return [f"cannot run: {last[-120:]}"]
    return [f"{counts[1]} of {counts[2]} invariants broken"] if int(counts[1]) else []
