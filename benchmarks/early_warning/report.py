"""The tables: one line a tool, one line a divergence."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from typing import Final

from benchmarks.early_warning.measuring import Measured
from benchmarks.early_warning.programs import PROGRAMS

OURS: Final = "Stethoscope, suspicion or finding"
STANDING: Final = "Stethoscope, what stood from then to the break"
FOUND: Final = "Stethoscope, finding alone"
Alarms = Callable[[Measured], list[int]]


def tools(found: Sequence[Measured]) -> dict[str, Alarms]:
    """By name, the steps at which a tool first warned, or warned again."""
    named: dict[str, Alarms] = {
        OURS: lambda one: sorted(said[1] for said in (one.suspected, one.told) if said is not None),
        STANDING: lambda one: [since for since, until in one.spells if until >= (one.break_at or 0)],
        FOUND: lambda one: [one.told[1]] if one.told is not None else [],
    }
    for name in dict.fromkeys(name for one in found for name in one.alarms):
        named[name] = lambda one, name=name: one.alarms.get(name, [])  # type: ignore[misc]
    return named


def line(one: Measured) -> str:
    """One training as it comes."""
    said = [
        f"{word} {said[0]} at {said[1]}" for word, said in (("suspected", one.suspected), ("told", one.told)) if said
    ]
    form = f"breaks at {one.break_at}" if one.is_bad else "healthy"
    changed = "" if one.same_losses else "; ITS LOSSES DIFFER UNDER WATCH"
    return f"{one.program} seed {one.seed} {form}: {', '.join(said) or 'nothing said'}{changed}"


def text(found: Sequence[Measured]) -> str:
    """Both tables."""
    broken = [one for one in found if one.is_bad and one.break_at is not None]
    twins = {(one.program, one.seed): one for one in found if not one.is_bad}
    healthy = [twins[one.program, one.seed] for one in broken]
    if not broken:
        return "Nothing diverged."
    head = (
        f"{len(broken)} divergences by {len({PROGRAMS[one.program].mechanism for one in broken})} mechanisms; "
        f"{sum(one.same_losses for one in [*broken, *healthy])} of {2 * len(broken)} trainings have the same losses without us."
    )
    lines = [
        head,
        "",
        "| tool | warned before the break | lead in steps, median (all) | healthy twins warned | warnings per healthy run | told apart |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    for name, alarms in tools(found).items():
        leads, false, apart = [], 0, []
        for one, twin in zip(broken, healthy, strict=True):
            at = one.break_at or 0
            early = [step for step in alarms(one) if step < at]
            false += len(alarms(twin))
            if early:
                leads.append(at - early[0])
                if not alarms(twin):
                    apart.append(at - early[0])
        warned = sum(bool(alarms(twin)) for twin in healthy)
        each = " ".join(map(str, sorted(apart)))
        median = f"{statistics.median(leads):.0f}" if leads else "–"
        told = (
            f"{len(apart)} of {len(broken)}, lead {statistics.median(apart):.0f} ({each})"
            if apart
            else f"0 of {len(broken)}"
        )
        lines.append(
            f"| {name} | {len(leads)} of {len(broken)} | {median} ({' '.join(map(str, sorted(leads)))}) | {warned} of {len(healthy)} "
            f"| {false / len(healthy):.2f} | {told} |"
        )
    return "\n".join([*lines, "", *_one_by_one(broken, found)])


def _one_by_one(broken: Sequence[Measured], found: Sequence[Measured]) -> list[str]:
    others = [name for name in tools(found) if name not in (OURS, STANDING, FOUND)]
    lines = [
        f"| program | seed | breaks at | suspected | found | {' | '.join(others)} |",
        f"| --- | --- | --- | --- | --- | {' | '.join('---' for _ in others)} |",
    ]
    for one in broken:
        at = one.break_at or 0
        said = [f"{said[1]} ({said[0]})" if said else "–" for said in (one.suspected, one.told)]
        first = [str(one.alarms[name][0]) if one.alarms.get(name) else "–" for name in others]
        lines.append(f"| {one.program} | {one.seed} | {at} | {said[0]} | {said[1]} | {' | '.join(first)} |")
    return lines
