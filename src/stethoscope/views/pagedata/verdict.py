"""The verdict for the page: sentence, reasons, evidence with its trends, what followed, the other findings."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, TypedDict

from stethoscope.detect.symptoms import Symptom
from stethoscope.explain.context_evidence import context_evidence, loss_words
from stethoscope.explain.diagnosis import Diagnosis
from stethoscope.record import Evidence, Finding, metrics
from stethoscope.store import Run
from stethoscope.views.common import numbers
from stethoscope.views.common.evidence import evidence_series, evidence_trend, suspect_figure, window_from
from stethoscope.views.common.open_run import OpenRun
from stethoscope.views.pagedata.followed import Followed, followed_entries, lasting, signs
from stethoscope.views.pagedata.packing import Number, Packed, number, spark, text

MAX_EVIDENCE: Final = 5
MAX_ROWS: Final = 200
_SPARK_BINS: Final = 96


class FindingRow(TypedDict):
    """A finding as one row of a list."""

    code: str
    severity: str
    message: str
    firstStep: int
    lastStep: int
    rank: int | None
    sites: list[str]
    numSites: int
    numFollowed: int
    remedy: str


class EvidenceData(TypedDict):
    """A number that shows a cause, before and after, with its trend where a series is known."""

    label: str
    before: Number
    after: Number
    unit: str
    site: str
    kind: str
    stat: str
    trend: Packed | None


class Cause(FindingRow):
    """A cause in full."""

    why: str
    confidence: float
    columns: list[str]
    evidence: list[EvidenceData]
    meanwhile: list[EvidenceData]


class Extent(TypedDict):
    """What the verdict rests on."""

    numSites: int
    numSitesExpected: int
    numSteps: int
    numDetectors: int
    numStepsLost: int
    brokenDetectors: list[str]
    unmet: list[str]


class Course(TypedDict):
    """How a run without a cause went: a few quantities at its first step and at its last."""

    rows: list[EvidenceData]
    columns: list[str]


class SuspectRow(TypedDict):
    """What could be behind a symptom, and the number that speaks for or against it."""

    text: str
    figure: str


class Suspects(TypedDict):
    """Suspects under what is said of them: "suspected" or "ruled out"."""

    head: str
    rows: list[SuspectRow]


class Stated(TypedDict):
    """The verdict itself: one of four states, and what shows it."""

    state: str
    label: str
    severity: str
    message: str
    rest: str
    evidence: list[EvidenceData]
    suspects: list[Suspects]
    unexplained: list[FindingRow]
    purpose: str
    line: str


class Verdict(TypedDict):
    """Everything over the axis."""

    stated: Stated
    cause: Cause | None
    others: list[FindingRow]
    notes: list[FindingRow]
    followed: list[Followed]
    lasting: list[str]
    course: Course | None
    lookedAt: Extent


def opening_window(run: Run, diagnosis: Diagnosis) -> tuple[int, int]:
    """The steps to open with: enough before the first cause to see what was usual, and all that came after."""
    steps = run.steps
    known = [part for part in (steps, run.metric(metrics.LOSS).steps) if len(part)]
    if not known:
        return 0, 0
    begin, end = min(int(part[0]) for part in known), max(int(part[-1]) for part in known)
    if not diagnosis.causes:
        return begin, end
    first = min([diagnosis.causes[0].first_step, *(entry["step"] for entry in signs(run, diagnosis.causes[0]))])
    return window_from(first, begin, end)


def verdict_data(viewed: OpenRun, course: Course | None = None) -> Verdict:
    """Everything over the axis."""
    diagnosis, run = viewed.diagnosis, viewed.run
    looked = diagnosis.looked_at
    out: Verdict = {
        "stated": stated(viewed),
        "lookedAt": {
            "numSites": looked.num_sites,
            "numSitesExpected": looked.num_sites_expected,
            "numSteps": looked.num_steps,
            "numDetectors": looked.num_detectors,
            "numStepsLost": looked.num_steps_lost,
            "brokenDetectors": [text(one, 300) for one in looked.broken_detectors],
            "unmet": [text(need) for need in looked.unmet_needs],
        },
        "notes": [finding_row(note, diagnosis) for note in diagnosis.notes[:MAX_ROWS]],
        "cause": None,
        "others": [finding_row(other, diagnosis) for other in diagnosis.causes[1 : MAX_ROWS + 1]],
        "followed": [],
        "lasting": [],
        "course": course,
    }
    if diagnosis.causes:
        cause = diagnosis.causes[0]
        out["cause"] = cause_data(cause, run, viewed)
        out["followed"] = followed_entries(run, cause, diagnosis.followed.get(cause.code, ()))
        out["lasting"] = lasting(run, cause)
    return out


def stated(viewed: OpenRun) -> Stated:
    """The verdict as explain decided it."""
    verdict = viewed.diagnosis.verdict
    return {
        "state": str(verdict.state),
        "label": verdict.state.label,
        "severity": str(verdict.severity) if verdict.state.is_trouble else "",
        "message": text(verdict.message, 800),
        "rest": text(verdict.caveats, 800),
        "evidence": [figure_data(e, viewed) for e in verdict.evidence[:MAX_EVIDENCE]],
        "suspects": [
            {"head": head, "rows": [{"text": text(one.text, 400), "figure": suspect_figure(one)} for one in found]}
            for head, found in verdict.weighed
        ],
        "unexplained": [symptom_row(symptom) for symptom in verdict.unexplained],
        "purpose": verdict.purpose,
        "line": text(verdict.line, 1000),
    }


def figure_data(evidence: Evidence, viewed: OpenRun) -> EvidenceData:
    """A number of the verdict, with the whole course that it is the end of."""
    series = evidence_series(evidence, viewed.run)
    first, last = opening_window(viewed.run, viewed.diagnosis)
    return _figure_data(
        evidence, None if series is None or not len(series) else spark(series, _SPARK_BINS, first, last)
    )


def symptom_row(symptom: Symptom) -> FindingRow:
    """A symptom as findings are listed."""
    return {
        "code": symptom.name,
        "severity": str(symptom.severity),
        "message": text(symptom.message, 800),
        "firstStep": symptom.first_step,
        "lastStep": symptom.last_step,
        "rank": None,
        "sites": [],
        "numSites": 0,
        "numFollowed": 0,
        "remedy": "",
    }


def cause_data(cause: Finding, run: Run, viewed: OpenRun) -> Cause:
    """One cause in full."""
    is_live = run.state == "live"
    own = cause.evidence[:MAX_EVIDENCE]
    beside = context_evidence(run, cause, MAX_EVIDENCE - len(own))
    return {
        **finding_row(cause, viewed.diagnosis),
        "why": " ".join(filter(None, (why(cause, beside), loss_words(run, cause)))),
        "confidence": cause.confidence,
        "columns": ["before", "now" if is_live else "after"],
        "evidence": [evidence_data(e, cause, viewed) for e in own],
        "meanwhile": [evidence_data(e, cause, viewed) for e in beside],
    }


def finding_row(finding: Finding, diagnosis: Diagnosis) -> FindingRow:
    """A finding as a row: sentence, code, since when, where."""
    return {
        "code": text(finding.code, 80),
        "severity": str(finding.severity),
        "message": text(finding.message, 800),
        "firstStep": finding.first_step,
        "lastStep": finding.last_step,
        "rank": finding.rank,
        "sites": [text(site, 10_000) for site in finding.sites[:64]],
        "numSites": len(finding.sites),
        "numFollowed": len(diagnosis.followed.get(finding.code, ())),
        "remedy": text(finding.remedy, 1000),
    }


def why(cause: Finding, beside: Sequence[Evidence] = ()) -> str:
    """The evidence in one or two sentences; what moved most in the layer around it where the cause has one number."""
    parts = []
    near = [e for e in beside if e.site][:1] if len(cause.evidence) < 2 else []
    for e in (*cause.evidence[:3], *near):
        if e.value is None:
            continue
        label = text(e.label, 120)
        now = numbers.quantity(e.value, e.before, unit=e.unit) + (
            e.unit if e.unit == "%" else f" {text(e.unit, 20)}" if e.unit else ""
        )
        if e.before is None:
            parts.append(f"{label}: {now}")
        elif e.before == 0 and e.value:
            parts.append(f"{label}: none before, {now} now")
        else:
            parts.append(f"{label} went from {numbers.quantity(e.before, e.value, unit=e.unit)} to {now}")
    words = "; ".join(parts)
    return words[:1].upper() + words[1:] + "." if words else ""


def evidence_data(evidence: Evidence, cause: Finding, viewed: OpenRun) -> EvidenceData:
    """A number, before and after, with its trend where a series is known."""
    run = viewed.run
    series = evidence_trend(evidence, cause, run)
    first, last = opening_window(run, viewed.diagnosis)
    return _figure_data(evidence, None if series is None else spark(series, _SPARK_BINS, first, last))


def _figure_data(evidence: Evidence, trend: Packed | None) -> EvidenceData:
    return {
        "label": text(evidence.label, 160),
        "before": number(evidence.before),
        "after": number(evidence.value),
        "unit": text(evidence.unit, 20),
        "site": text(evidence.site, 10_000),
        "kind": evidence.kind,
        "stat": evidence.stat,
        "trend": trend,
    }
