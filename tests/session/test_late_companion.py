"""A companion that is behind at the end: nobody waits for it, it finishes alone, and whoever asks meanwhile is told."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from stethoscope import companion
from stethoscope.detect import registry
from stethoscope.explain import diagnose
from stethoscope.session import recording
from stethoscope.store import open_run
from stethoscope.store.findings import Search
from stethoscope.views.common.open_run import OpenRun
from stethoscope.views.pagedata.runlist import list_verdict
from tests.session import slow_detector
from tests.session.training import await_companion, begin, go_on

ROOT = Path(__file__).parents[2]
STEPS = 12
LONGEST_S = 60.0
SLOW = (f"{slow_detector.__name__}:{slow_detector.Slow.__name__}",)


@pytest.fixture
def go(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The file that the companion waits for; this process does not."""
    go = tmp_path / "go"
    go.with_suffix(".trains").write_text(str(os.getpid()))
    monkeypatch.setenv(slow_detector.GO, str(go))
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]))
    yield go
    go.touch()
    registry.use(())


def wait_for_companion(folder: Path) -> None:
    """Until it is there and has said so: on a busy machine that takes longer than this training."""
    until = time.monotonic() + LONGEST_S
    while not list(folder.glob("findings/*.stf")):
        assert time.monotonic() < until
        time.sleep(0.05)


def said_by(command: str, folder: Path) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "stethoscope", command, str(folder)], capture_output=True, text=True, check=False
    )
    assert "Traceback" not in done.stderr, done.stderr
    return " ".join(done.stdout.split())


@pytest.mark.parametrize("is_large", [True, False])
def test_nobody_waits_for_a_companion_that_is_behind(
    is_large: bool, go: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(recording, "QUICK_BYTES", 0 if is_large else 1 << 30)
    trained = go_on(begin(tmp_path / "runs", companion="process", quiet=False, detectors=SLOW), STEPS)
    session, folder = trained.session, trained.session.folder
    assert folder is not None
    wait_for_companion(folder)
    report = session.stop()
    assert session._recording is not None
    companion = session._recording.companion
    assert companion.is_at_work, "left while it was behind"
    words = capfd.readouterr().err
    assert ("findings are still being computed" in words) is is_large
    assert ("12 steps, " in words) is not is_large, "of a small run the verdict comes from this process"

    with open_run(folder) as run:
        assert (run.state, run.search, run.was_examined) == ("finished", Search.UNDER_WAY, False)
        assert list(run.steps) == list(range(STEPS))
        assert list_verdict(OpenRun.of(run))["looked"] is False, "what has not been looked at is not called well"
    for command in ("show", "diagnose"):
        assert "Search beside the training: still under way" in said_by(command, folder)

    go.touch()
    assert await_companion(session) == 0
    with open_run(folder) as run:
        assert (run.search, run.was_examined) == (Search.COMPLETE, True)
        assert list(run.steps) == list(range(STEPS))
        assert run.catalogue.segments(), "sealed by the companion alone"
        assert not list(folder.glob("rank-*/journal-*.stj"))
        stored = run.findings()
    assert companion.has_concluded
    assert [f.to_json() for f in report.diagnosis.findings] == [f.to_json() for f in diagnose(folder).findings]
    assert [f.to_json() for f in session.diagnosis.findings] == [f.to_json() for f in stored]
    assert "still under way" not in said_by("diagnose", folder)


def test_a_companion_that_was_killed_has_not_examined_the_run(go: Path, tmp_path: Path) -> None:
    trained = go_on(begin(tmp_path / "runs", companion="process", detectors=SLOW), STEPS)
    assert trained.session._recording is not None
    process, folder = trained.session._recording.companion._process, trained.session.folder
    assert process is not None
    assert folder is not None
    wait_for_companion(folder)
    trained.session.stop()
    assert not go.exists()
    process.kill()
    process.wait()
    with open_run(folder) as run:
        assert (run.search, run.was_examined) == (Search.CUT_OFF, False)
        assert list_verdict(OpenRun.of(run))["looked"] is False
    trained.session.stop()
    assert [f.to_json() for f in trained.session.diagnosis.findings] == [f.to_json() for f in diagnose(folder).findings]


def test_no_file_is_made_while_the_process_that_trained_may_delete_the_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(companion, "ALONE_SECONDS", 10 * LONGEST_S)
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    companion.leave_the_folder_alone(tmp_path, ended.pid)  # comes back: nobody is left who could delete it
    folder = tmp_path / "run"
    folder.mkdir()
    waiting = threading.Thread(target=companion.leave_the_folder_alone, args=(folder, os.getpid()))
    waiting.start()
    waiting.join(0.2)
    assert waiting.is_alive()
    folder.rmdir()
    waiting.join(LONGEST_S)
    assert not waiting.is_alive()
