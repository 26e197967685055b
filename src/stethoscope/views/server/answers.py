"""Answers as bytes: strict JSON within a cap, errors as helpful sentences."""

from __future__ import annotations

import gzip
import json
from typing import Any, Final

from starlette.requests import Request
from starlette.responses import Response

from stethoscope.record import RunDamagedError, RunFormatError, RunNotFoundError, StethoscopeError
from stethoscope.views.common.numbers import strict_json
from stethoscope.views.pagedata.packing import text
from stethoscope.views.pagedata.query import BadQuestionError, Trouble

MAX_BYTES: Final = 16 << 20
_PACK_FROM: Final = 1400
_COMMANDS: Final = {RunFormatError: "pip install -U stethoscope", RunDamagedError: "stethoscope doctor RUN"}


def json_answer(body: Any, request: Request, status: int = 200) -> Response:
    """Strict JSON, compressed where the client takes that; an answer over the cap is refused instead."""
    data = strict_json(body).encode()
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
    trouble: Trouble = {"what": what, "do": do, "command": command, "isKnown": known}
    return json_answer({"error": trouble}, request, status)
