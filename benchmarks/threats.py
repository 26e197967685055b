"""Every threat of the table "Nobody gets in" against a real server on this machine with a real run: the request, and what it got.

    PYTHONPATH=src python -m benchmarks.threats [--markdown benchmarks/results/threats.md]

A short training writes a run whose names hold markup and terminal escapes; `stethoscope ui` serves it from a process of
its own. Fails where a request got what it must not.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import http.client
import http.server
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch

import stethoscope

PAYLOAD = "<img src=x onerror=alert(1)>\x1b]0;owned\x07\x1b[31m\u202e"


Row = tuple[str, str, bool]
"""A request, what it got, and whether that is as it must be."""


@dataclasses.dataclass
class Target:
    """A served folder of runs."""

    base: Path
    run: Path
    port: int
    token: str
    process: subprocess.Popen[str]

    def ask(
        self, path: str, *, method: str = "GET", token: bool = True, **headers: str
    ) -> tuple[int, dict[str, str], bytes]:
        """Status, headers and body."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=30)
        sent = {"Host": f"127.0.0.1:{self.port}"} | ({"Authorization": f"Bearer {self.token}"} if token else {})
        sent |= {name.replace("_", "-"): value for name, value in headers.items()}
        connection.putrequest(method, path, skip_host=True, skip_accept_encoding=True)
        for name, value in sent.items():
            connection.putheader(name, value)
        connection.endheaders()
        answer = connection.getresponse()
        body = answer.read()
        connection.close()
        return answer.status, {name.lower(): value for name, value in answer.getheaders()}, body

    def key(self) -> str:
        """The id of the run, as the page knows it."""
        rows = json.loads(self.ask("/api/runs")[2])["runs"]
        return str(next(row["key"] for row in rows if row["lastStep"]))

    def connect(self, data: bytes) -> socket.socket:
        """A bare connection that has sent this."""
        one = socket.create_connection(("127.0.0.1", self.port), timeout=30)
        one.sendall(data)
        return one

    def request(self, path: str) -> bytes:
        """A whole request with the token."""
        return (
            f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1:{self.port}\r\nAuthorization: Bearer {self.token}\r\n\r\n".encode()
        )


def routes() -> list[str]:
    """Every route of the page, with {run} where an id stands."""
    from stethoscope.views.server.access import AccessPolicy
    from stethoscope.views.server.app import build

    return [route.path for route in build(Path("nowhere"), AccessPolicy.at("127.0.0.1", 1))._app.routes]


def without_authentication(at: Target) -> Iterator[Row]:
    key, all_routes = at.key(), routes()
    for method in ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE", "CONNECT"):
        statuses = {at.ask(path.replace("{run}", key), method=method, token=False)[0] for path in all_routes}
        yield (
            f"{method} on all {len(all_routes)} routes, no token",
            ", ".join(map(str, statuses)),
            statuses <= {401, 405},
        )
    for wrong in ("x", at.token[:-1], at.token + "x"):
        status = at.ask("/api/runs", token=False, Authorization=f"Bearer {wrong}")[0]
        yield (f"GET /api/runs, a wrong token of {len(wrong)} characters", str(status), status == 401)
    status = at.ask(f"/api/runs?token={at.token}", token=False)[0]
    yield ("GET /api/runs?token=the right one (only / takes it from its address)", str(status), status == 401)


def dns_rebinding(at: Target) -> Iterator[Row]:
    for host in (
        "evil.example",
        f"evil.example:{at.port}",
        "127.0.0.1",
        f"127.0.0.1:{at.port}.evil.example",
        "[::1",
        "",
        "0.0.0.0",
    ):
        status = at.ask("/api/runs", Host=host)[0]
        yield (f"GET /api/runs, the token, Host: {host or '(empty)'}", str(status), status == 421)


def csrf(at: Target) -> Iterator[Row]:
    for origin, wanted in (
        ("http://evil.example", 403),
        ("null", 403),
        (f"https://127.0.0.1:{at.port}", 403),
        ("http://[::1", 400),
    ):
        status = at.ask("/api/stream", Origin=origin)[0]
        yield (f"GET /api/stream, the token, Origin: {origin}", str(status), status == wanted)
    status = at.ask("/api/runs", Sec_Fetch_Site="cross-site", Sec_Fetch_Mode="no-cors", Sec_Fetch_Dest="image")[0]
    yield ("GET /api/runs, the token, Sec-Fetch-Site: cross-site", str(status), status == 403)
    cookie = at.ask(f"/?token={at.token}", token=False)[1].get("set-cookie", "")
    shown = re.sub(r"=[0-9a-f]{64}", "=(an HMAC)", cookie)
    is_strict = "SameSite=Strict" in cookie and "HttpOnly" in cookie and at.token not in cookie
    yield ("GET /?token=…: the cookie", shown, is_strict)


def script_in_names(at: Target) -> Iterator[Row]:
    for path in ("/api/runs", f"/api/runs/{at.key()}", f"/api/runs/{at.key()}/heatmap"):
        status, headers, body = at.ask(path)
        policy = headers["content-security-policy"]
        is_inert = headers["content-type"] == "application/json" and headers["x-content-type-options"] == "nosniff"
        is_strict = (
            "default-src 'none'" in policy and "unsafe" not in policy and "require-trusted-types-for 'script'" in policy
        )
        is_escaped = b"\x1b" not in body and "\u202e".encode() not in body
        got = f"{status} {headers['content-type']}; {policy[:60]}…"
        yield (f"GET {path.replace(at.key(), 'ID')}, names with markup", got, is_inert and is_strict and is_escaped)


def path_traversal(at: Target) -> Iterator[Row]:
    linked = at.base / "20990101-000000-linked-ffffff"
    linked.symlink_to(at.run)
    names = [row["key"] for row in json.loads(at.ask("/api/runs")[2])["runs"]]
    yield ("GET /api/runs with a symbolic link to a run in the folder", f"{len(names)} listed", len(names) == 1)
    linked.unlink()
    for place in (
        "../../etc/passwd",
        "..%2f..%2f..%2fetc%2fpasswd",
        at.run.name,
        "%2e%2e",
        str(at.run).replace("/", "%2f"),
        "%00",
    ):
        status, _, body = at.ask(f"/api/runs/{place}")
        shown = place if str(at.base) not in place.replace("%2f", "/") else "(the run's own path)"
        yield (f"GET /api/runs/{shown}", str(status), status == 404 and b"root:" not in body)
    body = b"".join(at.ask(path)[2] for path in ("/api/runs", f"/api/runs/{at.key()}"))
    is_told = str(at.base).encode() in body
    yield ("the folder's path in any answer", "there" if is_told else "absent", not is_told)


def unpickling(at: Target) -> Iterator[Row]:
    mark = at.base / "unpickled"
    data = f"cbuiltins\nopen\n(V{mark}\nVw\ntR.".encode()  # opens that file for writing where it is unpickled
    planted = [
        at.run / name
        for name in ("captures/3.pt", "captures/3.safetensors", "rank-0/manifest.pkl", "run.pkl", "findings/x.pkl")
    ]
    for file in planted:
        file.parent.mkdir(exist_ok=True)
        file.write_bytes(data)
    key = at.key()
    for path in routes():
        if "stream" not in path:
            at.ask(path.replace("{run}", key) + ("?path=0" if path.endswith("layer") else ""))
    for command in ("show", "diagnose", "doctor"):
        _command(command, str(at.run))
    got = "executed" if mark.exists() else "not opened"
    yield ("pickles in captures/, rank-0/ and findings/; every route, show, diagnose, doctor", got, got == "not opened")
    for file in planted:
        file.unlink()


def evaluated_queries(at: Target) -> Iterator[Row]:
    mark = at.base / "evaluated"
    code = f"__import__('os').system('touch%20{mark}')"
    for tail in (
        f"heatmap?kind={code}",
        f"heatmap?stat={code}",
        f"series?first={code}",
        f"layer?path={code}",
        f"heatmap?rows={code}",
    ):
        status, _, _ = at.ask(f"/api/runs/{at.key()}/{tail}")
        yield (
            f"GET /api/runs/ID/{tail.split('=')[0]}=__import__('os')…",
            str(status),
            status in (200, 400, 404) and not mark.exists(),
        )
    status = at.ask("/api/query?sql=select%20*%20from%20read_text('/etc/passwd')")[0]
    yield ("GET /api/query?sql=select …", str(status), status == 404)


def ssrf(at: Target) -> Iterator[Row]:
    from stethoscope.hooks.alerts import Alert, WebhookSink
    from stethoscope.record import ConfigError, Severity

    inside: list[str] = []

    class Inside(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            inside.append(self.path)
            self.send_response(200)
            self.end_headers()

        do_POST = do_GET

        def log_message(self, *_: Any) -> None: ...

    with _listening(Inside) as secret:
        for code in (301, 302, 303, 307, 308):

            class Redirecting(Inside):
                def do_POST(self, code: int = code) -> None:
                    self.rfile.read(int(self.headers["Content-Length"]))
                    self.send_response(code)
                    self.send_header("Location", f"http://127.0.0.1:{secret}/secret")
                    self.end_headers()

            with _listening(Redirecting) as port:
                sink = WebhookSink(f"http://127.0.0.1:{port}/")
                sink(Alert("x", Severity.INFO, "hook"))
                sink.close()
            got = f"{len(inside)} followed, {sink.num_failed} failed"
            yield (f"a webhook that answers {code} to another address", got, not inside and sink.num_failed == 1)
    for address in ("file:///etc/passwd", "ftp://127.0.0.1/", "gopher://127.0.0.1"):
        try:
            WebhookSink(address)
            got = "taken"
        except ConfigError:
            got = "refused"
        yield (f"webhook={address}", got, got == "refused")


def terminal_escapes(at: Target) -> Iterator[Row]:
    for command, target in (("list", at.base), ("show", at.run), ("diagnose", at.run), ("doctor", at.run)):
        said = _command(command, str(target))
        raw = sum(said.count(char) for char in ("\x1b", "\x07", "\u202e"))
        got = f"{raw} in {len(said):,} characters of output"
        yield (f"stethoscope {command}, names with ESC, BEL and U+202E", got, bool(said) and not raw)


def exhaustion(at: Target) -> Iterator[Row]:
    halves = [at.connect(b"GET /api/runs HTTP/1.1\r\nHost: 127") for _ in range(300)]
    began = time.perf_counter()
    status = at.ask("/api/runs")[0]
    took = time.perf_counter() - began
    yield (
        "300 half-sent requests without a token; then GET /api/runs with it",
        f"{status} after {took:.2f} s",
        status == 200 and took < 5,
    )
    time.sleep(7)
    closed = sum(_is_closed(one) for one in halves)
    yield ("the same 300 after 7 s", f"{closed} closed", closed == 300)
    streams = [at.connect(at.request("/api/stream")) for _ in range(1000)]
    statuses = [_status(one) for one in streams]
    refused, open_ones, closed = (statuses.count(status) for status in ("429", "200", "closed"))
    yield (
        "1,000 live pages at once",
        f"{open_ones} open, {refused} refused with 429" + (f", {closed} closed without a word" if closed else ""),
        open_ones <= 32 and refused + open_ones + closed == 1000,
    )
    status = at.ask("/api/runs")[0]
    yield ("GET /api/runs while they are open", str(status), status == 200)
    for one in streams:
        one.close()
    yield from _huge_requests(at)
    yield from _never_reads(at)


def _status(one: socket.socket) -> str:
    """The status that a connection is answered with; "closed" where the server closes it without one."""
    with contextlib.suppress(ConnectionError, IndexError):
        return one.recv(64).split(b" ")[1].decode()
    return "closed"


def _huge_requests(at: Target) -> Iterator[Row]:
    for name in ("width=999999999", "rows=" + "9," * 6000, "rows=" + "9" * 13_000, "first=" + "9" * 300):
        status, _, body = at.ask(f"/api/runs/{at.key()}/heatmap?{name}")
        got, wanted = f"{status}, {len(body):,} bytes", 200 if name.startswith("width") else 400
        yield (f"GET …/heatmap?{name[:20]}… ({len(name):,} characters)", got, status == wanted and len(body) < 1 << 24)
    for request in (
        b"GET /?x=" + b"y" * 60_000 + b" HTTP/1.1\r\n",
        b"GET / HTTP/1.1\r\nx: " + b"y" * 500_000 + b"\r\n",
    ):
        one = at.connect(request + f"Host: 127.0.0.1:{at.port}\r\n\r\n".encode())
        got = _status(one)
        yield (f"a request of {len(request):,} bytes without a token", got, got in ("414", "400", "401", "closed"))


def _never_reads(at: Target) -> Iterator[Row]:
    before = _resident_mb(at.process.pid)
    deaf = [at.connect(at.request("/app.js") * 20) for _ in range(30)]
    time.sleep(2)
    grown = _resident_mb(at.process.pid) - before
    until = time.monotonic() + 60
    while time.monotonic() < until and not all(_is_reset(one) for one in deaf):
        time.sleep(1)
    ended = sum(_is_reset(one) for one in deaf)
    yield (
        "30 clients ask 20 times for 236 kB and read nothing",
        f"{grown:.0f} MB more, {ended} disconnected",
        grown < 200 and ended == 30,
    )


THREATS: dict[str, Callable[[Target], Iterator[Row]]] = {
    "a route without authentication": without_authentication,
    "DNS rebinding": dns_rebinding,
    "CSRF, stream hijack": csrf,
    "script in names": script_in_names,
    "path traversal": path_traversal,
    "unpickling": unpickling,
    "evaluated queries": evaluated_queries,
    "SSRF by webhooks": ssrf,
    "terminal escapes": terminal_escapes,
    "exhaustion": exhaustion,
}


def _command(*words: str) -> str:
    ran = subprocess.run(
        [sys.executable, "-m", "stethoscope", *words], capture_output=True, text=True, timeout=60, check=False
    )
    return ran.stdout + ran.stderr


@contextlib.contextmanager
def _listening(handler: Any) -> Iterator[int]:
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
    try:
        yield server.server_address[1]
    finally:
        server.shutdown()
        server.server_close()


def _is_closed(one: socket.socket) -> bool:
    """Whether the other side has ended it; what it sent before is read."""
    one.setblocking(False)
    try:
        while one.recv(65_536):
            pass
    except OSError as error:
        return not isinstance(error, BlockingIOError)
    return True


def _is_reset(one: socket.socket) -> bool:
    """Whether the other side has cut it off, asked without reading."""
    return one.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 1)[0] != 1  # TCP_ESTABLISHED


def _resident_mb(pid: int) -> float:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) / 1024 for line in lines if line.startswith("VmRSS"))


def make_run(base: Path) -> Path:
    """A short training of a model with a layer, a metric and a name that would do harm where they were not escaped."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.ReLU())
    model.add_module(PAYLOAD.replace(".", ""), torch.nn.Linear(8, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with stethoscope.watch(
        model, optimizer, dir=str(base), name="gpt" + PAYLOAD, companion="off", quiet=True
    ) as session:
        for _ in range(20):
            optimizer.zero_grad()
            model(torch.randn(4, 8)).square().mean().backward()
            optimizer.step()
            session.log(**{PAYLOAD: 1.0})
    return session.folder


@contextlib.contextmanager
def serving() -> Iterator[Target]:
    """A server of its own process, over a folder with one run."""
    base = Path(tempfile.mkdtemp())
    process = None
    try:
        run = make_run(base)
        command = [sys.executable, "-m", "stethoscope", "ui", str(base), "--port", "0", "--no-browser"]
        # Few files, as many systems have it: 300 connections are more.
        limit = "import resource, os, sys; resource.setrlimit(resource.RLIMIT_NOFILE, (256, 2048)); os.execv(sys.argv[1], sys.argv[1:])"
        process = subprocess.Popen(
            [sys.executable, "-c", limit, *command],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env=os.environ | {"PYTHONUNBUFFERED": "1"},
        )
        words = "".join(process.stdout.readline() for _ in range(2))
        link = re.search(r"http://127\.0\.0\.1:(\d+)/\?token=(\S+)", words)
        assert link, words
        yield Target(base, run, int(link[1]), link[2], process)
    finally:
        if process is not None:
            with process:
                process.send_signal(signal.SIGINT)
        shutil.rmtree(base, ignore_errors=True)


def attack(names: list[str] | None = None) -> tuple[list[tuple[str, Row]], str]:
    """What each attack got, and what the server said on its terminal meanwhile."""
    with serving() as target:
        found = [(name, row) for name in names or THREATS for row in THREATS[name](target)]
        target.process.send_signal(signal.SIGINT)
        return found, target.process.stdout.read().replace("  Only this link opens the page. Ctrl-C ends it.\n", "")


def table(found: list[tuple[str, Row]], said: str, seconds: float) -> str:
    """As Markdown."""
    lines, before = ["| threat | request | answer | held |", "| --- | --- | --- | --- |"], ""
    for threat, (request, got, held) in found:
        shown = [threat if threat != before else "", request, got, "yes" if held else "**NO**"]
        before = threat
        lines.append("| " + " | ".join(word.replace("|", "\\|").replace("<", "&lt;") for word in shown) + " |")
    num_through = sum(not row[2] for _, row in found)
    terminal = said.strip()[:300] or "nothing"
    lines += ["", f"{len(found)} requests or sets of them in {seconds:.0f} s, {num_through} got through."]
    lines.append(f"On the server's terminal meanwhile: {terminal}.")
    return "\n".join(lines) + "\n"


HEAD = """# Nobody gets in: each threat, its request and its refusal

Program: `benchmarks/threats.py`, against `stethoscope ui` in a process of its own that may open 256 files and asks for more
(soft limit 256, hard limit 2,048), torch {torch}, {date}.

"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--markdown", type=Path)
    asked = parser.parse_args()
    began = time.perf_counter()
    found, said = attack()
    text = table(found, said, time.perf_counter() - began)
    print(text)
    if asked.markdown:
        asked.markdown.write_text(HEAD.format(torch=torch.__version__, date=time.strftime("%Y-%m-%d")) + text)
    assert all(row[2] for _, row in found)
    assert not said.strip()


if __name__ == "__main__":
    main()
