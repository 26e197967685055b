"""Who may see the page: every request is refused here unless it is known to be the user's, before anything is routed.

In order: the Host must be one of ours to the letter (DNS rebinding), the method must only read and bring no body, an
Origin must be our own and the browser must not say the request comes from another site (CSRF, stream hijack), the token or the
cookie it was traded for must match (everyone else), and there must be room (exhaustion).
"""

from __future__ import annotations

import base64
import dataclasses
import hashlib
import hmac
import ipaddress
import secrets
import sys
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any, Final
from urllib.parse import parse_qs, urlsplit

from stethoscope.record import printable

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]

MAX_REQUESTS: Final = 64
"""Requests under way at once, streams not counted."""
MAX_QUERY_BYTES: Final = 49_152
"""Names of 10 kB are asked for by name."""

CSP: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data: blob:; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; "
    "trusted-types 'none'"
)
HEADERS: Final = (
    (b"content-security-policy", CSP.encode()),
    (b"x-content-type-options", b"nosniff"),
    (b"x-frame-options", b"DENY"),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-opener-policy", b"same-origin"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"permissions-policy", b"camera=(), microphone=(), geolocation=()"),
    (b"cache-control", b"no-store"),
)


@dataclasses.dataclass(frozen=True)
class AccessPolicy:
    """Who may come in: the token, and the names under which we are reached."""

    token: str
    hosts: frozenset[str]
    """Exact values of the Host header, with the port."""
    port: int

    @classmethod
    def at(cls, host: str, port: int, *, token: str | None = None) -> AccessPolicy:
        """The access policy of a server that listens at host:port."""
        known = {"127.0.0.1", "localhost", "[::1]"} if is_loopback(host) else set()
        if host not in ("0.0.0.0", "::", ""):  # noqa: S104 - a place to listen at, never a name to be called by
            known.add(f"[{host}]" if ":" in host else host)
        hosts = {f"{name}:{port}".lower() for name in known} | ({n.lower() for n in known} if port == 80 else set())
        return cls(token or secrets.token_urlsafe(32), frozenset(hosts), port)

    @property
    def cookie(self) -> str:
        """The cookie's name; cookies do not know of ports, so ours does."""
        return f"stethoscope-{self.port}"

    @property
    def pass_value(self) -> str:
        """What the cookie holds: proof of having had the token, not the token."""
        return hmac.new(self.token.encode(), b"stethoscope page", hashlib.sha256).hexdigest()


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach the address."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


class AccessMiddleware:
    """The ASGI wrapper that applies the access policy; what is inside never sees a request that was refused."""

    def __init__(self, app: Any, policy: AccessPolicy, close: Callable[[], None] = lambda: None) -> None:
        self._app, self._policy = app, policy
        self.close = close
        """Tells what is inside that the server is about to end."""
        self._under_way = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answers or passes on."""
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        if scope["type"] != "http":
            await send({"type": "websocket.close", "code": 1008})
            return
        refusal = self.refusal(scope)
        if refusal is None:
            admit = scope.get("state", {}).get("admit")
            if admit is not None:
                admit()
        if refusal is None and self._under_way >= MAX_REQUESTS:
            refusal = (429, "Too many requests at once. Close some pages and load this one again.")
        if refusal is not None:
            await _send_refusal(send, *refusal)
            return
        self._under_way += 1
        try:
            await self._app(scope, receive, self._with_headers(scope, send))
        except Exception as error:  # answered with 500 already; a traceback for every request would bury the terminal
            sys.stderr.write(
                f"stethoscope: {printable(scope['path'], limit=200)} failed: {printable(repr(error), limit=300)}\n"
            )
        finally:
            self._under_way -= 1

    def refusal(self, scope: Scope) -> tuple[int, str] | None:
        """Status and words where the request may not pass."""
        headers = _request_headers(scope)
        hosts = headers.get("host", [])
        if len(hosts) != 1 or hosts[0].lower() not in self._policy.hosts:
            return 421, "This name is not ours. Open the link that `stethoscope ui` printed."
        if scope["method"] not in ("GET", "HEAD"):
            return 405, "This server only reads."
        if "transfer-encoding" in headers or headers.get("content-length", ["0"]) != ["0"]:
            return 400, "A question has no body."
        try:
            is_own = self._is_own_site(headers, scope)
        except ValueError:
            return 400, "The Origin cannot be read."
        if not is_own:
            return 403, "Another site asked for this. Open the link that `stethoscope ui` printed."
        if len(scope.get("query_string", b"")) > MAX_QUERY_BYTES:
            return 414, "The address is too long."
        if not self.has_token(scope, headers):
            return 401, "The token is missing or wrong. Open the link that `stethoscope ui` printed, with its token."
        return None

    def _is_own_site(self, headers: dict[str, list[str]], scope: Scope) -> bool:
        for origin in headers.get("origin", []):
            parts = urlsplit(origin)
            if parts.scheme != "http" or parts.netloc.lower() not in self._policy.hosts or parts.path:
                return False
        site = (headers.get("sec-fetch-site") or ["none"])[0]
        if site in ("none", "same-origin"):
            return True
        # A person may follow a link to the page itself from anywhere; nothing else may be fetched from elsewhere.
        is_navigation = (headers.get("sec-fetch-mode") or [""])[0] == "navigate"
        return is_navigation and scope["path"] == "/" and (headers.get("sec-fetch-dest") or [""])[0] == "document"

    def has_token(self, scope: Scope, headers: dict[str, list[str]]) -> bool:
        """Whether the cookie, the Authorization header, or (for the page itself) the link carries the token."""
        policy = self._policy
        for line in headers.get("cookie", []):
            for part in line.split(";"):
                name, _, value = part.strip().partition("=")
                if name == policy.cookie and _equal_secrets(value, policy.pass_value):
                    return True
        for line in headers.get("authorization", []):
            scheme, _, value = line.partition(" ")
            if scheme.lower() == "bearer" and _equal_secrets(value.strip(), policy.token):
                return True
        return self.brings_token(scope)

    def brings_token(self, scope: Scope) -> bool:
        """Whether the link itself carries the token; only the page's own address may."""
        if scope["path"] != "/":
            return False
        found = parse_qs(scope.get("query_string", b"").decode("latin-1")).get("token", [])
        return len(found) == 1 and _equal_secrets(found[0], self._policy.token)

    def _with_headers(self, scope: Scope, send: Send) -> Send:
        async def sending(message: MutableMapping[str, Any]) -> None:
            if message["type"] == "http.response.start":
                own = {name for name, _ in HEADERS}
                kept = [(name, value) for name, value in message.get("headers", []) if name.lower() not in own]
                kept += list(HEADERS)
                if self.brings_token(scope):
                    kept.append((b"set-cookie", self._cookie_header()))
                message = {**message, "headers": kept}
            await send(message)

        return sending

    def _cookie_header(self) -> bytes:
        policy = self._policy
        return f"{policy.cookie}={policy.pass_value}; Path=/; HttpOnly; SameSite=Strict".encode()


def _equal_secrets(given: str, wanted: str) -> bool:
    return hmac.compare_digest(given.encode("utf-8", "replace"), wanted.encode())


def _request_headers(scope: Scope) -> dict[str, list[str]]:
    out: dict[str, list[str]] = {}
    for name, value in scope.get("headers", []):
        out.setdefault(name.decode("latin-1").lower(), []).append(value.decode("latin-1"))
    return out


_STYLE: Final = (
    "body{margin:12vh auto;max-width:520px;padding:0 16px;font:13px/20px system-ui,sans-serif;background:#fff;color:#454d50}"
    "h1{margin:0 0 12px;font-size:22px;line-height:28px;letter-spacing:-.014em;color:#15191b}"
    "code{display:inline-block;padding:4px 10px;border:1px solid #e1e5e5;border-radius:5px;background:#f5f6f6;color:#15191b}"
    "@media(prefers-color-scheme:dark){body{background:#101315;color:#b1babc}h1,code{color:#e9eded}"
    "code{background:#161a1c;border-color:#242a2d}}"
)
_PAGE: Final = """<!doctype html><html lang="en"><meta charset="utf-8"><title>Stethoscope</title>
<meta name="viewport" content="width=device-width"><meta name="color-scheme" content="light dark"><style>{style}</style>
<h1>{title}</h1><p>{words}</p><p><code>stethoscope ui</code></p></html>
"""
_PAGE_CSP: Final = (
    f"default-src 'none'; style-src 'sha256-{base64.b64encode(hashlib.sha256(_STYLE.encode()).digest()).decode()}'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
"""A refusal runs nothing and loads nothing; its own few rules are admitted by what they are."""


async def _send_refusal(send: Send, status: int, words: str) -> None:
    """A refusal as a page without anything of ours in it; the connection ends with it, whatever else it would send."""
    title = {400: "Not understood", 401: "This page needs its token", 429: "Too many requests"}.get(
        status, "Not from here"
    )
    body = _PAGE.format(title=title, words=words.replace("`", ""), style=_STYLE).encode()
    ours = [(name, _PAGE_CSP.encode() if name == b"content-security-policy" else value) for name, value in HEADERS]
    headers = [
        (b"content-type", b"text/html; charset=utf-8"),
        (b"content-length", str(len(body)).encode()),
        (b"connection", b"close"),
        *ours,
    ]
    if status == 401:
        headers.append((b"www-authenticate", b"Bearer"))
    if status == 429:
        headers.append((b"retry-after", b"2"))
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
