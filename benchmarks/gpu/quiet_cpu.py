"""The small steps on the cores of a machine with a GPU, which are many and quiet: every program at once, each on two cores of its own.

    PYTHONPATH=src python -m benchmarks.gpu.quiet_cpu --first-core 4 --seconds 190

Tables appear in $OUT/cpu-*.md as their rows come. What several programs share is the memory's bandwidth; a plain process and a
watched one take turns within each pair of cores, so that both have the same of it.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).parents[2]
QUEUES: tuple[tuple[tuple[str, ...], ...], ...] = (
    (("logistic", "mlp", "deep mlp"), ("mlp", "deep mlp", "--cores", "1")),
    (("conv", "lstm", "transformer"), ("mlp", "conv", "transformer", "--only-peers", "trainscope")),
    (("deep conv", "wide mlp"), ("mlp", "conv", "transformer", "--only-peers", "tensorboard")),
    (("conv", "lstm", "transformer", "--cores", "1"), ("mlp", "conv", "transformer", "--parts")),
    (("mlp", "conv", "transformer", "--settings", "every=1"), ("deep conv", "--cores", "1")),
    (("large transformer", "--rounds", "2"),),
)
"""What each pair of cores runs, one after the other."""


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--first-core", type=int, default=0)
    parser.add_argument("--seconds", type=float, default=190.0)
    asked = parser.parse_args()
    out = Path(os.environ.get("OUT") or tempfile.mkdtemp())
    until = time.monotonic() + asked.seconds
    children = []
    for number, queue in enumerate(QUEUES):
        cores = f"{asked.first_core + 2 * number},{asked.first_core + 2 * number + 1}"
        words = [["--rounds", "3", *words] for words in queue]
        code = (
            "import subprocess, sys\n"
            f"for words in {words!r}:\n"
            "    subprocess.run([sys.executable, '-m', 'benchmarks.small_steps', *words])\n"
        )
        log = (out / f"cpu-{number}.md").open("w")
        command = ["taskset", "-c", cores, sys.executable, "-u", "-c", code]
        children.append(subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT, cwd=ROOT))
    for child in children:
        try:
            child.wait(max(until - time.monotonic(), 0.1))
        except subprocess.TimeoutExpired:
            child.kill()
    for path in sorted(out.glob("cpu-*.md")):
        print(path.read_text())


if __name__ == "__main__":
    main()
