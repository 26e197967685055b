"""The tables of results/strangers.md: `python -m benchmarks.strangers.report rows.json`."""

from __future__ import annotations

import argparse
import itertools
import re
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from benchmarks.strangers import development, held_out
from benchmarks.strangers.operators import OPERATORS
from benchmarks.strangers.program import Program
from benchmarks.strangers.reading import Ran, load
from benchmarks.strangers.scoring import Judged, judge

OUTCOMES: tuple[str, ...] = ("right", "trouble, no cause", "wrong cause", "cannot tell", "clean")
LIMITS: dict[str, str] = {"right": ">= 75%", "wrong cause": "<= 3%", "clean": "<= 5%"}
STATES: dict[str, str] = {
    "learns": "learns",
    "cannot_tell": "cannot tell",
    "trouble_unexplained": "trouble, cause unknown",
}


def live_codes(row: Ran) -> list[str]:
    """Codes of the findings told during training; what closes the run repeats those that hold."""
    return list(dict.fromkeys(re.findall(r"\[(\w+)\]$", "\n".join(row.live), re.MULTILINE)))


def healthy(rows: Sequence[Ran], programs: Sequence[Program]) -> str:
    """A line a repository and state; alarms by name."""
    keys = {program.key for program in programs}
    own = [row for row in rows if not row.operator and row.key in keys]
    ran = [row for row in own if row.num_steps and not row.error]
    lines = ["| repository | program | steps | verdict | told live |", "| --- | --- | --- | --- | --- |"]
    quiet: dict[tuple[str, str], list[str]] = {}
    for row in ran:
        said = ", ".join(cause[0] for cause in row.causes) or ", ".join(row.symptoms)
        if row.state in ("learns", "cannot_tell") and not live_codes(row):
            quiet.setdefault((row.repository, STATES[row.state]), []).append(f"{short(row.key)} ({row.num_steps})")
        else:
            state = f"**{STATES.get(row.state, 'trouble')}**: {said}" if said else STATES[row.state]
            told = ", ".join(live_codes(row)) or "-"
            lines.append(f"| {row.repository} | {short(row.key)} | {row.num_steps} | {state} | {told} |")
    for (repository, state), names in sorted(quiet.items()):
        lines.append(f"| {repository} | {', '.join(sorted(names))} | | {state} | - |")
    states = Counter(row.state for row in ran)
    lines += ["", f"{len(ran)} ran, of {len({row.repository for row in ran})} repositories: {dict(states)}."]
    lines += [f"Not usable: {row.key}: {row.error.splitlines()[0]}" for row in own if row not in ran]
    return "\n".join(lines)


def short(key: str) -> str:
    """A program without the options that only make it small."""
    words = key.split(":", 1)[1].split()
    kept = [words[0]]
    named = ("--type", "--method", "--policy", "--algo", "--model", "--network")
    for name, value in itertools.pairwise(words):
        if name in named and value not in ("resnet18", "maf"):
            kept.append(value)
    return " ".join(kept)


def shares(judged: Sequence[Judged]) -> str:
    """Outcomes of those that were harmed, against their limits."""
    harmed = [one for one in judged if one.harmed]
    count = Counter(one.outcome for one in harmed)
    lines = ["| outcome | mutants | share | limit |", "| --- | --- | --- | --- |"]
    lines += [
        f"| {name} | {count[name]} | {count[name] / len(harmed):.1%} | {LIMITS.get(name, '')} |" for name in OUTCOMES
    ]
    unknown, unharmed = (sum(one.harmed is value for one in judged) for value in (None, False))
    blamed = Counter(one.outcome for one in judged if one.harmed is False)
    lines += [
        "",
        f"{len(judged)} mutants of {len({one.ran.key for one in judged})} programs by "
        f"{len({one.ran.operator for one in judged})} operators: {len(harmed)} harmed, {unharmed} not, {unknown} "
        f"without a measure of it. Of those not harmed: {dict(blamed)}.",
    ]
    return "\n".join(lines)


def by_operator(judged: Sequence[Judged]) -> str:
    """Operator by outcome."""
    harmed = [one for one in judged if one.harmed]
    lines = [
        "| operator | right | no cause | wrong | cannot tell | clean | codes said, where right |",
        "| --- | --- | --- | --- | --- | --- | --- |",
    ]
    for operator in OPERATORS:
        own = [one for one in harmed if one.ran.operator == operator]
        if not own:
            continue
        count = Counter(one.outcome for one in own)
        right = OPERATORS[operator].codes
        said = Counter(
            next(code for code in (cause[0] for cause in one.ran.causes) if code in right)
            for one in own
            if one.outcome == "right"
        )
        codes = ", ".join(f"{code} {n}" for code, n in said.most_common())
        lines.append(f"| {operator} | " + " | ".join(str(count[name] or "") for name in OUTCOMES) + f" | {codes} |")
    return "\n".join(lines)


def missed(judged: Sequence[Judged]) -> str:
    """Every harmed mutant that was called clean, blamed on another cause, or left open."""
    lines = ["| program | mutation | metric (originals) | outcome | said |", "| --- | --- | --- | --- | --- |"]
    listed = ("clean", "wrong cause", "cannot tell")
    harmed = [one for one in judged if one.harmed and one.outcome in listed]
    for one in sorted(harmed, key=lambda one: (listed.index(one.outcome), one.ran.operator)):
        said = ", ".join(cause[0] for cause in one.ran.causes[:2]) or re.split(r"[:;]|, where", one.ran.message)[0]
        best, worst = one.baseline
        numbers = f"{abs(one.value):.3g} ({abs(best):.3g} to {abs(worst):.3g})"
        name = f"{one.ran.key.split(':')[0]}:{short(one.ran.key)}"
        lines.append(f"| {name} | {one.ran.operator} | {numbers} | {one.outcome} | {said.rstrip('.')[:90]} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("rows", type=Path)
    rows = load(parser.parse_args().rows)
    halves = (("Development", development.PROGRAMS), ("Held-out", held_out.PROGRAMS))
    for name, programs in halves:
        print(f"\n## {name} half: healthy\n\n{healthy(rows, programs)}")
    for name, programs in halves:
        judged = judge(rows, programs)
        tables = (shares(judged), by_operator(judged), missed(judged))
        print(f"\n## {name} half: mutants\n\n" + "\n\n".join(tables))


if __name__ == "__main__":
    main()
