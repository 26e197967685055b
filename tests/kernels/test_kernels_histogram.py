"""Percentiles from the exponent histogram keep the bounds they state."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stethoscope.kernels import NUM_BINS, percentiles, reference
from stethoscope.kernels.histogram import MAX_EXPONENT, MIN_EXPONENT, ZERO_BIN, bin_index, edges

NUMBERS = st.floats(allow_nan=False, allow_infinity=False)


@settings(deadline=None)
@given(st.lists(NUMBERS, min_size=1, max_size=200))
def test_every_value_lies_between_the_edges_of_its_bin(values: list[float]) -> None:
    low, high = edges()
    array = np.array(values)
    index = bin_index(array)
    assert ((low[index] <= array) & (array <= high[index])).all()
    assert (np.diff(low) >= 0).all()


@settings(deadline=None)
@given(st.lists(NUMBERS, min_size=1, max_size=300), st.lists(st.floats(0, 100), min_size=1, max_size=5))
def test_the_true_percentile_is_within_the_bounds(values: list[float], qs: list[float]) -> None:
    array = np.array(values)
    counts = reference.histogram(array)
    truth = np.percentile(array, qs, method="inverted_cdf")
    for bounds in ({}, {"minimum": array.min(), "maximum": array.max()}):
        found = percentiles(counts, qs, **bounds)
        # NumPy and we round q n / 100 alike only up to one part in 2**52: allow the neighbour.
        around = np.clip(np.array(qs)[:, None] + [-1e-9, 0, 1e-9], 0, 100)
        near = np.percentile(array, around, method="inverted_cdf")
        inside = (found.low[:, None] <= near) & (near <= found.high[:, None])
        assert inside.any(axis=1).all(), (truth, found)
        assert ((found.low <= found.estimate) & (found.estimate <= found.high)).all()


def test_the_estimate_is_close_for_a_bell() -> None:
    array = np.random.default_rng(0).normal(size=100_000)
    found = percentiles(reference.histogram(array), [1, 25, 50, 75, 99])
    np.testing.assert_allclose(found.estimate, [-2.33, -0.674, 0, 0.674, 2.33], rtol=0.4, atol=0.01)


def test_nothing_counted_is_null() -> None:
    assert np.isnan(percentiles(np.zeros(NUM_BINS), [50]).estimate).all()


def test_outermost_bins_hold_all_beyond() -> None:
    values = np.array([5e-324, -1e300, 2.0**MIN_EXPONENT, 2.0 ** (MAX_EXPONENT + 5), 0.0])
    assert bin_index(values).tolist() == [ZERO_BIN + 1, 0, ZERO_BIN + 1, NUM_BINS - 1, ZERO_BIN]


@pytest.mark.parametrize("qs", [[-1], [101], [float("nan")]])
def test_bad_percentiles_are_refused(qs: list[float]) -> None:
    with pytest.raises(ValueError, match="between 0 and 100"):
        percentiles(np.ones(NUM_BINS), qs)
    with pytest.raises(ValueError, match="bins"):
        percentiles(np.ones(3), [50])
