"""What breaks beside a training is said at once, at the end, and by `doctor`: full disks, deleted folders, dead companions."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from stethoscope.cli import main
from stethoscope.explain import diagnose
from stethoscope.session import companion_handle as companions
from stethoscope.store import companion_log, open_run
from stethoscope.views.common.open_run import OpenRun
from stethoscope.views.pagedata.facts import status_parts
from stethoscope.views.pagedata.verdict import verdict_data
from tests.session.training import Trained, await_companion, begin, go_on


@pytest.fixture(autouse=True)
def _quick_ears(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(companions, "POLL_SECONDS", 0.1)


def hear(capsys: pytest.CaptureFixture[str], wanted: str, seconds: float = 20.0) -> str:
    """Everything said so far, when it has the wanted words."""
    said, until = "", time.monotonic() + seconds
    while wanted not in said:
        assert time.monotonic() < until, f"{wanted!r} was not said: {said}"
        time.sleep(0.05)
        said += capsys.readouterr().err
    return said


def folder_of(trained: Trained) -> Path:
    assert trained.session.folder is not None
    return trained.session.folder


def doctor(folder: Path, capsys: pytest.CaptureFixture[str]) -> str:
    capsys.readouterr()
    assert main(["doctor", str(folder)]) == 0
    return " ".join(capsys.readouterr().out.split())


def doctor_elsewhere(folder: Path) -> str:
    """In a process that knows nothing of what was done here."""
    command = [sys.executable, "-m", "stethoscope", "doctor", str(folder)]
    found = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
    return " ".join(found.stdout.split())


def test_a_disk_that_fills_and_stays_full(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    mount = tmp_path / "small"
    mount.mkdir()
    made = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=400k", "tmpfs", str(mount)], capture_output=True, text=True
    )
    if made.returncode:
        pytest.skip(f"a small file system cannot be mounted here: {made.stderr.strip()}")
    try:
        trained = go_on(begin(mount, quiet=False), 300)
        assert "No space left on device" in hear(capsys, "cannot be written")
        go_on(trained, 20)
        trained.session.stop()
        closing = capsys.readouterr().err.splitlines()[-1]
        run = open_run(folder_of(trained))
        num_lost = 320 - len(run.steps)
        assert num_lost > 20
        assert f"{num_lost} steps ({len(run.steps)} to 319) never reached the disk" in closing
        assert "learns" not in closing
        told = doctor(folder_of(trained), capsys)
        assert f"{num_lost} steps ({len(run.steps)} to 319) never reached the disk" in told
        assert "No space left on device" in told
        assert run.state == "finished"
    finally:
        subprocess.run(["umount", "-l", str(mount)], check=True)


@pytest.mark.parametrize("companion", ["off", "process"])
def test_a_folder_that_is_deleted(tmp_path: Path, capsys: pytest.CaptureFixture[str], companion: str) -> None:
    trained = go_on(begin(tmp_path / "runs", quiet=False, companion=companion), 5)
    assert trained.session.flush()
    shutil.rmtree(tmp_path / "runs")
    go_on(trained, 5)
    hear(capsys, "the run folder was deleted")
    trained.session.stop()
    closing = capsys.readouterr().err.splitlines()[-1]
    assert "5 steps (5 to 9)" in closing
    assert "There is no run to read" in closing
    assert not (tmp_path / "runs").exists(), "what somebody deleted is not made again"


def test_a_companion_that_is_killed_is_started_again_and_then_done_without(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    trained = go_on(begin(tmp_path, quiet=False, companion="process"), 5)
    handle: Any = trained.session._recording.companion
    for num in range(1, companions.MOST_RESTARTS + 2):
        os.kill(handle._process.pid, signal.SIGKILL)
        hear(capsys, "killed by SIGKILL again" if num > companions.MOST_RESTARTS else "it is started again")
    assert handle._process is None
    go_on(trained, 5)
    trained.session.stop()
    assert "10 steps" in capsys.readouterr().err.splitlines()[-1]
    assert trained.session.diagnosis.looked_at.num_steps == 10


def test_a_companion_that_cannot_work_says_why(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: Any
) -> None:
    broken = tmp_path / "broken"
    broken.mkdir()
    # Found before the real one by the companion alone: this process has it already.
    (broken / "sitecustomize.py").write_text("import sys\nsys.modules['zstandard'] = None\n")
    monkeypatch.setenv("PYTHONPATH", f"{broken}{os.pathsep}{os.environ.get('PYTHONPATH', '')}")
    trained = go_on(begin(tmp_path / "runs", quiet=False, companion="process"), 5)
    said = hear(capsys, "the companion process failed")
    assert "zstandard" in said
    trained.session.stop()
    assert trained.session.diagnosis.looked_at.num_detectors > 20, "this process looked itself"
    assert "zstandard" in companion_log.last_line(folder_of(trained))
    assert "zstandard" in doctor(folder_of(trained), capsys)


def test_sealing_that_fails_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: Any) -> None:
    broken = tmp_path / "broken"
    broken.mkdir()
    (broken / "pyarrow.py").write_text("raise ModuleNotFoundError(\"No module named 'pyarrow'\")")
    monkeypatch.setenv("PYTHONPATH", f"{broken}{os.pathsep}{os.environ.get('PYTHONPATH', '')}")
    trained = begin(tmp_path / "runs", quiet=False, companion="process", disk=1 << 20)  # so little is sealed soon
    go_on(trained, 200)
    said, until = "", time.monotonic() + 40
    while "cannot be sealed" not in said:
        assert time.monotonic() < until
        time.sleep(0.1)  # the companion's turn: to train meanwhile would only keep it from it
        go_on(trained, 2)
        said += capsys.readouterr().err
    assert "pyarrow" in said
    trained.session.stop()
    assert "pyarrow" in doctor(folder_of(trained), capsys)


BROKEN = """
from stethoscope.detect import Code, Detector
from stethoscope.record import Severity

class Brittle(Detector):
    codes = (Code("brittle"),)
    def observe(self, span):
        raise ValueError("planted")
    def findings(self):
        return []
    def readings(self):
        return {}
"""


def test_a_detector_that_fails_in_the_companion_is_named_on_every_face(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: Any
) -> None:
    (tmp_path / "brittle_detector.py").write_text(BROKEN)
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}{os.pathsep}{os.environ.get('PYTHONPATH', '')}")
    monkeypatch.syspath_prepend(str(tmp_path))
    trained = begin(tmp_path / "runs", quiet=False, companion="process", detectors=("brittle_detector:Brittle",))
    go_on(trained, 30)
    trained.session.stop()
    await_companion(trained.session)
    handle: Any = trained.session._recording.companion
    assert handle.has_concluded
    closing = capsys.readouterr().err.splitlines()[-1]
    assert "Brittle" in closing
    assert "learns" not in closing
    folder = folder_of(trained)
    run = open_run(folder)
    assert "planted" in run.failures()["Brittle"]
    viewed = OpenRun(folder)
    assert "Brittle" in str(status_parts(viewed, viewed.diagnosis))
    assert "planted" in str(verdict_data(viewed)["lookedAt"]["brokenDetectors"])
    assert "Brittle" in str(diagnose(run, findings=run.findings()).to_json())
    assert main(["show", str(folder)]) == 0
    assert "Brittle" in capsys.readouterr().out
    assert "planted" in doctor_elsewhere(folder)
    other = begin(tmp_path / "others", companion="off")
    go_on(other, 2)
    other.session.stop()
    assert "Brittle" not in str(other.session.diagnosis.to_json()), "one session's detectors are not the next one's"
