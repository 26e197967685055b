"""Instruments inside a session on a live model: what they say against what is known to have happened."""

from __future__ import annotations

import inspect
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn import functional as F
from torch.utils._python_dispatch import TorchDispatchMode, _get_current_dispatch_mode_stack

import stethoscope
from stethoscope import DebugConfig, WeightAnalyzer
from stethoscope.record import WatchError
from stethoscope.store.seal import seal
from tests.models import MODELS
from tests.session.training import begin, go_on


@pytest.mark.parametrize("name", list(MODELS))
def test_the_gradient_debugger_knows_every_gradient_of_every_step(tmp_path: Path, name: str) -> None:
    trained = begin(tmp_path, name)
    debugger = trained.session.gradient_debugger
    go_on(trained, 6, name)
    assert set(debugger.layers()) == set(trained.gradients[0])
    for layer in debugger.layers():
        looks = debugger.history(layer)
        assert [look.step for look in looks] == list(range(6))
        assert [look.norm for look in looks] == pytest.approx(trained.norms(layer), rel=1e-5, abs=1e-12)
    go_on(trained, 2, name)
    assert [look.step for look in debugger.history(debugger.layers()[0])] == list(range(8))
    trained.session.stop()


def test_it_keeps_as_many_steps_as_the_configuration_says(tmp_path: Path) -> None:
    trained = go_on(begin(tmp_path, max_gradient_history=5), 12)
    history = trained.session.gradient_debugger.history("fc1.weight")
    assert [look.step for look in history] == [7, 8, 9, 10, 11]
    trained.session.stop()


def test_directions_come_from_the_sketch_and_ratios_from_the_update(tmp_path: Path) -> None:
    trained = go_on(begin(tmp_path, histogram_every=1, update_sample=10_000), 5)
    looks = trained.session.gradient_debugger.history("fc1.weight")
    gradients = [one["fc1.weight"].double().flatten() for one in trained.gradients]
    for step in range(1, 5):
        true = float(F.cosine_similarity(gradients[step], gradients[step - 1], dim=0))
        assert looks[step].cosine_to_last == pytest.approx(true, abs=0.45)
    assert looks[0].cosine_to_last is None
    # SGD without momentum: the update is lr times the gradient, and the weight was measured after it.
    weight = trained.model.fc1.weight.detach().double()
    assert looks[-1].update_ratio == pytest.approx(0.05 * float(gradients[-1].norm()) / float(weight.norm()), rel=1e-4)
    trained.session.stop()


def test_a_nan_gradient_is_critical(tmp_path: Path) -> None:
    trained = go_on(begin(tmp_path), 3)
    trained.model.fc1.weight.register_hook(lambda g: g * float("nan"))
    go_on(trained, 1)
    analysis = trained.session.gradient_debugger.analyze_gradient_flow()
    assert str(analysis.overall_health) == "Critical"
    assert analysis.nonfinite_layers == ("fc1.weight",)
    trained.session.stop()


def test_layers_recorded_by_hand_are_the_users(tmp_path: Path) -> None:
    trained = begin(tmp_path)
    trained.session.gradient_debugger.record_gradient_flow("fc1.weight", [3.0, 4.0])
    go_on(trained, 3)
    assert [look.norm for look in trained.session.gradient_debugger.history("fc1.weight")] == [5.0]
    assert len(trained.session.gradient_debugger.history("fc1.bias")) == 3
    trained.session.stop()


def test_every_step_becomes_a_record_of_the_diagnostics(tmp_path: Path) -> None:
    trained = go_on(begin(tmp_path), 30)
    diagnostics = trained.session.model_diagnostics
    records = diagnostics.records()
    assert [record.training_step for record in records] == list(range(30))
    assert [record.loss for record in records] == pytest.approx(trained.losses)
    assert {record.learning_rate for record in records} == {0.05}
    assert {record.batch_size for record in records} == {8}
    times = trained.session.run.metric("step_ms").values
    assert [r.throughput_samples_per_sec for r in records] == pytest.approx(8e3 / times, rel=1e-5)
    report = diagnostics.generate_report()
    assert report.num_records == 30
    assert report.health.score is not None
    assert report.architecture.total_parameters == sum(p.numel() for p in trained.model.parameters())
    trained.session.stop()


def test_validation_and_metrics_logged_late_join_their_step(tmp_path: Path) -> None:
    trained = begin(tmp_path)
    diagnostics = trained.session.model_diagnostics

    def after(step: int) -> None:
        trained.session.log(accuracy=step / 10)
        assert len(diagnostics.records()) == step + 1
        with trained.session.evaluating():
            trained.session.log(loss=100.0 + step, accuracy=0.5)

    go_on(trained, 4, after=after)
    records = diagnostics.records()
    assert [record.accuracy for record in records] == [0.0, 0.1, 0.2, 0.3]
    assert [record.validation_loss for record in records] == [100.0, 101.0, 102.0, 103.0]
    assert [record.loss for record in records] == pytest.approx(trained.losses)
    assert {record.validation_accuracy for record in records} == {0.5}
    trained.session.stop()


def test_flops_of_the_first_batch_on_demand(tmp_path: Path) -> None:
    trained = begin(tmp_path)
    with pytest.raises(WatchError, match="not been called yet"):
        trained.session.analyze_architecture()
    go_on(trained, 3)
    state, mode = torch.get_rng_state(), trained.model.training
    analysis = trained.session.analyze_architecture()
    assert analysis.total_flops == 2 * 8 * (12 * 24 + 24 * 4)
    assert trained.session.model_diagnostics.architecture.flops == analysis.total_flops
    assert trained.session.analyze_architecture(torch.zeros(1, 12)).total_flops == analysis.total_flops / 8
    assert torch.equal(state, torch.get_rng_state())
    assert trained.model.training is mode
    trained.session.stop()


def test_the_report_says_what_happened(tmp_path: Path) -> None:
    trained = go_on(begin(tmp_path), 30)
    session = trained.session
    session.tensor_inspector.inspect_tensor([1.0, float("inf")], "x")
    session.profiler.record_layer_execution("fc1", "Linear", 0.6)
    report = session.stop()
    summary = report.summary()
    assert summary["num_steps"] == 30
    assert summary["run"] == str(session.folder)
    assert summary["findings"] == [finding.code for finding in session.findings]
    assert summary["tensors"]["num_alerts"] == 1
    assert summary["gradients"]["num_layers"] == 4
    assert summary["gradients"]["overall_health"] == "Healthy"
    assert summary["training"]["num_records"] == 30
    # Not which comes first: on a busy machine something else may have taken longer.
    assert any(one.startswith("ModelComputation in fc1") for one in summary["profile"]["bottlenecks"])
    assert "hooks" not in summary
    assert "overall health: Healthy" in str(report)


# ---- the run that they read ----


def test_the_watcher_hands_to_the_writer_itself_and_facts_are_made_for_hooks_alone(tmp_path: Path) -> None:
    trained = begin(tmp_path)
    session = trained.session
    watcher, writer = session._watcher, session._recording.writer
    assert watcher.sink is writer
    go_on(trained, 2)
    session.gradient_debugger.layers()
    assert watcher.ring.sink is writer
    seen: list[Any] = []
    hook = session.on(None, seen.append, every=1)
    go_on(trained, 2)
    assert watcher.ring.sink is not writer
    session.hooks.enabled = False
    go_on(trained, 1)
    assert watcher.ring.sink is writer
    session.hooks.enabled = True
    go_on(trained, 2)
    session.hooks.remove_hook(hook)
    assert watcher.ring.sink is writer
    go_on(trained, 1)
    session.stop()
    assert [context.step for context in seen][:2] == [2, 3]
    assert seen[-1].step == 6


def test_what_was_forgotten_stays_forgotten(tmp_path: Path) -> None:
    trained = go_on(begin(tmp_path), 5)
    session = trained.session
    kept = session.gradient_debugger, session.tensor_inspector, session.model_diagnostics, session.profiler
    assert session.model_diagnostics.records()
    for instrument in kept:
        instrument.clear()
    go_on(trained, 3)
    assert [look.step for look in session.gradient_debugger.history("fc1.weight")] == [5, 6, 7]
    assert {info.step for info in session.tensor_inspector.infos()} == {5, 6, 7}
    assert [record.training_step for record in session.model_diagnostics.records()] == [5, 6, 7]
    assert session.profiler.totals["step", "phase"].count == 3
    session.stop()


def test_instruments_answer_where_the_run_is_gone(tmp_path: Path) -> None:
    trained = go_on(begin(tmp_path), 5)
    session = trained.session
    assert len(session.gradient_debugger.history("fc1.weight")) == 5
    shutil.rmtree(session.folder)
    go_on(trained, 3)
    assert len(session.gradient_debugger.history("fc1.weight")) == 5
    assert session.model_diagnostics.records() == []
    session.stop()


def test_a_sealed_run_tells_them_the_same(tmp_path: Path) -> None:
    told = []
    for is_sealed in (False, True):
        trained = begin(tmp_path / str(is_sealed), histogram_every=1)
        go_on(trained, 20)
        session = trained.session
        session.stop()
        if is_sealed:
            seal(session.folder, final=True)
            assert list(session.folder.glob("vectors/rank=0/*.parquet"))
            assert not list(session.folder.glob("rank-0/*.stj"))
        history = session.gradient_debugger.history("fc1.weight")
        looks = session.tensor_inspector.infos("fc1.weight", operation="gradient")
        losses = [record.loss for record in session.model_diagnostics.records()]
        told.append((history, [look.stats for look in looks], losses, session.profiler.totals["step", "phase"].count))
    assert told[0] == told[1]
    assert any(look.cosine_to_last is not None for look in told[0][0])


# ---- leaks ----


def _leaky(trained: Any, kept: list[torch.Tensor], leak: bool) -> int:
    for step in range(40):
        trained.optimizer.zero_grad()
        hidden = trained.model(torch.ones(8, 12) * step)
        if leak:
            kept.append(hidden.detach() * 2.0)
        hidden.square().mean().backward()
        trained.optimizer.step()
    return inspect.getsourcelines(_leaky)[1] + 5


@pytest.mark.parametrize("leak", [True, False])
def test_a_planted_leak_is_found_with_its_line_and_a_clean_loop_is_silent(tmp_path: Path, leak: bool) -> None:
    trained = begin(tmp_path, leaks_every=3)
    kept: list[torch.Tensor] = []
    line = _leaky(trained, kept, leak)
    report = trained.session.stop()
    leaks = trained.session.leaks()
    events = stethoscope.open_run(trained.session.folder).events("leak")
    assert [(Path(one.file).name, one.line) for one in leaks] == ([(Path(__file__).name, line)] if leak else [])
    assert len(events) == len(report.summary().get("leaks", [])) == len(leaks)
    assert _get_current_dispatch_mode_stack() == []


class _Mode(TorchDispatchMode):
    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return func(*args, **(kwargs or {}))


def test_leak_watching_never_takes_off_a_mode_of_the_users(tmp_path: Path) -> None:
    trained = begin(tmp_path)
    trained.session.watch_leaks(1)
    go_on(trained, 1)
    x = torch.zeros(2, 12)
    for _ in range(3):
        mode = _Mode()
        with mode:
            trained.model(x).sum().backward()
            trained.optimizer.step()
            assert _get_current_dispatch_mode_stack()[-1] is mode
        assert mode not in _get_current_dispatch_mode_stack()
    go_on(trained, 1)
    trained.session.stop()
    assert _get_current_dispatch_mode_stack() == []
    assert trained.session._instruments.attachment._leak_watch.num_watched >= 1


# ---- flow ----


def test_flow_runs_over_the_models_own_graph_with_its_own_gradients(tmp_path: Path) -> None:
    trained = go_on(begin(tmp_path, "transformer"), 8, "transformer")
    flow = trained.session.flow_visualization()
    edges = {(edge.from_layer, edge.to_layer) for edge in flow.flow_network.edges}
    assert ("blocks.0.linear1", "blocks.0.linear2") in edges
    assert ("embed", "blocks.1.norm1") in edges  # the residual stream
    assert ("blocks.0.linear2", "blocks.0.linear1") not in edges
    for name, layer in flow.layer_flows.items():
        assert layer.gradient_magnitudes == pytest.approx(trained.norms(name), rel=1e-5, abs=1e-12)
    assert flow.current_step == 7
    animator = trained.session.animation()
    assert [frame.step for frame in animator.frames] == list(range(8))
    frame = {layer.name: layer for layer in animator.frames[3].layers}
    truth = trained.gradients[3]
    assert set(frame) == set(truth)
    for name, layer in frame.items():
        assert layer.grad_norm == pytest.approx(float(truth[name].double().norm()), rel=1e-5, abs=1e-12)
        assert layer.mean_abs_grad == pytest.approx(float(truth[name].abs().double().mean()), rel=1e-5, abs=1e-12)
        assert layer.max_abs_grad == pytest.approx(float(truth[name].abs().max()), rel=1e-5, abs=1e-12)
    trained.session.stop()


def test_a_nan_of_the_run_is_located_in_flow_and_animation(tmp_path: Path) -> None:
    trained = go_on(begin(tmp_path), 3)
    handle = trained.model.fc2.bias.register_hook(lambda g: g * float("nan"))
    go_on(trained, 2)
    handle.remove()
    flow, animator = trained.session.flow_visualization(), trained.session.animation()
    assert ("fc2.bias", 3) in [(where.layer_name, where.step) for where in flow.non_finite]
    report = animator.summary_report()
    assert str(report.overall_health) == "Critical"
    assert ("fc2.bias", 3, 4) in [(where.name, where.step, where.num_nan) for where in report.non_finite]
    trained.session.stop()


def test_weights_of_a_live_model_are_called_by_their_names(tmp_path: Path) -> None:
    trained = go_on(begin(tmp_path), 2)
    model = trained.model
    names = list(model.state_dict())
    analysis = WeightAnalyzer.analyze_weight_distribution(model)
    assert [layer.layer_name for layer in analysis.layer_analyses] == names
    before = {name: value.clone() for name, value in model.state_dict().items()}
    with torch.no_grad():
        model.fc2.bias += 100.0
    drift = WeightAnalyzer.analyze_weight_drift(before, model)
    assert drift.affected_layers == ["fc2.bias"]
    gradients = {name: p.grad * 1e6 for name, p in model.named_parameters()}
    explosion = WeightAnalyzer.detect_gradient_explosion(gradients, 10.0)
    assert [layer.layer_name for layer in explosion.exploding_layers] == list(gradients)
    by_optimizer = WeightAnalyzer.detect_gradient_explosion(
        [(name, p.grad) for name, p in model.named_parameters()], 0.0
    )
    assert by_optimizer.exploding_layers[0].layer_name == "fc1.weight"
    trained.session.stop()


# ---- the configuration ----

PRESETS = {
    "development": (1000, 100, 1.0),
    "training": (500, 50, 0.5),
    "research": (2000, 200, 1.0),
    "production": (50, 5, 0.01),
}


@pytest.mark.parametrize("name", PRESETS)
def test_presets_hold_the_known_numbers_and_act(tmp_path: Path, name: str) -> None:
    config = getattr(DebugConfig, name)()
    tensors, history, rate = PRESETS[name]
    assert (config.max_tracked_tensors, config.max_gradient_history, config.sampling_rate) == PRESETS[name]
    torch.manual_seed(0)
    model = MODELS["mlp"][0]()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    session = stethoscope.watch(model, optimizer, config=config, dir=str(tmp_path), quiet=True, companion="off")
    for _ in range(8):
        optimizer.zero_grad()
        model(torch.ones(2, 12)).sum().backward()
        optimizer.step()
    stride = {1.0: 1, 0.5: 2, 0.01: 128}[rate]
    measured = [step for step in range(8) if step % stride == 0]
    assert session.run.steps.tolist() == measured
    assert len(session.run.metric("loss")) == 8
    assert [look.step for look in session.gradient_debugger.history("fc1.weight")] == measured[-history:]
    assert session.tensor_inspector.max_tracked_tensors == tensors
    session.stop()


def test_max_tracked_tensors_caps_taps_and_looks(tmp_path: Path) -> None:
    trained = begin(tmp_path, max_tracked_tensors=1)
    for number in range(3):
        trained.session.tensor_inspector.inspect_tensor(np.ones(2), f"x{number}")
    go_on(trained, 2)
    sites = [info for info in trained.session.run.sites if str(info.site.kind) in ("activation", "output")]
    assert [info.site.module for info in sites if info.measured != "capped"] == [""]
    assert [info.site.module for info in sites if info.measured == "capped"] == ["fc1", "drop", "fc2"]
    assert [info.name for info in trained.session.tensor_inspector.infos()] == ["x2"]
    trained.session.stop()


def test_what_is_switched_off_keeps_nothing_and_breaks_nothing(tmp_path: Path) -> None:
    off = {
        f"enable_{name}": False
        for name in ("tensor_inspection", "gradient_debugging", "model_diagnostics", "hooks", "profiling")
    }
    trained = begin(tmp_path, **off)
    session = trained.session
    assert session.tensor_inspector.inspect_tensor(np.ones(3), "x") == 0
    assert session.gradient_debugger.record_gradient_flow("a", [1.0]).norm is None
    session.model_diagnostics.record_performance(stethoscope.ModelPerformanceMetrics(0, 1.0))
    with session.profiler.timer("t"):
        session.profiler.record_layer_execution("a", "A", 1.0)
    go_on(trained, 3)
    assert session.tensor_inspector.infos() == []
    assert session.gradient_debugger.layers() == []
    assert session.model_diagnostics.records() == []
    assert not session.profiler.totals
    assert not session.profiler.layers
    assert len(session.run.series("fc1.weight", "gradient")["fc1.weight"]) == 3
    assert set(session.stop().summary()) == {"num_steps", "run", "causes", "findings"}


@pytest.mark.parametrize("on", [True, False])
def test_pictures_are_drawn_where_they_are_asked_for(tmp_path: Path, on: bool) -> None:
    trained = begin(tmp_path / "runs", enable_visualization=on, output_dir=str(tmp_path / "out"))
    go_on(trained, 5)
    trained.session.visualizer.plot_tensor_distribution("mine", [1.0, 2.0, 3.0])
    trained.session.stop()
    files = {path.name for path in (tmp_path / "out").glob("*")}
    if on:
        assert {"mine_distribution.png", "loss.png", "gradients_by_layer.png", "dashboard.html"} <= files
    else:
        assert files == set()


def test_without_an_output_folder_pictures_go_into_the_run(tmp_path: Path) -> None:
    trained = go_on(begin(tmp_path, enable_visualization=True), 3)
    trained.session.stop()
    assert (trained.session.folder / "plots" / "dashboard.html").exists()
    assert stethoscope.open_run(trained.session.folder).state == "finished"


def test_a_session_without_a_model_has_the_same_instruments(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.chdir(tmp_path)
    session = stethoscope.debug_session(DebugConfig(quiet=True, output_dir="out"))
    session.start()
    seen: list[Any] = []
    session.on(every=2)(seen.append)
    for step in range(4):
        session.hooks.execute_step(step, loss=1.0)
    assert [context.step for context in seen] == [0, 2]
    assert session.output_folder == Path("out")
    with pytest.raises(WatchError, match="no model"):
        session.watch_leaks()
    with pytest.raises(WatchError, match="no model"):
        session.analyze_architecture()
    assert session.stop().summary() == {"num_steps": 0, "run": None, "hooks": {"Success": 2}}
    assert list(tmp_path.iterdir()) == []


def test_units_that_never_fire_are_counted_by_themselves(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.ReLU(), torch.nn.Linear(8, 2))
    with torch.no_grad():
        model[0].bias[[1, 4, 6]] = -1000.0
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    session = stethoscope.watch(model, optimizer, dir=str(tmp_path), quiet=True, companion="off", every=1)
    for _ in range(40):
        optimizer.zero_grad()
        model(torch.randn(64, 6)).square().mean().backward()
        optimizer.step()
    session.flush()
    found = session.gradient_debugger.dead_units("1")
    session.stop()
    assert found is not None
    assert (found.num_units, found.dead) == (8, (1, 4, 6))
    assert session.gradient_debugger.dead_units("nowhere") is None
