"""GradientDebugger: every number against a truth that was made, not printed."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from stethoscope.analyse.trends import Direction
from stethoscope.instruments.gradient_debugger import GradientDebugger, task_cosines
from stethoscope.instruments.gradient_health import LayerHealth
from stethoscope.instruments.gradient_layers import MAX_VALUES, direction_of
from stethoscope.kernels import measure
from stethoscope.record import StethoscopeError


def healthy(num_steps=60, num_layers=4, seed=0):
    rng = np.random.default_rng(seed)
    debugger = GradientDebugger()
    for step in range(num_steps):
        debugger.record_step(
            step, {f"layer{i}": rng.standard_normal(64) * np.exp(-step / 80) for i in range(num_layers)}
        )
    return debugger


def test_the_seeds_example_is_healthy():
    debugger = GradientDebugger()
    debugger.record_gradient_flow("layer_1", [0.01, 0.02, 0.015, 0.008])
    analysis = debugger.analyze_gradient_flow()
    assert analysis.overall_health == "Healthy"
    assert analysis.health_score == 1.0
    assert analysis.reasons == ()


@pytest.mark.parametrize("seed", range(10))
def test_a_healthy_noisy_run_is_silent(seed):
    analysis = healthy(seed=seed).analyze_gradient_flow()
    assert analysis.overall_health == LayerHealth.HEALTHY
    assert analysis.oscillating_layers == ()
    assert {layer.trend.direction for layer in analysis.layers.values()} == {Direction.FALLING}


@pytest.mark.parametrize(
    ("norm", "health"),
    [
        (1e-9, "Critical"),
        (1e-7, "Warning"),
        (1e-5, "Healthy"),
        (5.0, "Healthy"),
        (50.0, "Warning"),
        (500.0, "Critical"),
        (0.0, "Critical"),
    ],
)
def test_the_bounds_of_the_seeds(norm, health):
    debugger = GradientDebugger()
    for _ in range(3):
        debugger.record_gradient_flow("layer", [norm])
    assert debugger.analyze_gradient_flow().overall_health == health


def test_vanishing_exploding_and_absent_gradients_are_listed():
    debugger = GradientDebugger()
    for step in range(10):
        debugger.record_step(step, {"small": [5e-8], "large": [20.0], "none": [0.0], "fine": [0.1], "skipped": None})
    analysis = debugger.analyze_gradient_flow()
    assert analysis.vanishing_layers == ("small", "none")
    assert analysis.exploding_layers == ("large",)
    assert analysis.dead_layers == ("none",)
    assert "skipped" not in analysis.layers
    assert 0.0 <= analysis.health_score < 0.5
    assert any("clip_grad_norm_" in line for line in analysis.recommendations)


@pytest.mark.parametrize("make", [np.array, torch.tensor, list])
def test_a_nan_gradient_is_critical_and_located(make):
    debugger = GradientDebugger()
    debugger.record_gradient_flow("block", make([[1.0, 2.0, 3.0], [1.0, 1.0, 1.0]]))
    debugger.record_gradient_flow("block", make([[1.0, 2.0, 3.0], [1.0, float("nan"), float("inf")]]), step=7)
    analysis = debugger.analyze_gradient_flow()
    found = analysis.layers["block"].nonfinite
    assert analysis.overall_health == LayerHealth.CRITICAL
    assert analysis.health_score == 0.0
    assert (found.first_index, found.num_nan, found.num_inf, found.step) == ((1, 1), 1, 1, 7)
    assert "block" in analysis.reasons[0].text


def test_norm_mean_and_spread_are_those_of_torch():
    values = torch.randn(50, 7, generator=torch.Generator().manual_seed(3))
    look = GradientDebugger().record_gradient_flow("layer", values)
    assert look.norm == pytest.approx(values.double().norm().item(), rel=1e-6)
    assert look.mean == pytest.approx(values.double().mean().item(), rel=1e-6)
    assert look.std == pytest.approx(values.double().std(correction=0).item(), rel=1e-6)


def test_rows_that_a_kernel_measured_say_the_same_as_the_values():
    rng = np.random.default_rng(8)
    by_hand, by_row = GradientDebugger(), GradientDebugger()
    for step in range(20):
        values = rng.standard_normal(500)
        by_hand.record_gradient_flow("layer", values, step=step)
        by_row.record_row("layer", measure([values])[0], step=step, sketch=values, update_ratio=0.01)
    one, other = by_hand.analyze_layer("layer"), by_row.analyze_layer("layer")
    assert (one.norm, one.trend, one.signal_to_noise) == (other.norm, other.trend, other.signal_to_noise)
    assert (one.cosine_to_last, other.update_ratio) == (other.cosine_to_last, pytest.approx(0.01))
    look = by_row.record_row("layer", measure([[1.0, float("nan")]])[0])
    assert (look.nonfinite.num_nan, look.nonfinite.first_index, look.step) == (1, None, 20)
    assert by_row.analyze_gradient_flow().overall_health == LayerHealth.CRITICAL


def test_directions_are_real_cosines():
    debugger = GradientDebugger()
    a, b, c = np.array([1.0, 0.0]), np.array([1.0, 1.0]), np.array([-1.0, 0.0])
    debugger.record_gradient_flow("layer", a)
    second = debugger.record_gradient_flow("layer", b)
    third = debugger.record_gradient_flow("layer", c)
    assert second.cosine_to_last == pytest.approx(np.sqrt(0.5))
    assert second.cosine_to_mean == pytest.approx(np.sqrt(0.5))
    assert third.cosine_to_last == pytest.approx(-np.sqrt(0.5))
    assert third.cosine_to_mean == pytest.approx(-1.0 / np.sqrt(1.25))


def test_the_sketch_keeps_cosines_and_norms_of_large_gradients():
    rng = np.random.default_rng(4)
    a = rng.standard_normal(3 * MAX_VALUES + 17).astype(np.float32)
    b = (0.6 * a + 0.8 * rng.standard_normal(a.size)).astype(np.float32)
    x, y = direction_of(a), direction_of(b)
    assert len(x) == 1024
    exact = float(a @ b / np.linalg.norm(a) / np.linalg.norm(b))
    assert x @ y / np.linalg.norm(x) / np.linalg.norm(y) == pytest.approx(exact, abs=0.1)
    assert np.linalg.norm(x) == pytest.approx(np.linalg.norm(a), rel=0.1)
    np.testing.assert_allclose(direction_of(a - b), x - y, atol=1e-2)


@pytest.mark.parametrize("signal", [0.0, 0.5, 2.0])
def test_signal_to_noise_finds_the_planted_signal(signal):
    rng = np.random.default_rng(5)
    debugger, mean = GradientDebugger(), np.full(400, signal / 20.0)
    for step in range(300):
        debugger.record_gradient_flow("layer", mean + rng.standard_normal(400) / 20.0, step=step)
    found = debugger.analyze_layer("layer").signal_to_noise
    assert found == pytest.approx(signal**2, abs=0.02, rel=0.05)


def test_the_update_ratio_is_what_the_step_changed():
    torch.manual_seed(0)
    model = torch.nn.Linear(20, 10)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    debugger, truth = GradientDebugger(), []
    for step in range(4):
        model(torch.randn(8, 20)).square().sum().backward()
        before = model.weight.detach().clone()
        debugger.record_step(
            step,
            {"weight": model.weight.grad},
            weights={"weight": model.weight},
            updates={"weight": 0.1 * model.weight.grad},
        )
        optimizer.step()
        truth.append(((model.weight.detach() - before).norm() / before.norm()).item())
        optimizer.zero_grad()
    ratios = [look.update_ratio for look in debugger.history("weight")]
    np.testing.assert_allclose(ratios, truth, rtol=1e-4)


def test_the_update_ratio_follows_from_successive_weights():
    debugger = GradientDebugger()
    debugger.record_gradient_flow("w", [1.0, 1.0], weights=[3.0, 4.0])
    look = debugger.record_gradient_flow("w", [1.0, 1.0], weights=[3.0, 4.5])
    assert look.update_ratio == pytest.approx(0.5 / np.hypot(3.0, 4.5))


def test_dead_units_are_the_counted_truth():
    rng = np.random.default_rng(6)
    truth = {3, 8, 21}
    debugger = GradientDebugger()
    weights, bias = rng.standard_normal((10, 24)), np.zeros(24)
    bias[list(truth)] = -1e3
    seen = np.zeros(24, dtype=bool)
    for _ in range(5):
        out = np.maximum(rng.standard_normal((32, 10)) @ weights + bias, 0.0)
        seen |= (out != 0).any(axis=0)
        debugger.record_units("relu", torch.from_numpy(out))
    dead = debugger.dead_units("relu")
    assert set(dead.dead) == truth == set(np.flatnonzero(~seen).tolist())
    assert (dead.num_units, dead.num_rows, dead.ratio) == (24, 160, 3 / 24)
    assert debugger.analyze_gradient_flow().dead_units == (dead,)


def test_dead_channels_and_matrices_without_units():
    debugger = GradientDebugger()
    images = torch.ones(2, 4, 3, 3)
    images[:, 2] = 0
    debugger.record_units("conv", images, unit_axis=1)
    assert debugger.dead_units("conv").dead == (2,)
    with pytest.raises(StethoscopeError, match="vector"):
        debugger.record_units("vector", [1.0, 2.0])


def test_a_zigzag_is_an_oscillation():
    rng = np.random.default_rng(7)
    debugger, direction = GradientDebugger(), rng.standard_normal(50)
    for step in range(30):
        debugger.record_gradient_flow("layer", (-1) ** step * direction + 0.1 * rng.standard_normal(50), step=step)
    analysis = debugger.analyze_gradient_flow()
    assert analysis.oscillating_layers == ("layer",)
    assert analysis.overall_health == LayerHealth.WARNING


def test_conflict_between_tasks_is_the_real_cosine():
    torch.manual_seed(1)
    model = torch.nn.Linear(6, 3)
    x = torch.randn(16, 6)
    losses = {"a": model(x).sum(), "b": -2.0 * model(x).sum(), "c": model(x)[:, 0].square().sum()}
    grads = {
        name: dict(zip(("weight", "bias"), torch.autograd.grad(loss, list(model.parameters())), strict=True))
        for name, loss in losses.items()
    }
    flat = {name: torch.cat([g.flatten() for g in parts.values()]) for name, parts in grads.items()}
    debugger = GradientDebugger()
    cosines = debugger.record_task_gradients(0, grads)
    assert cosines["a", "b"] == pytest.approx(-1.0)
    exact = torch.nn.functional.cosine_similarity(flat["a"], flat["c"], dim=0).item()
    assert cosines["a", "c"] == pytest.approx(exact, abs=1e-5)
    worst = debugger.conflicts()[0]
    assert (worst.first, worst.second, worst.is_conflict) == ("a", "b", True)
    assert debugger.analyze_gradient_flow().overall_health == LayerHealth.WARNING
    assert task_cosines({"a": [0.0], "b": [1.0]}) == {("a", "b"): None}
    with pytest.raises(StethoscopeError, match="different sizes"):
        task_cosines({"a": [1.0], "b": [1.0, 2.0]})


def test_the_history_is_bounded_and_can_be_cleared():
    debugger = GradientDebugger(max_history=5)
    for step in range(20):
        debugger.record_gradient_flow("layer", [1.0], step=step)
    assert [look.step for look in debugger.history("layer")] == [15, 16, 17, 18, 19]
    assert debugger.analyze_layer("layer").num_looks == 20
    debugger.clear()
    assert debugger.layers() == []
    assert debugger.analyze_gradient_flow().overall_health == LayerHealth.UNKNOWN
