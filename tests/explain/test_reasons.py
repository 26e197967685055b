"""`diagnose --why`: what became of a code, with its numbers; what the readings say agrees with what the rules say."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

pytest.importorskip("torch")
pytest.importorskip("sklearn")

from benchmarks.faults.catalogue import load_programs

from stethoscope.analyse.span import spans
from stethoscope.cli import main
from stethoscope.detect import Detection, Reading
from stethoscope.detect.registry import builtin
from stethoscope.explain import why
from stethoscope.explain.needs import status_of
from stethoscope.explain.reasons import blocking
from stethoscope.record import StethoscopeError
from stethoscope.store import Run, open_run

PROGRAMS = ("F05", "F10", "F12", "F36", "F39")


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A few programs of the catalogue, each run once."""
    recorded = {}
    with pytest.MonkeyPatch.context() as patch:
        for key in PROGRAMS:
            folder = tmp_path_factory.mktemp(key)
            for name, value in (("DIR", str(folder)), ("COMPANION", "off"), ("QUIET", "true"), ("EVERY", "1")):
                patch.setenv(f"STETHOSCOPE_{name}", value)
            patch.chdir(folder)
            found = load_programs()[key].run(0).run
            assert found is not None
            recorded[key] = found
    return recorded


def test_every_code_of_a_detector_says_what_it_needs() -> None:
    assert all(code.needs for code in builtin().codes.values())


@pytest.mark.parametrize(
    ("key", "code", "outcome"),
    [
        ("F05", "trainable_params_not_in_optimizer", "cause"),
        ("F39", "dead_units", "cause"),
        ("F10", "vanishing_gradients", "quiet"),
        ("F05", "overfitting", "blind"),
        ("F05", "train_val_overlap", "blind"),
        ("F05", "future_leak", "checkup"),
        ("F05", "rank_desync", "blind"),
    ],
)
def test_the_outcome(runs: dict[str, Path], key: str, code: str, outcome: str) -> None:
    answer = why(runs[key], code)
    assert answer.outcome == outcome, answer
    assert answer.has_fired == (outcome == "cause")


def test_a_number_is_told_beside_its_limit(runs: dict[str, Path]) -> None:
    answer = why(runs["F12"], "update_too_small")
    assert answer.outcome == "quiet"
    held_back = blocking(answer.readings)
    assert held_back is not None
    assert "largest update / weight" in held_back.label
    assert held_back.value > held_back.limit == 1e-5
    assert f"{held_back.value:.4g}" in answer.sentence


def _configured(path: Path, **config: list[str]) -> Run:
    run = open_run(path)
    run.info["config"] = {**run.info.get("config", {}), **config}
    return run


def test_what_silences_a_finding_is_named(runs: dict[str, Path]) -> None:
    answer = why(_configured(runs["F39"], ignore=["dead_*"]), "dead_units")
    assert answer.outcome == "ignored"
    assert "ignore='dead_*'" in answer.sentence
    answer = why(_configured(runs["F39"], expect=["dead_units:0"]), "dead_units")
    assert answer.outcome == "expected"
    assert answer.has_fired


def test_what_is_folded_names_its_cause(runs: dict[str, Path]) -> None:
    from stethoscope.explain import diagnose

    folded = [
        (c.code, f.code)
        for key in PROGRAMS
        for d in [diagnose(runs[key])]
        for c in d.causes
        for f in d.followed.get(c.code, ())
    ]
    for key in PROGRAMS:
        diagnosis = diagnose(runs[key])
        for cause in diagnosis.causes:
            for follower in diagnosis.followed.get(cause.code, ()):
                answer = why(runs[key], follower.code)
                assert answer.outcome in ("followed", "cause")
                assert cause.code in answer.sentence or answer.outcome == "cause"
    assert folded, "none of these programs has a consequence any more: choose another"


@pytest.mark.parametrize("key", PROGRAMS)
def test_what_is_found_is_what_the_readings_say(runs: dict[str, Path], key: str) -> None:
    run = open_run(runs[key])
    detection = Detection()
    detection.observe(spans(run))
    told, readings = {finding.code for finding in detection.findings()}, detection.readings()
    assert not detection.errors
    assert {code for code, numbers in readings.items() if blocking(numbers) is None} == told
    for code in told:
        assert not [need for need in (status_of(one, run) for one in builtin().codes[code].needs) if need.blinds], code


def test_a_rule_with_several_ways_is_held_back_only_where_all_are() -> None:
    both = [Reading("a", 1, ">", 2, way="one"), Reading("b", 3, ">", 2, way="two")]
    assert blocking(both) is None
    assert blocking([*both, Reading("c", math.nan, ">", 0)]) is not None
    assert blocking(both[:1]) is both[0]


def test_the_command(runs: dict[str, Path], capsys: pytest.CaptureFixture[str]) -> None:
    path = str(runs["F39"])
    assert main(["diagnose", path, "--why", "dead_units"]) == 1
    assert "dead_units is a cause here" in capsys.readouterr().out
    assert main(["diagnose", path, "--why", "dead_units", "--fail-on", "critical"]) == 1
    capsys.readouterr()
    assert main(["diagnose", path, "--why", "overfitting", "--ascii", "--width", "60"]) == 0
    out = capsys.readouterr().out
    assert "could not be looked for" in out
    assert out.isascii()
    assert max(map(len, out.splitlines())) <= 60
    assert main(["diagnose", path, "--why", "overfitting", "--json"]) == 0
    body = json.loads(capsys.readouterr().out)
    assert body["outcome"] == "blind"
    assert any(not need["met"] and need["hint"] for need in body["needs"])
    assert main(["diagnose", path, "--why", "overfiting"]) == 2
    assert "Did you mean overfitting?" in capsys.readouterr().err


def test_an_unknown_code_is_an_error(runs: dict[str, Path]) -> None:
    with pytest.raises(StethoscopeError, match="no such code"):
        why(runs["F39"], "nonsense")
