"""The benchmark is whole, its programs run, and its judge tells right from wrong."""

from __future__ import annotations

from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("sklearn")

from benchmarks.faults import report  # noqa: E402
from benchmarks.faults.catalogue import FAULTS, HEALTHY, load_programs  # noqa: E402
from benchmarks.faults.judging import Verdict, examine, named  # noqa: E402
from benchmarks.faults.random_healthy import draw  # noqa: E402


def test_every_fault_and_every_healthy_run_has_a_program() -> None:
    known = {program.of for program in load_programs().values()}
    assert len(FAULTS) == 83
    assert len(HEALTHY) == 46
    assert known == set(FAULTS) | set(HEALTHY)


def test_every_fault_has_an_unseen_instance() -> None:
    assert {p.of for p in load_programs(unseen=True).values() if p.fault is not None} == set(FAULTS)


@pytest.mark.parametrize(
    ("sites", "pattern", "right"),
    [
        (("head.weight",), "head", True),
        (("head",), "head*", True),
        (("layers.10.weight",), "layers.1|layers.11", False),
        (("a", "b", "c", "head"), "head", False),
        ((), "head", False),
        (("anything",), None, None),
    ],
)
def test_place_is_judged_by_the_first_names(sites: tuple[str, ...], pattern: str | None, right: bool | None) -> None:
    assert named(sites, pattern) is right


def test_a_program_is_run_and_judged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("STETHOSCOPE_DIR", "STETHOSCOPE_COMPANION", "STETHOSCOPE_QUIET"):
        monkeypatch.setenv(name, "")
    monkeypatch.chdir(tmp_path)
    verdict = examine(load_programs()["F01"], 0, tmp_path)
    assert not verdict.error
    assert verdict.found
    assert verdict.right_step
    assert "F01" in report.text([verdict])


def test_a_failing_program_is_reported_not_raised(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("STETHOSCOPE_DIR", "STETHOSCOPE_COMPANION", "STETHOSCOPE_QUIET"):
        monkeypatch.setenv(name, "")
    import dataclasses

    def fail(seed: int) -> None:
        raise RuntimeError(f"no luck with {seed}")

    broken = dataclasses.replace(load_programs()["F01"], run=fail)
    verdict = examine(broken, 7, tmp_path)
    assert "no luck with 7" in verdict.error
    assert "FAILED" in report.line(verdict)


def test_missed_and_false_alarms_are_told_apart() -> None:
    missed = Verdict("F10", "F10", 0)
    silent = Verdict("H01", "H01", 0)
    told = report.text([missed, silent])
    assert "missed" in told
    assert "silent" in told


def test_a_draw_is_always_the_same() -> None:
    assert draw(17) == draw(17)
    assert len({str(draw(number)) for number in range(50)}) > 45
