"""Values at a threshold to the last digit, at the ends of float64, and names that a file must quote."""

from __future__ import annotations

import csv
import itertools
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from stethoscope.instruments import (
    GradientFlowAnimator,
    GradientFlowVisualizer,
    GradientHistory,
    WeightAnalyzer,
)
from stethoscope.instruments.flow_types import GradientFlowVisualization

LENGTHS = (1, 2, 3, 5, 7, 8, 9, 16, 17, 26, 33, 100, 300, 1000)


def shown(**norms: Any) -> GradientFlowVisualization:
    histories = {name: GradientHistory(range(len(values)), values) for name, values in norms.items()}
    return GradientFlowVisualizer().generate_visualization(histories, 0)


def added_up(values: list[float]) -> float:
    total = 0.0
    for value in values:
        total += value
    return total


@pytest.mark.parametrize("threshold", [1e-7, 1e-6, 1e-3, 0.1])
@pytest.mark.parametrize("length", LENGTHS)
def test_a_layer_at_the_vanishing_threshold_does_not_vanish(threshold: float, length: int) -> None:
    animator = GradientFlowAnimator(vanishing_threshold=threshold)
    under = math.nextafter(threshold, 0.0)
    animator.record_step(
        0, {"at": [threshold] * length, "both": [threshold, -threshold] * length, "under": [under] * length}
    )
    assert [layer.is_vanishing for layer in animator.frames[0].layers] == [False, False, True]


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
@pytest.mark.parametrize("threshold", [0.5, 1.0, 5.0, 10.0, 100.0])
@pytest.mark.parametrize("length", LENGTHS)
def test_a_norm_at_the_threshold_is_not_over_it(threshold: float, length: int, dtype: Any) -> None:
    one, two = np.zeros(length, dtype), np.zeros(length + 1, dtype)
    one[-1] = threshold
    two[0], two[-1] = 3.0 * threshold / 5.0, -4.0 * threshold / 5.0
    square = np.full((4, length), threshold / 2.0, dtype)[:, :1]
    if threshold == 5.0:  # the others have no exact fifths
        assert WeightAnalyzer.compute_l2_norm(two) == 5.0
        assert not WeightAnalyzer.detect_gradient_explosion([two], threshold).exploding_layers
    found = WeightAnalyzer.detect_gradient_explosion([one, square], threshold)
    assert found.exploding_layers == []
    assert found.max_gradient_norm == threshold
    assert found.overall_severity == "Low"
    over = WeightAnalyzer.detect_gradient_explosion([np.nextafter(one, np.asarray(2 * threshold, dtype))], threshold)
    assert len(over.exploding_layers) == 1


@pytest.mark.parametrize(("moved", "level"), [(0.1, "Medium"), (0.05, "Low"), (0.01, "Minimal")])
def test_a_drift_at_a_limit_is_not_past_it(moved: float, level: str) -> None:
    for num_layers, length in itertools.product((1, 3, 10, 33), LENGTHS):
        before = [np.zeros(length)] * num_layers
        found = WeightAnalyzer.analyze_weight_drift(before, [np.full(length, moved)] * num_layers)
        assert (found.mean_drift, found.max_drift) == (moved, moved)
        assert found.severity == level
        assert found.affected_layers == []


def test_norms_beyond_the_range_of_squares_are_kept() -> None:
    assert WeightAnalyzer.compute_l2_norm([3e200, 4e200]) == pytest.approx(5e200)
    assert WeightAnalyzer.compute_l2_norm([3e-200, 4e-200]) == pytest.approx(5e-200)
    assert WeightAnalyzer.compute_l2_norm([3.0, np.nan, 4.0, np.inf]) == 5.0
    assert WeightAnalyzer.compute_l2_norm([]) == 0.0


def test_a_tensor_is_measured_as_the_array_is() -> None:
    torch = pytest.importorskip("torch")
    values = [3.0, 4.0, *[0.0] * 24]
    for dtype in (torch.float32, torch.bfloat16, torch.float64):
        assert WeightAnalyzer.compute_l2_norm(torch.tensor(values, dtype=dtype, requires_grad=True)) == 5.0


def test_a_sparse_tensor_is_not_spread_out() -> None:
    torch = pytest.importorskip("torch")
    sparse = torch.sparse_coo_tensor([[1, 70_000], [2, 3]], [3.0, 4.0], (2**31, 2**20), check_invariants=True)
    assert WeightAnalyzer.compute_l2_norm(sparse) == pytest.approx(5.0)  # 8 PB of zeros are nowhere


@pytest.mark.parametrize("level", [1e-5, 1e-7])
def test_a_mean_norm_is_added_up_in_order(level: float) -> None:
    for length in LENGTHS:
        norms = [level] * length
        mean = added_up(norms) / length
        levels = [str(region.severity_level) for region in shown(a=norms).vanishing_regions]
        if mean < 1e-7:
            assert levels == ["Critical"], length
        else:
            assert levels == (["Moderate"] if mean < 1e-5 else []), length


def test_sums_and_rates_are_added_up_in_order() -> None:
    for length in LENGTHS:
        flat = [0.01 / length] * length
        kind = shown(a=flat).flow_network.nodes[0].node_type
        assert kind == ("Sink" if added_up(flat) < 0.01 else "Normal"), length
        waves = [0.1 * (place % 3) + 1.0 for place in range(length)]
        changes = [abs(after - before) for before, after in itertools.pairwise(waves)]
        rate = added_up(changes) / length if length > 1 else 0.0
        assert shown(a=waves).layer_flows["a"].information_flow_rate == rate


def test_the_largest_norms_give_scores_and_no_warning() -> None:
    huge = shown(a=[1e200, 1e-200, 1.7e308, 1.7e308], b=[1.7e308] * 4, c=[0.0, 1.7e308, 0.0])
    flows = huge.layer_flows
    assert flows["a"].flow_consistency == 0.0
    assert flows["b"].flow_consistency == 1.0
    assert [flow.stability_score for flow in huge.temporal_flows] == [0.0, 0.0, 0.0]
    assert [str(region.severity_level) for region in huge.exploding_regions] == ["Critical"] * 3


def test_entropy_of_values_that_lie_next_to_each_other() -> None:
    near = [1.0 + 2.3e-16 * place for place in range(0, 100, 2)]
    for values in (near, [5e-324, 0.0, 0.0, 0.0], [1e-310, 2e-310, 3e-310]):
        statistics = WeightAnalyzer.analyze_weight_distribution([values]).overall_statistics
        assert 0.0 <= statistics.entropy <= math.log2(50)
    fair = WeightAnalyzer.analyze_weight_distribution([[5e-324, 0.0]]).overall_statistics
    assert fair.entropy == 1.0


def test_every_name_comes_back_from_the_csv_file(tmp_path: Path) -> None:
    names = ["a", "", " ", "a,b", 'a "b"', "two\nlines", "back\rhere", "\r\n", "层.1", "'"]
    animator = GradientFlowAnimator()
    animator.record_step(3, {name: [0.5] for name in names})
    with animator.export_csv(tmp_path / "flow.csv").open(newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert [row["layer"] for row in rows] == sorted(names)
    assert {(row["step"], float(row["grad_norm"])) for row in rows} == {("3", 0.5)}
