"""Nobody gets in: every route refused without the token, foreign hosts and origins, other methods, too many at once."""

from __future__ import annotations

import base64
import hashlib
import re
import sys
from pathlib import Path

import pytest

from tests.views import synthetic

pytest.importorskip("starlette")
pytest.importorskip("httpx2")

from starlette.testclient import TestClient

from stethoscope.views.server import make_app
from stethoscope.views.server.access import AccessMiddleware, AccessPolicy
from stethoscope.views.server.app import FILES, QUESTIONS
from stethoscope.views.server.run_cache import opaque_id

TOKEN = "the-token-of-these-tests"
BASE = "http://127.0.0.1:7654"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    base = tmp_path_factory.mktemp("runs")
    synthetic.write_run(base / "20261116-120000-gpt-small-aaaaaa", steps=range(1, 41))
    return base


@pytest.fixture(scope="module")
def app(folder):
    return make_app(folder, AccessPolicy.at("127.0.0.1", 7654, token=TOKEN))


@pytest.fixture
def stranger(app):
    return TestClient(app, base_url=BASE)


@pytest.fixture
def user(app):
    client = TestClient(app, base_url=BASE)
    assert client.get("/", params={"token": TOKEN}).status_code == 200
    return client


def every_path(folder):
    key = opaque_id(next(path for path in folder.iterdir() if path.is_dir()))
    paths = [*FILES, "/api/runs", f"/api/compare?a={key}&b={key}", f"/api/compare/angles?a={key}&b={key}"]
    paths += ["/api/stream", f"/api/runs/{key}/stream"]
    paths += [f"/api/runs/{key}{tail}" for tail in QUESTIONS]
    return [*paths, "/nothing", "/api/nothing", "/../../etc/passwd", "/api/runs/..%2f..", "//evil.example/"]


def routes_of(app):
    return {route.path for route in app._app.routes}


def test_every_route_is_walked_and_refused_without_the_token(app, stranger, folder):
    walked = every_path(folder)
    key = opaque_id(next(path for path in folder.iterdir() if path.is_dir()))
    known = {path.split("?")[0].replace(key, "{run}") for path in walked}
    assert routes_of(app) <= known
    for path in walked:
        answer = stranger.get(path)
        assert answer.status_code == 401, path
        assert "gpt-small" not in answer.text


@pytest.mark.parametrize("method", ["POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE", "CONNECT"])
def test_only_reading_methods_pass(user, method):
    assert user.request(method, "/api/runs").status_code == 405


@pytest.mark.parametrize(
    "host",
    [
        "evil.example",
        "evil.example:7654",
        "127.0.0.1",
        "127.0.0.1:80",
        "localhost:7654.evil.example",
        "0.0.0.0:7654",
        "",
    ],
)
def test_a_foreign_host_is_refused_whatever_it_brings(user, host):
    answer = user.get("/api/runs", headers={"host": host, "authorization": f"Bearer {TOKEN}"})
    assert answer.status_code == 421


@pytest.mark.parametrize("host", ["127.0.0.1:7654", "localhost:7654", "LOCALHOST:7654", "[::1]:7654"])
def test_our_own_names_pass(stranger, host):
    answer = stranger.get("/api/runs", headers={"host": host, "authorization": f"Bearer {TOKEN}"})
    assert answer.status_code == 200


@pytest.mark.parametrize(
    "origin",
    [
        "http://evil.example",
        "https://127.0.0.1:7654",
        "http://127.0.0.1:7655",
        "null",
        "http://127.0.0.1:7654.evil.example",
        "http://127.0.0.1:7654/x",
    ],
)
def test_a_foreign_origin_is_refused(user, origin):
    assert user.get("/api/runs", headers={"origin": origin}).status_code == 403


def test_our_own_origin_passes(user):
    assert user.get("/api/runs", headers={"origin": BASE}).status_code == 200


@pytest.mark.parametrize("site", ["cross-site", "same-site"])
def test_another_site_may_only_lead_to_the_page_itself(user, site):
    fetch = {"sec-fetch-site": site, "sec-fetch-mode": "no-cors", "sec-fetch-dest": "image"}
    assert user.get("/api/runs", headers=fetch).status_code == 403
    link = {"sec-fetch-site": site, "sec-fetch-mode": "navigate", "sec-fetch-dest": "document"}
    assert user.get("/", headers=link).status_code == 200
    assert user.get("/api/runs", headers=link).status_code == 403


def test_the_link_is_traded_for_a_cookie_that_is_not_the_token(stranger):
    answer = stranger.get("/", params={"token": TOKEN})
    cookie = answer.headers["set-cookie"]
    assert "HttpOnly" in cookie
    assert "SameSite=Strict" in cookie
    assert TOKEN not in cookie
    assert stranger.get("/api/runs").status_code == 200


@pytest.mark.parametrize("token", ["", "wrong", TOKEN[:-1], TOKEN + "x", "\u00e9"])
def test_a_wrong_token_is_refused(stranger, token):
    assert stranger.get("/", params={"token": token}).status_code == 401
    value = token.encode("utf-8").decode("latin-1")
    assert stranger.get("/api/runs", headers={b"authorization": f"Bearer {value}".encode("latin-1")}).status_code == 401


def test_the_token_in_the_address_opens_the_page_alone(stranger):
    assert stranger.get("/api/runs", params={"token": TOKEN}).status_code == 401
    assert stranger.get("/", params=[("token", TOKEN), ("token", TOKEN)]).status_code == 401


def test_every_answer_carries_the_policy(user, stranger, folder):
    for client in (user, stranger):
        for path in ["/", "/app.js", "/api/runs", "/nothing"]:
            headers = client.get(path).headers
            policy = headers["content-security-policy"]
            assert "default-src 'none'" in policy
            assert "unsafe" not in policy
            assert headers["x-content-type-options"] == "nosniff"
            assert headers["cache-control"] == "no-store"
            assert "access-control-allow-origin" not in headers


def test_a_refusal_is_styled_by_what_its_policy_names_alone(stranger):
    answer = stranger.get("/")
    policy = answer.headers["content-security-policy"]
    style = re.search(r"<style>(.*?)</style>", answer.text, re.DOTALL)[1]
    assert base64.b64encode(hashlib.sha256(style.encode()).digest()).decode() in policy
    assert "script" not in answer.text
    assert "script-src" not in policy


def test_the_page_has_nothing_inline_and_nothing_from_elsewhere():
    web = Path(sys.modules["stethoscope.views.server.app"].__file__).parents[1] / "web"
    page = (web / "index.html").read_text()
    assert "style=" not in page
    assert "onload" not in page
    for name in ("index.html", "app.js", "app.css"):
        text = (web / name).read_text()
        hosts = {part.split("/")[0] for part in text.split("://")[1:]}
        assert hosts <= {"www.w3.org"}, (name, hosts)


def test_long_addresses_are_refused(user):
    assert user.get("/api/runs", params={"x": "y" * 60_000}).status_code == 414


def test_a_hundredth_request_at_once_is_told_to_wait(app):
    import asyncio

    async def slow(scope, receive, send):
        await asyncio.sleep(0.2)
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b""})

    guard = AccessMiddleware(slow, AccessPolicy.at("127.0.0.1", 7654, token=TOKEN))
    scope = {
        "type": "http",
        "method": "GET",
        "path": "/",
        "query_string": b"",
        "headers": [(b"host", b"127.0.0.1:7654"), (b"authorization", f"Bearer {TOKEN}".encode())],
    }

    async def one():
        statuses = []

        async def send(message):
            statuses.append(message.get("status"))

        await guard(dict(scope), None, send)
        return statuses[0]

    async def many():
        return await asyncio.gather(*(one() for _ in range(100)))

    statuses = asyncio.run(many())
    assert statuses.count(200) == 64
    assert statuses.count(429) == 36


def test_websockets_are_closed(app):
    import asyncio

    sent = []

    async def send(message):
        sent.append(message)

    asyncio.run(app({"type": "websocket", "headers": []}, None, send))
    assert sent == [{"type": "websocket.close", "code": 1008}]


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.168.1.5"])
def test_a_server_for_the_network_answers_to_its_own_name_only(host):
    policy = AccessPolicy.at(host, 7654, token=TOKEN)
    assert "localhost:7654" not in policy.hosts
    assert policy.hosts == (frozenset({"192.168.1.5:7654"}) if host[0] == "1" else frozenset())


def test_a_client_that_never_reads_is_let_go(monkeypatch):
    import asyncio

    from stethoscope.views.server import stream

    monkeypatch.setattr(stream, "SEND_S", 0.05)

    async def endless():
        while True:
            yield b"data: x\n\n"

    async def receive():
        await asyncio.sleep(3600)

    tried = []

    async def deaf(message):
        tried.append(message["type"])
        await asyncio.sleep(3600)

    ended = []
    response = stream._LimitedStream(endless(), lambda: ended.append(True))
    scope = {"type": "http", "method": "GET", "path": "/", "headers": [], "asgi": {"spec_version": "2.4"}}
    asyncio.run(asyncio.wait_for(response(scope, receive, deaf), 60))
    assert tried == ["http.response.start"], "one message, and no second one after it was not taken"
    assert ended == [True], "it counts no longer as open, though its events never began"


def test_one_stream_too_many_is_told_to_wait(folder):
    import asyncio

    from starlette.requests import Request

    from stethoscope.views.server.run_cache import RunCache
    from stethoscope.views.server.stream import MAX_STREAMS, Streams

    streams = Streams(RunCache(folder))
    request = Request({"type": "http", "method": "GET", "path": "/", "headers": [], "query_string": b""})
    answers = [asyncio.run(streams.list(request)).status_code for _ in range(MAX_STREAMS + 5)]
    assert answers == [200] * MAX_STREAMS + [429] * 5
