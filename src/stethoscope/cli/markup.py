"""A diagnosis for other readers: Markdown for a pull request, workflow commands for GitHub Actions.

Names come from outside: in Markdown every character that could mean something is escaped, in workflow
commands line ends and separators are, so that no layer can be called something that the reader obeys.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from stethoscope.record import Finding, Severity, plural, printable
from stethoscope.views.common.evidence import suspect_figure
from stethoscope.views.common.numbers import count, number
from stethoscope.views.lines.verdict import extent_text, since

if TYPE_CHECKING:
    from stethoscope.explain import Diagnosis, Verdict
    from stethoscope.store import Run

_COMMANDS = {Severity.CRITICAL: "error", Severity.WARNING: "warning", Severity.INFO: "notice"}


def markdown(diagnosis: Diagnosis, run: Run) -> str:
    """Headed by the verdict; the first cause with its evidence, then the others."""
    out = [f"### Stethoscope: {_plain(run.name)}", ""]
    looked = diagnosis.looked_at
    notes = diagnosis.notes
    verdict = diagnosis.verdict
    if not diagnosis.causes:
        out += [
            f"**{verdict.state.label}**: {_plain(verdict.text)} {extent_text(looked)}",
            "",
            *state_markdown(verdict),
        ]
        out += ["Worth knowing:", ""] if notes else []
    for cause in diagnosis.causes:
        out += _cause(cause)
        followed = diagnosis.followed.get(cause.code, ())
        out += [f"{index}. step {count(f.first_step)}: {_plain(f.message)}" for index, f in enumerate(followed, 1)]
        out += [""] if followed else []
    out += [f"- {_plain(note.message)} ({_code(note.code)}, {since(note)})" for note in notes]
    return "\n".join(out).rstrip() + "\n"


def state_markdown(verdict: Verdict) -> list[str]:
    """What shows a verdict without a cause: its numbers, what was ruled out, the line of code that leads on."""
    out = []
    if verdict.evidence:
        out += ["| | before | after |", "| --- | ---: | ---: |"]
        out += [f"| {_plain(e.label)} | {number(e.before)} | {number(e.value)} |" for e in verdict.evidence]
        out += [""]
    for head, found in verdict.weighed:
        out += [f"{head.capitalize()}:", "", *(f"- {_plain(one.text)} {suspect_figure(one)}" for one in found), ""]
    if verdict.line:
        out += [f"{verdict.purpose.capitalize()}:", "", "```python", verdict.line, "```", ""]
    return out


def _cause(cause: Finding) -> list[str]:
    sure = "" if cause.confidence >= 0.995 else f", {cause.confidence:.0%} sure"
    out = [f"**{cause.severity}** {_code(cause.code)}, {since(cause)}{sure}: {_plain(cause.message)}", ""]
    if cause.evidence:
        out += ["| | before | after |", "| --- | ---: | ---: |"]
        out += [
            f"| {_plain(e.label)} | {number(e.before)} | {number(e.value)} {_plain(e.unit)} |" for e in cause.evidence
        ]
        out += [""]
    if cause.remedy:
        code = "\n".join(printable(line, limit=2000) for line in cause.remedy.strip().splitlines())
        fence = "`" * max([3, *(len(ticks) + 1 for ticks in re.findall("`+", code))])
        out += ["Try", "", f"{fence}python", code, fence, ""]
    return out


def github(diagnosis: Diagnosis, run: Run) -> str:
    """One workflow command a finding; a notice that there is nothing where there is nothing."""
    first = []
    if not diagnosis.causes:
        # Trouble that nobody can explain is a warning at least; a finding below Warning is a notice of its own.
        verdict, steps = diagnosis.verdict, plural(diagnosis.looked_at.num_steps, "step")
        level = _COMMANDS[verdict.severity] if verdict.state.is_trouble else "notice"
        said = f"{verdict.state.label}: {verdict.text} {steps}, run {run.id}."
        said += f"\n{verdict.purpose.capitalize()}: {verdict.line}" if verdict.line else ""
        first = [f"::{level} title=stethoscope::{_data(said)}\n"]
    followed = {id(f) for group in diagnosis.followed.values() for f in group}
    shown = [
        *diagnosis.causes,
        *(f for f in diagnosis.findings if f not in diagnosis.causes and id(f) not in followed),
    ]
    out = first
    for finding in shown:
        text = f"{finding.message} ({since(finding)}, run {run.id})"
        if finding.remedy:
            text += f"\nTry: {finding.remedy}"
        title = _property(printable(finding.code))
        out.append(f"::{_COMMANDS[finding.severity]} title={title}::{_data(text)}\n")
    return "".join(out)


def _data(text: str) -> str:
    lines = [printable(line, limit=4000) for line in text.splitlines()]
    return "%0A".join(line.replace("%", "%25") for line in lines)


def _property(text: str) -> str:
    return _data(text).replace(":", "%3A").replace(",", "%2C")


def _plain(text: str) -> str:
    """Text in Markdown that means only itself."""
    return re.sub(r"([\\`*_{}\[\]<>()#+!|~&@])", r"\\\1", printable(text, limit=2000))


def _code(text: str) -> str:
    return "`" + printable(text).replace("`", "'") + "`"
