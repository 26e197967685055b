"""What the ancestor computes on random inputs, to 1e-4 relative; departures are named where they are."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

from stethoscope.instruments import (
    GradientFlowAnimator,
    GradientFlowVisualizer,
    GradientHistory,
    GradientVisualizationConfig,
    WeightAnalyzer,
)

GOLDEN = Path(__file__).parent.parent / "golden"


def cases(name: str) -> list[Any]:
    return [
        pytest.param(case["input"], case["expected"], id=f"{name}-{i}")
        for i, case in enumerate(json.loads((GOLDEN / f"{name}.json").read_text()))
    ]


def assert_same(ours: Any, theirs: Any, where: str = "") -> None:
    """Walks the expected value; numbers to 1e-4 relative, all else equal."""
    if isinstance(theirs, dict):
        for key, value in theirs.items():
            if key == "duration_steps":
                ours_value = ours.extent.duration_steps
            else:
                ours_value = ours[key] if isinstance(ours, dict) else getattr(ours, key)
            assert_same(ours_value, value, f"{where}.{key}")
    elif isinstance(theirs, list):
        assert len(ours) == len(theirs), where
        for place, (a, b) in enumerate(zip(ours, theirs, strict=True)):
            assert_same(a, b, f"{where}[{place}]")
    elif isinstance(theirs, str) and theirs in ("NaN", "inf", "-inf"):
        return  # a division by zero of the original: nothing to match
    elif isinstance(theirs, float) and ours is None:
        assert theirs == 0.0, where  # skewness and kurtosis of too few values
        assert where.endswith(("skewness", "kurtosis")), where
    elif isinstance(theirs, float):
        assert math.isclose(ours, theirs, rel_tol=1e-4), (where, ours, theirs)
    else:
        assert ours == theirs, where


@pytest.mark.parametrize(("given", "expected"), cases("gradient_flow_animator"))
def test_animator(given: Any, expected: Any) -> None:
    animator = GradientFlowAnimator(
        max_frames=given["max_frames"],
        vanishing_threshold=given["vanishing_threshold"],
        exploding_threshold=given["exploding_threshold"],
    )
    for step in given["steps"]:
        animator.record_step(step["step"], step["gradients"])
    assert_same(animator.frames, expected["frames"], "frames")
    assert_same(animator.summary_report(), expected["summary"], "summary")
    assert animator.to_ascii_animation().splitlines()[3:] == expected["heat_rows"]


@pytest.mark.parametrize(("given", "expected"), cases("gradient_flow_visualizer"))
def test_flow_visualizer(given: Any, expected: Any) -> None:
    histories = {name: GradientHistory(**history) for name, history in given["histories"].items()}
    shown = GradientFlowVisualizer(GradientVisualizationConfig()).generate_visualization(
        histories, given["current_step"]
    )
    for key, value in expected.items():
        home = shown if hasattr(shown, key) else shown.flow_network
        assert_same(getattr(home, key), value, key)
    assert set(expected["layer_flows"]) == set(shown.layer_flows)


@pytest.mark.parametrize(("given", "expected"), cases("weight_analyzer"))
def test_weight_analyzer(given: Any, expected: Any) -> None:
    explosion = WeightAnalyzer.detect_gradient_explosion(given["tensors"], given["threshold"])
    assert_same(explosion, expected["explosion"], "explosion")
    weights = WeightAnalyzer.analyze_weight_distribution(given["tensors"])
    theirs = expected["weights"]
    overall = theirs["overall_statistics"]
    every = [value for tensor in given["tensors"] for value in tensor]
    assert weights.overall_statistics.min == min(every)  # theirs start at 0, ours are the true ones
    assert weights.overall_statistics.max == max(every)
    overall["min"], overall["max"] = min(every), max(every)
    assert_same(weights, theirs, "weights")
