"""The step axis over a picture: a few step numbers, and the numbered events of the text."""

from __future__ import annotations

from collections.abc import Sequence

from stethoscope.analyse.bins import Bins
from stethoscope.views.common import numbers
from stethoscope.views.common.glyphs import Glyphs
from stethoscope.views.common.styled_text import STRONG, Line


def axis(bins: Bins, first_step: int, last_step: int) -> str:
    """First, middle and last step, each where its column is, as many as there is room for."""
    width = len(bins)
    if not width:
        return ""
    cells = [" "] * width
    first, last = numbers.count(first_step), numbers.count(last_step)
    if len(first) > width:
        return first
    cells[: len(first)] = first
    end = width - len(last)
    if last_step != first_step and end > len(first):
        cells[end:] = last
    middle = width // 2
    label = numbers.count(int(bins.starts[middle]))
    if len(first) + 2 <= middle and middle + len(label) + 2 <= end:
        cells[middle : middle + len(label)] = label
    return "".join(cells)


def flags(bins: Bins, events: Sequence[int], glyphs: Glyphs) -> Line:
    """The number of each event over its column; where several meet, the first; empty where none shows."""
    cells = [" "] * len(bins)
    for step, sign in zip(events, glyphs.numbers, strict=False):
        index = bins.column(step)
        if index is not None and cells[index] == " ":
            cells[index] = sign
    text = "".join(cells).rstrip()
    return [(text, STRONG)] if text else []
