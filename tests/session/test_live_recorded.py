"""What a session fills in by itself: the inspector's looks and memory, the profiler's steps and layers."""

from __future__ import annotations

import types
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn import functional as F

import stethoscope
from stethoscope.capture.phases import Phases
from stethoscope.instruments.reading.tensors import element_bytes
from stethoscope.session import layer_times
from stethoscope.session.layer_times import due
from tests.session.training import begin, go_on


def test_looks_hold_the_statistics_of_the_models_own_tensors(tmp_path: Path) -> None:
    trained = go_on(begin(tmp_path), 3)
    inspector = trained.session.tensor_inspector
    for name, parameter in trained.model.named_parameters():
        (_, _, look) = inspector.infos(name, operation="weight")
        value = parameter.detach().double()
        assert look.layer == name.rpartition(".")[0]
        assert look.step == 2
        assert look.stats.shape == tuple(parameter.shape)
        assert look.stats.mean == pytest.approx(float(value.mean()), rel=1e-6, abs=1e-9)
        assert look.stats.std == pytest.approx(float(value.std(correction=0)), rel=1e-6)
        assert look.stats.l1_norm == pytest.approx(float(value.abs().sum()), rel=1e-6)
        assert look.stats.memory_usage_bytes == 4 * parameter.numel()
        gradients = [info.stats.l2_norm for info in inspector.infos(name, operation="gradient")]
        assert gradients == pytest.approx(trained.norms(name), rel=1e-6)
    assert inspector.alerts() == []
    before = inspector.num_inspected
    go_on(trained, 1)
    assert inspector.num_inspected > before
    assert inspector.infos("fc1.weight", operation="weight")[-1].step == 3
    trained.session.stop()


def test_no_tensor_is_held_and_what_a_user_shows_is_theirs(tmp_path: Path) -> None:
    trained = go_on(begin(tmp_path, max_tracked_tensors=40), 4)
    inspector = trained.session.tensor_inspector
    assert len(inspector.infos()) == 40
    for number in range(30):
        inspector.inspect_tensor(np.full(3, number), f"mine{number}")
    inspector.inspect_tensor(np.zeros(2), "fc1.weight", layer="fc1")
    go_on(trained, 4)
    kept = inspector.infos()
    assert len(kept) == 40
    assert [info.name for info in kept if info.name.startswith("mine")] == [f"mine{n}" for n in range(30)]
    assert [info.stats.mean for info in inspector.infos("fc1.weight", layer="fc1")] == [0.0]
    trained.session.stop()


def test_a_nan_is_an_alert_of_the_tensor_that_holds_it(tmp_path: Path) -> None:
    trained = go_on(begin(tmp_path), 2)
    trained.model.fc2.bias.register_hook(lambda g: g * float("nan"))
    go_on(trained, 1)
    alerts = trained.session.tensor_inspector.alerts("Critical")
    assert any(str(a) == "Critical: fc2.bias [gradient] holds 4 NaN of 4 elements" for a in alerts)
    trained.session.stop()


def test_memory_by_layer_is_that_of_shapes_and_dtypes(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.ReLU(), torch.nn.Linear(8, 2))
    optimizer = torch.optim.Adam(model.parameters())
    session = stethoscope.watch(model, optimizer, dir=str(tmp_path), quiet=True, companion="off", every=1)
    for _ in range(17):
        optimizer.zero_grad()
        model(torch.ones(5, 6)).square().mean().backward()
        optimizer.step()
    memory = session.tensor_inspector.memory
    # Weight, gradient and two moments of each parameter, the output and its gradient.
    first, last = 4 * (6 * 8 + 8) + 2 * 5 * 8, 4 * (8 * 2 + 2) + 2 * 5 * 2
    by_layer = memory.by_layer()
    assert by_layer["0"] == 4 * first
    assert by_layer["1"] == 4 * 2 * 5 * 8
    assert by_layer["2"] == 4 * last
    held = 4 * 4 * (6 * 8 + 8 + 8 * 2 + 2)
    assert memory.live_bytes == held
    assert [point.step for point in memory.over_time()] == [0, 15]
    assert all(point.live_bytes == held and point.used_bytes > held for point in memory.over_time())
    kinds = {(one.name, one.kind): one.alive for one in memory.by_tensor()}
    assert kinds["0.weight", "weight"] is True
    assert kinds["0", "activation"] is None
    assert session.model_diagnostics.records()[15].memory_usage_mb > 1.0
    session.stop()


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.float8_e4m3fn, torch.bool, torch.int16])
def test_bytes_of_an_element(dtype: torch.dtype) -> None:
    name = str(dtype).removeprefix("torch.")
    assert element_bytes(name) == torch.empty(1, dtype=dtype).element_size()


def test_every_step_after_the_first_two_is_an_event_with_its_parts_inside(tmp_path: Path) -> None:
    trained = go_on(begin(tmp_path), 9)
    profiler, run = trained.session.profiler, trained.session.run
    totals = {name: entry for (name, _), entry in profiler.totals.items()}
    assert set(totals) == {"step", "waiting for data", "forward", "backward", "optimizer", "stethoscope"}
    assert {entry.count for entry in totals.values()} == {7}  # the first two compile and allocate
    for name, metric in (("step", "step_ms"), ("forward", "forward_ms"), ("backward", "backward_ms")):
        assert totals[name].total_s == pytest.approx(float(run.metric(metric).values[2:].sum()) / 1e3, rel=1e-5)
    assert sum(entry.self_s for entry in totals.values()) == pytest.approx(totals["step"].total_s)
    steps = [event for event in profiler.events if event.name == "step"]
    assert [event.path for event in profiler.events if event.name == "backward"] == ["step/backward"] * 7
    assert [event.start_s for event in steps] == sorted(event.start_s for event in steps)
    assert profiler.memory_used_bytes
    trained.session.stop()


def test_the_work_itself_is_no_bottleneck_and_waiting_is() -> None:
    profiler = stethoscope.Profiler()
    for _ in range(3):
        profiler.record_part("backward", "phase", 0.0, 0.4, "step")
        profiler.record_part("waiting for data", "data_loading", 0.0, 0.3, "step")
    assert [str(one.type) for one in profiler.bottlenecks()] == ["DataLoading"]


# ---- layers ----


class _Clock:
    """A clock that stands still but for what layers say they take."""

    def __init__(self) -> None:
        self.now = 0.0

    def perf_counter(self) -> float:
        return self.now


class _Slow(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, clock: _Clock, took: tuple[float, float]) -> torch.Tensor:
        ctx.clock, ctx.took = clock, took
        clock.now += took[0]
        return x.clone()

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:  # type: ignore[override]
        ctx.clock.now += ctx.took[1]
        return gradient, None, None


class _Layer(torch.nn.Module):
    def __init__(self, clock: _Clock, took: tuple[float, float]) -> None:
        super().__init__()
        self.clock, self.took, self.scale = clock, took, torch.nn.Parameter(torch.ones(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return _Slow.apply(x * self.scale, self.clock, self.took)  # type: ignore[no-any-return]


class _Block(torch.nn.Module):
    def __init__(self, clock: _Clock) -> None:
        super().__init__()
        self.inner, self.clock = _Layer(clock, (1000.0, 4000.0)), clock

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.clock.now += 50.0
        return self.inner(x)  # type: ignore[no-any-return]


def _clocked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, steps: int, **settings: Any) -> Any:
    clock = _Clock()
    monkeypatch.setattr(layer_times, "time", types.SimpleNamespace(perf_counter=clock.perf_counter))
    model = torch.nn.Sequential(_Layer(clock, (10.0, 30.0)), _Block(clock), _Layer(clock, (200.0, 700.0)))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    session = stethoscope.watch(model, optimizer, dir=str(tmp_path), quiet=True, companion="off", every=1, **settings)
    for _ in range(steps):
        optimizer.zero_grad()
        model(torch.ones(2, 4)).sum().backward()
        optimizer.step()
    return model, session


def test_layers_take_what_they_take_without_their_children(tmp_path: Path, monkeypatch: Any) -> None:
    model, session = _clocked(tmp_path, monkeypatch, 10)
    layers = session.profiler.layers
    # Steps 4 and 8 are timed. What looking itself takes is real time, far below the clock's.
    assert {name: layer.count for name, layer in layers.items()} == dict.fromkeys(
        ["(root)", "0", "1", "1.inner", "2"], 2
    )
    for name, forward, backward in (("0", 10, 30), ("1", 50, None), ("1.inner", 1000, 4000), ("2", 200, 700)):
        assert layers[name].mean_forward_s == pytest.approx(forward, abs=2.0)
        if backward is not None:
            assert layers[name].mean_backward_s == pytest.approx(backward, abs=2.0)
    assert (layers["2"].parameter_count, layers["2"].peak_memory_bytes, layers["2"].type) == (4, 2 * 4 * 4, "_Layer")
    found = [(str(one.type), one.location) for one in session.profiler.bottlenecks()]
    assert found[:2] == [("GradientComputation", "1.inner"), ("ModelComputation", "1.inner")]
    session.stop()
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in model.modules())


def test_no_layer_is_timed_where_profiling_is_off(tmp_path: Path, monkeypatch: Any) -> None:
    _, session = _clocked(tmp_path, monkeypatch, 10, enable_profiling=False)
    assert session.profiler.layers == {}
    assert session.profiler.totals == {}
    session.stop()


def test_timed_steps_are_few_and_powers_of_two_first() -> None:
    assert [step for step in range(260) if due(step)] == [4, 8, 16, 32, 64, 128, 192, 256]


def test_a_recomputed_forward_and_validation_are_not_timed(tmp_path: Path) -> None:
    trained = begin(tmp_path)
    model, optimizer = trained.model, trained.optimizer
    for _ in range(6):
        optimizer.zero_grad()
        x = torch.zeros(2, 12, requires_grad=True)
        hidden = torch.utils.checkpoint.checkpoint(model, x, use_reentrant=False)
        F.cross_entropy(hidden, torch.zeros(2, dtype=torch.long)).backward()
        with trained.session.evaluating():
            model(x)
        optimizer.step()
    assert {layer.count for layer in trained.session.profiler.layers.values()} == {1}
    trained.session.stop()


def test_timing_changes_no_bit(tmp_path: Path) -> None:
    def train(watched: bool) -> list[torch.Tensor]:
        torch.manual_seed(3)
        model = torch.nn.Sequential(
            torch.nn.Linear(6, 8), torch.nn.Dropout(0.3), torch.nn.ReLU(inplace=True), torch.nn.Linear(8, 2)
        )
        optimizer = torch.optim.Adam(model.parameters())
        session = (
            stethoscope.watch(model, optimizer, dir=str(tmp_path), quiet=True, companion="off") if watched else None
        )
        for _ in range(18):
            optimizer.zero_grad()
            model(torch.randn(5, 6)).square().mean().backward()
            optimizer.step()
        if session is not None:
            assert session.profiler.layers["0"].count == 3
            session.stop()
        return [p.detach().clone() for p in model.parameters()]

    assert all(torch.equal(a, b) for a, b in zip(train(True), train(False), strict=True))


def test_parts_inside_a_part_are_counted_once(monkeypatch: Any) -> None:
    from stethoscope.capture import phases

    clock = _Clock()
    monkeypatch.setattr(phases, "time", types.SimpleNamespace(perf_counter=clock.perf_counter))
    ours = types.SimpleNamespace(spent=0.0)
    timed, scalars = Phases(ours), {}
    timed.begin("optimizer_ms")  # with a closure: the passes run inside the optimizer's step
    clock.now += 1.0
    timed.begin("forward_ms")
    clock.now += 10.0
    ours.spent += 4.0
    timed.end("forward_ms", scalars)
    clock.now += 2.0
    timed.end("optimizer_ms", scalars)
    timed.end("backward_ms", scalars)
    assert scalars == {"forward_ms": 6000.0, "optimizer_ms": 3000.0}


def test_an_animation_keeps_the_models_order(tmp_path: Path) -> None:
    class Net(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.stem, self.body, self.head = (torch.nn.Linear(4, 4) for _ in range(3))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.head(self.body(self.stem(x)))  # type: ignore[no-any-return]

    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    session = stethoscope.watch(model, optimizer, dir=str(tmp_path), quiet=True, companion="off")
    for _ in range(3):
        optimizer.zero_grad()
        model(torch.ones(2, 4)).sum().backward()
        optimizer.step()
    animator = session.animation()
    session.stop()
    names = [name for name, _ in model.named_parameters()]
    assert list(animator.grid(natural=True).labels) == names
    drawn = animator.to_ascii_animation().splitlines()[3:]
    assert [line.split()[0] for line in drawn] == names
