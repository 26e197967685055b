"""Counts in sentences: one of a thing is said as one."""

from __future__ import annotations


def plural(amount: int, word: str, words: str = "") -> str:
    """1 tensor, 3 tensors, 1,204 losses."""
    return f"{amount:,} {word if amount == 1 else words or word + 's'}"
