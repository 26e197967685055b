"""`python -m benchmarks.strangers healthy|baseline|mutants|all`: fetched programs under watch, and what was said of them."""

from __future__ import annotations

import argparse
import os
import random
import sys
import zlib
from collections.abc import Iterator
from fnmatch import fnmatchcase
from pathlib import Path

from benchmarks.strangers import development, held_out
from benchmarks.strangers.operators import OPERATORS
from benchmarks.strangers.parallel import Task, run_all
from benchmarks.strangers.program import Program
from benchmarks.strangers.reading import Ran, load, save
from benchmarks.strangers.running import preload, run

HALVES = {"development": development.PROGRAMS, "held_out": held_out.PROGRAMS}
CHEAP_SECONDS = 12.0


def main() -> int:
    """Run what was asked for, and write every row as it comes."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.strangers", description=__doc__)
    parser.add_argument("what", choices=("healthy", "baseline", "mutants", "all"))
    parser.add_argument(
        "--fetched", type=Path, required=True, help="the folder of the fetched repositories, owner+name"
    )
    parser.add_argument("--half", choices=(*HALVES, "both"), default="both")
    parser.add_argument("--ids", default="*", help="globs of keys, separated by commas")
    parser.add_argument("--operators", default="*", help="globs of operators, separated by commas")
    parser.add_argument("--seeds", type=int, default=5, help="of a baseline")
    parser.add_argument("--jobs", type=int, default=1, help="so many at once, one thread each")
    parser.add_argument("--minutes", type=float, default=600.0, help="after which nothing runs any more")
    parser.add_argument("--json", type=Path, required=True, help="rows are added to this file")
    parser.add_argument("--keep", type=Path, help="keep the work folders here")
    options = parser.parse_args()
    options.fetched = options.fetched.resolve()
    if (digits := options.fetched / "digits.npz").exists():
        os.environ["STRANGERS_DIGITS"] = str(digits)
    preload()
    # An original that did not begin is tried again.
    rows = [row for row in load(options.json) if row.num_steps or row.operator not in ("", "none")]
    done = {(row.key, row.operator, row.seed) for row in rows}
    tasks = [task(options, *one) for one in draw(options) if (one[0].key, *one[1:3]) not in done]
    print(f"{len(rows)} rows are there, {len(tasks)} are to come", flush=True)
    for row in run_all(tasks, options.jobs, options.minutes):
        rows.append(row)
        save(rows, options.json)
        print(line(row), flush=True)
    return 0


def draw(options: argparse.Namespace) -> list[tuple[Program, str, int, dict[str, str]]]:
    """All that is to be started: healthy ones, originals, mutants at random, of the cheap programs first.

    The order does not depend on what was found so far.
    """
    programs = choose(options.half, options.ids)
    drawn: list[tuple[Program, str, int, dict[str, str]]] = []
    if options.what in ("healthy", "all"):
        drawn += [(program, "", 0, {}) for program in sorted(programs, key=lambda one: -one.seconds)]
    mutated = [program for program in programs if program.is_mutated]
    mutated.sort(key=lambda one: one.seconds > CHEAP_SECONDS)
    if options.what in ("baseline", "all"):
        drawn += [(program, "none", seed, {}) for program in mutated for seed in range(options.seeds)]
    if options.what in ("mutants", "all"):
        drawn += mutants(mutated, options)
    return drawn


def mutants(programs: list[Program], options: argparse.Namespace) -> list[tuple[Program, str, int, dict[str, str]]]:
    """Those that the operators find a place for."""
    globs = options.operators.split(",")
    names = [name for name in OPERATORS if any(fnmatchcase(name, glob) for glob in globs)]
    pairs = [(program, name) for program in programs for name in names]
    random.Random("mutants").shuffle(pairs)
    pairs.sort(key=lambda one: one[0].seconds > CHEAP_SECONDS)
    changes = ((program, name, mutate(program, name, options.fetched)) for program, name in pairs)
    return [(program, name, 0, changed) for program, name, changed in changes if changed is not None]


def choose(half: str, ids: str) -> list[Program]:
    """The programs that the globs name."""
    programs: Iterator[Program] = (p for name, table in HALVES.items() if half in (name, "both") for p in table)
    return [p for p in programs if any(fnmatchcase(p.key, glob) for glob in ids.split(","))]


def mutate(program: Program, operator: str, fetched: Path) -> dict[str, str] | None:
    """The changed files; None where the operator finds no place."""
    for name in (program.script, *program.files):
        changed = OPERATORS[operator].apply(program.source(fetched, name))
        if changed is not None:
            return {program.file if name == program.script else name: changed}
    return None


def task(options: argparse.Namespace, program: Program, operator: str, seed: int, changed: dict[str, str]) -> Task:
    """One start, in a folder whose name no other has."""
    start = "".join(char if char.isalnum() else "-" for char in program.key)[:40]
    name = f"{start}-{zlib.crc32(program.key.encode()):08x}-{operator or 'healthy'}-{seed}"

    def begin(into: Path, limit: float) -> Ran:
        into = into if options.keep is None else (options.keep / name).resolve()
        return run(program, seed, options.fetched, into, operator, changed, limit)

    return Task(name, begin)


def line(row: Ran) -> str:
    """One row for the terminal."""
    causes = ", ".join(f"{code}@{first}" for code, _, first, *_ in row.causes[:3])
    loss = "→".join(f"{value:.3g}" for value in row.loss)
    said = causes or ", ".join(row.symptoms) or row.message[:90]
    error = " ERROR " + row.error.splitlines()[-1][:120] if row.error else ""
    metric = "" if row.metric is None else f" metric {row.metric:g}"
    return (
        f"{row.key[:60]:<60} {row.operator:<22} {row.state:<19} {said} | {row.num_steps} steps, loss {loss}{metric}, "
        f"{row.seconds:.0f} s{' CUT' if row.is_cut else ''}{error}"
    )


if __name__ == "__main__":
    sys.exit(main())
