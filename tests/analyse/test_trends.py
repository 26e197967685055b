"""The tests for trend and oscillation, against SciPy and against their own false-alarm rates."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats as scipy_stats

from stethoscope.analyse.trends import (
    Direction,
    kendall_s,
    mann_kendall,
    noise,
    oscillation,
    shorten,
    theil_sen,
)


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("digits", [0, 1, 12])
def test_mann_kendall_is_kendalls_tau_against_time(seed, digits):
    rng = np.random.default_rng(seed)
    values = np.round(rng.standard_normal(40) + 0.02 * np.arange(40), digits)
    expected = scipy_stats.kendalltau(np.arange(40), values, method="asymptotic")
    trend = mann_kendall(values)
    assert trend.tau == pytest.approx(expected.statistic, abs=1e-12)
    assert trend.p_value == pytest.approx(expected.pvalue, rel=1e-9)


def test_the_slope_is_that_of_theil_and_sen():
    values = np.random.default_rng(1).standard_normal(50) + 0.3 * np.arange(50)
    assert theil_sen(values) == pytest.approx(scipy_stats.theilslopes(values).slope, rel=1e-12)


def test_direction_and_corner_cases():
    assert mann_kendall(np.arange(10)).direction is Direction.RISING
    assert mann_kendall(-np.arange(10.0)).direction is Direction.FALLING
    assert mann_kendall(np.ones(10)).direction is Direction.STEADY
    assert mann_kendall([1.0, 2.0]).p_value == 1.0
    assert mann_kendall([1.0, np.nan, 2.0, np.inf, 3.0, 4.0, 5.0, 6.0, 7.0]).num_values == 7
    assert kendall_s(np.array([1.0, 2.0, 3.0]))[0] == 3.0


def test_a_long_series_is_averaged_and_keeps_its_slope():
    values = 0.5 * np.arange(10_000.0)
    short, stride = shorten(values)
    assert len(short) <= 600
    assert stride == 17
    assert mann_kendall(values).slope == pytest.approx(0.5)


def test_correlated_noise_is_rarely_a_trend():
    rng = np.random.default_rng(2)
    kernel = np.ones(8) / 8
    plain = corrected = 0
    for _ in range(200):
        values = np.convolve(rng.standard_normal(107), kernel, "valid")
        plain += mann_kendall(values).significant
        corrected += mann_kendall(values, correlated=True).significant
    assert corrected < plain / 2
    assert corrected <= 24


def test_noise_ignores_slow_changes():
    rng = np.random.default_rng(3)
    time = np.arange(2000)
    values = 5.0 * np.exp(-time / 500) + 0.2 * rng.standard_normal(2000)
    assert noise(values) == pytest.approx(0.2, rel=0.1)


def test_oscillation_is_found_and_plain_noise_is_not():
    rng = np.random.default_rng(4)
    alternating = 1.0 + 0.5 * (-1.0) ** np.arange(30) + 0.05 * rng.standard_normal(30)
    found = oscillation(alternating)
    assert found.found
    assert found.period == pytest.approx(2.0, abs=0.2)
    assert found.amplitude == pytest.approx(0.5, abs=0.1)
    wave = 1.0 + 0.5 * np.sin(2 * np.pi * np.arange(60) / 10) + 0.05 * rng.standard_normal(60)
    assert oscillation(wave).period == pytest.approx(10.0, rel=0.1)
    assert not oscillation(alternating, amplitude=2.0).found
    assert sum(oscillation(rng.standard_normal(60)).found for _ in range(300)) <= 4
    assert not oscillation(np.ones(30)).found
