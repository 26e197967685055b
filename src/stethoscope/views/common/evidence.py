"""The series behind a number that a finding rests on, and the steps to show of it."""

from __future__ import annotations

import contextlib

from stethoscope.analyse.eventseries import entropy
from stethoscope.analyse.history import site_series
from stethoscope.explain.context_evidence import LEAD_STEPS, metric_series
from stethoscope.explain.state import Suspect
from stethoscope.record import Evidence, Finding, Kind, Series, StethoscopeError
from stethoscope.store import Run
from stethoscope.views.common import numbers


def evidence_series(evidence: Evidence, run: Run, window: tuple[int, int] | None = None) -> Series | None:
    """The recorded series that shows this number, None where it names none that is there."""
    if evidence.site and evidence.kind in list(Kind):
        with contextlib.suppress(KeyError, ValueError, StethoscopeError):
            found = site_series(run, evidence.site, Kind(evidence.kind), evidence.stat or "norm", window)
            return next((series for site, series in found.items() if evidence.site in site.names), None)
        return None
    names = (evidence.stat, evidence.site, evidence.label)
    return next((series for name in names if (series := metric_series(run, name)) is not None), None)


def evidence_trend(evidence: Evidence, cause: Finding, run: Run) -> Series | None:
    """The series that shows a number of this cause, also where it lives in events."""
    series = evidence_series(evidence, run)
    if series is None and "entropy" in evidence.label.lower() and cause.sites:
        series = entropy(run, cause.sites[0])
    return series if series is not None and len(series) else None


def window_from(step: int, begin: int, end: int) -> tuple[int, int]:
    """Of begin..end the steps to show for what started at `step`: enough of what came before it, and all that came after."""
    lead = max(LEAD_STEPS, (end - step) // 2)
    return max(begin, min(step - lead, end - LEAD_STEPS)), end


def suspect_figure(suspect: Suspect, *, ascii: bool = False) -> str:  # noqa: A002 - what the option is called
    """The number that speaks for a suspect or against it, and in brackets the one that it stands against."""
    of = suspect.evidence
    figure = numbers.quantity(of.value, of.before, unit=of.unit, ascii=ascii)
    return (
        figure
        if of.before is None
        else f"{figure} ({numbers.quantity(of.before, of.value, unit=of.unit, ascii=ascii)})"
    )
