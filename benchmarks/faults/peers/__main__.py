"""`python -m benchmarks.faults.peers`: for each program, what every peer said, then how many faults each found."""

from __future__ import annotations

import argparse
import contextlib
import importlib
import io
import json
import os
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final

import torch
from benchmarks.faults.__main__ import choose
from benchmarks.faults.catalogue import FAULTS, Program
from benchmarks.faults.judging import examine

Said = dict[str, list[str]]
PEERS: Final = {
    "torch alone": "anomaly:alone",
    "anomaly mode": "anomaly:run",
    "Lightning": "trainer:finite",
    "Lightning patience 3": "trainer:patient",
    "cockpit": "instruments:run",
    "TrainCheck": "invariants:run",
}
CANNOT: Final = "cannot run: "
TIERS: Final = {"E": "exact", "S": "statistical", "A": "advice"}


def main() -> int:
    """Run what was asked for and print it."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.faults.peers", description=__doc__)
    parser.add_argument("--ids", default="*", help="keys or globs, separated by commas")
    parser.add_argument(
        "--peers",
        default=",".join(name for name in PEERS if name != "TrainCheck"),
        help="which, separated by commas; TrainCheck takes minutes a program and is run when named",
    )
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--json", type=Path, help="add what was said to this file; what stands there already is not run again"
    )
    options = parser.parse_args()
    torch.set_num_threads(1)
    os.environ["STETHOSCOPE_EVERY"] = "1"
    peers = {"torch alone": load("torch alone"), **{name: load(name) for name in options.peers.split(",")}}
    programs = choose(options.ids)
    told: dict[str, Said] = json.loads(options.json.read_text()) if options.json and options.json.exists() else {}
    for program in programs:
        entry = told.setdefault(program.key, {})
        if "us" not in entry:
            entry["us"] = ours(program, options.seed)
        for name, run in peers.items():
            if name not in entry:
                entry[name] = said(program, options.seed, name, run)
        tell(program, entry)
        if options.json:
            options.json.write_text(json.dumps(told, indent=1) + "\n", encoding="utf-8")
    print("\n" + table(programs, told))
    return 0


def load(name: str) -> Callable[[Program, int], list[str]]:
    """A peer's runner; one that says why not, where its package is missing."""
    module, _, function = PEERS[name].partition(":")
    try:
        return getattr(importlib.import_module(f"benchmarks.faults.peers.{module}"), function)
    except ImportError as error:
        why = f"{CANNOT}{error}"
        return lambda program, seed: [why]


def said(program: Program, seed: int, name: str, run: Callable[[Program, int], list[str]]) -> list[str]:
    """One program under one peer; what it prints is kept away."""
    fault = program.fault
    if fault is not None and "R" in fault.when and name != "torch alone":
        return [f"{CANNOT}its ranks are processes of their own"]
    try:
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
            return run(program, seed)
    except Exception as error:
        return [f"{CANNOT}{type(error).__name__}: {error}"]


def ours(program: Program, seed: int) -> list[str]:
    """Our causes: of the run, or of the checkup where the fault is one for it alone."""
    with tempfile.TemporaryDirectory() as folder:
        verdict = examine(program, seed, Path(folder).resolve())
    fault = program.fault
    causes = verdict.checkup_said if fault is not None and fault.when == "C" else verdict.causes
    advice = verdict.infos if fault is not None and fault.tier == "A" else []
    if fault is not None and not verdict.found:
        return ["not the cause: " + ", ".join(c.code for c in causes)] if causes else []
    return [*(c.code for c in causes), *advice]


def own_words(entry: Mapping[str, Sequence[str]], peer: str) -> list[str]:
    """What a peer said that torch does not say by itself."""
    plain = [] if peer in ("torch alone", "us") else entry.get("torch alone", [])
    return [
        line for line in entry.get(peer, []) if line not in plain and not line.startswith(("not the cause", CANNOT))
    ]


def tell(program: Program, entry: Mapping[str, Sequence[str]]) -> None:
    """One program's lines."""
    what = FAULTS[program.of].code if program.of in FAULTS else "healthy"
    print(f"{program.key} {what}")
    for peer in entry:
        lines = own_words(entry, peer) or [line for line in entry[peer] if line.startswith((CANNOT, "not the cause"))]
        print(f"    {peer:<22} {'; '.join(lines)[:200] or '-'}", flush=True)


def table(programs: Sequence[Program], told: Mapping[str, Said]) -> str:
    """Found by tier, and false alarms."""
    peers = ["us", *dict.fromkeys(peer for key in told for peer in told[key] if peer != "us")]
    head = ["tier", *peers]
    rows = []
    for tier, name in TIERS.items():
        rows.append(
            [name, *(_share([p for p in programs if p.fault and p.fault.tier == tier], told, peer) for peer in peers)]
        )
    rows.append(["all", *(_share([p for p in programs if p.fault], told, peer) for peer in peers)])
    rows.append(
        ["healthy runs that alarm", *(_share([p for p in programs if not p.fault], told, peer) for peer in peers)]
    )
    return "\n".join("| " + " | ".join(row) + " |" for row in [head, ["---"] * len(head), *rows])


def _share(programs: Sequence[Program], told: Mapping[str, Said], peer: str) -> str:
    entries = [told[p.key] for p in programs if peer in told.get(p.key, {})]
    ran = [entry for entry in entries if not any(line.startswith(CANNOT) for line in entry[peer])]
    spoke = sum(bool(own_words(entry, peer)) for entry in ran)
    missing = len(entries) - len(ran)
    return f"{spoke}/{len(ran)}" + (f" ({missing} cannot run)" if missing else "")


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    sys.exit(main())
