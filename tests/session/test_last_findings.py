"""The end waits for the last findings, not for the last seal, and does not look for them a second time."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import pytest

from stethoscope.config import DebugConfig
from stethoscope.detect import Detection
from stethoscope.explain import diagnose
from stethoscope.record import Finding, Severity
from stethoscope.session import companion_handle, session
from stethoscope.session.companion_handle import CompanionHandle
from stethoscope.session.deadline import Deadline
from stethoscope.store import FindingsWriter
from tests.session.training import begin, go_on

FOUND = Finding(code="plateau", severity=Severity.WARNING, sites=(), first_step=3, last_step=9, message="It stands.")


class Sealing:
    """A companion that goes on sealing."""

    returncode: int | None = None

    def poll(self) -> int | None:
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        if timeout is not None:
            raise subprocess.TimeoutExpired("companion", timeout)
        self.returncode = 0
        return 0


def handle(folder: Path) -> CompanionHandle:
    found = CompanionHandle(folder, DebugConfig(), lambda line: None)
    process: Any = Sealing()
    found._process = process
    return found


def write(folder: Path, *, is_last: bool) -> None:
    writer = FindingsWriter(folder)
    writer.write([FOUND], replace=True)
    if is_last:
        writer.close()


def test_a_companion_that_has_said_its_last_word_may_seal_alone(tmp_path: Path) -> None:
    one = handle(tmp_path)
    write(tmp_path, is_last=True)
    one.finish(Deadline(20.0))
    assert one.has_concluded


@pytest.mark.parametrize("is_last", [True, False])
def test_words_of_an_earlier_process_are_not_its_last(is_last: bool, tmp_path: Path) -> None:
    write(tmp_path, is_last=True)
    one = handle(tmp_path)
    one._earlier = {path.name for path in tmp_path.glob("findings/*.stf")}
    if not is_last:
        write(tmp_path, is_last=False)  # its own, which it has not closed
    one.finish(Deadline(0.2))
    assert not one.has_concluded


def test_what_the_companion_found_is_not_looked_for_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trained = go_on(begin(tmp_path, companion="process"), 12)
    folder = trained.session.folder
    assert folder is not None
    with monkeypatch.context() as patched:
        patched.setattr(session, "STOP_SECONDS", 120.0)
        patched.setattr(companion_handle, "FINISH_SECONDS", 120.0)
        patched.setattr(Detection, "observe", lambda *_: pytest.fail("the whole run is read once more"))
        trained.session.stop()
        assert trained.session._recording.companion is not None
        assert trained.session._recording.companion.has_concluded
        told = trained.session.diagnosis
    stored = diagnose(folder)
    assert [f.to_json() for f in told.findings] == [f.to_json() for f in stored.findings]
    assert told.causes == stored.causes
