"""WeightAnalyzer against SciPy, PyTorch and NumPy: statistics, drift, spectra, initial weights, sources."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
import scipy.stats
import torch
from safetensors.torch import save_file

from stethoscope.instruments import WeightAnalyzer
from stethoscope.instruments.array_input import ArrayError
from stethoscope.instruments.initialization import InitializationVerdict
from stethoscope.instruments.spectral import effective_rank, tail_exponent
from stethoscope.instruments.weight_types import WeightIssue


def test_statistics_against_scipy() -> None:
    rng = np.random.default_rng(0)
    values = rng.gamma(2.0, size=(30, 40))
    stats = WeightAnalyzer.analyze_weight_distribution([values]).layer_analyses[0].statistics
    assert stats.mean == pytest.approx(values.mean())
    assert stats.std_dev == pytest.approx(values.std())
    assert stats.skewness == pytest.approx(scipy.stats.skew(values, axis=None))
    assert stats.kurtosis == pytest.approx(scipy.stats.kurtosis(values, axis=None))
    counts = np.histogram(values, bins=50)[0]
    assert stats.entropy == pytest.approx(scipy.stats.entropy(counts, base=2))
    assert (stats.min, stats.max) == (values.min(), values.max())


def test_entropy_of_a_constant_and_of_a_uniform() -> None:
    constant, uniform = WeightAnalyzer.analyze_weight_distribution([np.ones(9), np.arange(5000.0)]).layer_analyses
    assert constant.statistics.entropy == 0.0
    assert uniform.statistics.entropy == pytest.approx(math.log2(50), abs=1e-3)


def test_corners() -> None:
    analysis = WeightAnalyzer.analyze_weight_distribution([[], [1.0], [0.0, 0.0, 0.0], [0.1] * 10])
    empty, one, zeros, constant = analysis.layer_analyses
    assert (empty.statistics.skewness, empty.statistics.num_elements) == (None, 0)
    assert (one.statistics.skewness, one.statistics.kurtosis) == (None, None)
    assert (zeros.statistics.skewness, zeros.statistics.kurtosis) == (0.0, None)
    assert zeros.issues == ["zero_fraction"]
    assert (constant.statistics.std_dev, constant.statistics.kurtosis) == (0.0, 0.0)
    assert analysis.outlier_detection == []
    assert (analysis.overall_statistics.min, analysis.overall_statistics.max) == (0.0, 1.0)
    assert WeightAnalyzer.analyze_weight_distribution([]).layer_analyses == []
    assert WeightAnalyzer.detect_gradient_explosion([], 1.0).explosion_ratio == 0.0
    assert WeightAnalyzer.compute_l2_norm([3.0, 4.0]) == 5.0


def test_health_and_advice_for_every_issue() -> None:
    rng = np.random.default_rng(0)
    tail = np.append(rng.normal(size=5000), [60.0])
    health = WeightAnalyzer.weight_health(tail)
    assert health.issues == [WeightIssue.SKEWED, WeightIssue.HEAVY_TAILED, WeightIssue.EXTREME_VALUES]
    assert len(health.recommendations) == len(health.issues)
    assert WeightIssue.HEAVY_TAILED.advice in health.recommendations
    assert WeightIssue.EXTREME_VALUES.advice in health.recommendations
    assert WeightAnalyzer.weight_health(rng.normal(size=500)).score == 100.0


def test_nan_weights_are_critical_and_located() -> None:
    weight = torch.zeros(3, 4)
    weight[1, 2] = float("nan")
    analysis = WeightAnalyzer.analyze_weight_distribution({"fc.weight": weight})
    layer = analysis.layer_analyses[0]
    assert layer.health_score == 0.0
    assert "non_finite" in layer.issues
    assert analysis.distribution_health.status == "Critical"
    assert (analysis.non_finite[0].name, analysis.non_finite[0].first_index) == ("fc.weight", (1, 2))
    explosion = WeightAnalyzer.detect_gradient_explosion([[1.0], [math.inf, 1.0]], 10.0)
    assert explosion.overall_severity == "Critical"
    assert [layer.layer_index for layer in explosion.exploding_layers] == [1]
    assert explosion.exploding_layers[0].severity == "Critical"


def test_severity_compares_with_all_layers() -> None:
    grads = [[1000.0]] + [[0.001]] * 199
    analysis = WeightAnalyzer.detect_gradient_explosion(grads, 5.0)
    assert analysis.exploding_layers[0].severity == "Critical"  # its own norm alone would say Low


def test_at_most_a_hundred_outliers_a_layer_the_largest_in_order() -> None:
    rng = np.random.default_rng(0)
    values = rng.normal(size=200_000)
    analysis = WeightAnalyzer.analyze_weight_distribution({"w": values})
    z = np.abs((values - values.mean()) / values.std())
    expected = np.sort(np.argsort(-z)[:100])
    assert [outlier.weight_index for outlier in analysis.outlier_detection] == expected.tolist()
    assert analysis.layer_analyses[0].num_outliers == int((z > 3).sum())
    assert {o.layer_name for o in analysis.outlier_detection} == {"w"}


def test_drift_by_name() -> None:
    before = {"a": np.zeros((2, 2)), "b": np.ones(4), "c": np.ones(3), "gone": np.ones(1)}
    after = {"c": np.ones(3), "b": np.ones(4), "a": np.full((2, 2), 0.3), "new": np.ones(1)}
    drift = WeightAnalyzer.analyze_weight_drift(before, after)
    assert drift.mean_drift == pytest.approx(0.1)
    assert drift.max_drift == pytest.approx(0.3)
    assert drift.affected_layers == ["a"]
    assert drift.unmatched == ["gone", "new"]
    by_name = {layer.layer: layer for layer in drift.layers}
    assert (by_name["a"].num_changed, by_name["b"].num_changed) == (4, 0)
    assert by_name["b"].cosine == pytest.approx(1.0)


@pytest.mark.parametrize(("change", "severity"), [(0.2, "High"), (0.06, "Medium"), (0.02, "Low"), (0.001, "Minimal")])
def test_drift_severity_and_indices(change: float, severity: str) -> None:
    before = [torch.zeros(5), torch.zeros(7)]
    drift = WeightAnalyzer.analyze_weight_drift(before, [tensor + change for tensor in before])
    assert drift.severity == severity
    assert drift.affected_layers == []
    assert [layer.layer for layer in drift.layers] == [0, 1]
    assert drift.mean_drift == pytest.approx(change)


@pytest.mark.parametrize("shape", [(40, 30), (30, 40), (1, 20), (64, 64), (16, 3, 3, 3)])
def test_spectrum_against_svd(shape: tuple[int, ...]) -> None:
    rng = np.random.default_rng(1)
    weight = rng.normal(size=shape) * 1e-3
    (found,) = WeightAnalyzer.analyze_spectrum({"w": weight})
    values = np.linalg.svd(weight.reshape(shape[0], -1), compute_uv=False)
    assert found.largest_singular_value == pytest.approx(values[0], rel=1e-3)
    assert found.stable_rank == pytest.approx((values**2).sum() / values[0] ** 2, rel=2e-3)
    assert found.smallest_singular_value == pytest.approx(values[-1])
    assert 1.0 <= found.effective_rank <= min(weight.reshape(shape[0], -1).shape) + 1e-9
    (quick,) = WeightAnalyzer.analyze_spectrum([weight], full=False)
    assert quick.tail_exponent is None
    assert quick.layer == 0


def test_spectrum_corners() -> None:
    zero, broken = WeightAnalyzer.analyze_spectrum([np.zeros((3, 3)), np.full((2, 2), np.nan), np.ones(5)])
    assert (zero.largest_singular_value, zero.stable_rank, zero.converged) == (0.0, 0.0, True)
    assert math.isnan(broken.largest_singular_value)
    assert effective_rank(np.ones(7)) == pytest.approx(7.0)


def test_tail_exponent_recovers_a_power_law() -> None:
    rng = np.random.default_rng(2)
    values = (1.0 - rng.random(40_000)) ** (-1.0 / (3.5 - 1.0))  # Pareto, alpha 3.5
    assert tail_exponent(values) == pytest.approx(3.5, rel=0.03)
    assert tail_exponent(np.ones(5)) is None


def test_initialization_of_torch_layers() -> None:
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(256, 128), torch.nn.Conv2d(8, 16, 3))
    torch.nn.init.kaiming_normal_(model[0].weight)
    linear, conv = WeightAnalyzer.check_initialization(model)
    assert (linear.layer, linear.fan_in, linear.closest) == ("0.weight", 256, "kaiming")
    assert (conv.fan_in, conv.fan_out, conv.closest) == (72, 144, "torch_default")
    assert linear.verdict is conv.verdict is InitializationVerdict.USUAL
    with torch.no_grad():
        model[0].weight.mul_(30)
        model[1].weight.zero_()
    linear, conv = WeightAnalyzer.check_initialization(model)
    assert linear.verdict is InitializationVerdict.TOO_LARGE
    assert (conv.verdict, conv.symmetric_units) == (InitializationVerdict.CONSTANT, 15)


def test_live_model_and_checkpoint_agree(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(8, 4), torch.nn.BatchNorm1d(4))
    path = tmp_path / "model.safetensors"
    state = {k: v.bfloat16() if k == "0.weight" else v for k, v in model.state_dict().items()}
    save_file(state, str(path))
    live = WeightAnalyzer.analyze_weight_distribution(model)
    stored = WeightAnalyzer.analyze_weight_distribution(path)
    assert {layer.layer_name for layer in live.layer_analyses} == {n for n, v in state.items() if v.is_floating_point()}
    by_name = {layer.layer_name: layer.statistics for layer in stored.layer_analyses}
    rounded = state["0.weight"].double()
    assert by_name["0.weight"].mean == pytest.approx(rounded.mean().item())
    drift = WeightAnalyzer.analyze_weight_drift(model, str(path))
    assert {layer.layer: layer.num_changed for layer in drift.layers}["0.bias"] == 0
    assert drift.unmatched == []


def test_pickles_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ArrayError, match="safetensors"):
        WeightAnalyzer.analyze_weight_distribution(tmp_path / "model.pt")
    with pytest.raises(ArrayError, match="cannot read"):
        WeightAnalyzer.analyze_weight_distribution(tmp_path / "none.safetensors")
