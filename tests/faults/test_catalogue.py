"""Every fault of the catalogue is found, every healthy run stays silent: one seed, every step looked at.

No sick run is said to learn, no healthy one to be in trouble.

What is not found yet is listed, so that the list can only shrink: an entry that starts to pass fails the test.
"""

from __future__ import annotations

from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("sklearn")

from benchmarks.faults.catalogue import Program, load_programs  # noqa: E402
from benchmarks.faults.judging import Verdict, examine  # noqa: E402

NOT_YET: set[str] = set()
PROGRAMS = load_programs()
FAULTS = [p for p in PROGRAMS.values() if p.fault is not None]
HEALTHY = [p for p in PROGRAMS.values() if p.fault is None]


def _examine(program: Program, folder: Path, monkeypatch: pytest.MonkeyPatch) -> Verdict:
    for name, value in (("DIR", ""), ("COMPANION", ""), ("QUIET", ""), ("EVERY", "1")):
        monkeypatch.setenv(f"STETHOSCOPE_{name}", value)
    monkeypatch.chdir(folder)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        verdict = examine(program, 0, folder)
    finally:
        torch.set_num_threads(threads)
    assert not verdict.error, verdict.error
    assert not verdict.troubles, verdict.troubles
    return verdict


@pytest.mark.parametrize("program", FAULTS, ids=lambda program: program.key)
def test_the_fault_is_found(program: Program, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    verdict = _examine(program, tmp_path, monkeypatch)
    said = [(cause.code, cause.first_step, cause.sites) for cause in verdict.causes]
    if program.key in NOT_YET:
        assert not verdict.found, "found now: take it off the list"
        return
    assert verdict.found, f"instead: {said}"
    # Advice is a note beside a training that learns; a checkup's fault need not leave a run.
    assert verdict.state in ("", "trouble") or (program.fault is not None and program.fault.tier == "A")
    assert verdict.right_place is not False, said
    assert verdict.right_step is not False, said


@pytest.mark.parametrize("program", HEALTHY, ids=lambda program: program.key)
def test_the_healthy_run_is_silent(program: Program, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    verdict = _examine(program, tmp_path, monkeypatch)
    assert [(cause.code, cause.first_step, cause.sites) for cause in verdict.causes] == []
    assert verdict.state in ("learns", "cannot_tell"), verdict.state
