"""The ancestor's float32 sums: used where they are harmless, and nowhere else."""

from __future__ import annotations

import numpy as np
import pytest

from stethoscope.instruments import WeightAnalyzer
from stethoscope.instruments.weight_float32 import Moments, ancestral
from stethoscope.record import FloatArray

NEARLY_NORMAL = np.random.default_rng(7).normal(0.0, 1.0, 400).astype(np.float32).astype(np.float64)


def exact(values: FloatArray) -> Moments:
    z = (values - values.mean()) / values.std()
    return Moments(float(values.mean()), float(values.std()), float((z**3).mean()), float((z**4).mean() - 3.0))


def one_by_one(values: FloatArray) -> Moments:
    """As the ancestor's loops do it, a float32 at a time."""
    single = np.float32
    count = single(len(values))

    def total(items: list[np.float32]) -> np.float32:
        out = single(0.0)
        for item in items:
            out = single(out + item)
        return out

    numbers = [single(value) for value in values]
    mean = total(numbers) / count
    std = np.sqrt(total([(x - mean) * (x - mean) for x in numbers]) / count)
    z = [(x - mean) / std for x in numbers]
    third = total([x * (x * x) for x in z]) / count
    fourth = total([(x * x) * (x * x) for x in z]) / count
    return Moments(float(mean), float(std), float(third), float(fourth - single(3.0)))


@pytest.mark.parametrize("length", [2, 3, 8, 64, 400])
def test_small_tensors_agree_with_the_ancestor_to_the_last_digit(length: int) -> None:
    values = NEARLY_NORMAL[:length]
    assert ancestral(values, exact(values)) == one_by_one(values)
    statistics = WeightAnalyzer.analyze_weight_distribution([values]).layer_analyses[0].statistics
    assert (statistics.mean, statistics.std_dev) == one_by_one(values)[:2]


@pytest.mark.parametrize("offset", [0.0, 1.0, 30.0, 1e3, 1e6])
@pytest.mark.parametrize("length", [8, 400, 5000, 100_000])
def test_what_is_said_is_never_far_from_the_truth(length: int, offset: float) -> None:
    rng = np.random.default_rng(length)
    values = (offset + rng.normal(0.0, 1.0, length)).astype(np.float32).astype(np.float64)
    true = exact(values)
    said = WeightAnalyzer.analyze_weight_distribution([values]).layer_analyses[0].statistics
    assert said.mean == pytest.approx(true.mean, abs=1e-3 * true.std)
    assert said.std_dev == pytest.approx(true.std, rel=1e-3)
    assert said.skewness == pytest.approx(true.skewness, abs=4e-3)
    assert said.kurtosis == pytest.approx(true.kurtosis, abs=1e-2)


@pytest.mark.parametrize(
    "values",
    [
        NEARLY_NORMAL + 1e-12,  # float32 would round them
        NEARLY_NORMAL * 2.0**40,  # their fourth powers leave its range
        NEARLY_NORMAL * 2.0**-40,
        1e6 + np.round(NEARLY_NORMAL),  # its sums lose them
        np.array([1.0, *[0.0] * 4999]),
        np.full(400, float(np.float32(0.1))),
    ],
)
def test_elsewhere_the_moments_are_exact(values: FloatArray) -> None:
    truth = Moments(1.0, float(values.std()) if np.ptp(values) else 0.0, 3.0, 4.0)
    assert ancestral(values, truth) is truth
