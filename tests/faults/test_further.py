"""A few of the second set whose rules rest on an exact fact: they must not be lost again.

The second set as a whole is not run by the tests: rules are not to be fitted to it.
"""

from __future__ import annotations

from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("sklearn")

from benchmarks.faults.catalogue import load_programs  # noqa: E402
from benchmarks.faults.judging import examine  # noqa: E402

EXACT = {
    "U22": "SGD's momentum is the gradient itself after a loss of its state",
    "U28": "no output below zero where targets are",
    "U49X": "a gradient over the logits that does not sum to zero",
    "U59X": "one logit a sample, always of one sign",
    "U71": "outputs that stay alive with their graphs",
}


@pytest.mark.parametrize("key", [*EXACT, "UH39"])
def test_what_rests_on_a_fact_is_found(key: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (("DIR", ""), ("COMPANION", ""), ("QUIET", ""), ("EVERY", "1")):
        monkeypatch.setenv(f"STETHOSCOPE_{name}", value)
    monkeypatch.chdir(tmp_path)
    program = load_programs(unseen=True)[key]
    verdict = examine(program, 0, tmp_path)
    assert not verdict.error, verdict.error
    said = [(cause.code, cause.first_step) for cause in verdict.causes]
    if program.fault is None:
        assert said == []
    else:
        assert verdict.found, f"{EXACT[key]}, instead: {said}"
