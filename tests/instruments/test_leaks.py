"""The planted leak is found with its line; clean loops are silent."""

from __future__ import annotations

import collections
import inspect as python_inspect

import numpy as np
import pytest
import torch

from stethoscope.instruments.inspector import TensorInspector
from stethoscope.instruments.leaks import LeakDetector
from stethoscope.record import Severity


class Loop:
    """A small training loop whose one extra line is the test."""

    def __init__(self, extra):
        torch.manual_seed(0)
        self.model = torch.nn.Sequential(torch.nn.Linear(32, 64), torch.nn.Dropout(0.1), torch.nn.Linear(64, 8))
        self.optimizer = torch.optim.Adam(self.model.parameters())
        self.detector = LeakDetector()
        self.extra = extra

    def run(self, num_steps=15):
        for _ in range(num_steps):
            with self.detector.step():
                self.optimizer.zero_grad()
                out = self.model(torch.randn(64, 32))
                loss = out.square().mean()
                loss.backward()
                self.optimizer.step()
                self.extra(out, loss)
        return self.detector.leaks()


def line_of(function, text):
    lines, first = python_inspect.getsourcelines(function)
    return first + next(i for i, line in enumerate(lines) if text in line)


def test_a_planted_leak_is_found_with_its_line():
    kept = []

    def extra(out, loss):
        kept.append(out.detach() * 2)  # the leak

    (leak,) = Loop(extra).run()
    assert leak.file == __file__
    assert leak.line == line_of(extra, "the leak")
    assert leak.function == "extra"
    assert leak.bytes_per_step == 64 * 8 * 4
    assert leak.num_alive == 14
    assert leak.severity == Severity.WARNING
    assert leak.held_by == "a list of 15"
    assert "kept.append" in leak.source


def test_a_graph_kept_by_a_metric_is_found():
    kept = []
    model = torch.nn.Sequential(torch.nn.Linear(32, 64), torch.nn.Tanh(), torch.nn.Linear(64, 8))

    def extra(out, loss):
        kept.append(model(torch.ones(64, 32)).sum())  # no detach

    leaks = Loop(extra).run()
    assert {leak.line for leak in leaks} == {line_of(extra, "no detach")}
    assert sum(leak.bytes_per_step for leak in leaks) > 64 * 64 * 4


@pytest.mark.parametrize("kind", ["nothing", "ring", "latest", "average", "now and then", "running sum"])
def test_a_clean_loop_is_silent(kind):
    ring = collections.deque(maxlen=3)
    state = {"average": torch.zeros(64, 8), "sum": torch.zeros(()), "kept": [], "step": 0}

    def extra(out, loss):
        if kind == "ring":
            ring.append(out.detach() * 2)
        if kind == "latest":
            state["out"] = out.detach().clone()
        if kind == "average":
            state["average"] = 0.9 * state["average"] + 0.1 * out.detach()
        if kind == "running sum":
            state["sum"] = state["sum"] + loss.detach()
        state["step"] += 1
        if kind == "now and then" and state["step"] % 4 == 0:
            state["kept"].append(out.detach().clone())

    assert Loop(extra).run() == []


def test_what_cannot_be_watched_never_reaches_training(monkeypatch):
    def broken(self, tensor, frame):
        raise RuntimeError("ours")

    monkeypatch.setattr(LeakDetector, "saw", broken)
    loop = Loop(lambda out, loss: None)
    assert loop.run(3) == []
    assert loop.detector.num_unwatched > 0


def test_gradients_that_accumulate_over_steps_are_no_leak():
    model, detector = torch.nn.Linear(50, 50), LeakDetector()
    for step in range(24):
        with detector.step():
            model(torch.randn(4, 50)).sum().backward()
            if step % 6 == 5:
                model.zero_grad()
    assert detector.leaks() == []


def test_too_few_steps_say_nothing():
    kept = []
    assert Loop(lambda out, loss: kept.append(out.detach() * 2)).run(num_steps=4) == []


def test_watching_changes_no_number():
    def losses(watched):
        loop = Loop(lambda out, loss: seen.append(loss.item()))
        seen: list[float] = []
        loop.extra = lambda out, loss: seen.append(loss.item())
        if not watched:
            loop.detector.begin_step = lambda number=None: None
        loop.run(5)
        return seen

    assert losses(True) == losses(False)


def test_arrays_of_others_can_be_tracked_by_hand():
    detector, kept = LeakDetector(), []
    for _ in range(10):
        with detector.step():
            array = np.ones(1000)
            detector.track(array)
            kept.append(array)
    (leak,) = detector.leaks()
    assert leak.bytes_per_step == 8000


def test_a_loss_kept_with_its_graph_is_a_warning_however_small():
    kept = []
    leaks = Loop(lambda out, loss: kept.append(loss)).run()
    (leak,) = [leak for leak in leaks if leak.keeps_graph]
    assert "loss = out.square().mean()" in leak.source
    assert leak.severity == Severity.WARNING
    assert "with its autograd graph" in str(leak)


def test_a_compiled_step_can_be_watched():
    detector, kept = LeakDetector(), []
    step = torch.compile(lambda x: (x * 2).relu(), backend="eager")
    for _ in range(8):
        with detector.step():
            kept.append(step(torch.randn(300)))
    assert [leak.bytes_per_step for leak in detector.leaks()] == [1200.0]


def test_the_inspector_carries_a_detector():
    inspector, kept = TensorInspector(), []
    for _ in range(8):
        with inspector.leak_detector.step():
            kept.append(torch.zeros(1000))
    assert len(inspector.detect_leaks()) == 1
    inspector.clear()
    assert inspector.detect_leaks() == []


def test_small_leftovers_are_only_info():
    kept = []
    (leak,) = Loop(lambda out, loss: kept.append(loss.detach() + 0)).run()
    assert leak.severity == Severity.INFO
