"""tui: in a real pseudo-terminal, and what it says where it cannot be."""

from __future__ import annotations

import os
import select
import subprocess
import sys

import pytest

from stethoscope.cli.tui import base_and_run


def test_needs_a_terminal_a_run_and_its_extra(cli, healthy, monkeypatch):
    code, _, err = cli("tui", healthy)
    assert code == 2
    assert "need a terminal" in err
    assert cli("tui", "nothing-like-it")[0] == 2
    monkeypatch.setitem(sys.modules, "textual", None)
    code, _, err = cli("tui", healthy)
    assert code == 2
    assert "stethoscope[tui]" in err


def test_the_only_run_or_the_list(base, healthy):
    assert base_and_run(None) == (base, healthy)
    assert base_and_run(str(base)) == (base, None)
    (base / "20261116-120001-other-bbbbbb").mkdir()
    (base / "20261116-120001-other-bbbbbb" / "run.json").write_text("{}")
    assert base_and_run(None) == (base, None)
    assert base_and_run("aaaaaa") == (base, healthy)


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no pseudo-terminals")
def test_in_a_terminal_it_draws_and_leaves_by_q(sick):
    import fcntl
    import pty
    import struct
    import termios

    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
    words = [sys.executable, "-m", "stethoscope", "tui", str(sick)]
    child = subprocess.Popen(
        words, stdin=theirs, stdout=theirs, stderr=theirs, env=os.environ | {"TERM": "xterm-256color"}
    )
    os.close(theirs)
    seen = b""
    try:
        while b"layers.2" not in seen:
            ready, _, _ = select.select([ours], [], [], 60)
            assert ready, seen.decode("utf-8", "replace")
            seen += os.read(ours, 65536)
        os.write(ours, b"q")
        while True:  # to the end of what it wrote: a child that has left may have left words behind
            ready, _, _ = select.select([ours], [], [], 60)
            assert ready, seen.decode("utf-8", "replace")
            try:
                piece = os.read(ours, 65536)
            except OSError:  # how Linux says that the other end is closed
                break
            if not piece:
                break
            seen += piece
        assert child.wait(60) == 0
    finally:
        child.kill()
        child.wait()
        os.close(ours)
    assert b"crashed at step 200" in seen
    assert b"\x1b[?1049l" in seen, "the terminal is left as it was"
