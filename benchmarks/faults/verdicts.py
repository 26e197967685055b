"""`python -m benchmarks.faults.verdicts`: which of the four states each program gets.

A healthy training may be said to learn, or that it cannot be told; it may never be said to be in trouble. A sick one may
never be said to learn. Beside the catalogue stand harmful faults that have no code at all (`harmed`), and what symptoms
say of the catalogue's faults with every detector switched off.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import warnings
from collections import Counter
from collections.abc import Iterator
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Final, NamedTuple

import torch
from benchmarks.faults import harmed
from benchmarks.faults.catalogue import FAULTS, Program, load_programs

import stethoscope
from stethoscope.explain import State, conclude
from stethoscope.store import open_run

HARM: Final = 0.1
"""A fault does harm where it costs this much of the accuracy on unseen data, or where validation itself is what is broken."""
ALWAYS_HARM: Final = ("classes in another order in validation",)


class Said(NamedTuple):
    """What one run got."""

    name: str
    group: str
    state: State
    alone: State
    """What the symptoms alone say, with every detector off."""
    message: str


def catalogue(ids: str, *, unseen: bool, seed: int, folder: Path) -> Iterator[Said]:
    """Every program that leaves a run."""
    globs = [one.strip().upper() for one in ids.split(",")]
    for program in load_programs(unseen=unseen).values():
        if not any(fnmatchcase(program.key, one) for one in globs):
            continue
        own = folder / f"{program.key}-{seed}"
        own.mkdir()
        os.environ["STETHOSCOPE_DIR"] = str(own)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            outcome = program.run(seed)
        if outcome.run is not None:
            yield judged(program.key, group_of(program), outcome.run)


def group_of(program: Program) -> str:
    """Healthy, sick, or sick in a way that is advice and never a cause."""
    fault = FAULTS.get(program.of)
    if fault is None:
        return "healthy"
    return "advice" if fault.tier == "A" else "sick"


def without_a_code(ids: str, seed: int, folder: Path) -> Iterator[Said]:
    """Faults without a code, with and without validation; those that do no harm to this net are left out."""
    if ids != "*" and "HARMED" not in ids.upper():
        return
    os.environ["STETHOSCOPE_DIR"] = str(folder)
    for validates, logs in ((False, False), (True, True)):
        shown = "validated" if validates else "loss alone"
        right, accuracy = harmed.train(None, seed, validates=validates, logs_batches=logs)
        assert right.run is not None
        yield judged(f"done right, {shown}", "healthy", right.run)
        for name, fault in harmed.FAULTS.items():
            if name in ALWAYS_HARM and not validates:
                continue
            outcome, score = harmed.train(fault, seed, validates=validates, logs_batches=logs)
            assert outcome.run is not None
            if name in ALWAYS_HARM or accuracy - score > HARM:
                yield judged(f"{name}, {shown}", "without a code", outcome.run)
            else:
                print(f"          {name}, {shown}: no harm ({score:.2f} after {accuracy:.2f})", flush=True)


def judged(name: str, group: str, folder: Path) -> Said:
    """The verdict with every detector, and with none."""
    with open_run(folder) as run:
        verdict = stethoscope.diagnose(run).verdict
        alone = conclude(run, []).verdict
    said = Said(name, group, verdict.state, alone.state, verdict.message)
    print(f"{said.group:<14} {said.state.label:<23} {said.name}: {said.message[:110]}", flush=True)
    return said


def table(found: list[Said]) -> str:
    """Counts by group and state, then every one that is wrong, by name."""
    lines = ["| | programs | learns | trouble, cause known | trouble, cause unknown | cannot tell |"]
    lines += ["| --- | ---: | ---: | ---: | ---: | ---: |"]
    for group in dict.fromkeys(one.group for one in found):
        lines.append(_row(group, [one.state for one in found if one.group == group]))
    for group in ("sick", "without a code"):
        if states := [one.alone for one in found if one.group == group]:
            lines.append(_row(f"{group}, by symptoms alone", states))
    lines += ["", *(f"- {one.group}, said to be {one.state.label}: {one.name}. {one.message}" for one in wrong(found))]
    return "\n".join(lines).rstrip() + "\n"


def _row(name: str, states: list[State]) -> str:
    count = Counter(states)
    return f"| {name} | {len(states)} | " + " | ".join(str(count[state]) for state in State) + " |"


def wrong(found: list[Said]) -> list[Said]:
    """Healthy ones in trouble, sick ones that learn."""
    return [
        one
        for one in found
        if (one.group == "healthy" and one.state.is_trouble)
        or (one.group in ("sick", "without a code") and one.state is State.LEARNS)
    ]


def main() -> int:
    """Prints each verdict and the table; 1 where a healthy program is in trouble."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.faults.verdicts", description=__doc__)
    parser.add_argument("--ids", default="*", help="keys or globs, separated by commas: F01,H0*,harmed")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--set", choices=("first", "second", "both"), default="both")
    parser.add_argument("--every", type=int, default=1, help="measure every Nth step; 0 leaves it to the governor")
    parser.add_argument("--markdown", type=Path, help="write the table here")
    options = parser.parse_args()
    torch.set_num_threads(1)
    os.environ |= {
        "STETHOSCOPE_EVERY": str(options.every),
        "STETHOSCOPE_COMPANION": "inline",
        "STETHOSCOPE_QUIET": "true",
    }
    found: list[Said] = []
    with tempfile.TemporaryDirectory(prefix="stethoscope-verdicts-") as scratch:
        for name, unseen in (("first", False), ("second", True)):
            if options.set in (name, "both"):
                (Path(scratch) / name).mkdir()
                found += catalogue(options.ids, unseen=unseen, seed=options.seed, folder=Path(scratch) / name)
        found += without_a_code(options.ids, options.seed, Path(scratch))
    written = table(found)
    print("\n" + written)
    if options.markdown is not None:
        options.markdown.write_text(written, encoding="utf-8")
    return int(any(one.group == "healthy" for one in wrong(found)))


if __name__ == "__main__":
    sys.exit(main())
