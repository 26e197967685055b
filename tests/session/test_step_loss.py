"""The loss of a step is what the script prints: under accumulation, with a scaler, and with closures that are evaluated several times."""

from __future__ import annotations

import pytest
import torch

import stethoscope
from stethoscope.record import WatchError
from stethoscope.store import open_run

WAYS = {
    "divided": lambda loss, n, scaler: (loss / n).backward(),
    "times the inverse": lambda loss, n, scaler: (loss * (1 / n)).backward(),
    "divided in place": lambda loss, n, scaler: loss.clone().div_(n).backward(),
    "divided by a tensor": lambda loss, n, scaler: (loss / torch.tensor(float(n))).backward(),
    "scaled": lambda loss, n, scaler: scaler.scale(loss / n).backward(),
    "scaled, then divided": lambda loss, n, scaler: (scaler.scale(loss) / n).backward(),
    "whole": lambda loss, n, scaler: loss.backward(),
}


def small():
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Tanh(), torch.nn.Linear(16, 1))


def watch(model, optimizer, tmp_path):
    return stethoscope.watch(model, optimizer, dir=str(tmp_path), companion="off", quiet=True)


def train(tmp_path, backward, numbers):
    """Trains steps of so many micro-batches; returns what a script prints of each step, and what was recorded."""
    model = small()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    scaler = torch.amp.GradScaler("cpu", init_scale=256.0)
    session = watch(model, optimizer, tmp_path)
    printed = []
    for number in numbers:
        optimizer.zero_grad()
        losses = [model(torch.randn(16, 8)).square().mean() for _ in range(number)]
        printed.append(sum(loss.item() for loss in losses) / number)
        for loss in losses:
            backward(loss, max(numbers), scaler)
        if scaler._scale is None:
            optimizer.step()
        else:
            scaler.step(optimizer)
            scaler.update()
    session.stop()
    return printed, open_run(session.folder).metric("loss").values


@pytest.mark.parametrize("way", WAYS)
def test_accumulated_losses_are_recorded_as_they_are_printed(tmp_path, way):
    printed, recorded = train(tmp_path, WAYS[way], [4] * 6)
    assert recorded == pytest.approx(printed, rel=1e-6)


@pytest.mark.parametrize("number", [3, 1])
def test_the_last_and_shorter_step_of_an_epoch_too(tmp_path, number):
    printed, recorded = train(tmp_path, WAYS["divided"], [4, 4, number, 4])
    assert recorded == pytest.approx(printed, rel=1e-6)


def test_a_loss_that_is_half_of_something_stays_so(tmp_path):
    printed, recorded = train(tmp_path, lambda loss, n, scaler: (0.5 * loss).backward(), [1] * 4)
    assert recorded == pytest.approx([loss / 2 for loss in printed], rel=1e-6)
    printed, recorded = train(tmp_path, lambda loss, n, scaler: (loss / 10).backward(), [2] * 4)
    assert recorded == pytest.approx([loss / 10 for loss in printed], rel=1e-6)


OPTIMIZERS = {
    "LBFGS": lambda parameters: torch.optim.LBFGS(parameters, lr=0.1, max_iter=10),
    "LBFGS with a line search": lambda parameters: torch.optim.LBFGS(parameters, line_search_fn="strong_wolfe"),
    "SGD": lambda parameters: torch.optim.SGD(parameters, lr=0.05),
    "Adam": lambda parameters: torch.optim.Adam(parameters, lr=1e-2),
}


def closure_losses(tmp_path, make, *, steps, num_parts=1):
    """What `step(closure)` returned, and the run."""
    model = small()
    optimizer = make(model.parameters())
    data = torch.randn(64, 8)
    wanted = torch.sin(data.sum(1, keepdim=True))
    session = watch(model, optimizer, tmp_path)

    def closure():
        optimizer.zero_grad()
        total = 0.0
        for x, y in zip(data.chunk(num_parts), wanted.chunk(num_parts), strict=True):
            loss = torch.nn.functional.mse_loss(model(x), y) / num_parts
            loss.backward()
            total += loss.detach()
        return total

    returned = [float(optimizer.step(closure) if steps else closure()) for _ in range(12)]
    diagnosis = session.diagnosis
    session.stop()
    return returned, open_run(session.folder), {finding.code for finding in diagnosis.findings}


@pytest.mark.parametrize("num_parts", [1, 4])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_step_with_a_closure_has_the_loss_that_it_returns_and_nothing_is_wrong_with_it(tmp_path, name, num_parts):
    returned, run, found = closure_losses(tmp_path, OPTIMIZERS[name], steps=True, num_parts=num_parts)
    assert run.metric("loss").values == pytest.approx(returned, rel=1e-5)
    assert not {"optimizer_never_steps", "accumulation_not_averaged", "gradients_cleared_before_step"} & found
    # While a first long step is searched along its line, nothing was thrown away yet.
    assert [event for event in run.events() if event.kind == "gradients_discarded"] == []


def test_an_lbfgs_that_never_steps_is_told(tmp_path):
    _, run, found = closure_losses(tmp_path, OPTIMIZERS["LBFGS"], steps=False)
    assert "optimizer_never_steps" in found
    assert [event for event in run.events() if event.kind == "gradients_discarded"]


def test_a_closure_that_raised_does_not_hide_later_losses(tmp_path):
    model = small()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    session = watch(model, optimizer, tmp_path)

    def closure():
        raise MemoryError

    with pytest.raises(MemoryError):
        optimizer.step(closure)
    for _ in range(4):
        optimizer.zero_grad()
        model(torch.ones(4, 8)).square().mean().backward()
        optimizer.step()
    session.stop()
    assert len(open_run(session.folder).metric("loss")) == 4


class OwnScaler(torch.amp.GradScaler):
    """As FSDP's: a subclass that scales by itself."""

    def scale(self, outputs):
        if self._scale is None:
            self._lazy_init_scale_growth_tracker(outputs.device)
        return outputs * self._scale


def test_a_scaler_that_overrides_scale_is_seen_without_being_given(tmp_path):
    model = small()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    scaler = OwnScaler("cpu", init_scale=256.0)
    session = watch(model, optimizer, tmp_path)
    loss = model(torch.ones(4, 8)).square().mean()
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    session.stop()
    run = open_run(session.folder)
    assert run.metric("loss").values == pytest.approx([loss.item()])
    assert run.metric("loss_scale").values == pytest.approx([256.0])


@pytest.mark.parametrize("name", ["scaler", "scheduler", "loss_fn"])
def test_an_argument_that_would_change_nothing_is_refused_with_what_sees_it(tmp_path, name):
    model = small()
    with pytest.raises(WatchError, match=rf"watch takes no {name}\. Leave it out: .*seen"):
        stethoscope.watch(model, dir=str(tmp_path), **{name: object()})
