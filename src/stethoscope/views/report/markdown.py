"""The report as Markdown: for a pull request, a chat, an issue."""

from __future__ import annotations

import re

from stethoscope.explain.context_evidence import context_evidence
from stethoscope.explain.state import Verdict
from stethoscope.record import Evidence, Finding, Severity, printable
from stethoscope.views.common import numbers
from stethoscope.views.common.evidence import suspect_figure
from stethoscope.views.common.open_run import OpenRun
from stethoscope.views.pagedata import facts
from stethoscope.views.pagedata.verdict import MAX_EVIDENCE, followed_entries, why

_SIGNS = {Severity.CRITICAL: "◆", Severity.WARNING: "▲", Severity.INFO: "●"}


def report_markdown(viewed: OpenRun) -> str:
    """Verdict, evidence, what followed, the other findings, how it was measured."""
    run, diagnosis = viewed.run, viewed.diagnosis
    lines = [f"# {_text(run.name)} `{_code(run.id)}`", "", f"{_text(facts.state_words(run))}.", ""]
    if diagnosis.causes:
        cause, *others = diagnosis.causes
        lines += _cause_lines(cause, context_evidence(run, cause, MAX_EVIDENCE - len(cause.evidence)))
        lines += ["## What followed", ""]
        for index, entry in enumerate(followed_entries(run, cause, diagnosis.followed.get(cause.code, ())), 1):
            lines.append(f"{index}. **{entry['step']:,}** {_text(str(entry['text']))}")
        lines.append("")
        rest = [*others, *diagnosis.notes]
    else:
        lines += _state_lines(diagnosis.verdict)
        rest = list(diagnosis.notes)
    if rest:
        lines += ["## Other findings", ""]
        lines += [
            f"- {_SIGNS[f.severity]} {_text(f.message)} (`{_code(f.code)}`, since step {f.first_step:,})" for f in rest
        ]
        lines.append("")
    parts = [
        " ".join(filter(None, (p.get("before"), p["strong"], p["rest"]))) for p in facts.status_parts(viewed, diagnosis)
    ]
    lines += ["## How it was measured", "", ". ".join(parts) + ".", ""]
    return "\n".join(lines)


def _state_lines(verdict: Verdict) -> list[str]:
    """A verdict without a cause: its state and sentence, its numbers, what was ruled out, what leads on."""
    rest = " ".join(filter(None, (verdict.limits, *verdict.reservations)))
    lines = [
        f"## {_text(verdict.message)}",
        "",
        " ".join(filter(None, (f"**{verdict.state.label}**.", _text(rest)))),
        "",
    ]
    if verdict.evidence:
        lines += ["| evidence | before | after |", "| --- | ---: | ---: |"]
        lines += [
            f"| {_text(e.label)} | {numbers.number(e.before)} | **{numbers.number(e.value)}** |"
            for e in verdict.evidence
        ]
        lines.append("")
    for head, found in verdict.weighed:
        lines += [f"{head.capitalize()}:", "", *(f"- {_text(one.text)} {suspect_figure(one)}" for one in found), ""]
    if verdict.line:
        lines += [f"{verdict.purpose.capitalize()}", "", "```python", verdict.line, "```", ""]
    return lines


def _cause_lines(cause: Finding, beside: list[Evidence]) -> list[str]:
    lines = [f"## {_SIGNS[cause.severity]} {_text(cause.message)}", ""]
    sure = f", {numbers.percent(cause.confidence)} sure" if cause.confidence < 0.995 else ""
    lines += [f"{cause.severity}, `{_code(cause.code)}`{sure}. {_text(why(cause, beside))}", ""]
    shown = [e for e in (*cause.evidence, *beside) if e.value is not None or e.before is not None]
    if shown:
        lines += ["| evidence | before | after |", "| --- | ---: | ---: |"]
        for e in shown:
            lines.append(f"| {_text(e.label)} | {numbers.number(e.before)} | **{numbers.number(e.value)}** |")
        lines.append("")
    if cause.remedy:
        fence = "`" * max(3, max((len(run) for run in re.findall("`+", cause.remedy)), default=0) + 1)
        lines += ["Try", "", f"{fence}python", printable(cause.remedy.strip(), 2000).replace("\\n", "\n"), fence, ""]
    return lines


def _text(words: str) -> str:
    """Words that Markdown does not read as markup."""
    return re.sub(r"([\\`*_\[\]<>|#])", r"\\\1", printable(words, 1000))


def _code(words: str) -> str:
    return printable(words, 200).replace("`", "'")
