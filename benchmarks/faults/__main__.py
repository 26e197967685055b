"""`python -m benchmarks.faults`: every program under watch, and how well it was diagnosed."""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import sys
import tempfile
from fnmatch import fnmatchcase
from pathlib import Path

import torch
from benchmarks.faults import live, report
from benchmarks.faults.catalogue import Program, load_programs
from benchmarks.faults.judging import Verdict, examine


def main() -> int:
    """Run what was asked for; 0 where nothing failed to run."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.faults", description=__doc__)
    parser.add_argument("--ids", default="*", help="keys or globs, separated by commas: F01,H0*,U10")
    parser.add_argument("--seeds", type=int, default=1, help="how many seeds, from --first-seed on")
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--unseen", action="store_true", help="the second set of instances")
    parser.add_argument("--all", action="store_true", help="both sets")
    parser.add_argument("--threads", type=int, default=1, help="threads for torch")
    parser.add_argument("--every", type=int, default=0, help="measure every Nth step; 0 leaves it to the governor")
    parser.add_argument("--json", type=Path, help="write every verdict here")
    parser.add_argument("--markdown", type=Path, help="write the tables here")
    parser.add_argument(
        "--live-equals-stored",
        action="store_true",
        help="instead: whether a companion that listens at random moments, and the stored run in random pieces, say the same",
    )
    parser.add_argument(
        "--in-passing",
        action="store_true",
        help="instead: what a companion that looks after every step would have told and taken back later",
    )
    parser.add_argument("--keep", type=Path, help="keep the run folders here")
    parser.add_argument("--device", default="cpu", help="where the programs make their tensors")
    parser.add_argument("--part", default="0/1", help="only every nth program, for several processes: 3/8")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    os.environ["STETHOSCOPE_EVERY"] = str(options.every)
    torch.set_default_device(options.device)
    part, parts = map(int, options.part.split("/"))
    programs = choose(options.ids, unseen=options.unseen, both=options.all)[part::parts]
    if not programs:
        print(f"No program is called {options.ids}", file=sys.stderr)
        return 2
    seeds = range(options.first_seed, options.first_seed + options.seeds)
    if options.live_equals_stored or options.in_passing:
        return compare_live(programs, seeds, moments=options.in_passing)
    verdicts = run(programs, seeds, options.keep)
    table = report.text(verdicts)
    print("\n" + table)
    if options.json is not None:
        body = [dataclasses.asdict(v) for v in verdicts]
        options.json.write_text(json.dumps(body, indent=1) + "\n", encoding="utf-8")
    if options.markdown is not None:
        options.markdown.write_text(table, encoding="utf-8")
    return 1 if any(v.error for v in verdicts) else 0


def compare_live(programs: list[Program], seeds: range, *, moments: bool) -> int:
    """Says where live and stored findings differ, in the end or at any moment; 0 where they never do."""
    num_runs, differing = 0, []
    with tempfile.TemporaryDirectory(prefix="stethoscope-live-") as scratch:
        for seed in seeds:
            for program in programs:
                folder = Path(scratch).resolve() / f"{program.key}-{seed}"
                folder.mkdir()
                count, lines = live.check(program, seed, folder, moments=moments)
                num_runs += count
                differing += [program.key] * bool(lines)
                print(
                    f"{program.key:<6} seed {seed}  " + ("\n    ".join(["differs", *lines]) if lines else "the same"),
                    flush=True,
                )
    print(f"\n{num_runs} runs; different: {', '.join(differing) or 'none'}")
    return int(bool(differing))


def choose(ids: str, *, unseen: bool = False, both: bool = False) -> list[Program]:
    """The programs that the globs name."""
    known = {**load_programs(unseen=unseen), **(load_programs(unseen=not unseen) if both else {})}
    globs = [glob.strip().upper() for glob in ids.split(",")]
    return [p for p in known.values() if any(fnmatchcase(p.key, glob) for glob in globs)]


def run(programs: list[Program], seeds: range, keep: Path | None = None) -> list[Verdict]:
    """One after another, in this process; says each as it comes."""
    verdicts = []
    with tempfile.TemporaryDirectory(prefix="stethoscope-faults-") as scratch:
        for seed in seeds:
            for program in programs:
                folder = (keep or Path(scratch)).resolve() / f"{program.key}-{seed}"
                folder.mkdir(parents=True, exist_ok=True)
                verdicts.append(examine(program, seed, folder))
                print(report.line(verdicts[-1]), flush=True)
    return verdicts


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    sys.exit(main())
