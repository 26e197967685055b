"""The verdict for the page: sentence, reasons, evidence with its trends, what followed, the other findings."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, TypedDict

import numpy as np

from stethoscope.detect.symptoms import Symptom
from stethoscope.explain.context_evidence import context_evidence, goes_on, loss_words
from stethoscope.explain.diagnosis import Diagnosis
from stethoscope.record import Evidence, Finding, Series, metrics
from stethoscope.store import Run
from stethoscope.views.common import numbers
from stethoscope.views.common.evidence import evidence_series, evidence_trend, suspect_figure, window_from
from stethoscope.views.common.open_run import OpenRun
from stethoscope.views.pagedata.packing import Number, Packed, number, spark, text

MAX_EVIDENCE: Final = 5
MAX_FOLLOWED: Final = 6
MAX_ROWS: Final = 200
_SPARK_BINS: Final = 96
_GROWN: Final = 4.0
_MAX_CLAUSE: Final = 120


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


class Followed(TypedDict):
    """One numbered event of what followed."""

    step: int
    text: str
    site: str


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
    metric = run.metric(metrics.LOSS).steps if metrics.LOSS in run.metrics() else steps
    known = [part for part in (steps, metric) if len(part)]
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
        "rest": text(" ".join(filter(None, (verdict.limits, *verdict.reservations))), 800),
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


def followed_entries(run: Run, cause: Finding, followed: Sequence[Finding]) -> list[Followed]:
    """What happened in order: signs before it, the cause, its consequences, and where the loss went."""
    where = f" in {text(cause.sites[0], 200)}" if cause.sites else ""
    entries = signs(run, cause)
    entries.append({"step": cause.first_step, "text": _beginning_text(cause, where), "site": _site(cause)})
    entries += [
        {"step": f.first_step, "text": text(f.message, 300).rstrip("."), "site": _site(f)}
        for f in followed[: MAX_FOLLOWED - 1]
    ]
    seen = " ".join(str(entry["text"]) for entry in entries).lower()
    if "loss" not in seen:
        entries += loss_entries(run, cause.first_step)
    if len(entries) == 1:  # the sentence stands beside it, and need not be said twice
        entries[0]["text"] = f"Started{where}"
    entries.sort(key=lambda entry: entry["step"])
    return entries[:MAX_FOLLOWED]


def lasting(run: Run, cause: Finding) -> list[str]:
    """How long it went on, and what the loss made of it: what can be said where nothing followed."""
    span = cause.last_step - cause.first_step + 1
    is_live, end = run.state == "live", run.last_step
    if is_live and end is not None and goes_on(run, cause):
        out = [f"Ongoing, for {end - cause.first_step + 1:,} steps"]
    elif span < 2:
        out = ["Seen at this one step"]
    elif goes_on(run, cause):
        out = [f"Lasts to the end, {span:,} steps"]
    else:
        out = [f"Last seen at step {cause.last_step:,}, {span - 1:,} steps later"]
    if loss_words(run, cause).startswith("The loss does not"):
        out.append(f"The loss is not affected{' yet' if is_live else ''}")
    return out


def _site(finding: Finding) -> str:
    return text(finding.sites[0], 10_000) if finding.sites else ""


def clause(cause: Finding) -> str:
    """The cause's sentence up to where it gives its step or its numbers: a sentence of its own, "" where it is none."""
    words = text(cause.message, 800)
    for cut in (
        f" from step {cause.first_step:,}",
        f" since step {cause.first_step:,}",
        f" at step {cause.first_step:,}",
        ": ",
    ):
        words = words.partition(cut)[0]
    if len(words) > _MAX_CLAUSE:
        words = words.partition(", ")[0]
    words = words.rstrip(".")
    return words if 12 <= len(words) <= _MAX_CLAUSE else ""


def _beginning_text(cause: Finding, where: str) -> str:
    """What began, without the step that stands beside it."""
    if cause.code.startswith("nonfinite"):
        for word in ("NaN", "Inf"):
            if word in cause.message:
                return f"First {word}{where}"
    return clause(cause) or f"Started{where}"


def signs(run: Run, cause: Finding) -> list[Followed]:
    """Where the evidence left its usual band for good, if that was before the cause was certain."""
    out: list[Followed] = []
    for e in cause.evidence:
        if not (e.site and e.kind):
            continue
        series = evidence_series(e, run)
        if series is None:
            continue
        step = leaves_band(series, cause.first_step)
        if step is not None:
            where = f" in {text(e.site, 200)}" if e.site not in e.label else ""
            what = text(e.label, 200)
            words = f"{what[:1].upper()}{what[1:]}{where} exceeds {_GROWN:.0f}x its median and stays there"
            out.append({"step": step, "text": words, "site": text(e.site, 10_000)})
    return sorted(out, key=lambda entry: entry["step"])[:1]


def leaves_band(series: Series, before: int) -> int | None:
    """The first step from which a series stays above four times its early median, until `before`."""
    keep = series.steps < before
    steps, values = series.steps[keep], np.abs(series.values[keep])
    if len(steps) < 16:
        return None
    early = values[: max(8, len(values) // 3)]
    usual = float(np.median(early[np.isfinite(early)])) if np.isfinite(early).any() else 0.0
    if usual <= 0:
        return None
    inside = np.flatnonzero(~(values > _GROWN * usual))
    index = int(inside[-1]) + 1 if len(inside) else 0
    return int(steps[index]) if 0 < index < len(steps) - 2 else None


def loss_entries(run: Run, since: int) -> list[Followed]:
    """Where the loss stopped being a number."""
    if metrics.LOSS not in run.metrics():
        return []
    series = run.metric(metrics.LOSS)
    broken = np.flatnonzero(~np.isfinite(series.values) & (series.steps >= since))
    if not len(broken):
        return []
    index = int(broken[0])
    rest = series.values[index:]
    word = "NaN" if np.isnan(series.values[index]) else "Inf"
    lasting = "from here on" if not np.isfinite(rest).any() and len(rest) > 1 else "for the first time"
    return [{"step": int(series.steps[index]), "text": f"The loss is {word} {lasting}", "site": ""}]
