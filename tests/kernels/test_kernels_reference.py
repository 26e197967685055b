"""The reference itself, against SciPy, NumPy and numbers worked out by hand."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.stats
import torch

from stethoscope.kernels import reference
from stethoscope.kernels.columns import COLUMNS, INDEX, NUM_COUNTS
from stethoscope.kernels.reference import SMALLEST_NORMAL


def named(row: np.ndarray) -> dict[str, float]:
    return dict(zip(COLUMNS, row, strict=True))


def test_moments_are_those_of_scipy() -> None:
    values = np.random.default_rng(1).gamma(2.0, size=5000)
    row = named(reference.row(values))
    assert row["mean"] == pytest.approx(values.mean(), rel=1e-14)
    assert row["std"] == pytest.approx(values.std(), rel=1e-13)
    assert row["skewness"] == pytest.approx(scipy.stats.skew(values), rel=1e-12)
    assert row["kurtosis"] == pytest.approx(scipy.stats.kurtosis(values), rel=1e-12)
    assert row["norm"] == pytest.approx(np.linalg.norm(values), rel=1e-14)
    assert row["mean_abs"] == pytest.approx(np.abs(values).mean(), rel=1e-14)


def test_counts_and_extremes_by_hand() -> None:
    values = np.array([np.nan, np.inf, -np.inf, -np.inf, 0.0, -0.0, 1e-40, -3.0, 2.0], dtype=np.float32)
    row = named(reference.row(values, limit=2.5))
    counts = ("count", "num_nan", "num_posinf", "num_neginf", "num_zero", "num_tiny", "num_huge")
    assert [row[name] for name in counts] == [9, 1, 1, 2, 2, 1, 1]
    assert (row["min"], row["max"], row["abs_max"]) == (-3.0, 2.0, 3.0)
    assert row["abs_min"] == float(np.float32(1e-40))


def test_a_large_mean_does_not_destroy_the_spread() -> None:
    noise = np.random.default_rng(2).normal(size=4000)
    assert reference.row(noise * 1e-6 + 1.0)[INDEX["std"]] == pytest.approx(noise.std() * 1e-6, rel=1e-9)


def test_nothing_finite_is_null_and_never_zero() -> None:
    for values in (np.zeros(0), np.array([np.nan, np.nan]), np.array([np.inf])):
        assert np.isnan(reference.row(values)[NUM_COUNTS:]).all()


def test_equal_values_have_no_spread_and_no_shape() -> None:
    row = named(reference.row(np.full(1000, 0.1)))
    assert (row["std"], row["mean"]) == (0.0, 0.1)
    assert np.isnan(row["skewness"])
    assert np.isnan(row["kurtosis"])


@pytest.mark.parametrize("scale", [1e-310, 1e-200, 1e200, 1e307])
def test_float64_at_the_ends_of_its_range(scale: float) -> None:
    values = np.array([1.0, -2.0, 4.0, 0.5]) * scale
    expected = reference.row(np.array([1.0, -2.0, 4.0, 0.5]))
    row = reference.row(values)
    np.testing.assert_allclose(row[INDEX["std"]] / scale, expected[INDEX["std"]], rtol=1e-9)
    np.testing.assert_allclose(row[INDEX["kurtosis"]], expected[INDEX["kurtosis"]], rtol=1e-9)


def test_complex_is_its_real_and_imaginary_parts() -> None:
    values = np.array([1 + 2j, -3 + 0j])
    np.testing.assert_array_equal(reference.row(values), reference.row(np.array([1.0, 2.0, -3.0, 0.0])))
    np.testing.assert_array_equal(
        reference.row(torch.from_numpy(values).conj()).take([INDEX[n] for n in ("count", "min", "max")]), [4, -3, 1]
    )


def test_smallest_normal_numbers_are_those_of_torch() -> None:
    for name, tiny in SMALLEST_NORMAL.items():
        if hasattr(torch, name) and name != "complex32":
            assert torch.finfo(getattr(torch, name)).smallest_normal == tiny, name


def test_what_holds_no_numbers_is_refused() -> None:
    with pytest.raises(reference.UnsupportedArrayError, match="holds no numbers"):
        reference.row(np.array(["a", "b"]))
