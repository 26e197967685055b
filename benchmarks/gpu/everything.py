"""Every GPU figure in one call, as far as the time goes.

    PYTHONPATH=src python -m benchmarks.gpu.everything [--seconds 570] [--only 0,1] [--beside 4] [--no-peers] [--list]

A lent device is lent for minutes: each part is a process of its own with a limit, and what it prints goes to the screen and to
$OUT/<part>.log as it comes. Parts that compile for minutes can begin beside the others: whoever measures is alone (`gpt.alone`).
"""

from __future__ import annotations

import argparse
import contextlib
import os
import selectors
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import TextIO

from benchmarks.gpu.gpt import alone

ROOT = Path(__file__).parents[2]
PARTS: tuple[tuple[str, tuple[str, ...], int], ...] = (
    ("looks", ("gpu.looks",), 90),
    ("1.3B-eager", ("gpu.overhead", "1.3B", "eager", "--rounds", "2", "--peers", "--sync-steps", "0"), 330),
    ("124M-eager", ("gpu.overhead", "124M", "eager", "--rounds", "2", "--peers"), 330),
    ("1.3B-compiled", ("gpu.overhead", "1.3B", "compiled", "--rounds", "2", "--inside", "--sync-steps", "0"), 500),
    ("124M-compiled", ("gpu.overhead", "124M", "compiled", "--rounds", "2", "--peers", "--inside"), 500),
    ("inside-graphs-check", ("gpu.compiled_taps",), 180),
    ("kernel", ("gpu.kernel_check",), 180),
    ("many-tensors", ("many_tensors", "cuda"), 120),
)
"""A name, the program with its arguments, and the most seconds it may take."""


def run(name: str, program: tuple[str, ...], limit: int, folder: Path) -> str:
    """How the part ended."""
    command = [sys.executable, "-u", "-m", f"benchmarks.{program[0]}", *program[1:]]
    with (folder / f"{name}.log").open("w") as log:
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, cwd=ROOT)
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
    parser.add_argument("--only", default="", help="numbers of parts, 0,1,6; all without it")
    parser.add_argument(
        "--beside", default="", help="numbers of parts that begin at once: they compile while others measure"
    )
    parser.add_argument("--no-peers", action="store_true", help="ours alone")
    parser.add_argument("--list", action="store_true")
    asked = parser.parse_args()
    folder = Path(os.environ.get("OUT") or tempfile.mkdtemp())
    os.environ["MEASURING"] = str(Path(tempfile.mkdtemp()) / "measuring")
    until = time.monotonic() + asked.seconds
    chosen = [int(number) for number in asked.only.split(",") if number] or list(range(len(PARTS)))
    beside = [int(number) for number in asked.beside.split(",") if number]
    if asked.list:
        for number, (name, program, limit) in enumerate(PARTS):
            print(f"{number}: {name}, at most {limit} s: {' '.join(program)}")
        return
    parts = [
        (name, tuple(word for word in program if word != "--peers" or not asked.no_peers), limit)
        for name, program, limit in PARTS
    ]
    threads = [threading.Thread(target=take, args=(parts[number], until, folder)) for number in beside]
    for thread in threads:
        thread.start()
    for number in chosen:
        if number not in beside:
            take(parts[number], until, folder)
    for thread in threads:
        thread.join()


def take(part: tuple[str, tuple[str, ...], int], until: float, folder: Path) -> None:
    """Run one part inside of what time is left, and say how it ended."""
    name, program, limit = part
    began = time.monotonic()
    if until - began < 20:
        print(f"\nno time left for {name}")
        return
    print(f"\n== {name}", flush=True)
    with (
        alone() if program[0] != "overhead.py" else contextlib.nullcontext()
    ):  # that one asks by itself, once it has compiled
        ended = run(name, program, min(limit, int(until - began)), folder)
    print(f"== {name} {ended} after {time.monotonic() - began:.0f} s", flush=True)


if __name__ == "__main__":
    main()
