"""Faults as others write them: the same mechanism by another road, found in the right place, and its healthy twin silent."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

import stethoscope
from stethoscope.detect.loss_course import LossCourse
from stethoscope.record import Finding
from stethoscope.session import DebugSession
from tests.detect.trainings import Net, batches, train, watch
from tests.detect.written import codes, find, write_run


@pytest.fixture(autouse=True)
def seeded() -> None:
    torch.manual_seed(0)


def causes(session: DebugSession) -> list[Finding]:
    assert sum(session._watcher.guard.errors.values()) == 0, session._watcher.guard.last_traceback
    assert repr(find(session.run, 9)) == repr(find(session.run)), "findings depend on how the run is cut"
    return list(session.diagnosis.causes)


def loop(model: nn.Module, optimizer: Any, folder: Path, step: Callable[..., Any], num: int = 60) -> list[Finding]:
    session = watch(model, optimizer, folder)
    for number, (x, y) in enumerate(batches(num)):
        step(number, x, y)
    session.stop()
    return causes(session)


@pytest.mark.parametrize("cleared", ["some", "all"])
def test_gradients_of_a_part_that_nobody_clears(tmp_path: Path, cleared: str) -> None:
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)

    def step(_: int, x: torch.Tensor, y: torch.Tensor) -> None:
        for part in (model.body, model.head) if cleared == "some" else (model,):
            part.zero_grad()
        F.cross_entropy(model(x), y).backward()
        optimizer.step()

    found = loop(model, optimizer, tmp_path, step)
    assert [f.code for f in found] == (["gradients_not_cleared"] if cleared == "some" else [])
    assert not found or found[0].sites == ("mid.weight", "mid.bias")


@pytest.mark.parametrize("handed_over", [True, False])
def test_a_layer_that_is_replaced_in_the_middle(tmp_path: Path, handed_over: bool) -> None:
    model = Net()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)

    def step(number: int, x: torch.Tensor, y: torch.Tensor) -> None:
        if number == 40:
            model.head = nn.Linear(32, 3)
            if handed_over:
                optimizer.param_groups[0]["params"] = list(model.parameters())
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        optimizer.step()

    found = loop(model, optimizer, tmp_path, step, 100)
    assert [f.code for f in found] == ([] if handed_over else ["optimizer_params_not_in_model"])
    assert not found or (found[0].first_step, set(found[0].sites)) == (40, {"head.weight", "head.bias"})


@pytest.mark.parametrize("until", [0, 12, 1000])
def test_weights_that_are_put_back_after_every_step(tmp_path: Path, until: int) -> None:
    model = Net()
    kept = model.mid.weight.detach().clone()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)

    def step(number: int, x: torch.Tensor, y: torch.Tensor) -> None:
        if number < until:
            model.mid.weight.data.copy_(kept)
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        optimizer.step()

    found = loop(model, optimizer, tmp_path, step)
    assert [(f.code, f.sites, f.first_step) for f in found] == (
        [("silent_no_update", ("mid.weight",), 0)] if until == 1000 else []
    )


@pytest.mark.parametrize(
    ("trained", "handed", "is_told"), [(False, True, True), (True, True, False), (False, False, False)]
)
def test_a_frozen_layer_that_was_never_trained(tmp_path: Path, trained: bool, handed: bool, is_told: bool) -> None:
    """Random features on purpose are given to no optimizer, and what was trained before no longer looks as initialized."""
    model = nn.Sequential(nn.Linear(10, 64), nn.ReLU(), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 3))
    if trained:
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.add_(0.05 * torch.randn_like(parameter))
    model[0].requires_grad_(False)
    model[2].requires_grad_(False)
    optimizer = torch.optim.Adam(model.parameters() if handed else model[4].parameters(), lr=0.01)
    data = torch.randn(60, 32, 10)

    def step(number: int, _: torch.Tensor, __: torch.Tensor) -> None:
        x = data[number]
        optimizer.zero_grad()
        F.cross_entropy(model(x), x[:, :3].argmax(1)).backward()
        optimizer.step()

    found = loop(model, optimizer, tmp_path, step)
    told = [f.sites for f in found if f.code == "frozen_params"]
    assert told == ([("0.weight", "2.weight")] if is_told else [])


def test_layers_that_are_trained_one_after_another(tmp_path: Path) -> None:
    """As in Forward-Forward: when the second layer's turn comes, the loss is another one and may begin anywhere."""
    model = nn.Sequential(nn.Linear(10, 32), nn.Linear(32, 3))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(0.1)  # so that each step changes much of them
    optimizers = [torch.optim.Adam(layer.parameters(), lr=0.02) for layer in model]
    session = watch(model, optimizers, tmp_path)
    for step, (x, _) in enumerate(batches(90)):
        layer = step // 45
        out = model(x) if layer else model[0](x)
        loss = (0.5 + (out.square().mean() - 1.0).square()) * 10.0 ** (3 * layer)
        optimizers[layer].zero_grad()
        loss.backward()
        optimizers[layer].step()
    session.stop()
    assert "update_too_large" not in {f.code for f in causes(session)}


def test_weights_that_a_clamp_holds_at_its_limit(tmp_path: Path) -> None:
    """A critic's weights are clipped after each step, and in time all of a layer lie at the limit: that is the method."""
    model = Net()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.uniform_(-0.008, 0.008)
    optimizer = torch.optim.RMSprop(model.parameters(), lr=5e-4)

    def step(number: int, x: torch.Tensor, y: torch.Tensor) -> None:
        optimizer.zero_grad()
        model(x.abs())[:, 0].mean().neg().backward()
        optimizer.step()
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.clamp_(-0.01, 0.01)

    found = loop(model, optimizer, tmp_path, step, num=90)
    assert "silent_no_update" not in {f.code for f in found}


@pytest.mark.parametrize(("rate", "is_lost"), [(3e-5, True), (3e-3, False)])
def test_most_of_every_step_is_rounded_away(tmp_path: Path, rate: float, is_lost: bool) -> None:
    model = Net().bfloat16()
    optimizer = torch.optim.AdamW(model.parameters(), lr=rate, weight_decay=0)

    def step(_: int, x: torch.Tensor, y: torch.Tensor) -> None:
        optimizer.zero_grad()
        F.cross_entropy(model(x.bfloat16()).float(), y).backward()
        optimizer.step()

    found = loop(model, optimizer, tmp_path, step)
    assert [f.code for f in found] == (["update_below_precision"] if is_lost else [])


class Branched(nn.Module):
    """A branch that has a say now and then."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.side, self.head = nn.Linear(10, 32), nn.Linear(32, 32), nn.Linear(32, 3)

    def forward(self, x: torch.Tensor, weight: float) -> torch.Tensor:
        hidden = torch.tanh(self.body(x))
        return self.head(hidden + weight * self.side(hidden))


@pytest.mark.parametrize(("every", "is_dead"), [(50, False), (1000, True)])
def test_a_branch_that_is_used_now_and_then_is_not_dead(tmp_path: Path, every: int, is_dead: bool) -> None:
    model = Branched()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)

    def step(number: int, x: torch.Tensor, y: torch.Tensor) -> None:
        optimizer.zero_grad()
        F.cross_entropy(model(x, float(number % every == every - 1)), y).backward()
        optimizer.step()

    found = loop(model, optimizer, tmp_path, step, 190)
    assert [f.code for f in found] == (["dead_units"] if is_dead else [])


class Recurrent(nn.Module):
    """Hidden units that live for one step: the next one's input is nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.cell, self.head = nn.RNNCell(10, 32, nonlinearity="relu"), nn.Linear(32, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.cell(x, torch.zeros(len(x), 32)))


def test_units_of_a_recurrence_that_had_no_past_are_not_dead(tmp_path: Path) -> None:
    model = Recurrent()
    assert causes(train(model, torch.optim.Adam(model.parameters(), lr=0.01), tmp_path, num_steps=80)) == []


def test_a_gradient_that_is_lost_behind_a_normalization(tmp_path: Path) -> None:
    model = nn.Sequential(nn.Linear(10, 32), nn.LayerNorm(32), nn.ReLU(), nn.Linear(32, 3))
    nn.init.constant_(model[1].bias, -8.0)
    found = causes(train(model, torch.optim.SGD(model.parameters(), lr=0.05), tmp_path, num_steps=60))
    assert (found[0].code, found[0].sites[:2]) == ("dead_units", ("1", "0"))


def test_a_branch_that_was_used_and_is_so_no_more_is_dead(tmp_path: Path) -> None:
    model = Branched()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)

    def step(number: int, x: torch.Tensor, y: torch.Tensor) -> None:
        optimizer.zero_grad()
        F.cross_entropy(model(x, float(number < 60 and number % 2)), y).backward()
        optimizer.step()

    assert [f.code for f in loop(model, optimizer, tmp_path, step, 190)] == ["dead_units"]


@pytest.mark.parametrize("scaled", [False, True])
def test_every_gradient_is_lost_in_float16(tmp_path: Path, scaled: bool) -> None:
    model = Net()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**24, enabled=scaled)

    def step(_: int, x: torch.Tensor, y: torch.Tensor) -> None:
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype=torch.float16):
            out = model(x)
        scaler.scale(F.cross_entropy(out.float(), y) * 1e-6).backward()
        scaler.step(optimizer)
        scaler.update()

    found = loop(model, optimizer, tmp_path, step)
    assert ([f.code for f in found][:1] == ["precision_underflow"]) is not scaled
    assert "dead_units" not in [f.code for f in found]


@pytest.mark.parametrize(("limit", "is_told"), [(1e-7, True), (1.0, False)])
def test_clipping_by_value_that_leaves_only_signs(tmp_path: Path, limit: float, is_told: bool) -> None:
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    clip = lambda _step: torch.nn.utils.clip_grad_value_(model.parameters(), limit)  # noqa: E731
    found = causes(train(model, optimizer, tmp_path, num_steps=60, before_step=clip))
    assert ("clipping_always_on" in [f.code for f in found]) is is_told
    assert is_told or not found


def test_one_step_that_leaves_nothing_of_the_weights(tmp_path: Path) -> None:
    model = Net()
    lose = lambda out, y: F.cross_entropy(out, y) + (out**8).mean()  # noqa: E731
    found = causes(train(model, torch.optim.SGD(model.parameters(), lr=1e9), tmp_path, lose=lose))
    assert (found[0].code, found[0].first_step) == ("update_too_large", 0)
    assert len(found) == 1, "what is not finite follows from it"


@pytest.mark.parametrize("again", [1, 4])
def test_few_batches_that_come_several_times_in_a_row(tmp_path: Path, again: int) -> None:
    model = Net()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    session = watch(model, optimizer, tmp_path)
    drawn = list(batches(4))
    for number in range(80):
        x, y = drawn[number // again % 4]
        session.log_batch(x.clone(), y)
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        optimizer.step()
    session.stop()
    assert [f.code for f in causes(session)] == (["duplicate_batches"] if again > 1 else [])


@pytest.mark.parametrize(("accuracy", "is_told"), [((0.75, 0.2), True), ((0.75, 0.72), False), ((0.2, 0.75), False)])
def test_a_loss_near_its_floor_and_a_metric_that_is_lost(
    tmp_path: Path, accuracy: tuple[float, float], is_told: bool
) -> None:
    draw = np.random.default_rng(0)
    losses = 2.0 + 0.02 * np.exp(-0.02 * np.arange(300)) + 1e-4 * draw.standard_normal(300)
    held = np.linspace(*accuracy, 20)
    curves = {
        "loss": dict(enumerate(losses.tolist())),
        "eval/accuracy": {15 * (n + 1) - 1: float(value) for n, value in enumerate(held)},
    }
    assert ("loss_metric_disagree" in codes(find(write_run(tmp_path, curves)))) is is_told


def test_a_loss_that_only_sways_tells_nothing_about_a_metric(tmp_path: Path) -> None:
    losses = 2.0 + 0.01 * np.random.default_rng(0).standard_normal(300)
    curves = {
        "loss": dict(enumerate(losses.tolist())),
        "eval/accuracy": {15 * (n + 1) - 1: float(value) for n, value in enumerate(np.linspace(0.75, 0.4, 20))},
    }
    assert "loss_metric_disagree" not in codes(find(write_run(tmp_path, curves)))


class TwoHeads(nn.Module):
    """A mean and a spread; the mean is cut off at zero."""

    def __init__(self, *, cut: bool) -> None:
        super().__init__()
        self.body, self.mean, self.spread, self.cut = nn.Linear(10, 32), nn.Linear(32, 1), nn.Linear(32, 1), cut

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        hidden = torch.tanh(self.body(x))
        mean = self.mean(hidden)
        return mean.clamp(min=0) if self.cut else mean, self.spread(hidden)


@pytest.mark.parametrize("cut", [True, False])
def test_an_output_that_is_cut_off_before_a_loss_that_was_written_out(tmp_path: Path, cut: bool) -> None:
    model = TwoHeads(cut=cut)
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)

    def step(_: int, x: torch.Tensor, y: torch.Tensor) -> None:
        mean, spread = model(x)
        target = x.sum(1, keepdim=True) / 3
        loss = ((target - mean).square() * torch.exp(-spread) + spread).mean() / 2
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    found = loop(model, optimizer, tmp_path, step)
    assert [(f.code, f.sites) for f in found] == ([("output_clipped", ("mean",))] if cut else [])


@pytest.mark.parametrize(("rate", "factor", "is_told"), [(0.1, 1.0, False), (1e-4, 20.0, True)])
def test_a_first_step_that_replaces_the_weights_is_no_bad_beginning(
    tmp_path: Path, rate: float, factor: float, is_told: bool
) -> None:
    """As in a script that is watched unchanged: modules are seen from the second step on, after the first update."""
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Linear(64, 64), nn.GELU(), nn.Linear(64, 64), nn.GELU(), nn.Linear(64, 64), nn.GELU(), nn.Linear(64, 3)
    )
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(factor)
    optimizer = torch.optim.RMSprop(model.parameters(), lr=rate)
    session = None
    for _ in range(60):
        x = torch.randn(16, 64)
        optimizer.zero_grad()
        F.cross_entropy(model(x), (x[:, 0] > 0).long()).backward()
        session = session or stethoscope.watch(
            model, optimizer, run=tmp_path / "run", companion="off", quiet=True, every=1
        )
        optimizer.step()
    session.stop()
    assert ("bad_init_scale" in [cause.code for cause in stethoscope.diagnose(session.run).causes]) is is_told


@pytest.mark.parametrize(
    ("noise", "at", "is_told"), [(0.8, 5, False), (0.8, 60, False), (0.05, 5, True), (0.05, 60, True)]
)
def test_a_rise_within_the_noise_of_the_loss_is_no_divergence(noise: float, at: int, is_told: bool) -> None:
    random = np.random.default_rng(0)
    course = LossCourse()
    losses = np.exp(noise * random.standard_normal(200)) * np.linspace(0.6, 0.2, 200)
    losses[:3], losses[at : at + 3] = 0.6, 2.0  # three batches in a row, three times the first loss
    for step, loss in enumerate(losses):
        course.see(step, float(loss))
    assert (course.divergence() is not None) is is_told


@pytest.mark.parametrize(("rate", "is_told"), [(0.02, False), (10.0, True)])
def test_weights_that_begin_next_to_zero_grow_at_any_rate(tmp_path: Path, rate: float, is_told: bool) -> None:
    model = nn.Sequential(nn.Linear(10, 32), nn.Tanh(), nn.Linear(32, 1))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(0.02)
    optimizer = torch.optim.Adam(model.parameters(), lr=rate)
    noise = torch.Generator().manual_seed(1)

    def step(_: int, x: torch.Tensor, y: torch.Tensor) -> None:
        # Half of what is to be learned is noise: the loss falls to its floor and stays.
        target = (x.sum(1, keepdim=True) / 10**0.5 + torch.randn(32, 1, generator=noise)) / 2**0.5
        optimizer.zero_grad()
        F.mse_loss(model(x), target).backward()
        optimizer.step()

    found = loop(model, optimizer, tmp_path, step, 150)
    assert ("update_too_large" in [f.code for f in found]) is is_told
    assert is_told or not found
