"""What a loss curve is called: curves of each kind, and the rate of false alarms on healthy noisy ones."""

from __future__ import annotations

import numpy as np
import pytest

from stethoscope.analyse.convergence import (
    Curve,
    convergence,
    degradation,
    overfitting,
    plateau,
    stability,
    underfitting,
)


def falling(n, rng, level=0.3, size=0.05):
    time = np.arange(n)
    return level + 2.0 * np.exp(-time / (n / 3)) + size * rng.standard_normal(n)


CURVES = {
    "Converging": lambda n, rng: falling(n, rng),
    "Converged": lambda n, rng: 0.2 + 2.0 * np.exp(-np.arange(n) / (n / 40)) + 0.02 * rng.standard_normal(n),
    "Diverging": lambda n, rng: 0.5 + 5.0 * np.exp((np.arange(n) - n) / (n / 5)) + 0.05 * rng.standard_normal(n),
    "Oscillating": lambda n, rng: 1.0 + 0.4 * (-1.0) ** np.arange(n) + 0.05 * rng.standard_normal(n),
    "Plateau": lambda n, rng: 1.0 + 0.03 * rng.standard_normal(n),
}


@pytest.mark.parametrize("status", list(CURVES))
@pytest.mark.parametrize("n", [40, 100, 400])
def test_each_kind_of_curve_is_called_by_its_name(status, n):
    rng = np.random.default_rng(0)
    right = sum(convergence(CURVES[status](n, rng)).status == status for _ in range(20))
    assert right >= 18


def test_time_runs_forward():
    losses = np.linspace(2.0, 0.5, 30)
    assert convergence(losses).status == "Converging"
    assert convergence(losses[::-1]).status == "Diverging"


def test_few_losses_and_non_finite_ones():
    assert convergence([]).status == "Unknown"
    assert convergence([1.0, 0.9, 0.8]).status == "Unknown"
    assert convergence([1.0] * 10 + [np.nan]).status == "Diverging"
    assert stability([1.0] * 3).status == "Unknown"
    assert stability([1.0] * 10 + [np.inf]).status == "Unstable"


@pytest.mark.parametrize("n", [30, 100, 400])
def test_healthy_noisy_curves_raise_no_alarm(n):
    rng = np.random.default_rng(1)
    alarms = 0
    for _ in range(100):
        losses = falling(n, rng, size=0.15)
        alarms += convergence(losses).status in ("Diverging", "Oscillating")
        alarms += stability(losses).status == "Unstable"
        alarms += overfitting(Curve(range(n), losses), Curve(range(0, n, 5), falling(n, rng, 0.4)[::5])) is not None
        alarms += underfitting(Curve(range(n), losses)) is not None
        alarms += degradation(Curve(range(n), 1000 + 80 * rng.standard_normal(n))) is not None
    assert alarms <= 1


def test_stability_of_noise_and_of_jumps():
    rng = np.random.default_rng(2)
    assert stability(1.0 + 0.05 * rng.standard_normal(60)).status == "Stable"
    assert stability(np.exp(0.8 * rng.standard_normal(60))).status in ("HighVariance", "Unstable")
    jumps = 1.0 + 0.02 * rng.standard_normal(60)
    jumps[[45, 50, 55]] = 5.0
    assert stability(jumps).status == "Unstable"


def test_a_plateau_begins_where_the_loss_stops_to_fall():
    rng = np.random.default_rng(3)
    losses = np.concatenate([np.linspace(3.0, 1.0, 50), np.full(60, 1.0)]) + 0.01 * rng.standard_normal(110)
    found = plateau(range(0, 1100, 10), losses)
    assert found.step == pytest.approx(490, abs=60)
    assert found.numbers["level"] == pytest.approx(1.0, abs=0.02)
    assert plateau(range(50), losses[:50]) is None


def test_overfitting_begins_at_the_best_validation_loss():
    rng = np.random.default_rng(4)
    steps = np.arange(0, 400, 10)
    train = 2.0 * np.exp(-steps / 100) + 0.02 * rng.standard_normal(len(steps))
    validation = (
        0.8 + 1.2 * np.exp(-steps / 60) + 0.002 * np.maximum(0, steps - 150) + 0.01 * rng.standard_normal(len(steps))
    )
    found = overfitting(Curve(list(steps), train), Curve(list(steps), validation))
    assert found.step == pytest.approx(150, abs=60)
    assert found.numbers["gap"] > 0.5
    assert "validation loss rose" in found.reason


def test_both_losses_rising_is_no_overfitting():
    steps = list(range(40))
    both = np.concatenate([np.linspace(2.0, 1.0, 20), np.linspace(1.0, 3.0, 20)])
    assert overfitting(Curve(steps, both), Curve(steps, both + 0.1)) is None


def test_underfitting_is_a_loss_stuck_where_it_began():
    rng = np.random.default_rng(5)
    losses = 2.30 + 0.02 * rng.standard_normal(80)
    assert underfitting(Curve(range(80), losses)) is not None
    assert underfitting(Curve(range(80), falling(80, rng))) is None
    assert underfitting(Curve(range(10), losses[:10])) is None


def test_degradation_says_since_when():
    rng = np.random.default_rng(6)
    speed = np.concatenate([np.full(60, 1000.0), np.full(30, 600.0)]) + 20 * rng.standard_normal(90)
    found = degradation(Curve(range(0, 900, 10), speed))
    assert found.step == pytest.approx(600, abs=30)
    assert found.numbers["lost_share"] == pytest.approx(0.4, abs=0.05)
    times = 1.0 / speed
    assert degradation(Curve(range(90), times), higher_is_better=False).step == pytest.approx(60, abs=3)
