"""From a question's words to its answer: typed parameters in, JSON bytes out, errors as helpful sentences."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable, Mapping
from typing import Any, Final

from starlette.requests import Request
from starlette.responses import Response

from stethoscope.kernels.statistics import STATISTICS
from stethoscope.record import Kind, RunDamagedError, RunFormatError, RunNotFoundError, StethoscopeError
from stethoscope.views.pagedata.heat import BadQuestionError
from stethoscope.views.pagedata.packing import text

MAX_BYTES: Final = 16 << 20
_PACK_FROM: Final = 1400
_COMMANDS: Final = {RunFormatError: "pip install -U stethoscope", RunDamagedError: "stethoscope doctor RUN"}


def json_answer(body: Any, request: Request, status: int = 200) -> Response:
    """Strict JSON, compressed where the client takes that; an answer over the cap is refused instead."""
    data = json.dumps(body, allow_nan=False, separators=(",", ":")).encode()
    if len(data) > MAX_BYTES:
        refusal = {"error": {"what": "The answer is too large", "do": "Ask for fewer rows or steps"}}
        data, status = json.dumps(refusal).encode(), 413
    headers = {"content-type": "application/json"}
    if len(data) >= _PACK_FROM and "gzip" in request.headers.get("accept-encoding", ""):
        data = gzip.compress(data, compresslevel=3, mtime=0)
        headers |= {"content-encoding": "gzip", "vary": "accept-encoding"}
    return Response(data, status, headers)


def error_answer(error: Exception, request: Request) -> Response:
    """What happened and what to do; nothing of the machine."""
    status, command = 500, ""
    if isinstance(error, RunNotFoundError):
        status, command = 404, "stethoscope list"
    elif isinstance(error, BadQuestionError):
        status = 400
    elif isinstance(error, StethoscopeError):
        status = 409
        command = next((words for kind, words in _COMMANDS.items() if isinstance(error, kind)), "")
    known = isinstance(error, StethoscopeError)
    what = text(error.what, 300) if isinstance(error, StethoscopeError) else "The run could not be read just now"
    do = text(error.do, 300) if isinstance(error, StethoscopeError) else "Load the page again"
    body = {"error": {"what": what, "do": do, "command": command, "isKnown": known}}
    return json_answer(body, request, status)


class QueryParams:
    """The parameters of a question, each checked."""

    def __init__(self, found: Mapping[str, str]) -> None:
        self._found = found

    def whole(self, name: str, default: int, low: int = -(2**53), high: int = 2**53) -> int:
        """A whole number."""
        words = self._found.get(name)
        if words is None or words == "":
            return default
        return max(low, min(self._parsed(int, name, words), high))

    def _parsed(self, parse: Callable[[str], int], name: str, words: str) -> int:
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
