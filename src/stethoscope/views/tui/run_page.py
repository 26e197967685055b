"""The run on one screen: state, verdict, loss, layers by steps, what an instrument says of itself."""

from __future__ import annotations

from stethoscope.record import Kind, Series, metrics
from stethoscope.views.common.glyphs import Screen
from stethoscope.views.common.open_run import OpenRun
from stethoscope.views.common.styled_text import NOTE, Line, fit_line
from stethoscope.views.lines.status import status_lines, title_line
from stethoscope.views.pagedata import overview
from stethoscope.views.pagedata.verdict import opening_window
from stethoscope.views.tui.chart import chart_lines
from stethoscope.views.tui.heat_block import Heat, heat_lines, heat_of, key_line, readout
from stethoscope.views.tui.verdict_block import verdict_block
from stethoscope.views.tui.view import Page, View

_MIN_HEAT_ROWS = 5
_MAX_CHART = 12


def run_page(viewed: OpenRun, view: View, screen: Screen, height: int) -> Page:
    """Everything of the run screen in `height` lines."""
    viewed.examine_later()
    run, diagnosis = viewed.run, viewed.diagnosis
    head = [title_line(run, screen)]
    if not len(run.steps) and not run.metrics():
        return Page([*head, [], *_empty_lines(viewed, screen)])
    head += verdict_block(viewed, screen, max(4, (height * 2) // 5 - 1))
    status = status_lines(run, screen, diagnosis.looked_at)[:1]
    kinds = tuple(viewed.kinds())
    kind = view.kind if view.kind in kinds else overview.heat_kind(viewed)
    roomy = height - len(head) > 24
    charts = _shown_charts(viewed, roomy, height - len(head) > 34)
    # Blank lines, axis, flags, readout, key of the signs, status.
    fixed = len(head) + sum(rows for _, _, rows in charts) + 6 + len(status)
    num_rows = max(_MIN_HEAT_ROWS, height - fixed)
    heat = heat_of(viewed, view, screen, kind, window_of(viewed, view), num_rows)
    events = event_steps(viewed)
    lines = [*head, []]
    for name, series, rows in _grow_charts(charts, num_rows - len(heat.nodes)):
        lines += chart_lines(name, series.between(*heat.window), heat.frame, screen, rows)
    drawn = heat_lines(heat, screen, events, raw=view.raw, flat=bool(view.pattern))
    top = len(lines) + len(drawn) - len(heat.nodes)
    lines += drawn if heat.nodes else [[], [("  ", ""), (nothing_words(kind, view), NOTE)]]
    foot = [readout(heat, screen), *key_line(heat, screen, raw=view.raw)[:1], *status]
    room = height - len(foot)
    lines = [fit_line(line, screen.width) for line in [*lines[:room], *([[]] * (room - len(lines))), *foot]]
    return page_of(lines, heat, viewed.span, events, kinds, top)


def page_of(
    lines: list[Line],
    heat: Heat,
    span: tuple[int, int],
    events: list[int],
    kinds: tuple[Kind, ...],
    top: int,
) -> Page:
    """The lines with what the keys need to know of the heat they show."""
    tree, frame = heat.tree, heat.frame
    return Page(
        lines,
        columns=frame.bins.starts,
        size=frame.bins.size,
        last_step=heat.window[1],
        window=heat.window,
        span=span,
        rows=tuple(tree[at].path for at in heat.shown),
        row=heat.row,
        opened=heat.opened,
        known=tuple(node.path for node in tree),
        branches=frozenset(tree[at].path for at in heat.shown if tree[at].num_children),
        parents={tree[at].path: tree[tree[at].parent].path for at in heat.shown if tree[at].parent >= 0},
        events=tuple(sorted(set(events))),
        kinds=kinds,
        column=frame.cursor,
        cells_at=(top, frame.gutter + 4, heat.first_row),
        frame=frame,
    )


def _shown_charts(viewed: OpenRun, roomy: bool, tall: bool) -> list[tuple[str, Series, int]]:
    """The lines over the picture with their heights: the loss always, the others where there is room."""
    run = viewed.run
    loss = run.metric(metrics.LOSS)
    out = [("loss", loss, 5 if roomy else 3)] if len(loss) else []
    if tall:
        gradient, _ = overview.gradient_norm(viewed)
        out += [("gradient norm", gradient, 3)] if len(gradient) else []
        rate = next((name for name in run.metrics() if metrics.is_learning_rate(name)), None)
        out += [("learning rate", run.metric(rate), 2)] if rate else []
    return out


def _grow_charts(charts: list[tuple[str, Series, int]], room: int) -> list[tuple[str, Series, int]]:
    """The charts made taller where the layers leave room, the first one most."""
    out: list[tuple[str, Series, int]] = []
    for name, series, rows in charts:
        most = _MAX_CHART // (len(out) + 1) if name != "learning rate" else rows
        more = max(0, min(room, most - rows))
        out.append((name, series, rows + more))
        room -= more
    return out


def window_of(viewed: OpenRun, view: View) -> tuple[int, int]:
    """The steps to show: the chosen window, the whole run, or those around the first cause."""
    whole = viewed.span
    if isinstance(view.window, tuple):
        return max(whole[0], view.window[0]), min(whole[1], view.window[1])
    return opening_window(viewed.run, viewed.diagnosis) if view.window == "cause" else whole


def event_steps(viewed: OpenRun) -> list[int]:
    """The numbered events: where the first cause began, and what followed, as the verdict numbers them."""
    causes = viewed.diagnosis.causes
    if not causes:
        return []
    followed = viewed.diagnosis.followed.get(causes[0].code, ())
    return [causes[0].first_step, *(finding.first_step for finding in followed)]


def nothing_words(kind: Kind, view: View) -> str:
    """Why there are no rows."""
    if view.pattern:
        return f"No layer matches {view.pattern}. Esc clears the filter."
    return f"Nothing recorded here of kind {str(kind).replace('_', ' ')}."


def _empty_lines(viewed: OpenRun, screen: Screen) -> list[Line]:
    """A run without a number in it."""
    if viewed.run.state == "live":
        words = ["The run has started and has no step yet. It appears here with its first optimizer step."]
    else:
        words = ["The run holds no data.", f"stethoscope doctor {viewed.run.id}  says how it ended."]
    return [[("  ", ""), (screen.text(text), NOTE)] for text in words]
