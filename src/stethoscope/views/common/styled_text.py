"""Styled text as plain data: a line is a list of (text, style) pairs, styles named as rich names them.

One intermediate form for every place a line can go: `to_text` writes it for a pipe or a terminal, and
`rich.text.Text.assemble(*line)` takes it as it is. Widths are in terminal cells, not in characters.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable, Sequence
from typing import Final

from stethoscope.record import printable

Span = tuple[str, str]
Line = list[Span]

PLAIN: Final = ""
STRONG: Final = "bold"
NOTE: Final = "bright_black"
CRITICAL: Final = "bold red"
WARNING: Final = "yellow"
INFO: Final = "blue"
LIVE: Final = "cyan"
BROKEN: Final = "red"
LARGER: Final = "yellow"
SMALLER: Final = "blue"

_CODES: Final = {"bold": "1", "red": "31", "yellow": "33", "blue": "34", "cyan": "36", "bright_black": "90"}
ELLIPSIS: Final = "…"

_ASCII_FOR: Final = str.maketrans(
    {
        "…": "..",
        "→": "->",
        "×": "x",
        "·": ".",
        "–": "-",
        "—": "-",
        "“": '"',
        "”": '"',
        "‘": "'",
        "’": "'",
        "µ": "u",
        "²": "^2",
        "≤": "<=",
        "≥": ">=",
        "≈": "~",
        "−": "-",
    }
)


def cell_width(text: str) -> int:
    """How many terminal cells the text takes: two for wide characters, none for combining marks."""
    if text.isascii():
        return len(text)
    return sum(map(_char_width, text))


def _char_width(char: str) -> int:
    if unicodedata.category(char) in ("Mn", "Me", "Cf"):
        return 0
    return 2 if unicodedata.east_asian_width(char) in "WF" else 1


def in_ascii(text: str) -> str:
    """The text in ASCII alone: signs we use by their plain spelling, everything else escaped."""
    if text.isascii():
        return text
    return text.translate(_ASCII_FOR).encode("ascii", "backslashreplace").decode("ascii")


def name_text(text: str, *, ascii: bool = False) -> str:  # noqa: A002 - what the option is called
    """A name from outside, made safe to print."""
    safe = printable(text, limit=2000)
    return in_ascii(safe) if ascii else safe


def cut_middle(text: str, width: int, *, ascii: bool = False) -> str:  # noqa: A002
    """The text in at most `width` cells, its middle left out where it is longer."""
    if cell_width(text) <= width:
        return text
    mark = ".." if ascii else ELLIPSIS
    room = width - len(mark)
    if room < 2:
        return _take_cells(text, max(0, width))
    tail = room // 2
    return _take_cells(text, room - tail) + mark + _take_cells(text[::-1], tail)[::-1]


def _take_cells(text: str, width: int) -> str:
    used = 0
    for index, char in enumerate(text):
        used += _char_width(char)
        if used > width:
            return text[:index]
    return text


def pad(text: str, width: int, *, right: bool = False) -> str:
    """The text filled with spaces to `width` cells; `right` aligns it there."""
    fill = " " * max(0, width - cell_width(text))
    return fill + text if right else text + fill


def wrap(text: str, width: int) -> list[str]:
    """The words in lines of at most `width` cells; a word that is longer is broken, never dropped."""
    lines: list[str] = []
    current = ""
    for word in text.split():
        joined = f"{current} {word}" if current else word
        if cell_width(joined) <= width:
            current = joined
            continue
        if current:
            lines.append(current)
        while cell_width(word) > width:
            piece = _take_cells(word, width)
            lines.append(piece)
            word = word[len(piece) :]
        current = word
    return [*lines, current] if current or not lines else lines


def line_width(line: Line) -> int:
    """How many cells a line takes."""
    return sum(cell_width(text) for text, _ in line)


def fit_line(line: Line, width: int) -> Line:
    """The line without what passes `width` cells."""
    out: Line = []
    room = width
    for text, style in line:
        piece = _take_cells(text, room)
        if piece:
            out.append((piece, style))
        room -= cell_width(piece)
        if piece != text:
            break
    return out


def flow_parts(parts: Sequence[Line], width: int, joint: Span = ("  ", ""), indent: str = "") -> list[Line]:
    """The parts joined on as many lines as they need; no part is broken unless it is wider than a line."""
    lines: list[Line] = []
    current: Line = []
    for part in parts:
        joined = [*current, joint, *part] if current else [(indent, ""), *part]
        if current and line_width(joined) > width:
            lines.append(current)
            joined = [(indent, ""), *part]
        current = joined
    return [*lines, current] if current else lines


def join_runs(spans: Iterable[Span]) -> Line:
    """Neighbors of one style made one span, so that a row of cells costs few escape codes."""
    out: Line = []
    for text, style in spans:
        if out and out[-1][1] == style:
            out[-1] = (out[-1][0] + text, style)
        elif text:
            out.append((text, style))
    return out


def to_text(lines: Sequence[Line], *, color: bool = False) -> str:
    """The lines as one string ending in a newline; without color there is no escape code in it."""
    return "".join(_plain(line) if not color else _painted_line(line) for line in lines)


def _plain(line: Line) -> str:
    return "".join(text for text, _ in line).rstrip() + "\n"


def _painted_line(line: Line) -> str:
    parts = []
    for text, style in line:
        codes = ";".join(_CODES[word] for word in style.split())
        parts.append(f"\x1b[{codes}m{text}\x1b[0m" if codes and text.strip() else text)
    return "".join(parts).rstrip(" ") + "\n"
