"""TensorInspector, its statistics and alerts, against SciPy, NumPy and PyTorch."""

from __future__ import annotations

import gc
import threading

import numpy as np
import pytest
import torch
from scipy import stats as scipy_stats

from stethoscope.instruments.alerts import TensorAlertKind
from stethoscope.instruments.distribution import distribution
from stethoscope.instruments.inspector import TensorInspector
from stethoscope.record import Severity, StethoscopeError


def look(value, name="x"):
    inspector = TensorInspector()
    info = inspector.get_tensor_info(inspector.inspect_tensor(value, name))
    assert info is not None
    return info


@pytest.mark.parametrize("convert", [lambda a: a, torch.from_numpy, lambda a: a.tolist()])
def test_statistics_are_those_of_scipy(convert):
    values = np.random.default_rng(0).gamma(2.0, size=(31, 17))
    stats = look(convert(values)).stats
    assert stats.shape == (31, 17)
    assert stats.mean == pytest.approx(values.mean(), rel=1e-12)
    assert stats.std == pytest.approx(values.std(), rel=1e-12)
    assert stats.skewness == pytest.approx(scipy_stats.skew(values, axis=None), rel=1e-9)
    assert stats.kurtosis == pytest.approx(scipy_stats.kurtosis(values, axis=None), rel=1e-9)
    assert stats.l1_norm == pytest.approx(np.abs(values).sum(), rel=1e-12)
    assert stats.l2_norm == pytest.approx(np.linalg.norm(values), rel=1e-12)
    assert stats.median == pytest.approx(np.median(values), rel=1e-12)
    assert (stats.min, stats.max) == (values.min(), values.max())


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_statistics_are_those_of_torch(dtype):
    tensor = torch.randn(40, 30, generator=torch.Generator().manual_seed(1)).to(dtype).requires_grad_()
    stats = look(tensor).stats
    exact = tensor.detach().double()
    assert stats.dtype == str(dtype).removeprefix("torch.")
    assert stats.memory_usage_bytes == 1200 * dtype.itemsize
    assert stats.mean == pytest.approx(exact.mean().item(), abs=1e-6)
    assert stats.std == pytest.approx(exact.std(correction=0).item(), rel=1e-6)


def test_the_distribution_is_that_of_numpy_and_scipy():
    values = np.random.default_rng(2).standard_normal(5000)
    spread = look(values).distribution
    counts, edges = np.histogram(values, bins=50)
    np.testing.assert_array_equal(spread.histogram, counts)
    np.testing.assert_allclose(spread.bin_edges, edges)
    assert spread.entropy == pytest.approx(scipy_stats.entropy(counts, base=2), rel=1e-12)
    for q in (5, 25, 50, 75, 95, 99):
        assert spread.percentiles[f"p{q}"] == pytest.approx(np.percentile(values, q), rel=1e-12)


def test_outliers_are_outside_the_fences_and_at_most_a_hundred_are_kept():
    values = np.random.default_rng(3).standard_normal((50, 40))
    values[3, 7] = 100.0
    spread = look(values).distribution
    low, high = np.percentile(values, [25, 75])
    reach = 1.5 * (high - low)
    outside = np.argwhere((values < low - reach) | (values > high + reach))
    assert [list(o.index) for o in spread.outliers] == outside.tolist()
    assert (3, 7) in [o.index for o in spread.outliers]
    heavy = np.random.default_rng(4).standard_cauchy(5000)
    spread = look(heavy).distribution
    assert len(spread.outliers) == 100 < spread.num_outliers
    far = np.abs(heavy - np.median(heavy))
    assert {o.index[0] for o in spread.outliers} == set(np.argsort(-far)[:100].tolist())


def test_a_large_array_is_sampled_and_says_so(monkeypatch):
    monkeypatch.setattr("stethoscope.instruments.distribution.MAX_EXACT", 1000)
    values = np.random.default_rng(5).standard_normal((100, 100))
    values[:, 0] = 50.0
    spread = distribution(values)
    assert spread.num_sampled == 1000
    assert spread.percentiles["p50"] == pytest.approx(0.0, abs=0.15)
    assert spread.num_outliers == pytest.approx(100 + 70, rel=0.6)
    assert all(values[outlier.index] == outlier.value for outlier in spread.outliers)


def test_constant_huge_and_empty_arrays_have_a_distribution_or_none():
    assert look(np.full(10, 3.0)).distribution.entropy == 0.0
    assert look(np.array([-1e308, 1e308])).distribution.histogram.sum() == 2
    assert look(np.array([1e16, 1e16 + 2])).distribution.histogram.sum() == 2
    assert look(np.zeros((0, 3))).distribution is None
    assert look([float("nan")] * 3).distribution is None
    assert look([float("nan")] * 3).stats.mean is None


def test_alerts_name_the_first_bad_element():
    values = torch.ones(4, 5, 6)
    values[2, 3, 1] = values[3, 0, 0] = float("nan")
    values[1, 4, 5] = -float("inf")
    values[0, 0, 2] = 2e10
    info = look(values)
    found = {alert.kind: alert for alert in info.alerts}
    nan, inf = found[TensorAlertKind.NAN_VALUES], found[TensorAlertKind.INFINITE_VALUES]
    extreme = found[TensorAlertKind.EXTREME_VALUES]
    assert (nan.first_index, nan.count, nan.severity) == ((2, 3, 1), 2, Severity.CRITICAL)
    assert (inf.first_index, inf.count) == ((1, 4, 5), 1)
    assert (extreme.first_index, extreme.value) == ((0, 0, 2), pytest.approx(2e10))
    assert not info.healthy
    assert look([1e10, -5.0]).healthy
    assert look(np.array([np.iinfo(np.int64).min])).alerts[0].kind == TensorAlertKind.EXTREME_VALUES


def test_sparsity_counts_zeros():
    stats = look(np.array([0.0, -0.0, 1.0, 2.0])).stats
    assert stats.sparsity == 0.5
    assert look(np.zeros(0)).stats.sparsity is None


def test_drift_needs_ten_looks_and_more_than_half():
    inspector = TensorInspector()
    rng = np.random.default_rng(6)
    for shift in [0.0] * 5 + [0.4] * 4:
        inspector.inspect_tensor(rng.standard_normal(1000) + shift, "w")
    assert inspector.drift("w") is None
    inspector.inspect_tensor(rng.standard_normal(1000) + 0.4, "w")
    assert inspector.drift("w") == pytest.approx(0.4, abs=0.1)
    assert inspector.alerts() == []
    for _ in range(5):
        inspector.inspect_tensor(rng.standard_normal(1000) + 2.0, "w")
    assert inspector.drift("w") > 0.5
    assert inspector.alerts()[-1].kind == TensorAlertKind.DRIFT
    assert inspector.alerts(Severity.WARNING) == []


def test_healthy_weights_that_hover_around_zero_do_not_drift():
    inspector = TensorInspector()
    rng = np.random.default_rng(7)
    for _ in range(200):
        inspector.inspect_tensor(rng.standard_normal(64) * 0.02, "w")
    assert inspector.alerts() == []


def test_at_most_max_tracked_tensors_are_remembered():
    inspector = TensorInspector(max_tracked_tensors=3)
    ids = [inspector.inspect_tensor([float(i)], f"t{i}") for i in range(5)]
    assert [info.name for info in inspector.infos()] == ["t2", "t3", "t4"]
    assert inspector.get_tensor_info(ids[0]) is None
    assert inspector.get_tensor_info(ids[4]).stats.mean == 4.0
    assert inspector.num_forgotten == 2
    inspector.clear()
    assert len(inspector) == 0
    assert inspector.get_tensor_info(ids[4]) is None
    with pytest.raises(StethoscopeError):
        TensorInspector(max_tracked_tensors=0)


def test_memory_is_that_of_the_living_tensors():
    inspector = TensorInspector()
    first, second = torch.zeros(1000), torch.zeros(500, dtype=torch.float64)
    inspector.inspect_tensor(first, "a", layer="one", step=0)
    inspector.inspect_tensor(first.view(10, 100), "a_view", layer="one", step=0)
    inspector.inspect_tensor(second, "b", layer="two", step=1)
    assert inspector.memory.live_bytes == 4000 + 4000
    assert inspector.memory.by_layer() == {"one": 8000, "two": 4000}
    del first
    gc.collect()
    assert inspector.memory.live_bytes == 4000
    assert [t.alive for t in inspector.memory.by_tensor()] == [False, False, True]
    assert [p.live_bytes for p in inspector.memory.over_time()] == [4000, 4000, 8000]
    inspector.inspect_tensor([1.0, 2.0], "a list cannot be followed")
    assert inspector.memory.live_bytes == 4000


def test_what_is_no_array_is_refused_by_name():
    with pytest.raises(StethoscopeError, match="weights"):
        TensorInspector().inspect_tensor(["a", "b"], "weights")


def test_looks_at_other_steps_and_layers_can_be_compared():
    rng = np.random.default_rng(8)
    inspector = TensorInspector()
    before, after = rng.standard_normal((50, 40)), 2.0 * rng.standard_normal((30, 10)) + 1.0
    after[0] = 0.0
    ids = (
        inspector.inspect_tensor(before, "w", "one", step=0),
        inspector.inspect_tensor(after, "w", "two", step=9),
    )
    found = inspector.compare_looks(*ids)
    assert found.mean_change == pytest.approx(after.mean() - before.mean())
    assert found.std_ratio == pytest.approx(after.std() / before.std())
    assert found.norm_ratio == pytest.approx(np.linalg.norm(after) / np.linalg.norm(before))
    assert found.sparsity_change == pytest.approx(10 / 300)
    exact = scipy_stats.ks_2samp(before.ravel(), after.ravel()).statistic
    assert found.ks_distance == pytest.approx(exact, abs=0.03)
    with pytest.raises(StethoscopeError, match="99"):
        inspector.compare_looks(ids[0], 99)


def test_threads_may_inspect_at_once():
    inspector = TensorInspector(max_tracked_tensors=50)

    def work(name):
        for _ in range(100):
            inspector.inspect_tensor(np.ones(10), name)

    threads = [threading.Thread(target=work, args=(f"t{i}",)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (inspector.num_inspected, len(inspector), inspector.num_forgotten) == (400, 50, 350)


class FromElsewhere:
    """An array of another framework: all it offers is `__array__`, as JAX's do."""

    def __init__(self, values):
        self._values = np.asarray(values)

    def __array__(self, dtype=None, copy=None):
        return self._values if dtype is None else self._values.astype(dtype)


def test_arrays_of_other_frameworks_are_read_through_their_protocol():
    info = look(FromElsewhere([[1.0, 2.0], [3.0, float("nan")]]))
    assert info.stats.shape == (2, 2)
    assert info.stats.mean == 2.0
    assert info.alerts[0].first_index == (1, 1)
    assert info.stats.memory_usage_bytes == 32
