"""Profiler: timers on a clock that the test holds, and the eight kinds of bottleneck."""

from __future__ import annotations

import threading
from datetime import timedelta

import pytest

from stethoscope.instruments.bottlenecks import BottleneckType
from stethoscope.instruments.profiler import Profiler, TimerError
from stethoscope.record import StethoscopeError


class Clock:
    def __init__(self):
        self.now = 100.0

    def __call__(self):
        return self.now

    def pass_time(self, seconds):
        self.now += seconds


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def profiler(clock):
    return Profiler(clock=clock)


def test_a_timer_gives_its_duration(profiler, clock):
    profiler.start_timer("layer_forward")
    clock.pass_time(0.25)
    assert profiler.end_timer("layer_forward") == pytest.approx(0.25)
    with pytest.raises(TimerError, match="layer_forward"):
        profiler.end_timer("layer_forward")


def test_nested_timers_know_their_own_time(profiler, clock):
    with profiler.timer("step"):
        clock.pass_time(0.1)
        with profiler.timer("forward"):
            clock.pass_time(0.2)
            with profiler.timer("attention"):
                clock.pass_time(0.3)
        clock.pass_time(0.05)
    totals = {entry.name: entry for entry in profiler.totals.values()}
    assert totals["step"].total_s == pytest.approx(0.65)
    assert totals["step"].self_s == pytest.approx(0.15)
    assert totals["forward"].self_s == pytest.approx(0.2)
    assert totals["attention"].self_s == pytest.approx(0.3)
    assert [event.path for event in profiler.events] == ["step/forward/attention", "step/forward", "step"]
    assert [entry.name for entry in profiler.slowest(2)] == ["attention", "forward"]


def test_the_same_timer_may_run_inside_itself(profiler, clock):
    @profiler.timed("recurse")
    def recurse(depth):
        clock.pass_time(1.0)
        return recurse(depth - 1) if depth else "done"

    assert recurse(2) == "done"
    (totals,) = profiler.totals.values()
    assert (totals.count, totals.self_s, totals.longest_s) == (3, pytest.approx(3.0), pytest.approx(3.0))


def test_a_timer_ends_where_its_body_raises(profiler, clock):
    def broken():
        with profiler.timer("broken"):
            clock.pass_time(0.5)
            raise ValueError("mine")

    with pytest.raises(ValueError, match="mine"):
        broken()
    assert profiler.totals["broken", "operation"].total_s == pytest.approx(0.5)


def test_threads_have_timers_of_their_own(profiler):
    profiler.start_timer("main")
    caught = []

    def other():
        try:
            profiler.end_timer("main")
        except TimerError as error:
            caught.append(error)

    thread = threading.Thread(target=other)
    thread.start()
    thread.join()
    assert len(caught) == 1
    assert profiler.end_timer("main") == 0.0


def test_layer_executions_add_up(profiler):
    profiler.record_layer_execution("block_0", "TransformerBlock", 0.010, 0.020, 1024, 5000)
    profiler.record_layer_execution("block_0", "TransformerBlock", timedelta(milliseconds=30), None, 2048, 5000)
    layer = profiler.layers["block_0"]
    assert layer.mean_forward_s == pytest.approx(0.020)
    assert layer.mean_backward_s == pytest.approx(0.020)
    assert (layer.count, layer.peak_memory_bytes, layer.parameter_count) == (2, 2048, 5000)
    assert profiler.bottlenecks() == []


@pytest.mark.parametrize(
    ("forward", "backward", "expected"),
    [
        (0.100, 0.100, []),
        (0.101, 0.100, [("ModelComputation", "Medium")]),
        (0.501, None, [("ModelComputation", "High")]),
        (0.001, 0.300, [("GradientComputation", "Medium")]),
        (0.200, 0.600, [("GradientComputation", "High"), ("ModelComputation", "Medium")]),
    ],
)
def test_slow_layers(profiler, forward, backward, expected):
    profiler.record_layer_execution("block", "Block", forward, backward, 0, 0)
    assert [(b.type, b.severity) for b in profiler.bottlenecks()] == expected


@pytest.mark.parametrize(
    ("category", "kind"),
    [
        ("operation", "CpuBound"),
        ("cpu", "CpuBound"),
        ("gpu", "GpuBound"),
        ("memory", "MemoryBound"),
        ("io", "IoBound"),
        ("network", "NetworkBound"),
        ("data_loading", "DataLoading"),
        ("forward", "ModelComputation"),
        ("backward", "GradientComputation"),
    ],
)
def test_slow_operations_by_category(profiler, category, kind):
    profiler.record_event("quick", 0.009, category)
    assert profiler.bottlenecks() == []
    profiler.record_event("slow", 0.011, category)
    profiler.record_event("very slow", 0.051, category)
    found = [(b.location, b.type, b.severity) for b in profiler.bottlenecks() if b.location != "quick"]
    assert ("very slow", kind, "High") in found
    assert "slow" in [location for location, _, _ in found]
    assert profiler.suggestions()


def test_a_loader_that_takes_a_fifth_of_the_time_is_named_at_any_speed(profiler):
    for _ in range(100):
        profiler.record_event("next(loader)", 0.003, "data_loading")
        profiler.record_event("compute", 0.005, "gpu")
    (found,) = profiler.bottlenecks()
    assert (found.type, found.severity) == (BottleneckType.DATA_LOADING, "Medium")
    assert "38%" in found.message
    assert "num_workers" in profiler.suggestions()[0]


def test_memory_nearly_full(profiler):
    profiler.record_memory(80, 100)
    assert profiler.bottlenecks() == []
    profiler.record_memory(95)
    (found,) = profiler.bottlenecks()
    assert (found.type, found.severity) == ("MemoryBound", "Medium")
    assert {str(kind) for kind in BottleneckType} == {
        "CpuBound",
        "MemoryBound",
        "IoBound",
        "GpuBound",
        "NetworkBound",
        "DataLoading",
        "ModelComputation",
        "GradientComputation",
    }


def test_events_are_bounded_and_totals_are_not_lost(clock):
    profiler = Profiler(clock=clock, max_events=3)
    for _ in range(10):
        profiler.record_event("x", 0.001)
    assert len(profiler.events) == 3
    assert profiler.totals["x", "operation"].count == 10
    profiler.clear()
    assert not profiler.totals


@pytest.mark.parametrize("bad", [-1.0, float("nan"), float("inf")])
def test_what_is_no_duration_is_refused(profiler, bad):
    with pytest.raises(StethoscopeError):
        profiler.record_event("x", bad)
