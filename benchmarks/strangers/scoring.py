"""What mutants did to their programs, and what was said of it."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

from benchmarks.strangers.operators import OPERATORS
from benchmarks.strangers.program import Program
from benchmarks.strangers.reading import Ran

FIRST: int = 2
"""A reader looks at the first two causes."""


@dataclasses.dataclass
class Judged:
    """One mutant."""

    ran: Ran
    harmed: bool | None
    """None where there is no measure of it."""
    outcome: str
    """"right", "trouble, no cause", "wrong cause", "cannot tell", "clean"."""
    baseline: tuple[float, float]
    value: float


def measure(row: Ran, program: Program) -> float:
    """More is worse. A run that broke off, or has no number, is as bad as can be."""
    if program.metric:
        if row.metric is None or not math.isfinite(row.metric):
            return math.inf
        return -row.metric if program.higher_is_better else row.metric
    return row.loss[1] if row.loss and math.isfinite(row.loss[1]) else math.inf


def judge(rows: Sequence[Ran], programs: Sequence[Program]) -> list[Judged]:
    """Every mutant against runs of its original with other seeds."""
    by_key = {program.key: program for program in programs}
    judged = []
    for key, program in by_key.items():
        own = [row for row in rows if row.key == key]
        originals = [row for row in own if row.operator == "none"]
        # A run that the clock ended has not come as far, so its measure says nothing.
        if len(originals) < 2 or any(row.is_cut or row.error for row in originals):
            continue
        base = sorted(measure(row, program) for row in originals)
        best, worst = base[0], base[-1]
        limit = worst + (worst - best)
        for row in own:
            never_began = row.error and not row.num_steps and row.operator != "no_step"
            if row.operator in ("", "none") or row.is_cut or never_began:
                continue
            operator = OPERATORS[row.operator]
            value = measure(row, program)
            known = bool(program.metric) or not operator.alters_loss
            judged.append(Judged(row, value > limit if known else None, outcome(row), (best, worst), value))
    return judged


def outcome(row: Ran) -> str:
    """What a reader is told, in one word."""
    codes = [cause[0] for cause in row.causes]
    right = OPERATORS[row.operator].codes
    if any(code in right for code in codes[:FIRST]):
        return "right"
    if codes:
        return "wrong cause"
    if row.state == "trouble_unexplained":
        return "trouble, no cause"
    return "clean" if row.state == "learns" else "cannot tell"
