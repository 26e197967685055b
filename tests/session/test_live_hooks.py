"""The user's hooks on a live model: at the right steps and layers, with the right numbers, and harmless."""

from __future__ import annotations

import contextlib
import http.server
import json
import logging
import threading
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

import stethoscope
from stethoscope import HookAction, HookBuilder, HookCondition, HookTrigger
from stethoscope.capture.ring import StepRows
from stethoscope.cli import main
from tests.session.training import Trained, begin, go_on


def build(trigger: Any, action: Any, **more: Any) -> stethoscope.Hook:
    builder = HookBuilder("test").trigger(trigger).action(action)
    for name, value in more.items():
        getattr(builder, name)(value)
    return builder.build()


def test_every_n_steps_fires_at_those_steps_with_that_steps_numbers(tmp_path: Path) -> None:
    trained = begin(tmp_path)
    seen: list[Any] = []
    trained.session.hooks.register_hook(build(HookTrigger.EveryNSteps(10), HookAction.CustomCallback(seen.append)))
    go_on(trained, 31)
    assert [context.step for context in seen] == [0, 10, 20, 30]
    for context in seen:
        assert context.loss == pytest.approx(trained.losses[context.step], rel=1e-6)
        assert context.gradient_norm == pytest.approx(trained.gradient_norms[context.step], rel=1e-6)
        assert context.memory_mb > 10
    trained.session.stop()


def test_conditions_hold_where_they_hold(tmp_path: Path) -> None:
    trained = begin(tmp_path)
    losses, norms, ranges, both = [], [], [], []
    session = trained.session
    session.on(HookCondition.LossThreshold(1.4), lambda c: losses.append(c.step))
    session.on(HookCondition.GradientNormThreshold(0.9, "<="), lambda c: norms.append(c.step))
    session.on(HookCondition.StepRange(3, 5), lambda c: ranges.append(c.step))
    session.on(HookCondition.LossThreshold(1.4), lambda c: both.append(c.step), every=2)
    go_on(trained, 20)
    assert losses == [step for step, loss in enumerate(trained.losses) if loss > 1.4]
    assert norms == [step for step, norm in enumerate(trained.gradient_norms) if norm <= 0.9]
    assert 0 < len(losses) < 20
    assert 0 < len(norms) < 20
    assert ranges == [3, 4, 5]
    assert both == [step for step in losses if step % 2 == 0]
    session.stop()


def test_numbers_that_arrive_late_as_from_a_device_reach_their_hooks_in_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ready = StepRows.ready

    def late(rows: StepRows) -> bool:
        return threading.current_thread() is not threading.main_thread() and ready(rows)

    monkeypatch.setattr(StepRows, "ready", late)
    trained = begin(tmp_path)
    seen: list[Any] = []
    trained.session.on(every=1)(seen.append)
    trained.session.on(HookCondition.StepRange(11, 11), HookAction.StopTraining)
    with contextlib.suppress(stethoscope.StopTraining):  # in the last step, or in `stop`, where it goes nowhere
        go_on(trained, 12)
    trained.session.stop()
    assert [context.step for context in seen] == list(range(12))
    assert [context.loss for context in seen] == pytest.approx(trained.losses)
    assert [context.gradient_norm for context in seen] == pytest.approx(trained.gradient_norms)


def test_once_and_max_executions(tmp_path: Path) -> None:
    trained = begin(tmp_path)
    once, thrice = [], []
    trained.session.hooks.register_hook(build(HookTrigger.Once, HookAction.CustomCallback(once.append)))
    hook_id = trained.session.hooks.register_hook(
        build(HookTrigger.EveryNSteps(1), HookAction.CustomCallback(thrice.append), max_executions=3)
    )
    go_on(trained, 8)
    assert [context.step for context in once] == [0]
    assert [context.step for context in thrice] == [0, 1, 2]
    assert trained.session.hooks.stats(hook_id).num_skipped == 5
    trained.session.stop()


def test_layers_are_heard_forward_and_backward_by_pattern_and_by_name(tmp_path: Path) -> None:
    trained = begin(tmp_path, "transformer")
    calls: Counter[tuple[str, int, bool]] = Counter()

    @trained.session.on(every=5, layers=r"blocks\.\d+\.linear1$")
    def note(context: stethoscope.HookContext) -> None:
        calls[context.layer, context.step, context.is_forward] += 1

    by_name: list[Any] = []
    trained.session.hooks.register_hook(
        build(HookTrigger.LayerSpecific(["blocks.1", "head"]), HookAction.CustomCallback(by_name.append))
    )
    go_on(trained, 11, "transformer")
    layers = ("blocks.0.linear1", "blocks.1.linear1")
    assert calls == {(layer, step, True): 1 for layer in layers for step in (0, 5, 10)}
    heard = Counter((context.layer, context.is_forward) for context in by_name)
    assert heard == {(layer, way): 11 for layer in ("blocks.1", "head") for way in (True, False)}
    trained.session.stop()


def test_tracked_gradients_and_inspected_outputs_are_the_models_own(tmp_path: Path) -> None:
    trained = begin(tmp_path)
    session = trained.session
    outputs, gradients = [], []
    session.on(None, HookAction.TrackGradients, layers="fc2", backward=True)
    session.on(None, HookAction.InspectTensor, layers="fc2")

    def keep(module: Any, args: Any, output: torch.Tensor) -> None:
        outputs.append(output.detach().clone())
        output.register_hook(lambda g: gradients.append(g.clone()))

    trained.model.fc2.register_forward_hook(keep)
    go_on(trained, 6)
    looks = session.gradient_debugger.history("fc2")
    assert [look.step for look in looks] == list(range(6))
    assert [look.norm for look in looks] == pytest.approx([float(g.double().norm()) for g in gradients])
    infos = session.tensor_inspector.infos("fc2")
    assert [info.stats.mean for info in infos] == pytest.approx([float(o.double().mean()) for o in outputs])
    assert [info.operation for info in infos] == ["forward"] * 6
    session.stop()


def test_a_snapshot_holds_the_layers_output(tmp_path: Path) -> None:
    trained = begin(tmp_path / "runs", output_dir=str(tmp_path / "out"))
    kept = []
    trained.model.fc1.register_forward_hook(lambda m, a, o: kept.append(o.detach().clone()))
    trained.session.on(None, HookAction.SaveSnapshot("snaps"), layers="^fc1$", max_executions=2)
    go_on(trained, 4)
    files = sorted((tmp_path / "out" / "snaps").glob("*.safetensors"))
    assert len(files) == 2
    for file, output in zip(files, kept, strict=False):
        assert torch.equal(load_file(file)["fc1"], output)
        assert json.loads(file.with_suffix(".json").read_text())["layer"] == "fc1"
    trained.session.stop()


def test_stop_training_reaches_the_loop_and_the_run_says_so(tmp_path: Path) -> None:
    trained = begin(tmp_path)
    trained.session.on(HookCondition.StepRange(4, 4), HookAction.StopTraining, name="enough")
    with pytest.raises(stethoscope.StopTraining, match="'enough' at step 4"), trained.session:
        go_on(trained, 10)
    assert len(trained.losses) == 5
    run = stethoscope.open_run(trained.session.folder)
    assert (run.state, run.last_step) == ("finished", 4)
    assert "enough" in run.ended["body"]["stopped"]


def test_stop_training_from_a_layer_reaches_the_loop(tmp_path: Path) -> None:
    trained = begin(tmp_path)

    @trained.session.on(layers="fc2", backward=True)
    def stop(context: stethoscope.HookContext) -> None:
        if context.step == 2:
            raise stethoscope.StopTraining("seen enough")

    with pytest.raises(stethoscope.StopTraining, match="seen enough"):
        go_on(trained, 10)
    assert len(trained.losses) == 3
    trained.session.stop()


def test_a_pause_without_a_terminal_is_refused_and_told(tmp_path: Path) -> None:
    trained = begin(tmp_path)
    trained.session.on(HookCondition.StepRange(2, 2), HookAction.PauseTraining, name="halt")
    go_on(trained, 5)
    results = list(trained.session.hooks.results)
    assert [(result.step, result.status) for result in results] == [(2, "Skipped")]
    report = trained.session.stop()
    assert report.summary()["hooks"] == {"Skipped": 1}
    alerts = stethoscope.open_run(trained.session.folder).events("alert")
    assert len(alerts) == 1
    assert "no terminal" in alerts[0].body["message"]


def test_a_paused_training_goes_on_by_the_resume_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    trained = begin(tmp_path)
    folder = str(trained.session.folder)
    pauser = trained.session.hooks.pauser
    monkeypatch.setattr(pauser, "_has_terminal", lambda: True)
    codes: list[int] = []

    def poll(seconds: float) -> None:
        # Nobody types; another process asks for the run to go on.
        codes.append(main(["resume", folder]))

    monkeypatch.setattr(pauser, "_poll", poll)
    trained.session.on(HookCondition.StepRange(1, 1), HookAction.PauseTraining, name="halt")
    assert main(["resume", folder]) == 2
    go_on(trained, 4)
    assert codes == [0]
    assert "paused by hook 'halt' at step 1" in capsys.readouterr().out
    assert [str(result.status) for result in trained.session.hooks.results] == ["Success"]
    assert main(["resume", folder]) == 2
    trained.session.stop()


def test_a_hook_that_raises_is_disabled_after_three_times_and_training_goes_on(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    trained = begin(tmp_path)

    @trained.session.on(every=1)
    def broken(context: stethoscope.HookContext) -> None:
        raise ValueError("mine")

    with caplog.at_level(logging.INFO, logger="stethoscope.alerts"):
        go_on(trained, 8)
    assert len(trained.losses) == 8
    assert trained.session.hooks.stats(1).disabled
    assert trained.session.stop().summary()["hooks"] == {"Error": 3}
    messages = [event.body["message"] for event in stethoscope.open_run(trained.session.folder).events("alert")]
    assert len(messages) == len(caplog.records) == 3
    assert messages[-1].endswith("it is disabled now")


def test_alerts_reach_the_run_the_log_and_the_webhook(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    got: list[dict[str, Any]] = []

    class Receiver(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            got.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            self.send_response(200)
            self.end_headers()

        def log_message(self, *args: Any) -> None:
            return

    server = http.server.HTTPServer(("127.0.0.1", 0), Receiver)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        trained = begin(tmp_path, webhook=f"http://127.0.0.1:{server.server_port}/hook")
        trained.session.on(HookCondition.StepRange(3, 3), HookAction.Alert("loss is {loss} at {step}", "Critical"))
        with caplog.at_level(logging.INFO, logger="stethoscope.alerts"):
            go_on(trained, 5)
        trained.session.stop()
    finally:
        server.shutdown()
        server.server_close()
    text = f"loss is {trained.losses[3]:.4g} at 3"
    assert [(body["message"], body["step"], body["severity"]) for body in got] == [(text, 3, "Critical")]
    events = stethoscope.open_run(trained.session.folder).events("alert")
    assert [event.body["message"] for event in events] == [text]
    assert [record.levelname for record in caplog.records] == ["CRITICAL"]


def test_a_webhook_that_cannot_be_used_is_told_at_once(tmp_path: Path) -> None:
    with pytest.raises(stethoscope.ConfigError, match="http or https"):
        begin(tmp_path, webhook="ftp://somewhere")


def test_quiet_says_nothing_and_loud_says_the_alert(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for quiet in (True, False):
        trained = begin(tmp_path, quiet=quiet)
        trained.session.on(HookCondition.StepRange(0, 0), HookAction.Alert("hello"), name="greeter")
        go_on(trained, 2)
        trained.session.stop()
        told = capsys.readouterr().err
        assert ("Warning at step 0: hello [greeter]" in told) is not quiet


def _final(tmp_path: Path, prepare: Any) -> tuple[list[float], list[torch.Tensor], torch.Tensor]:
    trained = begin(tmp_path, "transformer")
    prepare(trained)
    go_on(trained, 12, "transformer")
    trained.session.stop()
    return trained.losses, [p.detach().clone() for p in trained.model.parameters()], torch.get_rng_state()


def test_hooks_and_leak_watching_leave_training_bit_identical(tmp_path: Path) -> None:
    def everything(trained: Trained) -> None:
        session = trained.session
        session.on(None, HookAction.InspectTensor)
        session.on(None, HookAction.TrackGradients, backward=True)
        session.on(None, HookAction.RecordActivations, layers=".")
        session.on(every=3)(lambda context: None)
        session.watch_leaks(2)

    plain = _final(tmp_path / "a", lambda trained: None)
    hooked = _final(tmp_path / "b", everything)
    assert plain[0] == hooked[0]
    assert all(torch.equal(a, b) for a, b in zip(plain[1], hooked[1], strict=True))
    assert torch.equal(plain[2], hooked[2])


def test_nothing_is_on_the_model_without_hooks_and_nothing_is_left_after(tmp_path: Path) -> None:
    trained = begin(tmp_path)
    hooked = [len(module._forward_hooks) for module in trained.model.modules()]
    hook_id = trained.session.on(None, HookAction.InspectTensor, layers="fc1")
    assert len(trained.model.fc1._forward_hooks) == hooked[1] + 1
    assert len(trained.model.fc2._forward_hooks) == hooked[3]
    trained.session.hooks.remove_hook(hook_id)
    assert [len(module._forward_hooks) for module in trained.model.modules()] == hooked
    trained.session.on(None, HookAction.InspectTensor)
    go_on(trained, 2)
    trained.session.stop()
    for module in trained.model.modules():
        assert not module._forward_hooks
        assert not module._forward_pre_hooks
    assert trained.session.hooks.on_change is None
    num_inspected = trained.session.tensor_inspector.num_inspected
    trained.model(torch.zeros(2, 12)).sum().backward()
    assert trained.session.tensor_inspector.num_inspected == num_inspected


def test_validation_is_not_heard(tmp_path: Path) -> None:
    trained = begin(tmp_path)
    seen: list[int] = []
    trained.session.on(layers="fc1")(lambda context: seen.append(context.step))
    x = torch.zeros(2, 12)
    with trained.session.evaluating():
        trained.model(x)
    trained.model.eval()
    with torch.no_grad():
        trained.model(x)
    assert seen == []
    trained.model.train()
    trained.model(x)
    assert seen == [0]
    trained.session.stop()


def test_hooks_switched_off_by_the_configuration_never_run(tmp_path: Path) -> None:
    trained = begin(tmp_path, enable_hooks=False)
    seen: list[Any] = []
    trained.session.on(every=1)(seen.append)
    trained.session.on(None, seen.append, layers=".")
    go_on(trained, 3)
    assert seen == []
    assert trained.session.hooks.execute_hooks("fc1", [1.0], [1], True) == []
    trained.session.stop()
