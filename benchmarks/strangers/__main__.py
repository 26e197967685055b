"""`python -m benchmarks.strangers healthy|baseline|mutants`: fetched programs under watch, and what was said of them."""

from __future__ import annotations

import argparse
import json
import random
import shutil
import sys
import tempfile
import zlib
from fnmatch import fnmatchcase
from pathlib import Path

from benchmarks.strangers.operators import OPERATORS
from benchmarks.strangers.program import Program
from benchmarks.strangers.running import Ran, run, save


def main() -> int:
    """Run what was asked for, and write every row as it comes."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.strangers", description=__doc__)
    parser.add_argument("what", choices=("healthy", "plain", "baseline", "mutants"))
    parser.add_argument(
        "--fetched", type=Path, required=True, help="the folder of the fetched repositories, owner+name"
    )
    parser.add_argument("--half", choices=("development", "held_out"), default="development")
    parser.add_argument("--ids", default="*", help="globs of keys, separated by commas")
    parser.add_argument("--operators", default="*", help="globs of operators, separated by commas")
    parser.add_argument("--seeds", type=int, default=5, help="of a baseline")
    parser.add_argument("--json", type=Path, required=True, help="rows are added to this file")
    parser.add_argument("--keep", type=Path, help="keep the work folders here")
    options = parser.parse_args()
    rows = [Ran(**row) for row in json.loads(options.json.read_text())] if options.json.exists() else []
    done = {(row.key, row.operator, row.seed) for row in rows}
    for program, operator, seed in draw(options):
        if (program.key, operator, seed) in done:
            continue
        changed = mutate(program, operator, options.fetched)
        if changed is None:
            continue
        row = _start(program, seed, options, operator, changed)
        rows.append(row)
        save(rows, options.json)
        print(line(row), flush=True)
    return 0


def draw(options: argparse.Namespace) -> list[tuple[Program, str, int]]:
    """All that is to be started, in an order that does not depend on what was found so far."""
    programs = choose(options.half, options.ids)
    drawn = [(program, *one) for program in programs for one in work(options, program)]
    if options.what == "mutants":
        random.Random(options.half).shuffle(drawn)
    return drawn


def work(options: argparse.Namespace, program: Program) -> list[tuple[str, int]]:
    """Operators and seeds. The original, started as the mutants are, without a companion, is the operator "none"."""
    if options.what == "healthy":
        return [("", 0)]
    if options.what == "plain":
        return [("none", 0)]
    if not program.is_mutated:
        return []
    if options.what == "baseline":
        return [("none", seed) for seed in range(options.seeds)]
    globs = options.operators.split(",")
    return [(name, 0) for name in OPERATORS if any(fnmatchcase(name, glob) for glob in globs)]


def choose(half: str, ids: str) -> list[Program]:
    """The programs that the globs name."""
    if half == "development":
        from benchmarks.strangers.development import PROGRAMS
    else:
        from benchmarks.strangers.held_out import PROGRAMS
    return [p for p in PROGRAMS if any(fnmatchcase(p.key, glob) for glob in ids.split(","))]


def mutate(program: Program, operator: str, fetched: Path) -> dict[str, str] | None:
    """The changed files; None where the operator finds no place."""
    if operator in ("", "none"):
        return {}
    for name in (program.script, *program.files):
        source = (fetched / program.repository.replace("/", "+") / name).read_text()
        changed = OPERATORS[operator].apply(source)
        if changed is not None:
            return {name: changed}
    return None


def _start(program: Program, seed: int, options: argparse.Namespace, operator: str, changed: dict[str, str]) -> Ran:
    start = "".join(char if char.isalnum() else "-" for char in program.key)[:40]
    name = f"{start}-{zlib.crc32(program.key.encode()):08x}-{operator or 'healthy'}-{seed}"
    if options.keep is not None:
        into = options.keep / name
        shutil.rmtree(into, ignore_errors=True)
        return run(program, seed, options.fetched, into, operator, changed)
    with tempfile.TemporaryDirectory(prefix="strangers-") as scratch:
        return run(program, seed, options.fetched, Path(scratch) / name, operator, changed)


def line(row: Ran) -> str:
    """One row for the terminal."""
    causes = ", ".join(f"{code}@{first}" for code, _, first, *_ in row.causes[:3])
    loss = "→".join(f"{value:.3g}" for value in row.loss)
    said = causes or ", ".join(row.symptoms) or row.message[:90]
    error = " ERROR " + row.error.splitlines()[-1][:120] if row.error else ""
    metric = "" if row.metric is None else f" metric {row.metric:g}"
    return (
        f"{row.key[:60]:<60} {row.operator:<22} {row.state:<19} {said} | {row.num_steps} steps, loss {loss}{metric}, "
        f"{row.seconds:.0f} s{error}"
    )


if __name__ == "__main__":
    sys.exit(main())
