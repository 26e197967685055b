"""The page's server under attack: malformed requests, clients that send or read slowly, broken and hostile run folders."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import socket
import threading
import time
import urllib.error
import urllib.request

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from tests.store.test_store_fuzz import EXAMPLES
from tests.views import synthetic

pytest.importorskip("starlette")
pytest.importorskip("uvicorn")

from stethoscope.cli.ui import listen
from stethoscope.store.runfile import dump
from stethoscope.views.common import row_reader
from stethoscope.views.common.row_reader import RowReader, SlowRunError
from stethoscope.views.server import connections, make_app, make_server
from stethoscope.views.server.access import AccessPolicy

TOKEN = "the-token-of-these-tests"
PORT = 7654


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    base = tmp_path_factory.mktemp("runs")
    synthetic.write_run(base / "20261116-120000-gpt-small-aaaaaa", steps=range(1, 21))
    return base


@pytest.fixture(scope="module")
def app(folder):
    return make_app(folder, AccessPolicy.at("127.0.0.1", PORT, token=TOKEN))


def status_of(app, headers, *, path="/api/runs", query=b"", method="GET"):
    """The status with which the application answers, and what its answer holds."""
    sent = []

    async def send(message):
        sent.append(message)

    async def receive():
        return {"type": "http.disconnect"}

    scope = {
        "type": "http",
        "method": method,
        "path": path,
        "raw_path": path.encode("utf-8", "replace"),
        "root_path": "",
        "scheme": "http",
        "query_string": query,
        "headers": headers,
        "http_version": "1.1",
        "client": ("127.0.0.1", 1),
        "server": ("127.0.0.1", PORT),
    }
    asyncio.run(app(scope, receive, send))
    return sent[0]["status"], b"".join(message.get("body", b"") for message in sent)


OURS = [(b"host", b"127.0.0.1:7654"), (b"authorization", f"Bearer {TOKEN}".encode())]


@pytest.mark.parametrize(
    "origin", [b"http://[::1", b"http://[", b"http://[::1]]:7654", b"http://\xe2\x84\x80.com", b"//["]
)
def test_a_malformed_origin_is_400_and_no_error_of_ours(app, origin):
    assert status_of(app, [*OURS, (b"origin", origin)])[0] in (400, 403)
    assert status_of(app, [*OURS, (b"origin", b"http://[::1")])[0] == 400


def test_a_question_with_a_body_is_400(app):
    assert status_of(app, [*OURS, (b"content-length", b"10")])[0] == 400
    assert status_of(app, [*OURS, (b"transfer-encoding", b"chunked")])[0] == 400
    assert status_of(app, [*OURS, (b"content-length", b"0")])[0] == 200


names = st.sampled_from(
    [
        b"host",
        b"origin",
        b"cookie",
        b"authorization",
        b"content-length",
        b"sec-fetch-site",
        b"accept-encoding",
        b"range",
        b"x",
    ]
)
values = st.one_of(
    st.binary(max_size=60),
    st.sampled_from(
        [b"127.0.0.1:7654", b"http://[::1", b"http://127.0.0.1:7654", b"Bearer " + TOKEN.encode(), b"bytes=0-"]
    ),
)
paths = st.one_of(
    st.text(max_size=40).map(lambda text: "/" + text),
    st.sampled_from(
        ["/", "/api/runs", "/api/runs/\x00", "/api/runs/../../etc/passwd", "/app.js", "/api/runs/" + "x" * 5000]
    ),
)
queries = st.one_of(
    st.binary(max_size=80),
    st.sampled_from([b"a=%zz&b=%ff", b"first=1e9", b"width=" + b"9" * 300, b"x=" + b"y" * 50_000]),
)


@settings(
    max_examples=max(100, EXAMPLES),
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(extra=st.lists(st.tuples(names, values), max_size=4), path=paths, query=queries, with_token=st.booleans())
@example(extra=[(b"origin", b"http://[::1")], path="/", query=b"", with_token=True)
def test_no_request_is_an_error_of_ours(app, capfd, extra, path, query, with_token):
    status, body = status_of(app, [*(OURS if with_token else OURS[:1]), *extra], path=path, query=query)
    assert status < 500
    assert b"Traceback" not in body
    said = capfd.readouterr()
    assert (said.out, said.err) == ("", "")


# ---- real sockets ----


class Served:
    """A server on a thread of its own, and clients for it."""

    def __init__(self, folder):
        self.listener = listen("127.0.0.1", 0)
        self.port = self.listener.getsockname()[1]
        self.server = make_server(make_app(folder, AccessPolicy.at("127.0.0.1", self.port, token=TOKEN)))
        self.thread = threading.Thread(target=self.server.run, args=([self.listener],))
        self.opened = []

    def __enter__(self):
        self.thread.start()
        assert wait_for(lambda: self.server.started)
        return self

    def __exit__(self, *_):
        for one in self.opened:
            one.close()
        self.server.should_exit = True
        self.thread.join(20)
        self.listener.close()

    def connect(self, data=b"", **options):
        one = socket.socket()
        for option, value in options.items():
            one.setsockopt(socket.SOL_SOCKET, getattr(socket, option), value)
        one.connect(("127.0.0.1", self.port))
        one.sendall(data)
        self.opened.append(one)
        return one

    def request(self, path, *, token=TOKEN, more=b"", method=b"GET"):
        bearer = b"Authorization: Bearer %s\r\n" % token.encode() if token else b""
        return b"%s %s HTTP/1.1\r\nHost: 127.0.0.1:%d\r\n%s%s\r\n" % (method, path.encode(), self.port, bearer, more)

    def ask(self, path="/api/runs"):
        asked = urllib.request.Request(
            f"http://127.0.0.1:{self.port}{path}", headers={"Authorization": f"Bearer {TOKEN}"}
        )
        with urllib.request.urlopen(asked, timeout=20) as answer:
            return answer.status


def wait_for(true, seconds=20.0):
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        if true():
            return True
        time.sleep(0.02)
    return False


def is_closed(one):
    """Whether the server has ended the connection; what it sent before is thrown away."""
    one.setblocking(False)
    try:
        while one.recv(65_536):
            pass
    except BlockingIOError:
        return False
    except OSError:
        return True
    return True


@pytest.fixture
def served(folder, monkeypatch):
    monkeypatch.setattr(connections, "HEADER_S", 0.6)
    monkeypatch.setattr(connections, "READ_S", 0.6)
    with Served(folder) as served:
        yield served


HALVES = [b"", b"G", b"GET /api/runs HTTP/1.1\r\nHost: 127.0.0.1", b"GET / HTTP/1.1\r\n" + b"x: y\r\n" * 500]


def test_half_sent_requests_are_closed_and_the_page_answers_meanwhile(served):
    halves = [served.connect(half) for half in HALVES for _ in range(75)]
    began = time.monotonic()
    assert served.ask() == 200
    assert time.monotonic() - began < 5
    assert wait_for(lambda: all(is_closed(one) for one in halves))
    assert served.ask() == 200


def test_a_header_that_comes_byte_by_byte_is_closed_too(served):
    one = served.connect()
    with contextlib.suppress(OSError):
        for letter in b"GET / HTTP/1.1\r\nx-long: " + b"y" * 500:
            one.sendall(bytes([letter]))
            time.sleep(0.02)
            if is_closed(one):
                break
    assert is_closed(one)


def test_half_a_second_request_after_a_good_one_is_closed(served):
    one = served.connect(served.request("/api/runs"))
    assert b"200 OK" in one.recv(65_536)
    time.sleep(1.0)
    assert not is_closed(one), "a connection that waits for its next question is kept"
    one.setblocking(True)
    one.sendall(b"GET /api")
    assert wait_for(lambda: is_closed(one))


@pytest.mark.parametrize("more", [b"Content-Length: 1000000\r\n", b"Transfer-Encoding: chunked\r\n"])
def test_a_body_that_never_ends_is_refused_and_closed(served, more):
    for method, token, status in ((b"POST", "", b"405"), (b"POST", TOKEN, b"405"), (b"GET", TOKEN, b"400")):
        one = served.connect(served.request("/api/runs", token=token, more=more, method=method))
        assert one.recv(65_536).split(b" ")[1] == status
        assert wait_for(lambda one=one: is_closed(one))


def test_of_many_without_a_token_the_oldest_make_room(served, monkeypatch):
    monkeypatch.setattr(connections, "HEADER_S", 60.0)
    monkeypatch.setattr(connections, "GRACE_S", 0.2)
    user = served.connect(served.request("/api/runs"))
    assert b"200 OK" in user.recv(65_536)
    strangers = [served.connect(HALVES[2]) for _ in range(200)]
    assert wait_for(lambda: sum(not is_closed(one) for one in strangers) == connections.MAX_STRANGERS)
    assert is_closed(strangers[0])
    assert not is_closed(strangers[-1])
    assert not is_closed(user)


def test_as_many_connections_as_files_do_not_lock_the_user_out(served, monkeypatch):
    monkeypatch.setattr(connections, "HEADER_S", 60.0)
    monkeypatch.setattr(connections, "max_open_files", lambda: 256)
    for _ in range(300):
        served.connect(HALVES[2])
    assert wait_for(lambda: len(served.server.server_state.connections) <= 64)
    assert served.ask() == 200


def test_a_client_that_does_not_read_is_let_go_and_what_waited_for_it(served):
    asked = served.request("/app.js")
    one = served.connect(asked * 40, SO_RCVBUF=4096)
    assert wait_for(lambda: any(c.transport.get_write_buffer_size() for c in served.server.server_state.connections))
    held = max(c.transport.get_write_buffer_size() for c in served.server.server_state.connections)
    assert held < 4 << 20, "answers wait for the client, not in memory"
    assert wait_for(lambda: not served.server.server_state.connections)
    assert wait_for(lambda: one.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)), (
        "the system keeps nothing for it either"
    )
    assert served.ask() == 200


def test_a_client_that_reads_slowly_but_steadily_gets_everything(served, monkeypatch):
    monkeypatch.setattr(connections, "MIN_READ_BYTES", 1000)
    one = served.connect(served.request("/app.js", more=b"Connection: close\r\n"), SO_RCVBUF=4096)
    one.settimeout(5)
    got, until = b"", time.monotonic() + 1.5
    while part := one.recv(8192 if time.monotonic() < until else 1 << 20):
        got += part
        time.sleep(0.02 if time.monotonic() < until else 0)
    head, _, body = got.partition(b"\r\n\r\n")
    size = next(int(line.split(b":")[1]) for line in head.split(b"\r\n") if line.lower().startswith(b"content-length"))
    assert len(body) == size


GARBAGE = [
    b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
    b"GET\r\n\r\n",
    b"GET / HTTP/9.9\r\n\r\n",
    b"\x00" * 100 + b"\r\n\r\n",
    b"GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n",
    b"GET / HTTP/1.1\r\nContent-Length: -1\r\n\r\n",
    b"GET /%zz%00 HTTP/1.1\r\nHost: x\r\n\r\n",
    b"GET / HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n",
    b"GET /\xff HTTP/1.1\r\nHost: x\r\n\r\n",
    b"GET / HTTP/1.1\r\nx: " + b"y" * 100_000 + b"\r\n\r\n",
    b"GET http://evil.example/ HTTP/1.1\r\nHost: evil.example\r\n\r\n",
]


def test_garbage_is_400_or_refused_without_a_word_on_the_terminal(served, capfd):
    own = served.request("/api/runs", more=b"Transfer-Encoding: chunked\r\n") + b"ZZZ\r\n"
    for data in [*GARBAGE, own, served.request("/api/stream") + b"\x00\r\n\r\n"]:
        one = served.connect(data)
        one.settimeout(10)
        with contextlib.suppress(ConnectionResetError):
            status = one.recv(65_536).split(b" ")[1:2]
            assert status in ([b"400"], [b"421"], [b"200"]), data[:40]
        one.close()
    assert served.ask() == 200
    said = capfd.readouterr()
    assert (said.out, said.err) == ("", "")


# ---- one broken or hostile run folder among good ones ----

HOSTILE = [
    {"config": []},
    {"model": "x"},
    {"model": {"modules": [5, None, {"path": 7}]}},
    {"config": {"ignore": 5}},
    {"world_size": {}},
    {"created_at": 1e300, "created": "soon"},
    {"versions": 5, "optimizers": {}},
    {"name": "n" * 1_000_000},
]


@pytest.fixture
def mixed(folder, tmp_path):
    """One good run, and folders whose description is well formed and makes no sense."""
    base = tmp_path / "runs"
    synthetic.write_run(base / "20261116-120000-good-aaaaaa", steps=range(1, 21))
    for number, body in enumerate(HOSTILE):
        path = base / f"20261116-13000{number}-bad-bbbbb{number}"
        synthetic.write_run(path, steps=range(1, 5))
        info = json.loads((path / "run.json").read_bytes())
        (path / "run.json").write_bytes(
            dump({key: value for key, value in {**info, **body}.items() if key != "checksum"})
        )
    return base


def test_a_hostile_folder_costs_its_own_row(mixed, capsys):
    status, body = status_of(make_app(mixed, AccessPolicy.at("127.0.0.1", PORT, token=TOKEN)), OURS)
    assert status == 200
    rows = json.loads(body)["runs"]
    assert len(rows) == len(HOSTILE) + 1
    (good,) = [row for row in rows if row["lastStep"] == 20]
    assert good["trouble"] == ""

    from stethoscope.cli import main

    assert main(["list", str(mixed), "--json"]) == 0
    listed = json.loads(capsys.readouterr().out)["runs"]
    assert [row["last_step"] for row in listed if row["path"].endswith("good-aaaaaa")] == [20]
    assert main(["list", str(mixed)]) == 0
    assert len(capsys.readouterr().out.splitlines()) >= len(HOSTILE) + 2


def test_the_terminal_page_lists_them_too(mixed):
    from stethoscope.views.common.glyphs import Screen
    from stethoscope.views.tui.runs_page import RunList, runs_page
    from stethoscope.views.tui.view import View

    page = runs_page(RunList(mixed), View(), Screen(100), 40, frozenset())
    assert len(page.rows) == len(HOSTILE) + 1


def test_a_read_that_never_ends_costs_its_own_row_and_is_begun_once(tmp_path, monkeypatch):
    monkeypatch.setattr(row_reader, "ROW_S", 0.2)
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    reader, begun = RowReader(), []

    def stuck():
        begun.append(1)
        return fifo.read_bytes()

    with pytest.raises(SlowRunError, match="Not read within"):
        reader.read("stuck", stuck)
    began = time.monotonic()
    assert reader.read("good", lambda: 5) == 5
    with pytest.raises(SlowRunError):
        reader.read("stuck", stuck)
    assert time.monotonic() - began < 0.15, "nobody waits for it twice"
    assert len(begun) == 1
    fifo.write_bytes(b"at last")
    assert wait_for(lambda: reader._under_way["stuck"].ended.is_set())
    assert reader.read("stuck", stuck) == b"at last"


def test_few_reads_that_never_end_go_on_at_once(tmp_path, monkeypatch):
    monkeypatch.setattr(row_reader, "ROW_S", 0.05)
    ends, reader = threading.Event(), RowReader()
    for number in range(row_reader.MAX_SLOW + 3):
        with pytest.raises(SlowRunError):
            reader.read(number, ends.wait)
    assert len(reader._under_way) == row_reader.MAX_SLOW
    ends.set()
    assert wait_for(lambda: all(one.ended.is_set() for one in reader._under_way.values()))
    assert reader.read("next", lambda: 1) == 1


# ---- the table of threats ----


def test_every_threat_of_the_table_is_refused():
    from benchmarks.threats import THREATS, attack

    found, said = attack([name for name in THREATS if name not in ("exhaustion", "terminal escapes", "unpickling")])
    assert [(threat, row) for threat, row in found if not row[2]] == []
    assert said.strip() == ""
