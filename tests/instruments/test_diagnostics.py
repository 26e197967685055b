"""ModelDiagnostics: what it says of made runs, and that it stays silent on healthy ones."""

from __future__ import annotations

import numpy as np
import pytest

from stethoscope.instruments.diagnostics import (
    ConvergenceStatus,
    ModelArchitectureInfo,
    ModelDiagnostics,
    ModelPerformanceMetrics,
    TrainingStability,
)
from stethoscope.record import StethoscopeError


def diagnose(losses, **series):
    diagnostics = ModelDiagnostics(clock=lambda: 0.0)
    for step, loss in enumerate(losses):
        known = {name: values[step] for name, values in series.items() if values[step] is not None}
        diagnostics.record_performance(ModelPerformanceMetrics(training_step=step, loss=float(loss), **known))
    return diagnostics


def healthy(seed, n=150):
    rng = np.random.default_rng(seed)
    time = np.arange(n)
    losses = 0.3 + 2.0 * np.exp(-time / 50) + 0.1 * rng.standard_normal(n)
    validation = [0.4 + 1.9 * np.exp(-t / 50) + 0.02 * rng.standard_normal() if t % 10 == 0 else None for t in time]
    return diagnose(
        losses,
        validation_loss=validation,
        throughput_samples_per_sec=1000 + 50 * rng.standard_normal(n),
        memory_usage_mb=800 + 5 * rng.standard_normal(n),
    )


@pytest.mark.parametrize("seed", range(15))
def test_a_healthy_noisy_run_is_healthy(seed):
    report = healthy(seed).generate_report()
    assert report.dynamics.convergence_status in (ConvergenceStatus.CONVERGING, ConvergenceStatus.CONVERGED)
    assert report.dynamics.training_stability == TrainingStability.STABLE
    assert report.dynamics.overfitting is None
    assert report.dynamics.underfitting is None
    assert report.anomalies == ()
    assert report.health.score == pytest.approx(1.0)
    assert report.recommendations == ()


def test_the_seeds_records_are_taken():
    diagnostics = ModelDiagnostics()
    diagnostics.record_architecture(
        ModelArchitectureInfo(
            total_parameters=125_000_000,
            trainable_parameters=125_000_000,
            model_size_mb=500.0,
            layer_count=24,
        )
    )
    diagnostics.record_performance(
        ModelPerformanceMetrics(
            training_step=100,
            loss=0.5,
            accuracy=0.85,
            learning_rate=1e-4,
            batch_size=32,
            throughput_samples_per_sec=900.0,
            memory_usage_mb=4000.0,
            gpu_utilization=0.9,
            timestamp="2025-01-01T00:00:00Z",
        )
    )
    report = diagnostics.generate_report()
    assert (report.num_records, report.architecture.layer_count) == (1, 24)
    assert report.dynamics.convergence_status == "Unknown"
    assert report.health.score is None
    assert "health unknown" in report.summary()


def test_losses_are_read_in_time_order_however_they_come():
    losses = np.linspace(2.0, 0.5, 40)
    diagnostics = ModelDiagnostics()
    for step in reversed(range(40)):
        diagnostics.record_performance(ModelPerformanceMetrics(training_step=step, loss=float(losses[step])))
    assert diagnostics.analyze_training_dynamics().convergence_status == "Converging"
    assert diagnose(losses[::-1]).analyze_training_dynamics().convergence_status == "Diverging"


def test_divergence_lowers_health_and_says_why():
    report = diagnose(np.exp(np.arange(60) / 15)).generate_report()
    assert report.dynamics.convergence_status == ConvergenceStatus.DIVERGING
    assert report.health.score < 0.2
    assert report.health.reasons[0].startswith("Diverging: rose from")
    assert "learning rate" in report.recommendations[0]


def test_overfitting_has_its_onset_and_evidence():
    rng = np.random.default_rng(1)
    time = np.arange(300)
    train = 2.0 * np.exp(-time / 60) + 0.02 * rng.standard_normal(300)
    rising = [0.8 + np.exp(-t / 40) + 0.004 * max(0, t - 120) if t % 10 == 0 else None for t in time]
    report = diagnose(train, validation_loss=rising).generate_report()
    assert report.dynamics.overfitting.step == pytest.approx(120, abs=30)
    assert "overfitting since step" in report.summary()
    assert report.health.score < 0.9
    assert any("Stop near step" in advice for advice in report.recommendations)


def test_underfitting_is_a_loss_that_stays_where_it_began():
    rng = np.random.default_rng(2)
    dynamics = diagnose(2.3 + 0.01 * rng.standard_normal(80)).analyze_training_dynamics()
    assert dynamics.underfitting is not None
    assert dynamics.convergence_status == ConvergenceStatus.PLATEAU
    assert dynamics.plateau is not None


def test_slower_steps_and_growing_memory_are_anomalies():
    rng = np.random.default_rng(3)
    losses = np.linspace(2, 1, 100)
    speed = np.where(np.arange(100) < 70, 1000.0, 500.0) + 10 * rng.standard_normal(100)
    memory = 500 + 3.0 * np.arange(100) + rng.standard_normal(100)
    diagnostics = diagnose(losses, throughput_samples_per_sec=speed, memory_usage_mb=memory)
    found = {anomaly.metric: anomaly.onset for anomaly in diagnostics.detect_performance_anomalies()}
    assert found["throughput_samples_per_sec"].step == pytest.approx(70, abs=3)
    assert found["memory_usage_mb"].numbers["slope_mb"] == pytest.approx(3.0, rel=0.05)
    health = diagnostics.assess_health()
    assert health.score < 1.0
    assert sum(part.weight for part in health.components) == pytest.approx(1.0)
    assert len(health.reasons) == 2


def test_memory_that_fills_up_once_is_no_growth():
    memory = [300.0] * 5 + [900.0] * 95
    diagnostics = diagnose(np.linspace(2, 1, 100), memory_usage_mb=memory)
    assert diagnostics.detect_performance_anomalies() == []


def test_learning_efficiency_is_the_fall_per_thousand_samples():
    losses = np.concatenate([[2.0] * 3, np.linspace(2.0, 1.0, 94), [1.0] * 4])
    dynamics = diagnose(losses, batch_size=[50] * len(losses)).analyze_training_dynamics()
    assert dynamics.learning_efficiency == pytest.approx(0.5 / (100 * 50 / 1000))
    assert diagnose([1.0]).analyze_training_dynamics().learning_efficiency is None


def test_records_are_bounded_checked_and_cleared():
    diagnostics = ModelDiagnostics(max_records=10)
    for step in range(50):
        diagnostics.record_performance(ModelPerformanceMetrics(training_step=step, loss=1.0))
    assert [record.training_step for record in diagnostics.records()] == list(range(40, 50))
    with pytest.raises(StethoscopeError):
        diagnostics.record_performance({"loss": 1.0})
    diagnostics.clear()
    assert diagnostics.records() == []
