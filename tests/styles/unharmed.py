"""Compares a kind of training without us and with us: the exit code, the output, what is said on stderr."""

from __future__ import annotations

import dataclasses
import os
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from tests.styles import distributed_kinds

ROOT = Path(__file__).parents[2]
FRAME = re.compile(r'^  File "[^"]*(?:/stethoscope/|<frozen runpy>|/runpy\.py)[^\n]*\n(?:    [^\n]*\n)*', re.MULTILINE)
"""A frame of ours or of what runs a script, with its source."""
UNWATCHED = ("without an optimizer",)
"""What `stethoscope run` does not find, because it looks for optimizers."""
OURS = re.compile(r"^stethoscope: [^\n]*\n", re.MULTILINE)


@dataclasses.dataclass(frozen=True)
class Ended:
    """How a process ended, and what it said."""

    code: int
    out: str
    err: str
    seconds: float


@dataclasses.dataclass(frozen=True)
class Verdict:
    """One line of the table."""

    name: str
    differs: str
    """What is not as without us; "" where everything is."""
    plain_s: float
    watched_s: float
    words: str = ""
    """The first lines that differ."""


def run_process(words: list[str], folder: Path) -> Ended:
    """Run Python with these words in a folder, as a user would."""
    environment = {key: value for key, value in os.environ.items() if not key.startswith("STETHOSCOPE")}
    environment |= {"PYTHONPATH": str(ROOT / "src"), "OMP_NUM_THREADS": "1", "STETHOSCOPE_DIR": str(folder / "runs")}
    began = time.perf_counter()
    done = subprocess.run(
        [sys.executable, *words], capture_output=True, text=True, cwd=folder, env=environment, timeout=300
    )
    return Ended(done.returncode, done.stdout, done.stderr, time.perf_counter() - began)


def without_ours(text: str) -> str:
    """What is left of stderr without our lines and frames."""
    return FRAME.sub("", OURS.sub("", text))


def first_difference(plain: str, watched: str) -> str:
    """The first lines of two texts that differ."""
    pairs = zip([*plain.splitlines(), "(end)"], [*watched.splitlines(), "(end)"], strict=False)
    return next((f"`{a[:160]}` / `{b[:160]}`" for a, b in pairs if a != b), "")


def compare_kind(name: str) -> Verdict:
    """One kind in one process, plain and watched."""
    script = [str(ROOT / "tests" / "styles" / "kinds.py"), *name.split()]
    with tempfile.TemporaryDirectory(prefix="stethoscope-kind-", ignore_cleanup_errors=True) as folder:
        plain = run_process(script, Path(folder))
        watched = run_process(["-m", "stethoscope", "run", *script], Path(folder))
        runs = list(Path(folder, "runs").glob("*/run.json"))
    errors = without_ours(plain.err), without_ours(watched.err)
    differs = [
        *([f"exit code {plain.code}, watched {watched.code}"] if plain.code != watched.code else []),
        *(["stdout"] if plain.out != watched.out else []),
        *(["stderr"] if errors[0] != errors[1] else []),
        *(["nothing was watched"] if not runs and name not in UNWATCHED else []),
        *(["does not run"] if "losses " not in plain.out else []),
    ]
    words = first_difference(plain.out, watched.out) or first_difference(*errors)
    return Verdict(name, ", ".join(differs), plain.seconds, watched.seconds, words if differs else "")


def compare_ranks(kind: distributed_kinds.DistributedKind) -> Verdict:
    """One kind on several ranks, plain and watched."""
    began = time.perf_counter()
    plain = distributed_kinds.run_kind(kind, watched=False)
    between = time.perf_counter()
    watched = distributed_kinds.run_kind(kind, watched=True)
    differs = "" if plain.same_training(watched) and plain.losses else "training"
    return Verdict(kind.name, differs, between - began, time.perf_counter() - between)
