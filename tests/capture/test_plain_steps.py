"""What plain steps tell is what the Watcher's way tells of the same training, whatever the script does in between."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import nn

from stethoscope.capture.watcher import Watcher
from stethoscope.config import DebugConfig
from stethoscope.record import metrics

TIMES = {
    metrics.STEP_MS,
    metrics.OVERHEAD_MS,
    metrics.IDLE_MS,
    metrics.DATA_MS,
    metrics.LOADER_MS,
    metrics.FORWARD_MS,
    metrics.BACKWARD_MS,
    metrics.OPTIMIZER_MS,
}
ACCOUNTS = {
    metrics.LEDGER_BACKWARDS,
    metrics.LEDGER_LOOKED_AT,
    metrics.LEDGER_ARRIVED,
    metrics.LEDGER_KEPT,
    metrics.LEDGER_VANISHED,
    metrics.LEDGER_TOUCHED,
}
FIRST_STEP, NUM_STEPS = 64, 56


class Told:
    """A sink that keeps everything."""

    def __init__(self) -> None:
        self.numbers: dict[int, dict[str, float]] = {}
        self.tables: list[tuple[int, Any, Any]] = []
        self.events: list[tuple[int, Any]] = []

    def sites(self, infos: Any) -> None:
        pass

    def rows(self, step: int, index: Any, table: Any, calls: Any = None) -> None:
        self.tables.append((step, np.array(index), np.array(table)))

    def scalars(self, step: int, values: dict[str, float]) -> None:
        self.numbers.setdefault(step, {}).update(values)

    def scalars_of_steps(self, told: list[tuple[int, dict[str, float]]]) -> None:
        for step, values in told:
            self.scalars(step, values)

    def vectors(self, step: int, name: str, index: Any, values: Any) -> None:
        pass

    def tell(self, step: int, said: Any) -> None:
        self.events.append((step, said))


class Script:
    """A small training in which anything may happen at any step."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        self.model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 2))
        self.optimizer = torch.optim.Adam(self.model.parameters(), 1e-2)
        self.data = torch.randn(NUM_STEPS, 6, 4)
        self.kept: list[Any] = []

    def loss(self, step: int) -> torch.Tensor:
        return (self.model(self.data[step]) - 1).square().mean()

    def take(self, step: int, what: str, watcher: Watcher) -> None:
        model, optimizer = self.model, self.optimizer
        if what == "evaluate":
            model.eval()
            with torch.no_grad():
                model(self.data[0])
            model.train()
        elif what == "evaluate with us":
            watcher.evaluating = True
            watcher.evaluation_begins()
            self.loss(0)
            watcher.evaluating = False
            watcher.evaluation_ends()
        if what != "keep gradients":
            optimizer.zero_grad(set_to_none=what != "zero in place")
        if what == "closure":
            optimizer.step(lambda: self.closure(step))
            return
        if what == "forward twice":
            self.model(self.data[0])
        if what == "no forward":
            sum(p.square().sum() for p in model.parameters()).backward()
        elif what == "two backwards":
            (self.loss(step) / 2).backward()
            (self.loss(0) / 2).backward()
        elif what == "nan":
            (self.loss(step) * float("nan")).backward()
            optimizer.zero_grad()
            self.loss(step).backward()
        elif what == "outlier":
            (self.loss(step) * 1e6).backward()
        elif what == "forward alone":
            self.model(self.data[step])
            return
        elif what == "backward alone":
            self.loss(step).backward()
            return
        else:
            loss = self.loss(step)
            loss.backward(retain_graph=what == "retain")
            if what == "keep the graph":
                self.kept.append(loss)
        if what == "clip":
            nn.utils.clip_grad_norm_(model.parameters(), 0.1)
        elif what == "scale by hand":
            model[2].weight.grad *= 2
        elif what == "replace a gradient":
            model[0].weight.grad = torch.zeros_like(model[0].weight)
        elif what == "lose a gradient":
            model[2].bias.grad = None
        elif what == "ask a gradient":
            torch.autograd.grad(self.loss(step), [p for p in model.parameters() if p.requires_grad])
        elif what == "new rate":
            optimizer.param_groups[0]["lr"] *= 0.5
        elif what == "new optimizer":
            self.kept.append(optimizer)  # one that is gone may come to lie where it lay, and that is chance
            self.optimizer = optimizer = torch.optim.Adam(model.parameters(), 1e-2)
        elif what == "unfreeze":
            model[0].weight.requires_grad_(not model[0].weight.requires_grad)
        optimizer.step()
        if what == "step twice":
            optimizer.step()

    def closure(self, step: int) -> torch.Tensor:
        self.optimizer.zero_grad()
        loss = self.loss(step)
        loss.backward()
        return loss


WHAT = (
    "nothing", "evaluate", "evaluate with us", "keep gradients", "zero in place", "closure", "forward twice", "no forward",
    "two backwards", "nan", "outlier", "forward alone", "backward alone", "retain", "keep the graph", "clip", "scale by hand",
    "replace a gradient", "lose a gradient", "ask a gradient", "new rate", "new optimizer", "unfreeze", "step twice",
)  # fmt: skip


CLEARS_OTHERWISE = ("keep gradients", "zero in place")


def told(happenings: dict[int, str], *, plainly: bool, trusts: bool) -> tuple[Told, int, list[torch.Tensor]]:
    """What a watched training tells; how many of its steps were plain; its weights at the end."""
    script, sink = Script(), Told()
    watcher = Watcher(script.model, [script.optimizer], DebugConfig(graph=False), sink, first_step=FIRST_STEP)
    schedule = watcher.schedule
    schedule.shift.update(gradients=1, boundary=3, modules=4, batches=6)
    schedule._num_seen, schedule._review = 1000, lambda: False  # costs must not choose what is looked at
    watcher.plain.is_allowed = plainly
    if trusts:
        watcher.registry.ledgers[0].num_fresh = 100  # as after many steps
    num_plain, close = 0, watcher.plain._close

    def counted(*args: Any) -> None:
        nonlocal num_plain
        num_plain += 1
        close(*args)

    watcher.plain._close = counted
    watcher.start()
    for step in range(NUM_STEPS):
        script.take(step, happenings.get(step, "nothing"), watcher)
    watcher.stop()
    assert not watcher.guard.errors, watcher.guard.last_traceback
    return sink, num_plain, [p.detach().clone() for p in script.model.parameters()]


def assert_told_alike(happenings: dict[int, str], *, trusts: bool = True) -> int:
    plain, num_plain, weights = told(happenings, plainly=True, trusts=trusts)
    other, none, same_weights = told(happenings, plainly=False, trusts=trusts)
    assert none == 0
    assert all(torch.equal(a, b) for a, b in zip(weights, same_weights, strict=True))
    assert plain.numbers.keys() == other.numbers.keys()
    num_uncounted = sum(what in CLEARS_OTHERWISE for what in happenings.values())
    for step, numbers in plain.numbers.items():
        expected = other.numbers[step]
        if numbers.keys().isdisjoint(ACCOUNTS) and num_uncounted:
            num_uncounted -= 1
            expected = {name: value for name, value in expected.items() if name not in ACCOUNTS}  # not known, not said
        assert numbers.keys() == expected.keys(), (step, numbers.keys() ^ expected.keys())
        for name in numbers.keys() - TIMES:
            assert np.array_equal(numbers[name], expected[name], equal_nan=True), (step, name)
        for name in numbers.keys() & TIMES:
            assert numbers[name] >= 0, (step, name)
    assert len(plain.tables) == len(other.tables)
    for mine, theirs in zip(plain.tables, other.tables, strict=True):
        assert mine[0] == theirs[0]
        assert np.array_equal(mine[1], theirs[1])
        assert np.array_equal(mine[2], theirs[2], equal_nan=True)
    # Some are told by a thread, when their numbers have come.
    assert sorted(map(_in_words, plain.events)) == sorted(map(_in_words, other.events))
    return num_plain


def _in_words(told: tuple[int, Any]) -> str:
    step, said = told
    return f"{step} {type(said).__name__} {dataclasses.asdict(said)}"  # NaN is not equal to NaN


def test_most_steps_are_plain_and_tell_the_same() -> None:
    assert assert_told_alike({}) >= NUM_STEPS // 2


def test_a_new_optimizer_for_every_step_ends_every_step() -> None:
    found, _, _ = told(dict.fromkeys(range(NUM_STEPS), "new optimizer"), plainly=True, trusts=False)
    assert len(found.numbers) == NUM_STEPS


@pytest.mark.parametrize("what", WHAT)
@pytest.mark.parametrize("trusts", [True, False])
@pytest.mark.parametrize("when", [range(27, 28), range(21, 40), range(NUM_STEPS)])
def test_what_a_script_does_is_told_alike(what: str, when: range, trusts: bool) -> None:
    assert_told_alike(dict.fromkeys(when, what), trusts=trusts)


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.dictionaries(st.integers(1, NUM_STEPS - 1), st.sampled_from(WHAT), max_size=12), st.booleans())
def test_any_mixture_is_told_alike(happenings: dict[int, str], trusts: bool) -> None:
    assert_told_alike(happenings, trusts=trusts)
