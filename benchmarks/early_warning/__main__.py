"""`python -m benchmarks.early_warning`: lead in steps before the loss breaks, and warnings over healthy twins, ours beside peers'.

trainscope 1.8 takes part where it can be imported: it needs packages that ours must not, so put it into a folder of its own
(`pip install --no-deps --target DIR "trainscope==1.8.*" pyyaml fsspec`) and name that in PYTHONPATH.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import logging
import os
import sys
import tempfile
from fnmatch import fnmatchcase
from pathlib import Path

import torch
from benchmarks.early_warning import report
from benchmarks.early_warning.measuring import Measured, measure
from benchmarks.early_warning.programs import PROGRAMS
from benchmarks.early_warning.training import SEEDS


def main() -> int:
    """Measure what was asked for and print the table."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.early_warning", description=__doc__)
    parser.add_argument("--programs", default="*", help="names or globs, separated by commas")
    parser.add_argument("--json", type=Path, help="keep what was measured here, and go on from it")
    parser.add_argument("--keep", type=Path, help="keep the run folders here")
    options = parser.parse_args()
    torch.set_num_threads(1)
    logging.getLogger("trainscope").setLevel(logging.ERROR)
    found = _known(options.json)
    done = {(one.program, one.seed) for one in found}
    globs = options.programs.split(",")
    for program in PROGRAMS.values():
        for seed in SEEDS if any(fnmatchcase(program.name, glob) for glob in globs) else ():
            if (program.name, seed) in done:
                continue
            with tempfile.TemporaryDirectory(prefix="stethoscope-early-") as scratch:
                folder = (options.keep or Path(scratch)) / f"{program.name}-{seed}"
                folder.mkdir(parents=True, exist_ok=True)
                pair = measure(program, seed, folder)
            found += pair
            print("\n".join(report.line(one) for one in pair), flush=True)
            if options.json is not None:
                options.json.write_text(
                    json.dumps([dataclasses.asdict(one) for one in found], indent=1), encoding="utf-8"
                )
    print("\n" + report.text(found))
    return 0


def _known(path: Path | None) -> list[Measured]:
    if path is None or not path.exists():
        return []
    return [Measured(**body) for body in json.loads(path.read_text(encoding="utf-8"))]


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    sys.exit(main())
