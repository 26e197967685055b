"""What cannot be shown: one sentence what happened, one what to do, one command."""

from __future__ import annotations

from pathlib import Path

from stethoscope.record import StethoscopeError
from stethoscope.views.common.glyphs import Screen
from stethoscope.views.common.styled_text import NOTE, PLAIN, STRONG, WARNING, Line, wrap
from stethoscope.views.tui.view import Page


def trouble_page(error: Exception, path: Path | None, screen: Screen) -> Page:
    """The error as a person reads it."""
    what, do = _trouble_words(error)
    name = path.name if path is not None else ""
    lines: list[Line] = [[(screen.glyphs.state["damaged"] + " ", WARNING), (screen.name(name, screen.width - 4), "")]]
    lines += [[(text, STRONG)] for text in wrap(screen.text(what), screen.width)]
    lines += [[]] + [[(text, PLAIN)] for text in wrap(screen.text(do), screen.width)] if do else []
    is_gone = isinstance(error, FileNotFoundError)
    command = "stethoscope list" if is_gone or path is None else f"stethoscope doctor {name}"
    lines += [[], [("  ", ""), (screen.name(command, screen.width - 2), PLAIN)], []]
    note = "This screen looks again every second. g r: the list of runs, q: leave."
    return Page([*lines, [(note, NOTE)]])


def _trouble_words(error: Exception) -> tuple[str, str]:
    """What happened and what to do, each a sentence."""
    if isinstance(error, StethoscopeError):
        return _as_sentence(error.what), _as_sentence(error.do)
    if isinstance(error, FileNotFoundError):
        return "A file of the run is gone.", "The run may have been removed while it was being read."
    if isinstance(error, OSError):
        return f"The run cannot be read ({error.strerror or error}).", ""
    return f"The run cannot be drawn ({type(error).__name__}: {error}).", ""


def _as_sentence(text: str) -> str:
    text = text.strip().rstrip(".")
    return f"{text[:1].upper()}{text[1:]}." if text else ""
