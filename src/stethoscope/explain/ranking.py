"""From findings to causes: what comes first in time and in the chain of effects is the cause, the rest follows from it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from fnmatch import fnmatchcase
from typing import Final

from stethoscope.detect.effects import UNIT_TROUBLE
from stethoscope.detect.registry import known
from stethoscope.explain.run_context import RunContext
from stethoscope.record import Finding, Severity

INPUT_SIZE: Final = ("unscaled_inputs", "inputs_too_small")
SLACK_STEPS: Final = 5
"""A consequence may be noticed this many steps before its cause: detectors are sure at different times."""


def rank_causes(
    findings: Iterable[Finding], around: RunContext | None = None
) -> tuple[tuple[Finding, ...], dict[str, tuple[Finding, ...]]]:
    """Causes in order, and from a cause's code to all that follows from it, directly or through something between.

    What can follow from several is told under the one that began last before it.
    """
    around = around or RunContext()
    serious = [f for f in findings if f.severity is not Severity.INFO]
    parents = [_find_parent(number, serious, around) for number in range(len(serious))]
    roots = [_root(number, parents) for number in range(len(serious))]
    causes = [f for number, f in enumerate(serious) if roots[number] == number]
    causes.sort(key=lambda f: (-f.severity.rank, f.first_step, -f.confidence, f.code))
    followed: dict[str, list[Finding]] = {}
    for number, finding in enumerate(serious):
        if roots[number] != number:
            followed.setdefault(serious[roots[number]].code, []).append(finding)
    return tuple(causes), {code: tuple(sorted(found, key=lambda f: f.first_step)) for code, found in followed.items()}


def _find_parent(number: int, serious: Sequence[Finding], around: RunContext) -> int | None:
    """The finding from which this one follows: of several the latest, of equally late ones the first."""
    own = serious[number]
    possible = [index for index, cause in enumerate(serious) if index != number and _can_follow(own, cause, around)]
    return max(possible, key=lambda index: (serious[index].first_step, -index), default=None)


def _root(number: int, parents: Sequence[int | None]) -> int:
    """Where the chain of causes ends; in a circle, at its first finding."""
    seen = [number]
    while (parent := parents[seen[-1]]) is not None:
        if parent in seen:
            return min(seen[seen.index(parent) :])
        seen.append(parent)
    return seen[-1]


def _can_follow(other: Finding, cause: Finding, around: RunContext) -> bool:
    if other.code not in effects_of(cause.code) or has_own_root(other, cause, around):
        return False
    # Two that could each lead to the other: the earlier one is the cause.
    mutual = cause.code in effects_of(other.code)
    slack = 0 if mutual else SLACK_STEPS
    if mutual and other.first_step == cause.first_step:
        return other.code > cause.code
    return other.first_step + slack >= cause.first_step


def effects_of(code: str) -> tuple[str, ...]:
    """What can follow from a code, as its detector declares it."""
    declared = known().codes.get(code)
    return declared.leads_to if declared is not None else ()


def acts_through_updates(code: str) -> bool:
    """Whether a code does harm only by the updates that it makes, as its detector declares it."""
    declared = known().codes.get(code)
    return declared is not None and declared.through_updates


def has_own_root(other: Finding, cause: Finding, around: RunContext) -> bool:
    """Whether the run shows that one finding does not come from another, although it might by its kind."""
    # A state of units at the very first sample was there before any update could make it.
    if other.code in UNIT_TROUBLE and acts_through_updates(cause.code) and around.first_step is not None:
        return other.first_step <= around.first_step
    # Behind a normalization nothing is known of the size of the inputs.
    if cause.code in INPUT_SIZE and other.code in UNIT_TROUBLE and other.sites:
        return all(around.is_shielded(site) for site in other.sites)
    # Steps that became too large when the rate jumped have the jump for a cause, not what lay long before it.
    if other.code == "update_too_large":
        near = [step for step in around.rate_jumps if 0 <= other.first_step - step <= SLACK_STEPS]
        return bool(near) and cause.first_step + SLACK_STEPS < near[-1]
    return False


def apply_ignores(findings: Iterable[Finding], ignore: Iterable[str], expect: Iterable[str]) -> list[Finding]:
    """Without what the user ignores; what they expect becomes Info."""
    ignore, expect = tuple(ignore), tuple(expect)
    kept = []
    for finding in findings:
        if any(is_named(finding, rule) for rule in ignore):
            continue
        if any(is_named(finding, rule) for rule in expect):
            finding = Finding.from_json(finding.to_json() | {"severity": str(Severity.INFO)})
        kept.append(finding)
    return kept


def is_named(finding: Finding, rule: str) -> bool:
    """Whether a rule of `ignore` or `expect`, `code` or `code:site-glob`, means this finding."""
    code, _, pattern = rule.partition(":")
    if not fnmatchcase(finding.code, code):
        return False
    return not pattern or any(fnmatchcase(site, pattern) or site.startswith(pattern + ".") for site in finding.sites)
