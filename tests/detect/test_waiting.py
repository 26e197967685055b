"""Waiting for data: a fault where something stands still meanwhile, a note where the processor itself works on the data."""

from __future__ import annotations

from pathlib import Path

import pytest

from stethoscope.record import Severity
from tests.detect.written import find, write_run


@pytest.mark.parametrize(
    ("idle", "severity"),
    [(18.0, Severity.WARNING), (2.0, Severity.INFO), (None, Severity.WARNING)],
    ids=["asleep", "at work", "a device waits"],
)
def test_who_waits_decides(idle: float | None, severity: Severity, tmp_path: Path) -> None:
    steps = range(60)
    curves = {"step_ms": dict.fromkeys(steps, 25.0), "data_ms": dict.fromkeys(steps, 20.0)}
    if idle is not None:
        curves["idle_ms"] = dict.fromkeys(steps, idle)
    (found,) = [f for f in find(write_run(tmp_path, curves)) if f.code == "data_bound"]
    assert found.severity is severity
    assert "80%" in found.message
    assert ("the processor works" in found.message) is (severity is Severity.INFO)
