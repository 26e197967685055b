"""A diagnosis for other readers: Markdown for a pull request, workflow commands for GitHub Actions.

Names come from outside: in workflow commands line ends and separators are escaped, so that no layer can be called something
that the reader obeys.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from stethoscope.record import Finding, Severity, plural, printable
from stethoscope.views.common.markdown import code_block, escaped, evidence_table, inline_code, state_markdown
from stethoscope.views.common.numbers import count
from stethoscope.views.lines.verdict import extent_text, since

if TYPE_CHECKING:
    from stethoscope.explain import Diagnosis
    from stethoscope.store import Run

_COMMANDS = {Severity.CRITICAL: "error", Severity.WARNING: "warning", Severity.INFO: "notice"}


def markdown(diagnosis: Diagnosis, run: Run) -> str:
    """Headed by the verdict; the first cause with its evidence, then the others."""
    out = [f"### Stethoscope: {escaped(run.name)}", ""]
    looked = diagnosis.looked_at
    notes = diagnosis.notes
    verdict = diagnosis.verdict
    if not diagnosis.causes:
        out += [
            f"**{verdict.state.label}**: {escaped(verdict.text)} {extent_text(looked)}",
            "",
            *state_markdown(verdict),
        ]
        out += ["Worth knowing:", ""] if notes else []
    for cause in diagnosis.causes:
        out += _cause_markdown(cause)
        followed = diagnosis.followed.get(cause.code, ())
        out += [f"{index}. step {count(f.first_step)}: {escaped(f.message)}" for index, f in enumerate(followed, 1)]
        out += [""] if followed else []
    out += [f"- {escaped(note.message)} ({inline_code(note.code)}, {since(note)})" for note in notes]
    return "\n".join(out).rstrip() + "\n"


def _cause_markdown(cause: Finding) -> list[str]:
    sure = "" if cause.confidence >= 0.995 else f", {cause.confidence:.0%} sure"
    out = [f"**{cause.severity}** {inline_code(cause.code)}, {since(cause)}{sure}: {escaped(cause.message)}", ""]
    out += evidence_table(cause.evidence)
    return out + (code_block("Try", cause.remedy) if cause.remedy else [])


def github(diagnosis: Diagnosis, run: Run) -> str:
    """One workflow command a finding; a notice that there is nothing where there is nothing."""
    first = []
    if not diagnosis.causes:
        # Trouble without a known cause is a warning at least; a finding below Warning is a notice of its own.
        verdict, steps = diagnosis.verdict, plural(diagnosis.looked_at.num_steps, "step")
        level = _COMMANDS[verdict.severity] if verdict.state.is_trouble else "notice"
        said = f"{verdict.state.label}: {verdict.text} {steps}, run {run.id}."
        said += f"\n{verdict.purpose.capitalize()}: {verdict.line}" if verdict.line else ""
        first = [f"::{level} title=stethoscope::{_command_data(said)}\n"]
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
        title = _command_property(printable(finding.code))
        out.append(f"::{_COMMANDS[finding.severity]} title={title}::{_command_data(text)}\n")
    return "".join(out)


def _command_data(text: str) -> str:
    lines = [printable(line, limit=4000) for line in text.splitlines()]
    return "%0A".join(line.replace("%", "%25") for line in lines)


def _command_property(text: str) -> str:
    return _command_data(text).replace(":", "%3A").replace(",", "%2C")
