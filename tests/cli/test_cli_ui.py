"""`stethoscope ui`: where it listens, what it prints, and a real server answering on a real socket."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import urllib.error
import urllib.request

import pytest

pytest.importorskip("uvicorn")

from stethoscope.cli.errors import UsageError
from stethoscope.cli.ui import listen


def test_a_taken_port_is_said_and_the_default_moves_on():
    with listen("127.0.0.1", 0) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(UsageError, match="Cannot listen there"):
            listen("127.0.0.1", port)


def test_an_impossible_port_is_a_usage_error():
    with pytest.raises(UsageError):
        listen("127.0.0.1", 99_999)


def ask(link, *, headers=None):
    request = urllib.request.Request(link, headers=headers or {})
    with urllib.request.urlopen(request, timeout=60) as answer:
        return answer.status, answer.read()


def test_a_server_answers_with_the_token_alone_and_ends_on_interrupt(healthy, base):
    command = [sys.executable, "-m", "stethoscope", "ui", str(base), "--port", "0", "--no-browser"]
    environment = os.environ | {"PYTHONUNBUFFERED": "1"}
    server = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment)
    try:
        words = "".join(server.stdout.readline() for _ in range(2))
        link = re.search(r"http://127\.0\.0\.1:(\d+)/\?token=(\S+)", words)
        assert link, words  # it listens from before the link is printed
        root = f"http://127.0.0.1:{link[1]}"
        with pytest.raises(urllib.error.HTTPError, match="401"):
            ask(f"{root}/api/runs")
        status, body = ask(f"{root}/api/runs", headers={"Authorization": f"Bearer {link[2]}"})
        assert status == 200
        assert b"gpt-small" in body
        assert ask(link[0])[0] == 200
        with urllib.request.urlopen(
            urllib.request.Request(f"{root}/api/stream", headers={"Authorization": f"Bearer {link[2]}"}), timeout=60
        ) as stream:
            assert stream.headers["content-type"].startswith("text/event-stream")
            lines = [stream.readline() for _ in range(3)]
            assert b"event: changed\n" in lines
    finally:
        server.send_signal(signal.SIGINT)
        _, errors = server.communicate(timeout=60)
    assert server.returncode in (0, 130, -signal.SIGINT)
    assert "Traceback" not in errors


def test_an_open_page_is_let_go_without_a_word(healthy, base):
    command = [sys.executable, "-m", "stethoscope", "ui", str(base), "--port", "0", "--no-browser"]
    environment = os.environ | {"PYTHONUNBUFFERED": "1"}
    server = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment)
    try:
        words = "".join(server.stdout.readline() for _ in range(2))
        link = re.search(r"http://127\.0\.0\.1:(\d+)/\?token=(\S+)", words)
        assert link, words
        asked = urllib.request.Request(
            f"http://127.0.0.1:{link[1]}/api/stream", headers={"Authorization": f"Bearer {link[2]}"}
        )
        with urllib.request.urlopen(asked, timeout=60) as stream:
            assert stream.readline()
            server.send_signal(signal.SIGINT)
            while stream.readline():  # to its end, which the server sends
                pass
            _, said = server.communicate(timeout=60)
    finally:
        server.kill()
    assert server.returncode == 0
    assert said == ""
