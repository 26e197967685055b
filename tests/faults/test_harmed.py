"""Harmful trainings that no code names: none of them is said to learn, and right ones are never in trouble."""

from __future__ import annotations

from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("sklearn")

from benchmarks.faults import harmed  # noqa: E402

import stethoscope  # noqa: E402
from stethoscope.explain import State, Verdict  # noqa: E402

UNCERTAIN = {"labels of other samples"}
"""A loss that creeps a little below what guessing gives, learned by heart or not: nobody can tell from it."""
VALIDATED = {"classes in another order in validation", "inputs drowned in noise", "a bottleneck of one unit"}
SYMPTOMS = {
    "features wiped out by a hand-made norm": "does_not_learn",
    "learning rate too low for the time": "does_not_learn",
    "maximize=True": "only_rises",
    "weights drawn anew near the end": "diverges",
    "classes in another order in validation": "parts_from_training",
    "training inputs of another scale than validation's": "parts_from_training",
}


@pytest.fixture
def verdict_of(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> object:
    for name, value in (("DIR", str(tmp_path)), ("COMPANION", "off"), ("QUIET", "1"), ("EVERY", "1")):
        monkeypatch.setenv(f"STETHOSCOPE_{name}", value)

    def train(fault: harmed.Fault | None, *, validates: bool) -> Verdict:
        outcome, _ = harmed.train(fault, 0, validates=validates, logs_batches=validates)
        assert outcome.run is not None
        return stethoscope.diagnose(outcome.run).verdict

    return train


@pytest.mark.parametrize("name", sorted({*SYMPTOMS, *VALIDATED, *UNCERTAIN}))
def test_a_harmed_training_is_never_said_to_learn(verdict_of, name: str) -> None:
    verdict = verdict_of(
        harmed.FAULTS[name], validates=name in VALIDATED or SYMPTOMS.get(name) == "parts_from_training"
    )
    assert verdict.state is not State.LEARNS, verdict.message
    if name in SYMPTOMS:
        assert SYMPTOMS[name] in [symptom.name for symptom in verdict.symptoms], verdict.message
    if name in UNCERTAIN:
        assert verdict.state is not State.TROUBLE, "no cause is made up"
        assert "guessing" in verdict.message


@pytest.mark.parametrize("validates", [False, True])
def test_the_same_training_done_right_learns(verdict_of, validates: bool) -> None:
    verdict = verdict_of(None, validates=validates)
    assert verdict.state is State.LEARNS, verdict.message
    assert verdict.evidence
    assert bool(verdict.limits) != validates, "what was not validated is said"


def test_a_rate_too_low_for_the_time_is_a_cause(verdict_of) -> None:
    """No weight moves: the run's own updates say so, and the line names a rate that would move them."""
    verdict = verdict_of(harmed.FAULTS["learning rate too low for the time"], validates=False)
    assert verdict.state is State.TROUBLE
    assert "No step changes any weight" in verdict.message


def test_what_has_no_cause_says_what_was_ruled_out(verdict_of) -> None:
    verdict = verdict_of(harmed.FAULTS["features wiped out by a hand-made norm"], validates=False)
    assert verdict.state is State.UNEXPLAINED
    assert "numbers that overflow" in {suspect.what for suspect in verdict.ruled_out}
    assert verdict.line
