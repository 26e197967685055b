"""What waits to be measured together is measured as it was when it was seen, or not at all."""

from __future__ import annotations

import gc
import weakref
from pathlib import Path

import numpy as np
import pytest
import torch

import stethoscope
from stethoscope.capture import collecting
from stethoscope.capture.collecting import CLEAN_LOOKS, Collector
from stethoscope.capture.ring import MeasuredGroup
from stethoscope.capture.schedule import Schedule
from stethoscope.config import DebugConfig
from stethoscope.kernels import Extras, measure


def collected() -> tuple[Collector, list[MeasuredGroup]]:
    found: list[MeasuredGroup] = []
    return Collector(found.append), found


def learn(collector: Collector, positions: list[int]) -> None:
    for _ in range(CLEAN_LOOKS):
        for position in positions:
            collector.add(position, torch.ones(3))
        collector.flush()


def rows_of(batches: list[MeasuredGroup]) -> dict[int, np.ndarray]:
    return {int(i): row for batch in batches for i, row in zip(batch.index, batch.table(), strict=True)}


def test_many_wait_and_are_measured_in_one_call() -> None:
    collector, found = collected()
    learn(collector, [0, 1, 2])
    found.clear()
    tensors = [torch.randn(5, 7) for _ in range(3)]
    for position, tensor in enumerate(tensors):
        collector.add(position, tensor)
    assert found == []
    collector.flush()
    assert len(found) == 1
    np.testing.assert_array_equal(found[0].table(), measure(tensors))


def test_a_tensor_changed_while_it_waits_is_never_recorded_wrong() -> None:
    collector, found = collected()
    learn(collector, [0, 1])
    found.clear()
    kept, changed = torch.randn(9), torch.randn(9)
    collector.add(0, kept)
    collector.add(1, changed)
    changed.mul_(2)
    collector.flush()
    assert list(rows_of(found)) == [0]
    assert collector.num_lost == 1
    found.clear()
    before = measure([changed])[0]
    collector.add(1, changed)  # from now on at once
    changed.mul_(2)
    collector.flush()
    np.testing.assert_array_equal(rows_of(found)[1], before)
    assert collector.num_lost == 1


def test_a_site_that_is_changed_in_place_is_found_out_before_it_ever_waits() -> None:
    collector, found = collected()
    for _ in range(4):
        tensor = torch.randn(6)
        truth = measure([tensor])[0]
        found.clear()
        collector.add(0, tensor)
        tensor.relu_()
        collector.flush()
        np.testing.assert_array_equal(rows_of(found)[0], truth)
    assert collector.num_lost == 0


def test_on_a_device_new_sites_wait_too_and_one_that_is_changed_loses_a_row(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(collecting, "_clean_at_first", lambda tensor: CLEAN_LOOKS)
    collector, found = collected()
    truths = []
    for look in range(3):
        left_alone, changed = torch.randn(6), torch.randn(7)
        truths.append(measure([left_alone, changed]))
        collector.add(0, left_alone)
        collector.add(1, changed)
        changed.relu_()
        collector.flush()
        expected = {0} if look == 0 else {0, 1}
        rows = rows_of(found)
        assert set(rows) == expected
        for site in expected:
            np.testing.assert_array_equal(rows[site], truths[look][site])
        found.clear()
    assert collector.num_lost == 1


def test_the_same_tensor_twice_is_measured_once_and_told_twice() -> None:
    collector, found = collected()
    learn(collector, [0, 1, 2])
    found.clear()
    collector.extras = Extras(histogram=True, sketch=True)
    tensor, other = torch.randn(8), torch.randn(4)
    collector.add(0, tensor.detach())
    collector.add(1, tensor.detach())
    collector.add(2, other)
    collector.flush()
    rows, measured = rows_of(found), found[0].measured()
    np.testing.assert_array_equal(rows[0], rows[1])
    np.testing.assert_array_equal(rows[2], measure([other])[0])
    assert measured.histograms is not None
    assert measured.histograms.shape[0] == 3


def test_twins_of_a_changed_tensor_are_lost_with_it() -> None:
    collector, found = collected()
    learn(collector, [0, 1, 2])
    found.clear()
    tensor, other = torch.randn(8), torch.randn(4)
    collector.add(0, tensor.detach())
    collector.add(1, tensor.detach())
    collector.add(2, other)
    tensor.zero_()
    collector.flush()
    assert list(rows_of(found)) == [2]
    assert collector.num_lost == 2


def governed(*, behind: bool) -> Schedule:
    schedule = Schedule(DebugConfig(histogram_every=0))
    for step in range(1, 65):
        schedule.costs.behind = behind
        schedule.step_cost(step, {"gradients": 0.4, "ledger": 0.1, "boundary": 3.0, "modules": 9.0})
        schedule.step_cost_on_device(step, {"gradients": 0.2, "boundary": 0.4, "modules": 8.0})
        schedule.step_took(100.0)
    return schedule


def test_the_governor_counts_the_device_where_it_is_the_slower_one() -> None:
    hidden, waiting = governed(behind=True), governed(behind=False)
    assert hidden.shift["boundary"] == 0  # 0.2 + 0.4 ms of 1 ms
    assert hidden.shift["modules"] > 3
    assert waiting.shift["boundary"] > 0  # the host's 3.4 ms count too
    assert waiting.shift["modules"] >= hidden.shift["modules"]


def test_histograms_give_way_by_what_they_add() -> None:
    schedule = Schedule(DebugConfig(histogram_every=10))
    for step in range(1, 200):
        extra = 500.0 if schedule.histogram_due(step) else 0.0
        schedule.step_cost(step, {"gradients": 0.1 + extra, "ledger": 0.0, "boundary": 0.1, "modules": 0.1})
        schedule.step_took(100.0)
    assert schedule.periods()["histograms"] >= 320
    assert schedule.shift["boundary"] == 0


def test_one_look_that_was_held_up_puts_off_no_other() -> None:
    schedule = Schedule(DebugConfig(histogram_every=0))
    looked = []
    for step in range(1, 129):
        is_due = not looked or step - looked[-1] >= schedule.units_every()
        if is_due:
            looked.append(step)
        units = {"units": 200.0 if len(looked) == 2 else 0.5} if is_due else {}
        schedule.step_cost(step, {"gradients": 0.1, "ledger": 0.0, "boundary": 0.1, "modules": 0.1, **units})
        schedule.step_took(20.0)
    assert len(looked) >= 12
    assert schedule.periods()["units"] == 8


def test_a_model_that_is_called_and_never_stepped_keeps_nothing_alive(tmp_path: Path) -> None:
    """Inference with gradients on, or a loss that is cut off: no output and no graph may live on because of us."""
    model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    outputs: list[weakref.ref[torch.Tensor]] = []
    for module in model.modules():
        module.register_forward_hook(lambda _, __, output: outputs.append(weakref.ref(output)))
    session = stethoscope.watch(model, optimizer, dir=str(tmp_path), quiet=True, companion="off", every=1)
    for _ in range(200):
        model(torch.randn(6, 4))
    gc.collect()
    assert sum(output() is not None for output in outputs) <= 4  # of the last call
    assert len(session._watcher.assembly.rows.batches) < 500
    for _ in range(5):
        torch.tensor(model(torch.randn(6, 4)).sum().item(), requires_grad=True).backward()
        optimizer.step()
    gc.collect()
    assert sum(output() is not None for output in outputs) <= 4
    session.stop()
    assert sum(session._watcher.guard.errors.values()) == 0


@pytest.mark.parametrize(("cost_ms", "every"), [(0.8, 1), (3.0, 4)])
def test_gradients_are_looked_at_less_often_only_where_they_alone_pass_the_budget(cost_ms: float, every: int) -> None:
    schedule = Schedule(DebugConfig(overhead=0.01, overhead_floor_ms=0.0))
    for step in range(64):
        schedule.step_cost(step, {"gradients": cost_ms, "ledger": 0.1})
        schedule.step_took(100.0)
    assert [step for step in range(16) if schedule.due("gradients", step)] == list(range(0, 16, every))
    assert schedule.plan(1).gradients is (every == 1)


def test_no_budget_at_all_looks_as_rarely_as_can_be() -> None:
    schedule = Schedule(DebugConfig(overhead=0.0, overhead_floor_ms=0.0))
    for step in range(64):
        schedule.step_cost(step, {"gradients": 1.0, "boundary": 1.0})
        schedule.step_took(100.0)
    assert not any(schedule.due(part, 1) for part in ("gradients", "boundary"))
