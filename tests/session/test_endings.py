"""How a process ends under `watch()`: with the status and the words it has without us, and within five seconds."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from stethoscope.store import open_run

SCRIPT = Path(__file__).with_name("ending_cases.py")
PATHS = [str(SCRIPT.parents[2]), *filter(None, [os.environ.get("PYTHONPATH")])]
MOST_SECONDS = 5.0


class Ended:
    """What became of the cases of one go."""

    def __init__(self, folder: Path, *names: str, env: dict[str, str] | None = None) -> None:
        self.folder = folder
        done = subprocess.run(
            [sys.executable, str(SCRIPT), str(folder), *names],
            capture_output=True,
            text=True,
            timeout=600,
            check=False,
            env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(PATHS), **(env or {})},
        )
        _wake_companions(folder)
        assert done.returncode == 0, done.stderr
        self._results = json.loads(done.stdout)

    def status(self, name: str) -> int:
        return int(self._results[name]["status"])

    def seconds(self, name: str) -> float:
        """How much longer the end took than without us; what the interpreter itself takes depends on the machine."""
        took, plain = (self._results[f"{name}-{kind}"]["seconds"] for kind in ("watched", "plain"))
        return float(took) - float(plain)

    def words(self, name: str) -> list[str]:
        text = (self.folder / f"{name}.err").read_text()
        return [line for line in text.splitlines() if not line.startswith("stethoscope: ")]

    def ours(self, name: str) -> str:
        text = (self.folder / f"{name}.err").read_text()
        return "\n".join(line for line in text.splitlines() if line.startswith("stethoscope: "))

    def run(self, name: str) -> dict[str, Any]:
        with open_run(self.folder / name) as run:
            return dict(run.ended or {})

    def assert_as_plain(self, name: str) -> None:
        assert self.status(f"{name}-watched") == self.status(f"{name}-plain"), self.ours(f"{name}-watched")
        assert self.words(f"{name}-watched") == self.words(f"{name}-plain")


def _wake_companions(folder: Path) -> None:
    """Those that a case has stopped: they notice that their parent is gone and end."""
    for words in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            if str(folder).encode() in words.read_bytes():
                os.kill(int(words.parent.name), signal.SIGCONT)


def test_an_interrupt_and_an_exception_end_as_without_us(tmp_path: Path) -> None:
    cases = (
        "interrupted_backward",
        "interrupted_in_with",
        "failed_backward",
        "failed_thread",
        "interrupted_beside_thread",
        "at_a_prompt",
        "own_handlers",
        "own_hook_after",
        "broken_pipe",
    )
    ended = Ended(tmp_path, *cases)
    for name in cases:
        ended.assert_as_plain(name)
    assert ended.status("interrupted_backward-watched") == -signal.SIGINT
    assert ended.status("interrupted_beside_thread-watched") == -signal.SIGINT
    assert ended.status("own_handlers-watched") == 7
    for name, kind in (
        ("interrupted_backward", "KeyboardInterrupt"),
        ("interrupted_in_with", "KeyboardInterrupt"),
        ("failed_thread", "ValueError"),
        ("own_hook_after", "ZeroDivisionError"),
        ("broken_pipe", "BrokenPipeError"),
    ):
        assert kind in json.dumps(ended.run(f"{name}-watched")), name
    assert "finished" in json.dumps(ended.run("at_a_prompt-watched"))


def test_nothing_holds_up_the_end(tmp_path: Path) -> None:
    cases = (
        "terminated_inside_torch",
        "terminated_with_a_lock",
        "stopped_companion",
        "killed_companion",
        "second_interrupt",
    )
    ended = Ended(tmp_path, *cases)
    for name in cases:
        ended.assert_as_plain(name)
    for name in cases[:-1]:
        assert ended.seconds(name) < MOST_SECONDS, name
    assert "6 steps" not in ended.ours("second_interrupt-watched")  # nobody waited for the closing line
    assert ended.status("terminated_inside_torch-watched") == -signal.SIGTERM
    assert "SIGTERM" in json.dumps(ended.run("terminated_inside_torch-watched"))
    assert "ValueError" in json.dumps(ended.run("killed_companion-watched"))
    assert "6 steps" in ended.ours("stopped_companion-watched")


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    folder = tmp_path / "small"
    folder.mkdir()
    try:
        done = subprocess.run(
            ["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", str(folder)], capture_output=True, check=False
        )
    except FileNotFoundError:
        pytest.skip("needs mount")
    if done.returncode:
        pytest.skip("needs to mount a tmpfs, which only root can")
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=True)


def test_a_full_disk_does_not_hold_up_the_end(small_disk: Path) -> None:
    ended = Ended(small_disk, "full_disk")
    ended.assert_as_plain("full_disk")
    assert ended.seconds("full_disk") < MOST_SECONDS
