"""The whole answer to "what is wrong": verdict, picture around where it began, what to read next."""

from __future__ import annotations

import dataclasses
import glob
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

import numpy as np

from stethoscope.analyse.history import History, history
from stethoscope.explain.context_evidence import home_of
from stethoscope.explain.diagnosis import Diagnosis
from stethoscope.record import Finding, Kind, Severity
from stethoscope.views.common.glyphs import Screen
from stethoscope.views.common.styled_text import Line
from stethoscope.views.lines.heatmap import Picture, heatmap_lines
from stethoscope.views.lines.status import status_lines
from stethoscope.views.lines.verdict import finding_window, verdict_lines

if TYPE_CHECKING:
    from stethoscope.store import Run

HEAT_KINDS = (
    Kind.GRADIENT,
    Kind.ACTIVATION,
    Kind.ACTIVATION_GRADIENT,
    Kind.UPDATE,
    Kind.WEIGHT,
    Kind.OPTIMIZER_STATE,
)
"""What a picture can show, the most telling first."""
_MAX_PARTS = 8


def diagnosis_lines(
    diagnosis: Diagnosis, run: Run, screen: Screen, *, full: bool = False, heatmap: bool = True
) -> list[Line]:
    """The verdict, the picture, how much was measured."""
    lines = verdict_lines(diagnosis, run, screen, full=full)
    if heatmap and diagnosis.causes:
        lines += [[], *cause_picture(diagnosis, run, screen)]
    return [*lines, [], *status_lines(run, screen, diagnosis.looked_at)]


def cause_picture(diagnosis: Diagnosis, run: Run, screen: Screen) -> list[Line]:
    """Layers by steps around the first cause, against what was usual before it."""
    cause = diagnosis.causes[0]
    kind = heat_kind(run, [*(e.kind for e in cause.evidence), *_kinds_at(run, cause)])
    whole = history(run, kind, usual_before=cause.first_step)
    if not len(whole.steps):
        return []
    shown = _with_parts_open(whole, run, cause).window(*finding_window(cause, whole.steps))
    followed = diagnosis.followed.get(cause.code, ())
    events = [cause.first_step, *(f.first_step for f in followed)] if followed else [cause.first_step]
    picture = Picture(troubled_rows(shown, [cause]), events, limit=24)
    return heatmap_lines(shown, screen, picture)


def _kinds_at(run: Run, cause: Finding) -> list[str]:
    """Kinds recorded at the cause's first site: a module without weights has no gradient of its own to see it in."""
    site = next(iter(cause.layers), "")
    at = {info.site.kind for info in run.sites if site and site in info.site.names}
    return [str(kind) for kind in HEAT_KINDS if kind in at]


def _with_parts_open(whole: History, run: Run, cause: Finding) -> History:
    """The rows with the parts of the module around the cause's first site under the row that holds it."""
    around = home_of(run, cause).rpartition(".")[0]
    index = next(
        (at for at, row in enumerate(whole.rows) if around == row.name or around.startswith(row.name + ".")), None
    )
    if not around or index is None:
        return whole
    parts = history(
        run,
        whole.kind,
        whole.stat,
        pattern=f"{glob.escape(around)}.*",
        depth=around.count(".") + 2,
        usual_before=cause.first_step,
    )
    if not 1 < len(parts.rows) <= _MAX_PARTS or not np.array_equal(parts.steps, whole.steps):
        return whole
    lead = whole.rows[index].name + "."
    rows = [dataclasses.replace(row, short=f"  {row.name.removeprefix(lead)}") for row in parts.rows]
    return whole.with_rows(dataclasses.replace(parts, rows=tuple(rows)), index + 1)


def heat_kind(run: Run, wanted: Sequence[str]) -> Kind:
    """The kind to draw: one that the evidence speaks of, else the most telling that was recorded."""
    recorded = {info.site.kind for info in run.sites}
    for kind in [Kind(word) for word in wanted if word in list(Kind)] + list(HEAT_KINDS):
        if kind in recorded and kind in HEAT_KINDS:
            return kind
    return Kind.GRADIENT


def troubled_rows(source: History, findings: Iterable[Finding]) -> dict[str, Severity]:
    """From the names of rows to the worst severity of the findings that name a site in them."""
    out: dict[str, Severity] = {}
    for finding in findings:
        for name in (row.name for row in source.rows):
            if any(_is_within(site, name) for site in finding.sites):
                known = out.get(name)
                if known is None or known.rank < finding.severity.rank:
                    out[name] = finding.severity
    # A fault of every row is a fault of none in particular.
    return out if len(out) < max(2, len(source.rows)) or np.size(source.values) == 0 else {}


def _is_within(site: str, name: str) -> bool:
    return site == name or site.startswith(name + ".") or name.startswith(site + ".")
