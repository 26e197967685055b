"""The parameters of a question to a run's data: each checked, what cannot be read refused with what to do instead."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final, NotRequired, TypedDict

from stethoscope.kernels.statistics import STATISTICS
from stethoscope.record import Kind, StethoscopeError

MAX_ROWS: Final = 400


class Trouble(TypedDict):
    """What went wrong, and what to do."""

    what: str
    do: str
    command: NotRequired[str]
    isKnown: NotRequired[bool]


class BadQuestionError(StethoscopeError, ValueError):
    """A question that cannot be answered as it was asked."""


class QueryParams:
    """The parameters of a question, each checked."""

    def __init__(self, found: Mapping[str, str]) -> None:
        self._found = found

    def whole(self, name: str, default: int, low: int = -(2**53), high: int = 2**53) -> int:
        """A whole number."""
        words = self._found.get(name)
        if words is None or words == "":
            return default
        return max(low, min(self._parse_value(int, name, words), high))

    def _parse_value(self, parse: Callable[[str], int], name: str, words: str) -> int:
        if len(words) > 20:
            raise BadQuestionError(f"{name} cannot be read")
        try:
            return parse(words)
        except ValueError:
            raise BadQuestionError(f"{name} cannot be read", where=words[:40], do="Give a whole number") from None

    def kind(self, default: Kind) -> Kind:
        """One of the kinds of sites."""
        words = self._found.get("kind") or str(default)
        if words not in list(Kind):
            raise BadQuestionError("Unknown kind", where=words[:40], do=f"Known: {', '.join(Kind)}")
        return Kind(words)

    def stat(self) -> str:
        """One of the statistics."""
        words = self._found.get("stat") or "norm"
        if words not in STATISTICS:
            raise BadQuestionError("Unknown statistic", where=words[:40], do=f"Known: {', '.join(STATISTICS)}")
        return words

    def words(self, name: str, limit: int = 12_000) -> str:
        """Text, not longer than the limit."""
        found = self._found.get(name, "")
        if len(found) > limit:
            raise BadQuestionError(f"{name} is too long")
        return found

    def flag(self, name: str, default: bool = False) -> bool:
        """Yes or no."""
        return {"1": True, "0": False}.get(self._found.get(name, ""), default)

    def view(self, span: tuple[int, int]) -> tuple[int, int, int]:
        """First and last step, by default those of the span, and the width in pixels of what is drawn."""
        first, last = self.whole("first", span[0]), self.whole("last", span[1])
        if last < first:
            raise BadQuestionError("The last step lies before the first", where=f"{first} to {last}")
        return first, last, self.whole("width", 1000, 1, 4096)

    def rows(self) -> list[int] | None:
        """Rows of the tree, None where none are named."""
        words = self.words("rows")
        return _parsed_rows(words) if words else None


def _parsed_rows(words: str) -> list[int]:
    """ "0-12,40,41" as numbers; BadQuestionError where that cannot be read or is too much."""
    out: list[int] = []
    for part in words.split(","):
        low, dash, high = part.partition("-")
        if not low.isdecimal() or (dash and not high.isdecimal()) or len(part) > 16:
            raise BadQuestionError("Rows cannot be read", where=part, do="Write them as rows=0-12,40")
        begin, end = int(low), int(high or low)
        if end - begin >= MAX_ROWS or len(out) > MAX_ROWS:
            raise BadQuestionError("Too many rows", where=part, do=f"Ask for at most {MAX_ROWS} at a time")
        out += range(begin, end + 1)
    return out
