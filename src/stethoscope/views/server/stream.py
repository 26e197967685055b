"""Server-sent events by cursor: "something of the run changed, here is the new version".

What changed is asked for as usual, so a client that misses events misses nothing. There is no queue for a client
to fill: each one is told the latest version when it is ready to hear it, and is let go where it never reads.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any, Final

import anyio.to_thread
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response, StreamingResponse

from stethoscope.record import StethoscopeError
from stethoscope.views.common.numbers import strict_json
from stethoscope.views.pagedata.packing import text
from stethoscope.views.server.answers import error_answer
from stethoscope.views.server.run_cache import RunCache

MAX_STREAMS: Final = 32
POLL_S: Final = 0.3
LIST_POLL_S: Final = 2.0
BEAT_S: Final = 15.0
SEND_S: Final = 20.0
"""A client that takes nothing for this long is let go."""


class Streams:
    """The streams that are open."""

    def __init__(self, cache: RunCache) -> None:
        self._cache = cache
        self._open = 0
        self._closed = False

    def close(self) -> None:
        """Every stream ends at its next look."""
        self._closed = True

    async def run(self, request: Request) -> Response:
        """The stream of one run."""
        run_id = request.path_params["run"]
        try:
            await anyio.to_thread.run_sync(self._cache.open, run_id)
        except Exception as error:  # whatever a run folder holds, the answer is a sentence
            return error_answer(error, request)

        def look() -> dict[str, Any]:
            viewed = self._cache.open(run_id)
            with viewed.lock:
                return {"version": viewed.version, "state": viewed.run.state, "lastStep": viewed.run.last_step}

        return self._open_stream(request, look, POLL_S)

    async def list(self, request: Request) -> Response:
        """The stream of the list: which runs there are and how each stands."""
        cache = self._cache

        def look() -> dict[str, Any]:
            known = [(row["key"], row["state"], row["lastStep"]) for row in cache.rows()]
            return {"version": hash(tuple(known)), "numRuns": len(known)}

        return self._open_stream(request, look, LIST_POLL_S)

    def _open_stream(self, request: Request, look: Callable[[], dict[str, Any]], every_s: float) -> Response:
        if self._open >= MAX_STREAMS:
            return Response("Too many live pages are open.", 429, {"retry-after": "5"})
        self._open += 1
        cursor = request.query_params.get("cursor", "")

        return _LimitedStream(self._follow_events(request, look, every_s, cursor), self._ended)

    def _ended(self) -> None:
        self._open -= 1

    async def _follow_events(
        self, request: Request, look: Callable[[], dict[str, Any]], every_s: float, cursor: str
    ) -> AsyncIterator[bytes]:
        yield b": listening\n\n"
        quiet_s = 0.0
        while not self._closed and not await request.is_disconnected():
            try:
                found = await anyio.to_thread.run_sync(look)
            except Exception as error:
                words = error.what if isinstance(error, StethoscopeError) else "The run cannot be read"
                yield _event_bytes("gone", {"what": text(words, 200)})
                return
            if str(found["version"]) != cursor:
                cursor, quiet_s = str(found["version"]), 0.0
                yield _event_bytes("changed", found)
            elif quiet_s >= BEAT_S:
                quiet_s = 0.0
                yield b": still here\n\n"
            await self._wait_unless_closed(every_s)
            quiet_s += every_s

    async def _wait_unless_closed(self, seconds: float) -> None:
        """Waits, but not for a stream that is to end."""
        while seconds > 0 and not self._closed:
            await asyncio.sleep(min(seconds, POLL_S))
            seconds -= POLL_S


class _LimitedStream(StreamingResponse):
    """A stream that is cut where the client does not take what is sent."""

    def __init__(self, events: AsyncIterator[bytes], ended: Callable[[], None]) -> None:
        super().__init__(events, media_type="text/event-stream")
        self._ended = ended

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        async def sending(message: Any) -> None:
            await asyncio.wait_for(send(message), SEND_S)

        try:
            await super().__call__(scope, receive, sending)
        except (TimeoutError, ClientDisconnect):
            return
        finally:
            self._ended()  # here, not in the events: a client that leaves at once never began them


def _event_bytes(kind: str, body: dict[str, Any]) -> bytes:
    return f"event: {kind}\ndata: {strict_json(body)}\n\n".encode()
