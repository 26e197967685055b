"""Two runs: where they first differ, how they came out, which settings differ, A over B for every layer."""

from __future__ import annotations

import base64

import numpy as np

from stethoscope.analyse.bins import Bins
from stethoscope.record import Kind, metrics
from stethoscope.views.common import numbers
from stethoscope.views.common.glyphs import Screen
from stethoscope.views.common.open_run import OpenRun
from stethoscope.views.common.styled_text import (
    NOTE,
    PLAIN,
    STRONG,
    Line,
    Span,
    cut_middle,
    fit_line,
    flow_parts,
    pad,
    wrap,
)
from stethoscope.views.lines.heatmap import cell_sign, ratio_levels
from stethoscope.views.lines.status import title_line
from stethoscope.views.pagedata.compare import EQUAL, CompareData, common_span, compare_data
from stethoscope.views.pagedata.packing import Number
from stethoscope.views.tui.chart import CURSOR, Frame, chart_lines
from stethoscope.views.tui.view import Page, View, column_of

_DIFFERS = 9
_MAX_SETTINGS = 6


def compare_page(a: OpenRun, b: OpenRun, view: View, screen: Screen, height: int) -> Page:
    """Everything of two runs on one screen."""
    span = common_span(a, b)
    kinds = tuple(kind for kind in a.kinds() if kind in b.kinds())
    kind = view.kind if view.kind in kinds else (kinds[0] if kinds else Kind.GRADIENT)
    gutter = min(28, screen.width // 4)
    room = max(8, screen.width - gutter - 4 - _DIFFERS)
    first, last = view.window if isinstance(view.window, tuple) else span
    found = compare_data(a, b, kind, "norm", (first, last, room))
    if view.window == "cause" and found["first"] is not None:
        first, last = found["window"]
        found = compare_data(a, b, kind, "norm", (first, last, room))
    bins = Bins(found["start"] + np.arange(found["count"], dtype=np.int64) * found["size"], found["size"])
    cursor = column_of(bins.starts, _cursor_step(view, found, last))
    frame = Frame(bins, room, gutter, cursor)
    head = _heading_lines(a, b, found, screen)
    charts: list[Line] = []
    for name, viewed in (("A loss", a), ("B loss", b)):
        loss = viewed.run.metric(metrics.LOSS)
        if len(loss):
            charts += chart_lines(name, loss.between(first, last), frame, screen, 3 if height > 30 else 2)
    rows, shown, at = _rows(found, view, frame, screen, max(4, height - len(head) - len(charts) - 4))
    lines = [*head, [], *charts, _axis_line(frame, kind), *rows]
    foot: Line = [("  ", ""), (_key_text(screen), NOTE)]
    lines = [*lines[: height - 1], *([[]] * (height - 1 - len(lines))), foot]
    event = (found["first"]["step"],) if found["first"] is not None else ()
    return Page(
        [fit_line(line, screen.width) for line in lines],
        columns=bins.starts,
        size=bins.size,
        last_step=last,
        window=(first, last),
        span=span,
        rows=shown,
        row=at,
        events=event,
        kinds=kinds,
        column=cursor,
    )


def _cursor_step(view: View, found: CompareData, last: int) -> int:
    if not isinstance(view.cursor, str):
        return view.cursor
    first = found["first"]
    return first["step"] if view.cursor == "cause" and first is not None else last


def _heading_lines(a: OpenRun, b: OpenRun, found: CompareData, screen: Screen) -> list[Line]:
    lines: list[Line] = []
    for letter, viewed, side in (("A", a, found["a"]), ("B", b, found["b"])):
        narrow = Screen(screen.width - 2, screen.ascii, screen.color)
        lines.append([(f"{letter} ", STRONG), *title_line(viewed.run, narrow)])
        lines.append([("    ", ""), (screen.name(side["verdict"], screen.width - 4), NOTE)])
    lines += [[(text, STRONG)] for text in wrap(screen.text(first_words(found)), screen.width)]
    parts: list[Line] = []
    for row in found["outcome"]:
        was, now = (_number_text(row[side], screen) for side in ("a", "b"))
        parts.append([(f"{screen.text(row['label'])}: ", NOTE), (f"{was} / ", PLAIN), (now, STRONG)])
    lines += flow_parts(parts, screen.width, ("   ", ""))
    settings = found["settings"]
    differ: list[Line] = [
        [
            (f"{screen.text(row['name'])} ", NOTE),
            (f"{screen.text(row['a']) or '-'} / {screen.text(row['b']) or '-'}", PLAIN),
        ]
        for row in settings["rows"][: min(settings["numDiffer"], _MAX_SETTINGS)]
    ]
    if settings["numDiffer"] > _MAX_SETTINGS:
        differ.append([(f"and {settings['numDiffer'] - _MAX_SETTINGS} more settings differ", NOTE)])
    return lines + flow_parts(differ, screen.width, ("   ", ""))


def first_words(found: CompareData) -> str:
    """Where two runs part, in a sentence."""
    first = found["first"]
    if first is None:
        if not found["numShared"]:
            return "The two runs have no layer in common."
        return (
            f"The two runs say the same in all {found['numShared']:,} layers they share, at every step both recorded."
        )
    return f"They first differ at step {numbers.count(first['step'])}, in {first['path']}."


def _number_text(value: Number, screen: Screen) -> str:
    if value is None:
        return "-"
    if isinstance(value, str):
        return "NaN" if value == "NaN" else "Inf" if value == "Infinity" else "-Inf"
    return numbers.count(value) if isinstance(value, int) else numbers.number(float(value), ascii=screen.ascii)


def _rows(
    found: CompareData, view: View, frame: Frame, screen: Screen, num_rows: int
) -> tuple[list[Line], tuple[str, ...], str]:
    """The layers that both have: A over B in cells, and the step where each first differs."""
    tree, indices = found["tree"], found["rows"]
    count = found["count"]
    levels = np.frombuffer(base64.b64decode(found["levels"]), "<f4").reshape(len(indices), count).astype(np.float64)
    marks = np.frombuffer(base64.b64decode(found["marks"]), np.uint8).reshape(len(indices), count)
    words = view.pattern.lower().split()
    kept = [at for at, index in enumerate(indices) if all(word in tree[index][0].lower() for word in words)]
    paths = tuple(str(tree[indices[at]][0]) for at in kept)
    chosen = view.row if view.row in paths else _first_row(found, paths)
    middle = paths.index(chosen) if chosen in paths else 0
    first = max(0, min(middle - num_rows // 2, len(kept) - num_rows))
    signs = ratio_levels(np.nan_to_num(levels, nan=0.0, posinf=64.0, neginf=-64.0))
    lines: list[Line] = []
    for at in kept[first : first + num_rows]:
        path, label, _, indent = tree[indices[at]][:4]
        name = pad(cut_middle("  " * indent + screen.text(label), frame.gutter, ascii=screen.ascii), frame.gutter)
        spans = [_ratio_sign(int(mark), float(level), screen) for mark, level in zip(marks[at], signs[at], strict=True)]
        step = found["differs"][at]
        note = numbers.count(step) if step is not None else "same" if found["common"][at] else "only A"
        style = CURSOR if path == chosen else PLAIN
        lines.append(
            [
                ("  ", ""),
                (name, style),
                ("  ", ""),
                *frame.spread(spans),
                (pad(note, _DIFFERS, right=True), NOTE),
            ]
        )
    return lines, paths, chosen


def _first_row(found: CompareData, paths: tuple[str, ...]) -> str:
    first = found["first"]
    if first is not None:
        holding = [path for path in paths if first["path"] == path or first["path"].startswith(path + ".")]
        if holding:
            return max(holding, key=len)
    return paths[0] if paths else ""


def _ratio_sign(mark: int, level: float, screen: Screen) -> Span:
    return ("=", NOTE) if mark == EQUAL else cell_sign(mark, level, screen)


def _axis_line(frame: Frame, kind: Kind) -> Line:
    if frame.cursor < 0:
        return frame.axis(str(kind), (0, 0), 0)
    starts = frame.bins.starts
    line = frame.axis(str(kind).replace("_", " "), (int(starts[0]), int(starts[-1])), int(starts[frame.cursor]))
    return [*line, (pad("differs", _DIFFERS, right=True), NOTE)]


def _key_text(screen: Screen) -> str:
    heat = screen.glyphs.heat
    return f"A over B: = the same to the bit, {heat[0]} near, {heat[3]} yellow A larger, blue B larger"
