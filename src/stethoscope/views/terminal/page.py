"""A page of Markdown as terminal lines: headings, paragraphs, lists, code; no background, no boxes.

Takes the Markdown that our own pages are written in, not all of it: headings of two signs, paragraphs, lists of one
level, fenced code, `code` and **bold** inside a line.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from stethoscope.views.common.glyphs import Screen
from stethoscope.views.common.styled_text import NOTE, PLAIN, STRONG, Line, Span, cell_width, line_width, pad, wrap
from stethoscope.views.lines.verdict import READING_WIDTH

_INLINE: Final = re.compile(r"`([^`]+)`|\*\*([^*]+)\*\*|\*([^*]+)\*")


def page_lines(text: str, screen: Screen) -> list[Line]:
    """The page's lines, wrapped to a width that can be read; code only where the screen is too narrow for it."""
    width = min(screen.width, READING_WIDTH)
    lines: list[Line] = []
    for block in _text_blocks(text):
        if lines:
            lines.append([])
        lines += _block_lines(block, width, screen)
    return lines


def _text_blocks(text: str) -> Iterator[list[str]]:
    """Runs of lines between blank ones; a fence keeps its blank lines."""
    block: list[str] = []
    fenced = False
    for line in text.splitlines():
        if line.startswith("```"):
            fenced = not fenced
        if not line.strip() and not fenced:
            if block:
                yield block
            block = []
        else:
            block.append(line)
    if block:
        yield block


def _block_lines(block: list[str], width: int, screen: Screen) -> list[Line]:
    first = block[0]
    if first.startswith("```"):
        return [line for code in block[1:-1] for line in _code_lines(screen.text(code), screen.width)]
    if first.startswith("#"):
        return [[(screen.text(first.lstrip("# ")), STRONG)]]
    if first.startswith("- "):
        items = re.split(r"^- ", "\n".join(block), flags=re.M)[1:]
        return [line for item in items for line in _paragraph_lines(item, width, screen, indent="  ")]
    return _paragraph_lines(" ".join(block), width, screen)


def _code_lines(code: str, width: int) -> list[Line]:
    """A line of code; one that is too long goes on further in."""
    lead = "  " + code[: len(code) - len(code.lstrip())]
    if cell_width(lead + code.lstrip()) <= width:
        return [[(lead + code.lstrip(), PLAIN)]]
    first, *rest = wrap(code, width - len(lead) - 4)
    return [[(lead + first, PLAIN)], *([(lead + "    " + piece, PLAIN)] for piece in rest)]


def _paragraph_lines(text: str, width: int, screen: Screen, indent: str = "") -> list[Line]:
    """Words wrapped with their styles: a word never changes style in its middle."""
    words: list[Span] = []
    index = 0
    source = " ".join(text.split())
    for found in _INLINE.finditer(source):
        words += [(word, PLAIN) for word in _words_of(source[index : found.start()])]
        code, bold, note = found.groups()
        style = STRONG if bold else NOTE if note else PLAIN
        words += [(word, style) for word in _words_of(code or bold or note)]
        index = found.end()
    words += [(word, PLAIN) for word in _words_of(source[index:])]
    return _wrap_words(words, width, screen, indent)


def _words_of(text: str) -> list[str]:
    """Words, each with the space that follows it, so that what touched still touches."""
    return re.findall(r"\S+\s*|\s+", text)


def _wrap_words(words: list[Span], width: int, screen: Screen, indent: str) -> list[Line]:
    lines: list[Line] = [[(indent, "")]]
    for number, (word, style) in enumerate(words):
        shown = screen.text(word.rstrip()) + (" " if word != word.rstrip() else "")
        touching = number > 0 and not words[number - 1][0].endswith(" ") and not word.startswith(" ")
        room = width - line_width(lines[-1])
        if cell_width(shown.rstrip()) > room and not touching and line_width(lines[-1]) > len(indent):
            lines.append([(indent, "")])
        lines[-1].append((shown, style))
    return lines


def summary_lines(code: str, summary: str, code_width: int, screen: Screen) -> list[Line]:
    """One row of a list: the code, and its sentence wrapped beside it."""
    width = min(screen.width, READING_WIDTH + code_width)
    pieces = wrap(screen.text(summary.replace("`", "")), max(20, width - code_width - 4))
    head = pad(screen.text(code), code_width)
    lines: list[Line] = [[("  ", ""), (head, PLAIN), ("  ", ""), (pieces[0], NOTE)]]
    return lines + [[(" " * (code_width + 4), ""), (piece, NOTE)] for piece in pieces[1:]]
