"""What a cell shows of a run or a diagnosis: verdict first, then proof, then the picture."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from stethoscope.analyse.history import grid
from stethoscope.explain.diagnosis import Diagnosis
from stethoscope.record import Evidence, Finding, Severity, metrics, plural
from stethoscope.store import Run
from stethoscope.views.common import numbers, run_status
from stethoscope.views.common.evidence import evidence_series, evidence_trend, suspect_figure
from stethoscope.views.common.glyphs import UNICODE
from stethoscope.views.common.open_run import OpenRun
from stethoscope.views.lines.heatmap import Picture, cell_levels, shortened
from stethoscope.views.lines.verdict import beside, extent_text, since, state_sign
from stethoscope.views.notebook.markup import SEVERITY_COLOR, cells_svg, escaped, line_svg, mark, mono, muted, sheet
from stethoscope.views.pagedata.heat import opened_rows, troubled
from stethoscope.views.pagedata.overview import heat_kind
from stethoscope.views.pagedata.verdict import opening_window

_MAX_ROWS = 16
_PLOT_WIDTH = 480
_NAME_WIDTH = 150
_MAX_EVIDENCE = 5
_MAX_LISTED = 8
_STATE_COLOR = {"live": "#0e8a98", "crashed": "#d63a4c", "stale": "#b97700", "damaged": "#b97700"}


def run_html(run: Run) -> str:
    """State, verdict, loss, layers by steps, how much was measured."""
    viewed = OpenRun.of(run)
    sign = mark(UNICODE.state.get(run.state, "?"), _STATE_COLOR.get(run.state, "currentColor"))
    head = f"<div>{sign} <b>{escaped(run.name, 80)}</b> {muted(mono(run.id, 40))} {muted(escaped(run_status.state_text(run)))}</div>"
    if not len(run.steps) and not run.metrics():
        words = "No step yet." if run.state == "live" else "The run holds no data."
        return sheet(head, f"<div>{muted(words)}</div>", _path_html(run))
    return sheet(
        head,
        verdict_html(viewed.diagnosis, run, viewed.was_examined),
        loss_html(viewed),
        heat_html(viewed),
        _status_html(viewed),
    )


def diagnosis_html(diagnosis: Diagnosis, run: Run | None) -> str:
    """The causes, the first in full."""
    return sheet(verdict_html(diagnosis, run, True))


def heading_html(heading: str, note: str) -> str:
    """One line over the rest."""
    return sheet(f"<div><b>{escaped(heading)}</b> {muted(escaped(note))}</div>")


def verdict_html(diagnosis: Diagnosis, run: Run | None, was_examined: bool) -> str:
    """The first cause in full, the others as rows; or that nothing was found."""
    notes = list(diagnosis.notes)
    if not diagnosis.causes:
        if not was_examined:
            return f"<div>{muted('Not examined yet: ' + mono('stethoscope.diagnose(run)'))}</div>"
        return _state_html(diagnosis, run) + _rows(notes, diagnosis)
    first, *others = diagnosis.causes
    return _cause_html(first, diagnosis, run) + _rows([*others, *notes], diagnosis)


def _state_html(diagnosis: Diagnosis, run: Run | None) -> str:
    """A verdict without a cause: its state, its sentence, its numbers, what was ruled out, the line that leads on."""
    verdict = diagnosis.verdict
    sign = state_sign(verdict, UNICODE)
    color = SEVERITY_COLOR[verdict.severity] if verdict.state.is_trouble else "currentColor"
    parts = [
        f'<div style="margin-top:4px">{mark(sign, color)} <b>{escaped(verdict.state.label)}</b></div>',
        f'<div style="font-size:16px;line-height:24px;font-weight:600">{escaped(verdict.message, 800)}</div>',
    ]
    rest = verdict.caveats
    parts += [f"<div>{muted(escaped(rest, 800))}</div>"] if rest else []
    parts.append(_figures_table(verdict.evidence, run, None))
    for head, found in verdict.weighed:
        parts.append(f'<div style="margin-top:4px">{muted(head.capitalize())}</div>')
        parts += [f"<div>{escaped(one.text, 400)} <b>{escaped(suspect_figure(one))}</b></div>" for one in found]
    if verdict.line:
        parts.append(f"<div>{muted(verdict.purpose.capitalize())} {mono(verdict.line, 1000)}</div>")
    parts.append(f"<div>{muted(escaped(extent_text(diagnosis.looked_at)))}</div>")
    return "".join(parts)


def _cause_html(cause: Finding, diagnosis: Diagnosis, run: Run | None) -> str:
    sign = mark(UNICODE.severity[cause.severity], SEVERITY_COLOR[cause.severity])
    sure = f" {numbers.percent(cause.confidence)} sure" if cause.confidence < 0.995 else ""
    rank = f", rank {cause.rank}" if cause.rank is not None else ""
    over = f"{sign} <b>{escaped(cause.severity.lower())}</b> {muted(mono(cause.code) + escaped(sure + ', ' + since(cause) + rank))}"
    sentence = f'<div style="font-size:16px;line-height:24px;font-weight:600">{escaped(cause.message, 800)}</div>'
    parts = [f'<div style="margin-top:4px">{over}</div>', sentence, _evidence_html(cause, run)]
    if cause.remedy:
        parts.append(f"<div>{muted('Try')} {mono(cause.remedy, 1000)}</div>")
    followed = diagnosis.followed.get(cause.code, ())
    if followed:
        rows = "".join(
            f"<div><b>{escaped(numbers.count(finding.first_step))}</b> {escaped(finding.message, 800)}</div>"
            for finding in followed[:_MAX_LISTED]
        )
        more = f"<div>{muted(f'and {len(followed) - _MAX_LISTED} more')}</div>" if len(followed) > _MAX_LISTED else ""
        parts.append(f'<div style="margin-top:4px">{muted("What followed")}</div>{rows}{more}')
    return "".join(parts)


def _evidence_html(cause: Finding, run: Run | None) -> str:
    shown = [*cause.evidence[:_MAX_EVIDENCE]]
    if run is not None:
        shown += beside(cause, run, _MAX_EVIDENCE - len(shown))
    return _figures_table(shown, run, cause)


def _figures_table(shown: Sequence[Evidence], run: Run | None, cause: Finding | None) -> str:
    if not shown:
        return ""
    cell = "padding:0 12px 0 0;text-align:{};border:none;background:none"
    left, right = cell.format("left"), cell.format("right")
    rows = []
    for e in shown:
        was = escaped(numbers.number(e.before)) if e.before is not None else ""
        now = escaped(numbers.number(e.value) + _unit_suffix(e))
        arrow = "→" if was else ""
        rows.append(
            f'<tr style="background:none"><td style="{left}">{escaped(e.label, 200)}</td>'
            f'<td style="{right};opacity:.7">{was}</td><td style="{left}">{arrow} <b>{now}</b></td>'
            f'<td style="{left}">{_evidence_line(e, cause, run)}</td></tr>'
        )
    return f'<table style="border:none;margin:4px 0;border-collapse:collapse;color:inherit;font:inherit">{"".join(rows)}</table>'


def _unit_suffix(e: Evidence) -> str:
    return e.unit if e.unit == "%" else f" {e.unit}" if e.unit else ""


def _evidence_line(e: Evidence, cause: Finding | None, run: Run | None) -> str:
    if run is None:
        return ""
    series = evidence_trend(e, cause, run) if cause is not None else evidence_series(e, run)
    if series is None or not len(series):
        return ""
    first_bad = cause.first_step if cause is not None else None
    return line_svg(series, f"{e.label} over steps {series.steps[0]:,} to {series.steps[-1]:,}", first_bad=first_bad)


def _rows(findings: list[Finding], diagnosis: Diagnosis) -> str:
    out = []
    for finding in findings[:_MAX_LISTED]:
        sign = mark(UNICODE.severity[finding.severity], SEVERITY_COLOR[finding.severity])
        num_followed = len(diagnosis.followed.get(finding.code, ()))
        more = f", {plural(num_followed, 'consequence')}" if num_followed else ""
        note = muted(mono(finding.code) + escaped(f", {since(finding)}{more}"))
        out.append(f'<div style="margin-top:2px">{sign} {escaped(finding.message, 800)} {note}</div>')
    if len(findings) > _MAX_LISTED:
        out.append(f"<div>{muted(f'and {len(findings) - _MAX_LISTED} more')}</div>")
    return "".join(out)


def loss_html(viewed: OpenRun) -> str:
    """The loss as a line with its last value, over the steps of the picture under it."""
    run = viewed.run
    series = run.metric(metrics.LOSS).between(*opening_window(run, viewed.diagnosis))
    if len(series) < 2:
        return ""
    first, last = float(series.values[0]), float(series.values[-1])
    words = (
        f"Loss, steps {series.steps[0]:,} to {series.steps[-1]:,}: {numbers.number(first)} at first, "
        f"{numbers.number(last)} at the end"
    )
    causes = viewed.diagnosis.causes
    picture = line_svg(series, words, _PLOT_WIDTH, 48, causes[0].first_step if causes else None)
    return _line_html("loss", picture, numbers.number(last))


def heat_html(viewed: OpenRun) -> str:
    """The layers that have most to show, each against its own past."""
    kinds = viewed.kinds()
    if not kinds:
        return ""
    kind = heat_kind(viewed)
    tree = viewed.tree(kind)
    indices = opened_rows(viewed, tree)[:400]
    signs = troubled(tree, viewed.diagnosis.causes)
    whole = viewed.history(kind, "norm", [tree[at] for at in indices])
    troubled_names = {tree[at].path: severity for at, severity in signs.items()}
    shown, hidden = shortened(
        whole.window(*opening_window(viewed.run, viewed.diagnosis)), Picture(troubled_names, limit=_MAX_ROWS)
    )
    if not len(shown.steps) or not shown.rows:
        return ""
    cells = grid(shown, _PLOT_WIDTH // 5)
    causes = viewed.diagnosis.causes
    begin, end = int(shown.steps[0]), int(shown.steps[-1])
    words = f"{kind} norm of {len(shown.rows)} layers, steps {begin:,} to {end:,}, each against its own past"
    width = _PLOT_WIDTH / max(1, len(cells.bins))
    levels = np.asarray(cell_levels(cells, raw=False))
    picture = cells_svg(
        levels, cells.marks, cells.bins, words, cell=width, event=causes[0].first_step if causes else None
    )
    names = "".join(_name_html(row.label, troubled_names.get(row.name)) for row in shown.rows)
    axis = f'<div style="display:flex;justify-content:space-between">{muted(f"{begin:,}")}{muted(f"{end:,}")}</div>'
    note = f"orange larger, blue smaller than usual, red NaN or Inf{f'; {hidden} rows nearer to usual not shown' if hidden else ''}"
    head = f"<div>{muted(escaped(str(kind).replace('_', ' ')))}</div>"
    return (
        f'<div style="display:flex;gap:8px;margin-top:4px;font-size:11px;line-height:14px">'
        f'<div style="width:{_NAME_WIDTH}px;flex:none;overflow:hidden">{head}{names}</div>'
        f'<div style="flex:none">{axis}<div style="line-height:0">{picture}</div></div></div>'
        f'<div style="font-size:11px;line-height:16px">{muted(escaped(note))}</div>'
    )


def _name_html(name: str, severity: Severity | None) -> str:
    sign = mark(UNICODE.severity[severity], SEVERITY_COLOR[severity]) + " " if severity is not None else ""
    weight = ";font-weight:600" if severity is not None else ""
    style = f"height:14px;white-space:nowrap;overflow:hidden;text-overflow:ellipsis;text-align:right{weight}"
    return f'<div style="{style}" title="{escaped(name)}">{sign}{escaped(name)}</div>'


def _line_html(label: str, picture: str, value: str) -> str:
    return (
        '<div style="display:flex;gap:8px;align-items:center;margin-top:4px;font-size:11px;line-height:14px">'
        f'<div style="width:{_NAME_WIDTH}px;flex:none;text-align:right">{escaped(label)}</div>'
        f'<div style="flex:none">{picture}</div><b>{escaped(value)}</b></div>'
    )


def _status_html(viewed: OpenRun) -> str:
    parts = map(str, run_status.status_parts(viewed.run, viewed.diagnosis.looked_at))
    first, last = viewed.span
    note = escaped(" · ".join([*parts, f"steps {first:,} to {last:,}"]), 600)
    return f'<div style="font-size:11px;line-height:16px;margin-top:4px">{muted(note)}</div>{_path_html(viewed.run)}'


def _path_html(run: Run) -> str:
    return f'<div style="font-size:11px;line-height:16px">{muted(mono(str(run.path)))}</div>'
