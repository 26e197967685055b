"""Hooks: every trigger, condition and action, what happens when they fail, and the Python way."""

from __future__ import annotations

import io
import json
import logging
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file as load_numpy
from safetensors.torch import load_file as load_torch

from stethoscope.hooks import (
    Alert,
    AlertSeverity,
    EventSink,
    HookAction,
    HookBuilder,
    HookCondition,
    HookContext,
    HookManager,
    HookStatus,
    HookTrigger,
    LoggingSink,
    Pauser,
    TerminalSink,
    WebhookSink,
)
from stethoscope.instruments.gradient_debugger import GradientDebugger
from stethoscope.instruments.inspector import TensorInspector
from stethoscope.record import ConfigError, Severity, StopTraining

DATA, SHAPE = [1.0, 2.0, 3.0, 4.0], [2, 2]


@pytest.fixture
def told():
    return []


@pytest.fixture
def hooks(told):
    return HookManager(sinks=[told.append])


def counting(hooks, trigger, **options):
    """A hook that notes where it ran."""
    ran: list[tuple[str, int]] = []
    builder = HookBuilder("counter").trigger(trigger)
    builder.action(HookAction.CustomCallback(lambda context: ran.append((context.layer, context.step))))
    if "layers" in options:
        builder.layer_patterns(options["layers"])
    if "limit" in options:
        builder.max_executions(options["limit"])
    hook_id = hooks.register_hook(builder.build())
    return hook_id, ran


def test_the_seeds_example():
    hooks = HookManager(inspector=TensorInspector())
    hook = (
        HookBuilder("Layer Monitor")
        .trigger(HookTrigger.EveryForward)
        .action(HookAction.InspectTensor)
        .layer_patterns(["attention.*"])
        .max_executions(100)
        .build()
    )
    hook_id = hooks.register_hook(hook)
    (result,) = hooks.execute_hooks("attention_layer_1", DATA, SHAPE, True, None)
    assert (result.hook_id, result.status) == (hook_id, "Success")
    stats = hooks.inspector.get_tensor_info(result.values[0]).stats
    assert (stats.shape, stats.mean) == ((2, 2), 2.5)
    assert hooks.execute_hooks("mlp", DATA, SHAPE, True) == []
    assert hooks.remove_hook(hook_id)
    assert not hooks.remove_hook(hook_id)
    assert hooks.execute_hooks("attention_layer_1", DATA, SHAPE, True) == []


@pytest.mark.parametrize(
    ("trigger", "expected"),
    [
        (HookTrigger.EveryForward, [("a", 0), ("b", 0), ("a", 1), ("b", 1), ("a", 2), ("b", 2)]),
        (HookTrigger.EveryBackward, [("b", 0), ("a", 0), ("b", 1), ("a", 1), ("b", 2), ("a", 2)]),
        (HookTrigger.EveryNSteps(2), [("a", 0), ("a", 2)]),
        (HookTrigger.Once, [("a", 0)]),
        (HookTrigger.LayerSpecific(["b"]), [("b", 0), ("b", 0), ("b", 1), ("b", 1), ("b", 2), ("b", 2)]),
        (HookTrigger.Conditional(HookCondition.StepRange(1, 2)), [("a", 1), ("a", 2)]),
    ],
)
def test_triggers(hooks, trigger, expected):
    _, ran = counting(hooks, trigger)
    for step in range(3):
        for layer, is_forward in (("a", True), ("b", True), ("b", False), ("a", False)):
            hooks.execute_hooks(layer, DATA, SHAPE, is_forward, step)
    assert ran == expected


def test_a_step_hook_with_a_pattern_runs_at_each_layer(hooks):
    _, ran = counting(hooks, HookTrigger.EveryNSteps(10), layers=[r"attention\..*"])
    for step in range(11):
        for layer in ("blocks.0.attention.qkv", "blocks.0.mlp", "blocks.1.attention.out"):
            hooks.execute_hooks(layer, DATA, SHAPE, True, step)
    assert ran == [(layer, s) for s in (0, 10) for layer in ("blocks.0.attention.qkv", "blocks.1.attention.out")]


def test_without_a_step_the_calls_are_counted(hooks):
    _, ran = counting(hooks, HookTrigger.EveryNSteps(2))
    for _ in range(5):
        hooks.execute_hooks("a", DATA, SHAPE, True)
    assert [step for _, step in ran] == [0, 2, 4]


@pytest.mark.parametrize(
    ("comparison", "fires"),
    [(">", [3.0]), ("<", [1.0]), ("==", [2.0]), (">=", [2.0, 3.0]), ("<=", [1.0, 2.0])],
)
@pytest.mark.parametrize(
    ("make", "field"),
    [(HookCondition.LossThreshold, "loss"), (HookCondition.GradientNormThreshold, "gradient_norm")],
)
def test_thresholds(hooks, make, field, comparison, fires):
    _, ran = counting(hooks, HookTrigger.Conditional(make(2.0, comparison)))
    for step, value in enumerate((1.0, 2.0, 3.0)):
        hooks.execute_hooks("a", DATA, SHAPE, True, step, context=HookContext(**{field: value}))
    assert [step + 1.0 for _, step in ran] == fires


def test_an_unknown_loss_fires_nothing_and_a_nan_counts_as_large(hooks):
    _, ran = counting(hooks, HookTrigger.Conditional(HookCondition.LossThreshold(10.0)))
    hooks.execute_hooks("a", DATA, SHAPE, True, 0)
    assert ran == []
    hooks.execute_step(1, loss=float("nan"))
    assert ran == [("", 1)]


def test_the_gradient_at_hand_gives_the_norm_where_the_models_is_unknown(hooks):
    _, ran = counting(hooks, HookTrigger.Conditional(HookCondition.GradientNormThreshold(4.9)))
    hooks.execute_hooks("a", [3.0, 4.0], [2], False, 0)
    hooks.execute_hooks("a", [3.0, 3.0], [2], False, 1)
    hooks.execute_hooks("a", [3.0, 4.0], [2], True, 2)
    hooks.execute_hooks("a", [3.0, float("inf")], [2], False, 3)
    assert [step for _, step in ran] == [0, 3]


def test_memory_is_the_processs_own(hooks):
    _, low = counting(hooks, HookTrigger.Conditional(HookCondition.MemoryThreshold(1)))
    _, high = counting(hooks, HookTrigger.Conditional(HookCondition.MemoryThreshold(1e9)))
    hooks.execute_step(0)
    assert (len(low), len(high)) == (1, 0)
    hooks.execute_step(1, memory_mb=2e9)
    assert len(high) == 1


def test_custom_conditions_by_function_and_by_name(hooks):
    hooks.register_condition("odd", lambda context: context.step % 2 == 1)
    _, by_name = counting(hooks, HookTrigger.Conditional(HookCondition.Custom("odd")))
    _, by_function = counting(hooks, HookTrigger.Conditional(HookCondition.Custom(lambda c: c.layer == "b")))
    for step in range(3):
        hooks.execute_hooks("b", DATA, SHAPE, True, step)
    assert [s for _, s in by_name] == [1]
    assert [s for _, s in by_function] == [0, 1, 2]


def test_without_instruments_the_statistics_are_kept(hooks):
    actions = [HookAction.InspectTensor, HookAction.TrackGradients]
    hooks.register_hook(HookBuilder("alone").trigger(HookTrigger.EveryBackward).actions(actions).build())
    (result,) = hooks.execute_hooks("fc", [3.0, 4.0], [2], False, step=5)
    assert result.values == (hooks.looks["fc"][0], hooks.gradients["fc"][0])
    assert (result.values[0].shape, result.values[0].stats["norm"]) == ((2,), pytest.approx(5.0))


def test_tensor_actions_write_to_their_instruments(hooks):
    hooks.inspector, hooks.gradient_debugger = TensorInspector(), GradientDebugger()
    actions = [HookAction.InspectTensor, HookAction.TrackGradients, HookAction.RecordActivations]
    hooks.register_hook(HookBuilder("all").trigger(HookTrigger.EveryBackward).actions(actions).build())
    gradient = torch.tensor([[3.0, 0.0], [0.0, 4.0]])
    (result,) = hooks.execute_hooks("fc", gradient, gradient.shape, False, step=5)
    assert result.status == HookStatus.SUCCESS
    assert hooks.inspector.get_tensor_info(result.values[0]).operation == "backward"
    assert hooks.gradient_debugger.history("fc")[0].norm == pytest.approx(5.0)
    (record,) = hooks.activations["fc"]
    assert (record.step, record.shape, record.stats["norm"]) == (5, (2, 2), pytest.approx(5.0))


def test_gradients_are_not_tracked_in_a_forward_pass(hooks):
    hooks.register_hook(HookBuilder("track").action(HookAction.TrackGradients).build())
    (result,) = hooks.execute_hooks("fc", DATA, SHAPE, True, 0)
    assert result.status == "Skipped"
    assert hooks.gradients == {}


def test_a_snapshot_is_safetensors_and_json(hooks, tmp_path):
    hooks.register_hook(HookBuilder("snap").action(HookAction.SaveSnapshot(tmp_path / "snaps")).build())
    values = torch.arange(4.0, dtype=torch.bfloat16).reshape(2, 2)
    (result,) = hooks.execute_hooks("blocks.0/../attn", values, SHAPE, True, 12)
    path = result.values[0]
    assert path.parent == tmp_path / "snaps"
    (loaded,) = load_torch(path).values()
    assert torch.equal(loaded, values)
    about = json.loads(path.with_suffix(".json").read_text())
    assert (about["layer"], about["step"], about["dtype"]) == ("blocks.0/../attn", 12, "bfloat16")
    assert about["shape"] == [2, 2]


def test_a_named_snapshot_file_is_replaced(hooks, tmp_path):
    path = tmp_path / "last.safetensors"
    hooks.register_hook(HookBuilder("snap").action(HookAction.SaveSnapshot(str(path))).build())
    for step in range(2):
        hooks.execute_hooks("fc", [float(step)] * 4, SHAPE, True, step)
    np.testing.assert_array_equal(load_numpy(path)["fc"], np.ones((2, 2)))
    assert sorted(p.name for p in tmp_path.iterdir()) == ["last.json", "last.safetensors"]


def test_a_snapshot_that_cannot_be_written_is_an_error_not_a_crash(hooks, told, tmp_path):
    (tmp_path / "file").write_text("in the way")
    hooks.register_hook(HookBuilder("snap").action(HookAction.SaveSnapshot(tmp_path / "file")).build())
    (result,) = hooks.execute_hooks("fc", DATA, SHAPE, True, 0)
    assert result.status == "Error"
    assert told[0].severity == Severity.WARNING


def test_an_alert_reaches_every_sink_and_fills_in_what_is_known(told):
    events, text = [], io.StringIO()

    def broken(alert):
        raise RuntimeError("no network")

    hooks = HookManager(
        sinks=[
            broken,
            told.append,
            TerminalSink(text),
            EventSink(lambda step, said: events.append((step, said.KIND, said.to_body()))),
        ]
    )
    action = HookAction.Alert("loss {loss} at {step} in {other}", AlertSeverity.CRITICAL)
    hooks.register_hook(
        HookBuilder("too high").trigger(HookTrigger.Conditional(HookCondition.LossThreshold(5))).action(action).build()
    )
    (result,) = hooks.execute_step(3, loss=7.25)
    assert result.status == "Success"
    assert (told[0].message, told[0].severity) == ("loss 7.25 at 3 in {other}", "Critical")
    assert text.getvalue() == "stethoscope: Critical at step 3: loss 7.25 at 3 in {other} [too high]\n"
    assert events[0][:2] == (3, "alert")
    assert events[0][2]["message"] == "loss 7.25 at 3 in {other}"
    assert hooks.num_sink_errors == 1


def test_alerts_go_to_python_logging(caplog):
    with caplog.at_level(logging.INFO, logger="stethoscope.alerts"):
        LoggingSink()(Alert("look", Severity.WARNING, "hook", "fc", 3))
    assert [(r.levelname, r.getMessage()) for r in caplog.records] == [
        ("WARNING", "Warning at step 3 in fc: look [hook]")
    ]


def test_control_characters_in_alerts_are_escaped():
    assert "\x1b" not in str(Alert("\x1b[2J", Severity.INFO, "h", "\u202elayer"))


@pytest.fixture
def server():
    """A web server that keeps what it is sent; /away redirects."""
    got: list[tuple[str, dict]] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self):
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            got.append((self.path, body))
            self.send_response(302 if self.path == "/away" else 200)
            if self.path == "/away":
                self.send_header("Location", "/secret")
            self.end_headers()

        def do_GET(self):
            got.append((self.path, {}))
            self.send_response(200)
            self.end_headers()

        def log_message(self, *args):
            pass

    httpd = HTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=httpd.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield f"http://127.0.0.1:{httpd.server_port}", got
    httpd.shutdown()
    thread.join()
    httpd.server_close()


def test_the_webhook_gets_the_alert_as_json(server):
    address, got = server
    sink = WebhookSink(address + "/hook", timeout_s=60.0)
    sink(Alert("help", Severity.CRITICAL, "h", "fc", 4))
    sink.close(60.0)
    assert (sink.num_sent, sink.num_failed) == (1, 0)
    path, body = got[0]
    assert path == "/hook"
    assert (body["schema"], body["message"], body["severity"], body["step"]) == (1, "help", "Critical", 4)


def test_the_webhook_follows_no_redirect_and_survives_a_dead_server(server):
    address, got = server
    sink = WebhookSink(address + "/away", timeout_s=60.0)
    sink(Alert("help", Severity.INFO, "h"))
    sink.close(60.0)
    assert [path for path, _ in got] == ["/away"]
    assert sink.num_failed == 1
    dead = WebhookSink("http://127.0.0.1:9/", timeout_s=0.5)
    dead(Alert("help", Severity.INFO, "h"))
    dead.close(60.0)
    assert dead.num_failed == 1
    for bad in ("file:///etc/passwd", "ftp://host/", "http://"):
        with pytest.raises(ConfigError):
            WebhookSink(bad)


class Terminal(io.StringIO):
    def isatty(self):
        return True


def pausing(told, **options):
    hooks = HookManager(sinks=[told.append], pauser=Pauser(output=io.StringIO(), **options))
    hooks.register_hook(HookBuilder("pause").trigger(HookTrigger.Once).action(HookAction.PauseTraining).build())
    return hooks


def test_pause_waits_for_enter(told):
    answers = [None, None, "\n"]
    hooks = pausing(told, stdin=Terminal(), world_size=1, poll=lambda seconds: answers.pop(0))
    (result,) = hooks.execute_step(4)
    assert (result.status, result.values) == ("Success", ("resumed at the prompt",))
    assert answers == []


def test_pause_can_end_training(told):
    hooks = pausing(told, stdin=Terminal(), world_size=1, poll=lambda seconds: "stop\n")
    with pytest.raises(StopTraining):
        hooks.execute_step(4)
    assert hooks.counts[HookStatus.SUCCESS] == 1


def test_pause_waits_for_the_resume_file(told, tmp_path):
    (tmp_path / "resume").touch()  # left over: must not count
    polls = []

    def poll(seconds):
        polls.append((tmp_path / "resume").exists())
        if len(polls) == 3:
            (tmp_path / "resume").touch()

    hooks = pausing(told, run_folder=tmp_path, stdin=Terminal(), world_size=1, poll=poll)
    (result,) = hooks.execute_step(0)
    assert result.values == ("resumed by the resume file",)
    assert polls == [False, False, False]
    assert not (tmp_path / "resume").exists()


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"stdin": io.StringIO(), "world_size": 1}, "no terminal"),
        ({"stdin": Terminal(), "world_size": 4}, "4 ranks"),
    ],
)
def test_pause_refuses_and_alerts_instead(told, options, why):
    hooks = pausing(told, poll=lambda seconds: pytest.fail("it waited"), **options)
    (result,) = hooks.execute_step(0)
    assert result.status == "Skipped"
    assert why in told[0].message


def test_stop_training_needs_no_terminal_but_refuses_with_several_ranks(told):
    stop = HookBuilder("stop").trigger(HookTrigger.EveryNSteps(1)).action(HookAction.StopTraining).build()
    alone = HookManager(sinks=[told.append], pauser=Pauser(stdin=io.StringIO(), world_size=1))
    alone.register_hook(stop)
    with pytest.raises(StopTraining, match="stop"):
        alone.execute_step(0)
    together = HookManager(sinks=[told.append], pauser=Pauser(stdin=io.StringIO(), world_size=2))
    together.register_hook(stop)
    assert together.execute_step(0)[0].status == "Skipped"


def test_max_executions_then_skipped(hooks):
    hook_id, ran = counting(hooks, HookTrigger.EveryForward, limit=2)
    statuses = [hooks.execute_hooks("a", DATA, SHAPE, True, step)[0].status for step in range(4)]
    assert statuses == ["Success", "Success", "Skipped", "Skipped"]
    assert len(ran) == 2
    assert hooks.counts == {HookStatus.SUCCESS: 2, HookStatus.SKIPPED: 2}
    assert hooks.stats(hook_id).num_executions == 2


def test_a_hook_that_raises_is_reported_and_disabled_after_three_times(hooks, told):
    def broken(context):
        raise ValueError("my own mistake")

    hook_id = hooks.register_hook(HookBuilder("broken").action(HookAction.CustomCallback(broken)).build())
    _, ran = counting(hooks, HookTrigger.EveryForward)
    for step in range(6):
        hooks.execute_hooks("a", DATA, SHAPE, True, step)
    assert len(ran) == 6
    assert hooks.counts[HookStatus.ERROR] == 3
    assert hooks.stats(hook_id).disabled
    assert "ValueError: my own mistake" in hooks.stats(hook_id).last_error
    assert len(told) == 3
    assert "disabled now" in told[-1].message
    hooks.enable_hook(hook_id)
    assert hooks.execute_hooks("a", DATA, SHAPE, True, 7)[0].status == "Error"


def test_the_other_actions_of_a_failing_hook_still_run(hooks):
    ran = []
    actions = [HookAction.CustomCallback("unknown"), HookAction.CustomCallback(lambda c: ran.append(c.step))]
    hooks.register_hook(HookBuilder("two").actions(actions).build())
    (result,) = hooks.execute_hooks("a", DATA, SHAPE, True, 3)
    assert result.status == "Error"
    assert "no callback named 'unknown'" in result.message
    assert ran == [3]


def test_callbacks_by_name_and_disabled_hooks(hooks):
    hooks.register_callback("note", lambda context: context.layer.upper())
    hooks.register_hook(HookBuilder("named").action(HookAction.CustomCallback("note")).build())
    off = HookBuilder("off").action(HookAction.CustomCallback("note")).enabled(False).build()
    off_id = hooks.register_hook(off)
    (result,) = hooks.execute_hooks("fc", DATA, SHAPE, True, 0)
    assert result.values == ("FC",)
    hooks.enable_hook(off_id)
    assert len(hooks.execute_hooks("fc", DATA, SHAPE, True, 1)) == 2


def test_the_python_way(hooks, told):
    seen = []

    @hooks.on(every=10, layers=r"attention\..*")
    def look(context):
        seen.append((context.layer, context.step, context.tensor.shape))

    alert_id = hooks.on(HookCondition.LossThreshold(5.0), HookAction.Alert("high"))
    hooks.on(lambda context: context.step == 3, lambda context: seen.append("three"))
    for step in range(11):
        hooks.execute_hooks("attention.q", DATA, SHAPE, True, step)
        hooks.execute_step(step, loss=float(step))
    assert seen == [("attention.q", 0, (2, 2)), "three", ("attention.q", 10, (2, 2))]
    assert [alert.step for alert in told] == [6, 7, 8, 9, 10]
    assert hooks.hooks()[alert_id].name == "Alert"


def test_every_and_a_condition_mean_both(hooks):
    seen = []
    hooks.on(HookCondition.StepRange(5, 20), lambda context: seen.append(context.step), every=10)
    for step in range(30):
        hooks.execute_step(step)
    assert seen == [10, 20]


def test_wants_is_asked_before_a_tensor_is_fetched(hooks):
    counting(hooks, HookTrigger.EveryNSteps(5), layers=["attn"])
    hooks.on(HookCondition.LossThreshold(1.0), HookAction.Alert("high"))
    assert hooks.wants("attn.0", True, 10)
    assert not hooks.wants("attn.0", True, 11)
    assert not hooks.wants("mlp.0", True, 10)


@pytest.mark.parametrize(
    "make",
    [
        lambda: HookBuilder("no action").build(),
        lambda: HookBuilder("x").layer_patterns(["("]),
        lambda: HookTrigger.EveryNSteps(0),
        lambda: HookCondition.StepRange(5, 2),
        lambda: HookCondition.LossThreshold(1.0, "!="),
        lambda: HookBuilder("x").max_executions(-1),
        lambda: HookManager().register_hook(HookBuilder("x")),
    ],
)
def test_mistakes_are_refused_at_once(make):
    with pytest.raises(ConfigError):
        make()


def test_hooks_may_run_in_threads(hooks):
    _, ran = counting(hooks, HookTrigger.EveryForward)

    def work(name):
        for step in range(200):
            hooks.execute_hooks(name, DATA, SHAPE, True, step)

    threads = [threading.Thread(target=work, args=(f"t{i}",)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(ran) == 800
    assert hooks.counts[HookStatus.SUCCESS] == 800
