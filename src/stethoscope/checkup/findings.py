"""Findings of a checkup: before the first step, so at step 0."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from stethoscope.record import Evidence, Finding, Severity

CRITICAL, WARNING, INFO = Severity.CRITICAL, Severity.WARNING, Severity.INFO


def found(
    code: str,
    severity: Severity,
    message: str,
    *,
    sites: Sequence[str] = (),
    numbers: Mapping[str, float] | None = None,
    remedy: str = "",
    confidence: float = 1.0,
) -> Finding:
    """One finding, with its numbers as evidence."""
    evidence = tuple(Evidence(label, float(value)) for label, value in (numbers or {}).items())
    return Finding(code, severity, message, 0, 0, tuple(dict.fromkeys(sites)), evidence, remedy, confidence)


def listed(names: Sequence[str], limit: int = 3) -> str:
    """Names for a sentence: "a, b and c", or "a, b, c and 5 more"."""
    names = list(dict.fromkeys(names))
    if len(names) > limit:
        return f"{', '.join(names[:limit])} and {len(names) - limit} more"
    if len(names) < 2:
        return "".join(names)
    return f"{', '.join(names[:-1])} and {names[-1]}"
