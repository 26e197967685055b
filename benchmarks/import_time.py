"""`import stethoscope`: how long, and what it brings along, against the limit of 100 ms and against numpy and torch."""

from __future__ import annotations

import statistics
import subprocess
import sys

ROUNDS = 7
LIMIT_MS = 100.0
PROGRAM = "import sys, time; t = time.perf_counter(); import {name}; print((time.perf_counter() - t) * 1e3, {heavy})"
HEAVY = "sorted({m.partition('.')[0] for m in sys.modules} & {'torch', 'numpy', 'pyarrow', 'rich', 'duckdb'})"


def measure(name: str) -> tuple[float, str]:
    """The median time in fresh processes, and which heavy packages came with it."""
    times, heavy = [], ""
    for _ in range(ROUNDS):
        line = subprocess.run(
            [sys.executable, "-c", PROGRAM.format(name=name, heavy=HEAVY)], capture_output=True, text=True, check=True
        ).stdout
        milliseconds, _, heavy = line.partition(" ")
        times.append(float(milliseconds))
    return statistics.median(times), heavy.strip()


def main() -> None:
    print("| import | ms, median of 7 fresh processes | heavy packages that come with it |")
    print("| --- | --- | --- |")
    for name in ("stethoscope", "numpy", "torch"):
        milliseconds, heavy = measure(name)
        print(f"| {name} | {milliseconds:.0f} | {heavy} |")
    print(f"\nLimit for stethoscope: {LIMIT_MS:.0f} ms, without torch.")


if __name__ == "__main__":
    main()
