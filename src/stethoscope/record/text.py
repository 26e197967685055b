"""Words for sentences and tables: text from elsewhere made safe to print, counts, lists of names, what a misspelled name may have meant."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence

BIDI_CONTROLS = frozenset("\u061c\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069")


def printable(text: str, limit: int = 400) -> str:
    """The text with control and bidirectional characters escaped, cut in the middle past `limit`."""
    if len(text) > limit:
        half = (limit - 1) // 2
        text = f"{text[:half]}…{text[-half:]}"
    return "".join(
        char if char.isprintable() and char not in BIDI_CONTROLS else char.encode("unicode_escape").decode()
        for char in text
    )


def spreadsheet_text(text: str, limit: int) -> str:
    """Printable text that a spreadsheet will not take for a formula."""
    safe = printable(text, limit)
    return f"'{safe}" if safe[:1] in ("=", "+", "-", "@") else safe


def plural(amount: int, word: str, words: str = "") -> str:
    """1 tensor, 3 tensors, 1,204 losses."""
    return f"{amount:,} {word if amount == 1 else words or word + 's'}"


def name_list(names: Sequence[str], most: int = 3) -> str:
    """Names for a sentence: the first few, then how many more."""
    more = len(names) - most
    return ", ".join(names[:most]) + (f" and {more:,} more" if more > 0 else "")


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """ "Did you mean a or b?" for a word that is nearly one of those known, "" where none is near."""
    by_lower = {name.lower(): name for name in known}
    near = [by_lower[name] for name in difflib.get_close_matches(word.lower(), list(by_lower), 3, 0.6)]
    # A part of a long name is what people remember of it.
    near += [name for lower, name in by_lower.items() if len(word) > 3 and word.lower() in lower and name not in near]
    near = [printable(name, limit=80) for name in near[:3]]
    if not near:
        return ""
    return f"Did you mean {near[0] if len(near) == 1 else ', '.join(near[:-1]) + ' or ' + near[-1]}?"
