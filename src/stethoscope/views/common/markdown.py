"""Pieces of Markdown that every report shares.

Names come from outside: every character that could mean something is escaped, so that no layer can be called something that
the reader obeys.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from stethoscope.explain.state import Verdict
from stethoscope.record import Evidence, printable
from stethoscope.views.common.evidence import suspect_figure
from stethoscope.views.common.numbers import number


def escaped(text: str) -> str:
    """Text that means only itself."""
    return re.sub(r"([\\`*_\[\]<>#|~&@])", r"\\\1", printable(text, limit=2000))


def inline_code(text: str) -> str:
    """A name as code, in one line."""
    return "`" + printable(text).replace("`", "'") + "`"


def code_block(purpose: str, code: str) -> list[str]:
    """Code under what it is for; the fence is longer than any row of backticks in it."""
    lines = "\n".join(printable(line, limit=2000) for line in code.strip().splitlines())
    fence = "`" * max([3, *(len(ticks) + 1 for ticks in re.findall("`+", lines))])
    return [purpose, "", f"{fence}python", lines, fence, ""]


def evidence_table(evidence: Iterable[Evidence]) -> list[str]:
    """What was measured, before and after; nothing of nothing."""
    rows = [e for e in evidence if e.value is not None or e.before is not None]
    if not rows:
        return []
    out = ["| evidence | before | after |", "| --- | ---: | ---: |"]
    for e in rows:
        unit = f" {escaped(e.unit)}" if e.unit else ""
        out.append(f"| {escaped(e.label)} | {number(e.before)} | **{number(e.value)}**{unit} |")
    return [*out, ""]


def state_markdown(verdict: Verdict) -> list[str]:
    """What shows a verdict without a cause: its numbers, what was ruled out, the line of code that leads on."""
    out = evidence_table(verdict.evidence)
    for head, found in verdict.weighed:
        out += [f"{head.capitalize()}:", "", *(f"- {escaped(one.text)} {suspect_figure(one)}" for one in found), ""]
    return out + (code_block(f"{verdict.purpose.capitalize()}:", verdict.line) if verdict.line else [])
