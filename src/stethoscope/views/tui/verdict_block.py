"""The verdict in the room there is: never cut short, its proof left out first."""

from __future__ import annotations

from stethoscope.explain.diagnosis import Diagnosis
from stethoscope.record import Finding, plural
from stethoscope.store import Run
from stethoscope.views.common.glyphs import Screen
from stethoscope.views.common.open_run import OpenRun
from stethoscope.views.common.styled_text import NOTE, STRONG, Line, flow_parts, line_width, wrap
from stethoscope.views.lines.verdict import (
    READING_WIDTH,
    cause_lines,
    evidence_lines,
    followed_lines,
    overline,
    remedy_lines,
    rows_lines,
    state_head,
    state_lines,
    where_text,
)

_WIDE = 132
"""From this width on, the proof stands beside the sentence."""
_GAP = 4


def verdict_block(viewed: OpenRun, screen: Screen, room: int) -> list[Line]:
    """The first cause and what there is room for of the rest, in at most `room` lines where that can be."""
    diagnosis, run = viewed.diagnosis, viewed.run
    if not diagnosis.causes:
        return _without_cause(viewed, screen, room)
    cause = diagnosis.causes[0]
    for lines in _layouts(cause, diagnosis, run, screen):
        if len(lines) <= room:
            return lines
    return _short_layout(cause, diagnosis, screen)


def _without_cause(viewed: OpenRun, screen: Screen, room: int) -> list[Line]:
    if not viewed.was_examined and viewed.run.state != "live":
        words = viewed.trouble or "Looking for causes: this run has not been examined yet."
        return [[(screen.text(words), NOTE)]]
    lines = state_lines(viewed.diagnosis, viewed.run, screen)
    notes = viewed.diagnosis.notes
    rows = rows_lines(notes, viewed.diagnosis, screen) if notes else []
    choices = [
        lines + rows,
        lines,
        [*state_head(viewed.diagnosis.verdict, screen), *rows],
        state_head(viewed.diagnosis.verdict, screen),
    ]
    return next((one for one in choices if len(one) <= room), choices[-1])


def _layouts(cause: Finding, diagnosis: Diagnosis, run: Run, screen: Screen) -> list[list[Line]]:
    """From the fullest to the shortest."""
    short = _short_layout(cause, diagnosis, screen)
    remedy = remedy_lines(cause.remedy, screen) if cause.remedy else []
    others = _other_causes(diagnosis, screen)
    if screen.width >= _WIDE:
        return [*_side_by_side_layouts(cause, diagnosis, run, screen), short + remedy, short]
    full = cause_lines(cause, diagnosis, run, screen)
    return [full + others, full, short + remedy, short]


def _short_layout(cause: Finding, diagnosis: Diagnosis, screen: Screen) -> list[Line]:
    """Severity and code, the whole sentence, where, and how many other causes there are."""
    width = min(screen.width, READING_WIDTH)
    message = screen.text(cause.message)
    lines = overline(cause, screen)
    more = len(diagnosis.causes) - 1
    if more:
        note: Line = [(f"and {plural(more, 'more cause', 'more causes')}, w shows all", NOTE)]
        lines = [*lines[:-1], *flow_parts([lines[-1], note], screen.width)]
    lines += [[(text, STRONG)] for text in wrap(message, width)]
    where = where_text(cause, message, screen)
    return lines + ([[(text, NOTE)] for text in wrap(where, width)] if where else [])


def _other_causes(diagnosis: Diagnosis, screen: Screen) -> list[Line]:
    others = diagnosis.causes[1:]
    return [[], *rows_lines(others, diagnosis, screen)] if others else []


def _side_by_side_layouts(cause: Finding, diagnosis: Diagnosis, run: Run, screen: Screen) -> list[list[Line]]:
    """Sentence and remedy left, evidence and what followed right."""
    left_width = min(READING_WIDTH, (screen.width - _GAP) // 2)
    right_width = screen.width - left_width - _GAP
    narrow, wide = (Screen(width, screen.ascii, screen.color) for width in (left_width, right_width))
    remedy = remedy_lines(cause.remedy, narrow) if cause.remedy else []
    left = _short_layout(cause, diagnosis, narrow) + ([[], *remedy] if remedy else [])
    evidence = evidence_lines(cause, run, wide)
    followed = followed_lines(cause, diagnosis.followed.get(cause.code, ()), wide)
    proof = evidence + ([[], *followed] if evidence and followed else followed)
    full = side_by_side(left + _other_causes(diagnosis, narrow), proof, left_width + _GAP)
    return [full, side_by_side(left, proof, left_width + _GAP), side_by_side(left, evidence, left_width + _GAP)]


def side_by_side(left: list[Line], right: list[Line], width: int) -> list[Line]:
    """Two columns, the right one from `width` on."""
    lines: list[Line] = []
    for index in range(max(len(left), len(right))):
        line = list(left[index]) if index < len(left) else []
        if index < len(right) and right[index]:
            line += [(" " * max(0, width - line_width(line)), ""), *right[index]]
        lines.append(line)
    return lines
