"""The report as Markdown: for a pull request, a chat, an issue."""

from __future__ import annotations

from stethoscope.explain.context_evidence import context_evidence
from stethoscope.explain.state import Verdict
from stethoscope.record import Evidence, Finding, Severity
from stethoscope.views.common import numbers, run_status
from stethoscope.views.common.markdown import code_block, escaped, evidence_table, inline_code, state_markdown
from stethoscope.views.common.open_run import OpenRun
from stethoscope.views.pagedata import facts
from stethoscope.views.pagedata.followed import followed_entries
from stethoscope.views.pagedata.verdict import MAX_EVIDENCE, why

_SIGNS = {Severity.CRITICAL: "◆", Severity.WARNING: "▲", Severity.INFO: "●"}


def report_markdown(viewed: OpenRun) -> str:
    """Verdict, evidence, what followed, the other findings, how it was measured."""
    run, diagnosis = viewed.run, viewed.diagnosis
    lines = [f"# {escaped(run.name)} {inline_code(run.id)}", "", f"{escaped(facts.state_words(run))}.", ""]
    if diagnosis.causes:
        cause, *others = diagnosis.causes
        lines += _cause_lines(cause, context_evidence(run, cause, MAX_EVIDENCE - len(cause.evidence)))
        lines += ["## What followed", ""]
        for index, entry in enumerate(followed_entries(run, cause, diagnosis.followed.get(cause.code, ())), 1):
            lines.append(f"{index}. **{entry['step']:,}** {escaped(str(entry['text']))}")
        lines.append("")
        rest = [*others, *diagnosis.notes]
    else:
        lines += _state_lines(diagnosis.verdict)
        rest = list(diagnosis.notes)
    if rest:
        lines += ["## Other findings", ""]
        lines += [
            f"- {_SIGNS[f.severity]} {escaped(f.message)} ({inline_code(f.code)}, since step {f.first_step:,})"
            for f in rest
        ]
        lines.append("")
    measured = ". ".join(map(str, run_status.status_parts(run, diagnosis.looked_at)))
    lines += ["## How it was measured", "", f"{escaped(measured)}.", ""]
    return "\n".join(lines)


def _state_lines(verdict: Verdict) -> list[str]:
    """A verdict without a cause: its state and sentence, its numbers, what was ruled out, what leads on."""
    rest = verdict.caveats
    lines = [
        f"## {escaped(verdict.message)}",
        "",
        " ".join(filter(None, (f"**{verdict.state.label}**.", escaped(rest)))),
        "",
    ]
    return [*lines, *state_markdown(verdict)]


def _cause_lines(cause: Finding, beside: list[Evidence]) -> list[str]:
    lines = [f"## {_SIGNS[cause.severity]} {escaped(cause.message)}", ""]
    sure = f", {numbers.percent(cause.confidence)} sure" if cause.confidence < 0.995 else ""
    lines += [f"{cause.severity}, {inline_code(cause.code)}{sure}. {escaped(why(cause, beside))}", ""]
    lines += evidence_table([*cause.evidence, *beside])
    return lines + (code_block("Try", cause.remedy) if cause.remedy else [])
