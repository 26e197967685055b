"""The experiments of a checkup as rows: what each asked, what came of it, what it examined."""

from __future__ import annotations

from collections.abc import Sequence

from stethoscope.explain.diagnosis import Experiment
from stethoscope.record import Severity
from stethoscope.views.common.glyphs import Screen
from stethoscope.views.common.styled_text import NOTE, PLAIN, Line, cell_width, pad, wrap

_GAP = 2
_MIN_LOOKED = 52
"""Columns for what was examined; with fewer the experiment's name stands for its question."""
_WIDEST = 124


def experiment_lines(experiments: Sequence[Experiment], screen: Screen) -> list[Line]:
    """One row each; those that do not apply are named together at the end."""
    asked = [one for one in experiments if one.outcome != "does not apply"]
    if not asked:
        return []
    widest = max(cell_width(screen.text(one.question)) for one in asked)
    by_name = min(screen.width, _WIDEST) - 2 - widest - _GAP < _MIN_LOOKED
    names = [screen.text(one.name if by_name else one.question) for one in asked]
    width = max(cell_width(name) for name in names)
    room = max(20, min(screen.width, _WIDEST) - 2 - width - _GAP)
    lines: list[Line] = []
    for one, name in zip(asked, names, strict=True):
        sign, style = _outcome_sign(one, screen)
        first, *rest = wrap(screen.text(_outcome_text(one)), room) or [""]
        lines.append([(pad(sign, 2), style), (pad(name, width + _GAP), PLAIN), (first, NOTE)])
        lines += [[(" " * (2 + width + _GAP), ""), (piece, NOTE)] for piece in rest]
    idle = [one.name for one in experiments if one.outcome == "does not apply"]
    if idle:
        words = f"not applicable here: {', '.join(idle)}"
        lines += [[(piece, NOTE)] for piece in wrap(screen.text(words), min(screen.width, _WIDEST))]
    return lines


def _outcome_text(one: Experiment) -> str:
    if one.outcome == "found":
        return f"found {', '.join(one.codes)}"
    return f"failed: {one.looked_at}" if one.outcome == "failed" else one.looked_at


def _outcome_sign(one: Experiment, screen: Screen) -> tuple[str, str]:
    if one.outcome == "clear":
        return screen.glyphs.clear, NOTE
    return screen.glyphs.severity[Severity.WARNING if one.outcome == "failed" else Severity.CRITICAL], PLAIN
