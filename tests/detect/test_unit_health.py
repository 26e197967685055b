"""Units that chance and the first steps leave dead or asleep are no fault; more than that is."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from stethoscope.record import Finding, Severity
from tests.detect.written import find, write_run

Share = Callable[[int], float]
LOOKS = 20


def watched(
    folder: Path,
    *,
    dead: Share | None = None,
    dormant: Share | None = None,
    num_units: int = 64,
    loss: Share = lambda step: 1.0,
    first: int = 0,
) -> dict[str, Finding]:
    """What is found in a run whose units were looked at every eight steps, by code."""
    facts = []
    for number in range(LOOKS):
        body: dict[str, object] = {"silent": {}, "dormant": {}}
        if dead is not None and (count := round(dead(number) * num_units)):
            body["silent"] = {"0.weight": [num_units, count, count if number >= 3 else 0, 0]}
        if dormant is not None:
            body["dormant"] = {"1": dormant(number)}
        facts.append((first + 8 * number, "units", body))
    modules = [{"path": "0", "type": "Linear"}, {"path": "1", "type": "ReLU"}]
    losses = {"loss": {step: loss(step - first) for step in range(first, first + 8 * LOOKS)}}
    return {f.code: f for f in find(write_run(folder, losses, facts, modules=modules))}


def after(start: float, end: float) -> Share:
    """From the second look on at another level."""
    return lambda number: start if number < 2 else end


@pytest.mark.parametrize(("start", "end"), [(0.2, 0.55), (0.27, 0.63), (0.5, 0.52), (0.0, 0.55)])
def test_what_the_first_steps_push_down_is_advice(start: float, end: float, tmp_path: Path) -> None:
    assert watched(tmp_path, dead=after(start, end))["dead_units"].severity is Severity.INFO


@pytest.mark.parametrize(
    ("start", "end", "num_units"),
    [(0.75, 0.75, 16), (1.0, 1.0, 64), (0.05, 1.0, 4)],
    ids=["made so", "all", "few, and all"],
)
def test_more_than_that_is_a_cause(start: float, end: float, num_units: int, tmp_path: Path) -> None:
    found = watched(tmp_path, dead=after(start, end), num_units=num_units)["dead_units"]
    assert found.severity is not Severity.INFO
    assert found.sites == ("0",)


@pytest.mark.parametrize(
    ("start", "end", "severity"),
    [(0.0, 0.7, Severity.INFO), (0.2, 0.8, Severity.INFO), (0.0, 0.95, Severity.CRITICAL)],
)
def test_units_that_were_killed_are_a_cause_where_hardly_any_is_left(
    start: float, end: float, severity: Severity, tmp_path: Path
) -> None:
    """As in a variational autoencoder whose first steps kill most of a wide layer: what is left learns as well."""
    assert watched(tmp_path, dead=after(start, end))["dead_units"].severity is severity


@pytest.mark.parametrize(("share", "severity"), [(0.65, Severity.INFO), (0.95, Severity.CRITICAL)])
def test_of_a_training_that_goes_on_nobody_knows_the_first_look(
    share: float, severity: Severity, tmp_path: Path
) -> None:
    assert watched(tmp_path, dead=lambda _: share, first=400)["dead_units"].severity is severity


def test_units_that_fall_asleep_at_once_and_no_more_of_them(tmp_path: Path) -> None:
    assert "dormant_units" not in watched(tmp_path, dormant=after(0.25, 0.65))


def falling_asleep(number: int) -> float:
    return 0.1 + 0.7 * number / LOOKS


def test_units_that_fall_asleep_while_targets_shift(tmp_path: Path) -> None:
    found = watched(tmp_path, dormant=falling_asleep, loss=lambda step: 2.0 * 0.9 ** (step % 40))
    assert found["dormant_units"].severity is Severity.WARNING


def test_units_that_fall_asleep_when_all_is_learned(tmp_path: Path) -> None:
    found = watched(tmp_path, dormant=falling_asleep, loss=lambda step: 2.0 * 0.97**step)
    assert found["dormant_units"].severity is Severity.INFO
