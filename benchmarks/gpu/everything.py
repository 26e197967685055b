"""Every GPU figure in one call, the ones that were never taken first, as far as the time goes.

    PYTHONPATH=src python benchmarks/gpu/everything.py [--seconds 570] [--first 0] [--list]

A lent device is lent for minutes: each part is a process of its own with a limit, what it prints goes to the screen and to
$OUT/<part>.log as it comes, and a part whose limit no longer fits into what is left is named, with the number to go on from.
"""

from __future__ import annotations

import argparse
import os
import selectors
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TextIO

HERE = Path(__file__).parent
PARTS: tuple[tuple[str, tuple[str, ...], int], ...] = (
    ("looks", ("looks.py",), 90),
    ("1.3B-eager-peers", ("overhead.py", "1.3B", "eager", "--rounds", "2", "--peers", "--sync-steps", "0"), 300),
    ("124M-eager", ("overhead.py", "124M", "eager", "--rounds", "2"), 150),
    ("1.3B-compiled", ("overhead.py", "1.3B", "compiled", "--rounds", "1", "--sync-steps", "0"), 420),
    ("124M-compiled", ("overhead.py", "124M", "compiled", "--rounds", "2"), 240),
    ("124M-inside-graphs", ("compiled_taps.py", "--skip", "check", "--mode", "default"), 480),
    ("inside-graphs-check", ("compiled_taps.py", "--skip", "cost"), 180),
    ("kernel", ("kernel_check.py",), 180),
    ("many-tensors", ("../many_tensors.py", "cuda"), 120),
)
"""A name, the program with its arguments, and the most seconds it may take."""


def run(name: str, program: tuple[str, ...], limit: int, folder: Path) -> str:
    """How the part ended."""
    command = [sys.executable, "-u", str(HERE / program[0]), *program[1:]]
    with (folder / f"{name}.log").open("w") as log:
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        try:
            told = _tell(process, log, time.monotonic() + limit)
        finally:
            process.kill()
            process.wait()
    return told


def _tell(process: subprocess.Popen[str], log: TextIO, until: float) -> str:
    """Hand on line by line; a part that says nothing any more is ended with the lines it left."""
    assert process.stdout is not None
    waiting = selectors.DefaultSelector()
    waiting.register(process.stdout, selectors.EVENT_READ)
    while (left := until - time.monotonic()) > 0:
        if not waiting.select(left):
            break
        line = process.stdout.readline()
        if not line:
            return f"ended with {process.wait()}"
        print(line, end="", flush=True)
        print(line, end="", file=log, flush=True)
    return "ran out of time"


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seconds", type=int, default=570)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--list", action="store_true")
    asked = parser.parse_args()
    folder = Path(os.environ.get("OUT") or tempfile.mkdtemp())
    until = time.monotonic() + asked.seconds
    for number, (name, program, limit) in enumerate(PARTS):
        if number < asked.first or asked.list:
            print(f"{number}: {name}, at most {limit} s: {' '.join(program)}")
            continue
        if until - time.monotonic() < limit:
            print(f"\nno time left for {name}: go on with --first {number}")
            break
        began = time.monotonic()
        print(f"\n== {name}", flush=True)
        print(f"== {name} {run(name, program, limit, folder)} after {time.monotonic() - began:.0f} s", flush=True)


if __name__ == "__main__":
    main()
