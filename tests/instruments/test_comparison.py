"""compare(a, b), against SciPy's KS test and a walk with nextafter."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats as scipy_stats

from stethoscope.instruments.comparison import compare, ulp_distance


@settings(max_examples=60, deadline=None)
@given(
    st.floats(allow_nan=False, allow_infinity=False, width=16),
    st.integers(min_value=0, max_value=40),
    st.sampled_from(["float16", "float32", "float64"]),
)
def test_ulps_count_the_steps_of_nextafter(start, num_steps, dtype):
    kind = np.dtype(dtype).type
    value = kind(start)
    walked = value
    for _ in range(num_steps):
        ahead = np.nextafter(walked, kind(np.inf))
        if not np.isfinite(ahead):
            return
        walked = ahead
    distance = int(ulp_distance(np.array([value]), np.array([walked]), dtype)[0])
    assert distance == num_steps


def test_ulps_of_bfloat16_are_those_of_torch():
    value = torch.tensor([1.0, -2.5, 3e-39, 0.0], dtype=torch.bfloat16)
    walked = value
    for _ in range(7):
        walked = torch.nextafter(walked, torch.full_like(walked, float("inf")))
    result = compare(value, walked)
    assert (result.max_ulps, result.ulp_dtype) == (7, "bfloat16")


def test_ulps_span_the_whole_range_of_float64():
    top = np.finfo(np.float64).max
    steps = int(ulp_distance(np.array([-top]), np.array([top]), "float64")[0])
    assert steps == 2 * int(np.array([top]).view(np.int64)[0])
    assert int(ulp_distance(np.array([-0.0]), np.array([0.0]), "float64")[0]) == 0


@pytest.mark.parametrize("shift", [0.0, 0.1, 2.0])
def test_the_ks_distance_is_that_of_scipy(shift):
    rng = np.random.default_rng(1)
    a, b = rng.standard_normal(300), np.round(rng.standard_normal(211) + shift, 1)
    assert compare(a, b).ks_distance == pytest.approx(scipy_stats.ks_2samp(a, b).statistic, abs=1e-12)


def test_errors_cosine_and_the_worst_elements():
    rng = np.random.default_rng(2)
    a = rng.standard_normal((20, 30))
    b = a.copy()
    b[3, 4] += 0.5
    b[7, 0] -= 0.25
    result = compare(a, b)
    assert result.num_different == 2
    assert result.max_abs_error == pytest.approx(0.5)
    assert result.mean_abs_error == pytest.approx(0.75 / 600)
    assert [w.index for w in result.worst] == [(3, 4), (7, 0)]
    assert result.max_relative_error == pytest.approx((np.abs(a - b) / np.abs(b)).max())
    exact = torch.nn.functional.cosine_similarity(torch.tensor(a).flatten(), torch.tensor(b).flatten(), dim=0)
    assert result.cosine == pytest.approx(exact.item(), abs=1e-12)
    assert "2 elements differ" in str(result)


def test_equal_arrays_are_equal_also_where_both_fail():
    bad = torch.tensor([1.0, float("nan"), float("inf")])
    result = compare(bad, bad.clone())
    assert result.equal
    assert result.worst == ()
    flipped = compare(bad, torch.tensor([1.0, float("nan"), -float("inf")]))
    assert (flipped.equal, flipped.num_nonfinite_mismatches) == (False, 1)
    assert flipped.worst[0].index == (2,)


def test_dtypes_may_differ_and_ulps_are_those_of_the_coarser():
    values = torch.randn(1000, generator=torch.Generator().manual_seed(0))
    result = compare(values, values.to(torch.bfloat16))
    assert result.ulp_dtype == "bfloat16"
    assert result.max_ulps == 0
    assert "dtypes differ, float32 against bfloat16" in result.note
    assert compare(np.arange(3), np.arange(3)).ulp_dtype is None


def test_shapes_that_differ_leave_the_distributions():
    result = compare(np.zeros((2, 3)), np.zeros((3, 2)))
    assert result.equal is None
    assert result.cosine is None
    assert result.ks_distance == 0.0
    assert "shapes differ, [2, 3] against [3, 2]" in str(result)
    assert compare([], [1.0]).ks_distance is None


def test_one_nan_is_said_and_the_largest_finite_difference_has_its_own_place():
    first, second = np.zeros((3, 3)), np.zeros((3, 3))
    second[0, 0], second[2, 2] = np.nan, 0.5
    said = str(compare(first, second))
    assert "2 elements differ, finite ones by at most 0.5 at [2, 2]" in said
    assert "1 of them NaN or Inf on one side only, first [0, 0]" in said
