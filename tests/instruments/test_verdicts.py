"""What instruments say where there is little to say, where curves run away, and where one thing was counted."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from stethoscope import (
    DebugVisualizer,
    GradientDebugger,
    HookAction,
    HookBuilder,
    HookManager,
    HookTrigger,
    ModelDiagnostics,
    ModelPerformanceMetrics,
    TensorInspector,
    VisualizationConfig,
    WeightAnalyzer,
    inspect,
)
from stethoscope.instruments.alerts import TensorAlertKind


def _recorded(losses: Any = None, **curves: Any) -> ModelDiagnostics:
    diagnostics = ModelDiagnostics()
    count = len(next(iter(curves.values()))) if losses is None else len(losses)
    for step in range(count):
        given = {name: float(values[step]) for name, values in curves.items()}
        loss = 1.0 if losses is None else float(losses[step])
        diagnostics.record_performance(ModelPerformanceMetrics(step, loss, **given))
    return diagnostics


# ---- over- and underfitting ----


@pytest.mark.parametrize("seed", range(5))
def test_overfitting_is_told_from_accuracies_alone(seed: int) -> None:
    rng, steps = np.random.default_rng(seed), np.arange(60)
    train = 0.5 + 0.49 * (1 - np.exp(-steps / 12)) + rng.normal(0, 0.005, 60)
    held_out = np.minimum(0.5 + 0.3 * (1 - np.exp(-steps / 6)), 0.78) - 0.0015 * steps + rng.normal(0, 0.005, 60)
    fit = _recorded(accuracy=train, validation_accuracy=held_out).analyze_training_dynamics().overfitting
    assert fit is not None
    assert 5 <= fit.step <= 30
    assert fit.numbers["gap"] == pytest.approx(np.median(train[-3:]) - np.median(held_out[-3:]), abs=0.02)
    assert "validation accuracy" in fit.reason


@pytest.mark.parametrize("seed", range(20))
def test_a_steady_distance_or_a_common_gain_is_no_overfitting(seed: int) -> None:
    rng, steps = np.random.default_rng(seed), np.arange(60)
    gain = 0.4 * (1 - np.exp(-steps / 20))
    train = 0.55 + gain + rng.normal(0, 0.01, 60)
    for held_out in (
        0.47 + gain + rng.normal(0, 0.01, 60),  # always eight points below
        0.55 + 0.8 * gain + rng.normal(0, 0.01, 60),  # gains less, and still gains
        0.55 + gain + rng.normal(0, 0.03, 60),
    ):
        assert _recorded(accuracy=train, validation_accuracy=held_out).analyze_training_dynamics().overfitting is None


@pytest.mark.parametrize("end", ["finite", "nan"])
def test_a_curve_that_runs_away_is_on_no_plateau(end: str) -> None:
    losses = np.concatenate([np.linspace(2.0, 1.0, 20), np.geomspace(1.0, 500.0, 40)])
    if end == "nan":
        losses[-4:] = np.nan
    dynamics = _recorded(losses).analyze_training_dynamics()
    assert dynamics.convergence_status == "Diverging"
    assert dynamics.plateau is None


def test_efficiency_counts_the_samples_of_a_session_too() -> None:
    by_hand, by_session = ModelDiagnostics(), ModelDiagnostics()
    for step in range(10):
        record = ModelPerformanceMetrics(step, 10.0 - step, batch_size=100)
        by_hand.record_performance(record)
        by_session.record_step(record)
    expected = by_hand.analyze_training_dynamics().learning_efficiency
    assert by_session.analyze_training_dynamics().learning_efficiency == pytest.approx(expected)


# ---- once, not at every look ----


def test_drift_is_told_once_and_again_only_after_it_came_back() -> None:
    inspector = TensorInspector()
    rng = np.random.default_rng(0)

    def look(mean: float, times: int) -> None:
        for _ in range(times):
            inspector.inspect_tensor(mean + rng.normal(0, 1, 100), "x")

    look(0.0, 10)
    look(5.0, 20)
    told = [alert for alert in inspector.alerts() if alert.kind is TensorAlertKind.DRIFT]
    assert len(told) == 1
    look(0.0, 10)
    look(5.0, 10)
    assert len([alert for alert in inspector.alerts() if alert.kind is TensorAlertKind.DRIFT]) == 2


@pytest.mark.parametrize("action", [HookAction.PauseTraining, HookAction.StopTraining])
def test_a_refused_pause_counts_as_an_execution(action: Any) -> None:
    from stethoscope.hooks import Pauser

    told: list[Any] = []
    manager = HookManager(sinks=[told.append], pauser=Pauser(world_size=4))
    hook = HookBuilder("hold").trigger(HookTrigger.EveryForward).action(action).max_executions(2).build()
    manager.register_hook(hook)
    results = [r for step in range(6) for r in manager.execute_hooks("a", [1.0], (1,), True, step=step)]
    assert len(told) == 2
    assert [str(result.status) for result in results] == ["Skipped"] * 6
    assert "4 ranks" in results[0].message
    assert results[-1].message == "ran 2 times already"


# ---- nothing to speak of ----


def test_no_weights_are_not_excellent_weights() -> None:
    for nothing in ([], {}, [np.empty(0)]):
        assert WeightAnalyzer.analyze_weight_distribution(nothing).distribution_health.status == "Unknown"


def test_weights_of_other_shapes_have_not_drifted_minimally() -> None:
    apart = WeightAnalyzer.analyze_weight_drift({"a": np.ones(3)}, {"a": np.ones(4)})
    assert (apart.severity, apart.unmatched) == ("Unknown", ["a"])
    assert np.isnan(apart.mean_drift)
    assert apart.note.startswith("nothing could be compared")
    assert WeightAnalyzer.analyze_weight_drift({}, {}).severity == "Unknown"
    partly = WeightAnalyzer.analyze_weight_drift({"a": np.ones(3), "b": np.ones(2)}, {"a": np.ones(3), "b": np.ones(5)})
    assert (partly.severity, partly.mean_drift) == ("Minimal", 0.0)
    assert partly.note == "of 2 layers 1 not compared: in one of the two only, or of another shape: b"
    assert WeightAnalyzer.analyze_weight_drift([np.ones(2)], [np.ones(2)]).note == ""


def test_conflicts_are_those_that_pull_apart() -> None:
    debugger = GradientDebugger()
    for step in range(4):
        debugger.record_task_gradients(step, {"a": [1.0, 0.0], "b": [-1.0, 0.1], "c": [1.0, 0.2]})
    assert {(pair.first, pair.second) for pair in debugger.conflicts()} == {("a", "b"), ("b", "c")}
    assert len(debugger.task_pairs()) == 3
    assert len(debugger.analyze_gradient_flow().conflicts) == 2


# ---- one is one ----


def test_one_of_something_is_said_as_one() -> None:
    inspector = TensorInspector()
    inspector.inspect_tensor([1.0, float("inf")], "x")
    inspector.inspect_tensor([float("nan")], "y")
    inspector.inspect_tensor([1e11, 2e11], "z")
    said = [alert.message for alert in inspector.alerts()]
    assert said == [
        "x holds 1 infinite value of 2 elements, the first at [1]",
        "y holds 1 NaN of 1 element, the first at [0]",
        "z holds 2 values beyond 1e+10 of 2 elements, the first at [0]",
    ]
    assert (
        _recorded([1.0])
        .generate_report()
        .summary()
        .startswith("health unknown over 1 record\nUnknown: only 1 loss so far")
    )


@pytest.mark.filterwarnings("ignore:.*quantize.*:UserWarning")  # torch's own notice that these will go
def test_a_quantized_tensor_is_shown_in_the_numbers_it_stands_for() -> None:
    torch = pytest.importorskip("torch")
    shown = str(inspect(torch.quantize_per_tensor(torch.tensor([-0.75, 0.25, 0.5]), 0.25, 0, torch.qint8)))
    assert "-0.750 … 0.500" in shown


# ---- dashboards ----


@pytest.mark.parametrize("kind", ["png", "svg", "html", "json", "csv", "txt"])
def test_a_dashboard_in_every_format(tmp_path: Path, kind: str) -> None:
    visualizer = DebugVisualizer(VisualizationConfig(output_directory=tmp_path, title="All"))
    visualizer.plot_tensor_distribution("w", [1.0, 2.0, 2.5], bins=4)
    visualizer.plot_lines("loss", [0, 1, 2], [3.0, 2.0, 1.0])
    path = visualizer.save_dashboard(kind=kind)
    assert path == tmp_path / f"dashboard.{kind}"
    if kind == "json":
        body = json.loads(path.read_text())
        assert (body["title"], [plot["name"] for plot in body["plots"]]) == ("All", ["w_distribution", "loss"])
    elif kind == "csv":
        with path.open(newline="") as file:
            rows = list(csv.DictReader(file))
        loss = [float(row["value"]) for row in rows if row["plot"] == "loss" and row["column"] == "value"]
        assert loss == [3.0, 2.0, 1.0]
    elif kind in ("html", "svg", "txt"):
        assert "loss" in path.read_text()
    else:
        assert path.read_bytes().startswith(b"\x89PNG")
