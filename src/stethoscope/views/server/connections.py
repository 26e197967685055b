"""How long a connection may wait for what it owes us, and how many may wait at once.

A client owes a whole request header with the token within `HEADER_S`, and owes to read what it asked for. uvicorn has no
limit for either, so each connection notes where it stands and `close_idle_connections`, called several times a
second, aborts those that are late. Where many connections have shown no token, the oldest of them are aborted first: a
client with the token sends it at once, so it always gets in.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
from typing import Any, Final

import h11
import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

HEADER_S: Final = 5.0
"""A request header must be whole, and its token right, after this long."""
GRACE_S: Final = 1.0
"""For this long no connection is closed to make room for another."""
MAX_STRANGERS: Final = 64
"""Connections without a token that are kept after `GRACE_S`."""
MAX_FRESH_STRANGERS: Final = 512
"""Connections without a token that are kept at all."""
READ_S: Final = 20.0
MIN_READ_BYTES: Final = 65_536
"""A client must take this much of what waits for it in every `READ_S`."""
MAX_CONNECTIONS: Final = 2048
ACCEPTED_AT_ONCE: Final = 128
"""Connections accepted before any of them is read: below `MAX_FRESH_STRANGERS`, so that a new one is read before it is aborted."""


class Connection(H11Protocol):
    """One client, and since when it owes us something."""

    def __init__(
        self,
        config: uvicorn.Config,
        server_state: Any,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        super().__init__(config, server_state, {**app_state, "admit": self.admit}, _loop)
        self.is_admitted = False
        self.opened_at = self.loop.time()
        """By the loop's clock."""
        self._header_since: float | None = self.opened_at
        self._unread: tuple[float, int] | None = None
        """Since when so many bytes wait to be read by the client."""

    def admit(self) -> None:
        """A request of this connection was allowed."""
        self.is_admitted = True

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Counts the connection; the oldest without a token makes room where there are too many."""
        super().connection_made(transport)
        strangers = strangers_among(self.connections)
        if len(strangers) > min(MAX_FRESH_STRANGERS, max_open_files() // 4):
            strangers[0].abort()
            self.connections.discard(strangers[0])

    def data_received(self, data: bytes) -> None:
        """A request that is under way owes no header; the first bytes of the next one start its time."""
        super().data_received(data)
        is_answering = self.cycle is not None and not self.cycle.response_complete
        if is_answering:
            self._header_since = None
        elif self._header_since is None:
            self._header_since = self.loop.time()

    def send_400_response(self, msg: str) -> None:
        """What cannot be parsed is answered where nothing was sent yet, and ends the connection in any case."""
        if self.cycle is not None:
            self.cycle.disconnected = True
        with contextlib.suppress(h11.LocalProtocolError):
            super().send_400_response(msg)
        self.transport.close()

    def abort(self) -> None:
        """Ends the connection at once; what waits for the client is dropped by the system too, not kept until it reads."""
        with contextlib.suppress(OSError, AttributeError):
            self.transport.get_extra_info("socket").setsockopt(
                socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0)
            )
        self.transport.abort()

    def is_late(self, now: float) -> bool:
        """Whether the header, the token, or the reading of an answer is overdue."""
        if not self.is_admitted and now - self.opened_at > HEADER_S:
            return True
        if self._header_since is not None and now - self._header_since > HEADER_S:
            return True
        return self._reads_too_slowly(now)

    def _reads_too_slowly(self, now: float) -> bool:
        waiting = self.transport.get_write_buffer_size()
        if not waiting:
            self._unread = None
        elif self._unread is None:
            self._unread = (now, waiting)
        elif now - self._unread[0] > READ_S:
            if waiting > self._unread[1] - MIN_READ_BYTES:
                return True
            self._unread = (now, waiting)
        return False


def strangers_among(connections: Any) -> list[Connection]:
    """Those without a token, the oldest first."""
    return sorted((one for one in connections if not one.is_admitted), key=lambda one: one.opened_at)


def close_idle_connections(connections: Any, now: float) -> None:
    """Aborts what is late; of more than `MAX_STRANGERS` without a token, the oldest."""
    for one in [one for one in connections if one.is_late(now)]:
        one.abort()
    settled = [one for one in strangers_among(connections) if now - one.opened_at > GRACE_S]
    for one in settled[: max(0, len(settled) - MAX_STRANGERS)]:
        one.abort()


def max_open_files() -> int:
    """How many files this process may open."""
    try:
        import resource
    except ImportError:  # not a POSIX system
        return 512
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return MAX_CONNECTIONS * 2 if soft == resource.RLIM_INFINITY else soft


def raise_open_files_limit() -> None:
    """Connections are files: ask for enough of them, as far as the system lets us."""
    with contextlib.suppress(ImportError, OSError, ValueError):
        import resource

        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        wanted = MAX_CONNECTIONS * 2 if hard == resource.RLIM_INFINITY else min(hard, MAX_CONNECTIONS * 2)
        if soft != resource.RLIM_INFINITY and soft < wanted:
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


class Server(uvicorn.Server):
    """A server that closes idle connections, and tells the application before it waits for the others."""

    def __init__(self, app: Any) -> None:
        config = uvicorn.Config(
            app,
            http=Connection,
            ws="none",
            log_level="error",
            access_log=False,
            server_header=False,
            date_header=False,
            timeout_keep_alive=10,
            limit_concurrency=MAX_CONNECTIONS,
            backlog=ACCEPTED_AT_ONCE,
            h11_max_incomplete_event_size=65_536,
            timeout_graceful_shutdown=2,
        )
        super().__init__(config)
        self._app = app

    def run(self, sockets: list[socket.socket] | None = None) -> None:
        """Serves until interrupted."""
        raise_open_files_limit()
        super().run(sockets)

    async def on_tick(self, counter: int) -> bool:
        """Ten times a second."""
        close_idle_connections(self.server_state.connections, asyncio.get_running_loop().time())
        return await super().on_tick(counter)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Open pages would hold the server up: they are told first."""
        self._app.close()
        await super().shutdown(sockets)
