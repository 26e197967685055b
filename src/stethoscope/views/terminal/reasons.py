"""Why a code was reported or not, as lines: the answer, what was recorded, each number beside what the rule asks for."""

from __future__ import annotations

import math

from stethoscope.explain.reasons import Why
from stethoscope.views.common import numbers
from stethoscope.views.common.glyphs import Screen
from stethoscope.views.common.styled_text import NOTE, PLAIN, STRONG, WARNING, Line, cell_width, pad, wrap
from stethoscope.views.lines.verdict import READING_WIDTH

_HEADS = {
    "cause": "is a cause here",
    "followed": "was found and follows from something else",
    "noted": "was found, as a note",
    "expected": "was found and is expected",
    "ignored": "was found and is ignored",
    "quiet": "was looked for and not found",
    "blind": "could not be looked for",
    "broken": "could not be looked for",
    "checkup": "is not looked for in runs",
}
_SIGNS = {">=": "≥", "<=": "≤", ">": ">", "<": "<", "=": "="}


def reason_lines(answer: Why, screen: Screen) -> list[Line]:
    """The whole answer."""
    width = min(screen.width, READING_WIDTH)
    lines: list[Line] = [[(f"{answer.code} {_HEADS[answer.outcome]}", STRONG)]]
    lines += [[(piece, PLAIN)] for piece in wrap(screen.text(answer.sentence), width)]
    if answer.needs:
        lines += [[], [("  recorded", NOTE)], *_need_lines(answer, screen)]
    if answer.readings:
        lines += [[], [("  what the rule asks for", NOTE)], *_reading_lines(answer, screen)]
    command = f"stethoscope explain {answer.code}"
    return [*lines, [], [("next  ", NOTE), (command, PLAIN)]]


def _need_lines(answer: Why, screen: Screen) -> list[Line]:
    width = max(len(need.need.what) for need in answer.needs)
    lines: list[Line] = []
    for need in answer.needs:
        style = PLAIN if need.is_met else WARNING
        head: Line = [("    ", ""), (pad(screen.text(need.need.what), width + 2), PLAIN)]
        room = max(20, min(screen.width, READING_WIDTH) - width - 6)
        first, *rest = wrap(screen.text(need.how_much), room)
        lines.append([*head, (first, style)])
        lines += [[(" " * (width + 6), ""), (piece, style)] for piece in rest]
    return lines


def _reading_lines(answer: Why, screen: Screen) -> list[Line]:
    """Label, value, what is asked, whether it is so; the label wrapped where the screen is narrow."""
    values = [_value_text(reading.value, screen) for reading in answer.readings]
    asks = [
        f"{screen.text(_SIGNS[r.sign])} {_value_text(r.limit, screen)}" if r.sign and not math.isnan(r.limit) else ""
        for r in answer.readings
    ]
    value_width, ask_width = max(map(cell_width, values)), max(map(cell_width, asks))
    room = max(16, min(screen.width, READING_WIDTH) - value_width - ask_width - 13)
    lines: list[Line] = []
    for reading, value, ask in zip(answer.readings, values, asks, strict=True):
        label = f"{reading.way}: {reading.label}" if reading.way else reading.label
        where = f" ({reading.site})" if reading.site else ""
        pieces = wrap(screen.text(label + where), room)
        holds = "" if reading.holds is None else "yes" if reading.holds else "no"
        lines.append(
            [
                ("    ", ""),
                (pad(pieces[0], room + 2), PLAIN),
                (pad(value, value_width, right=True), STRONG),
                ("  ", ""),
                (pad(ask, ask_width), NOTE),
                ("  ", ""),
                (holds, PLAIN if holds == "yes" else NOTE),
            ]
        )
        lines += [[("      ", ""), (piece, PLAIN)] for piece in pieces[1:]]
    return lines


def _value_text(value: float, screen: Screen) -> str:
    if math.isnan(value):
        return "none"
    whole = float(value).is_integer() and abs(value) < 1e15
    return numbers.count(int(value)) if whole else numbers.number(float(value), ascii=screen.ascii)
