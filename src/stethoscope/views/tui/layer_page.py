"""One layer: its own lines on one axis, its values by sign and power of two at the cursor, what was found in it."""

from __future__ import annotations

import numpy as np

from stethoscope.analyse.bins import bins_over
from stethoscope.kernels.histogram import MIN_EXPONENT, NUM_EXPONENTS, ZERO_BIN
from stethoscope.record import FloatArray, IntArray, SiteInfo, plural
from stethoscope.store import Run
from stethoscope.views.common import numbers
from stethoscope.views.common.glyphs import Screen
from stethoscope.views.common.open_run import OpenRun
from stethoscope.views.common.styled_text import NOTE, PLAIN, STRONG, Line, cell_width, pad
from stethoscope.views.lines.verdict import rows_lines
from stethoscope.views.pagedata.histograms import histograms
from stethoscope.views.pagedata.layer import head_data, layer_series, real_path, sites_of
from stethoscope.views.tui.chart import Frame, chart_lines
from stethoscope.views.tui.heat_block import cursor_of
from stethoscope.views.tui.run_page import event_steps, window_of
from stethoscope.views.tui.verdict_block import side_by_side
from stethoscope.views.tui.view import Page, View, column_of, filled

_GUTTER = 26
_RIGHT = 10
_SIDE = 46
"""Width of the column at the right, where the screen has room for one."""
_MAX_POWERS = 24


def layer_page(viewed: OpenRun, path: str, view: View, screen: Screen, height: int) -> Page:
    """Everything of one layer, scrolled to where the view says."""
    run = viewed.run
    path = real_path(run, path)
    inside, weights = sites_of(run, path)
    tensor = weights[0] if weights else None
    span = viewed.span
    is_wide = screen.width >= 130
    room = screen.width - _GUTTER - 4 - _RIGHT - (_SIDE if is_wide else 0)
    window = filled(window_of(viewed, view), span, run.steps, max(8, room))
    steps = run.steps[(run.steps >= window[0]) & (run.steps <= window[1])]
    bins = bins_over(steps, max(8, room))
    cursor = column_of(bins.starts, cursor_of(viewed, view))
    frame = Frame(bins, room, _GUTTER, cursor)
    tracks = [track for track in layer_series(viewed, path, inside, tensor) if len(track.series.between(*window))]
    # Beside the side column the lines have the height to themselves.
    rows = max(3, min(9, (height - 4) // max(1, len(tracks)) - 1)) if is_wide else 3
    body: list[Line] = [_axis_line(frame, steps)]
    for track in tracks:
        body += chart_lines(track.label, track.series.between(*window), frame, screen, rows, track.note)
        body.append([])
    step = int(bins.starts[cursor]) + bins.size - 1 if len(bins) else window[1]
    side = side_lines(
        viewed, path, inside, tensor, step, Screen(_SIDE - 2 if is_wide else screen.width, screen.ascii, True)
    )
    if is_wide:
        body = side_by_side(body, side, screen.width - _SIDE + 2)
    else:
        body += side
    head = _heading_lines(run, path, inside, screen)
    scroll = min(view.scroll, max(0, len(body) - (height - len(head))))
    return Page(
        [*head, *body[scroll:]],
        columns=bins.starts,
        size=bins.size,
        last_step=window[1],
        window=window,
        span=span,
        events=tuple(sorted(set(event_steps(viewed)))),
        column=cursor,
        cells_at=(0, 0, scroll),
    )


def _heading_lines(run: Run, path: str, inside: list[SiteInfo], screen: Screen) -> list[Line]:
    head = head_data(run, path, inside)
    parts = [part for part in (str(head["type"]), str(head["detail"])) if part]
    if head["numParameters"]:
        parts.append(plural(int(head["numParameters"]), "parameter"))
    if head["shape"]:
        parts.append(f"output {list(head['shape'])} {head['dtype']}")
    parts.append(plural(len(inside), "site"))
    name = screen.name(path, screen.width // 2)
    room = screen.width - cell_width(name) - 2
    return [[(name, STRONG), ("  ", ""), (screen.name(", ".join(parts), room), NOTE)], []]


def _axis_line(frame: Frame, steps: IntArray) -> Line:
    """First and last step, and the cursor's as a chip."""
    if frame.cursor < 0:
        return [(" " * (frame.gutter + 4), ""), ("no step here", NOTE)]
    start = int(frame.bins.starts[frame.cursor])
    inside = steps[(steps >= start) & (steps < start + frame.bins.size)]
    return frame.axis("", (int(steps[0]), int(steps[-1])), int(inside[-1]) if len(inside) else start)


def side_lines(
    viewed: OpenRun, path: str, inside: list[SiteInfo], tensor: SiteInfo | None, step: int, screen: Screen
) -> list[Line]:
    """Values at the cursor as a histogram, what was found here, what else is in the layer."""
    lines = histogram_lines(viewed.run, inside, tensor, step, screen)
    found = [finding for finding in viewed.diagnosis.findings if finding.is_about(path)]
    if found:
        lines += [[("found here", NOTE)], *rows_lines(found[:6], viewed.diagnosis, screen), []]
    weights = [info for info in inside if str(info.site.kind) == "weight"][:12]
    if weights:
        lines.append([("tensors", NOTE)])
    for info in weights:
        shape = f"{list(info.shape)} {info.dtype}"
        name = screen.name(info.site.path.removeprefix(path + "."), max(8, screen.width - len(shape) - 4))
        lines.append([("  ", ""), (name, PLAIN), (f"  {shape}", NOTE)])
    return lines


def histogram_lines(run: Run, inside: list[SiteInfo], tensor: SiteInfo | None, step: int, screen: Screen) -> list[Line]:
    """The values of the largest tensor by sign and power of two, at the last histogram before the cursor."""
    found = histograms(run, inside, tensor)
    if found is None:
        return []
    site, steps, table = found
    at = int(np.searchsorted(steps, step, side="right")) - 1
    if at < 0:
        at = 0
    negative, positive, zeros, bottom = _power_counts(table[at])
    name = screen.name(site.path, max(8, screen.width - 30))
    lines: list[Line] = [
        [
            (f"{name} ", PLAIN),
            (f"{str(site.kind).replace('_', ' ')} at step {numbers.count(int(steps[at]))}", NOTE),
        ]
    ]
    most = max(float(negative.max(initial=0)), float(positive.max(initial=0)), 1.0)
    half = max(4, (screen.width - 12) // 2)
    for index in range(len(positive) - 1, -1, -1):
        left, right = (round(half * float(side[index]) / most) for side in (negative, positive))
        bar = "#" if screen.ascii else "▪"
        label = f"2^{bottom + index}" if screen.ascii else f"2{_superscript(bottom + index)}"
        lines.append([(bar * left + " ", PLAIN), (pad(label, 6), NOTE), (bar * right, PLAIN)])
        lines[-1][0] = (pad(bar * left, half, right=True) + "  ", PLAIN)
    if zeros:
        lines.append([(pad("", half) + "  ", ""), (f"0: {numbers.count(int(zeros))}", NOTE)])
    return [
        *lines,
        [(pad("minus", half, right=True) + "  ", NOTE), (pad("", 6), ""), ("plus", NOTE)],
        [],
    ]


def _power_counts(row: FloatArray) -> tuple[FloatArray, FloatArray, float, int]:
    """Counts of negative and positive values by power of two, of zeros, and the lowest power shown."""
    positive = row[ZERO_BIN + 1 :]
    negative = row[:ZERO_BIN][::-1]
    both = positive + negative
    used = np.flatnonzero(both > 0.002 * both.sum())
    if not len(used):
        return np.zeros(0), np.zeros(0), float(row[ZERO_BIN]), 0
    top = int(used[-1]) + 1
    low = max(int(used[0]), top - _MAX_POWERS, 0)
    assert len(positive) == NUM_EXPONENTS
    return negative[low:top], positive[low:top], float(row[ZERO_BIN]), low + MIN_EXPONENT


def _superscript(power: int) -> str:
    return str(power).translate(str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹"))
