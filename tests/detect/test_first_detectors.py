"""The ledger, the origin of non-finite values, the flow of gradients, the size of updates: found, and silent when healthy."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from stethoscope.analyse.span import spans
from stethoscope.detect import Detection
from stethoscope.session import DebugSession
from tests.detect.trainings import Net, batches, train, watch


def first(session: DebugSession) -> Any:
    assert sum(session._watcher.guard.errors.values()) == 0, session._watcher.guard.last_traceback
    causes = session.diagnosis.causes
    assert causes, "nothing was found"
    return causes[0]


@pytest.fixture(autouse=True)
def seeded() -> None:
    torch.manual_seed(0)


def test_gradients_not_cleared(tmp_path: Path) -> None:
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    session = watch(model, optimizer, tmp_path)
    for x, y in batches(30):
        F.cross_entropy(model(x), y).backward()
        optimizer.step()
    session.stop()
    assert first(session).code == "gradients_not_cleared"
    assert first(session).first_step <= 1


@pytest.mark.parametrize("set_to_none", [True, False])
def test_gradients_cleared_before_step(tmp_path: Path, set_to_none: bool) -> None:
    model = Net()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    clear = lambda _step: optimizer.zero_grad(set_to_none=set_to_none)  # noqa: E731
    assert first(train(model, optimizer, tmp_path, before_step=clear)).code == "gradients_cleared_before_step"


@pytest.mark.parametrize("given", [True, False])
@pytest.mark.parametrize("set_to_none", [True, False])
def test_optimizer_never_steps(tmp_path: Path, set_to_none: bool, given: bool) -> None:
    model = Net()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    session = watch(model, optimizer if given else None, tmp_path)
    for x, y in batches(30):
        model.zero_grad(set_to_none=set_to_none)
        F.cross_entropy(model(x), y).backward()
    session.stop()
    assert first(session).code == "optimizer_never_steps"


def test_optimizer_holds_a_replaced_head(tmp_path: Path) -> None:
    model = Net()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    model.head = nn.Linear(32, 3)
    found = first(train(model, optimizer, tmp_path))
    assert found.code == "optimizer_params_not_in_model"
    assert set(found.sites) == {"head.weight", "head.bias"}


def test_a_submodule_is_missing_from_the_optimizer(tmp_path: Path) -> None:
    model = Net()
    optimizer = torch.optim.Adam([*model.body.parameters(), *model.head.parameters()], lr=0.01)
    found = first(train(model, optimizer, tmp_path))
    assert found.code == "trainable_params_not_in_optimizer"
    assert set(found.sites) == {"mid.weight", "mid.bias"}


def test_an_update_that_does_not_arrive(tmp_path: Path) -> None:
    class Forgetful(torch.optim.SGD):
        def step(self, closure: Any = None) -> Any:
            kept = model.mid.weight.detach().clone()
            result = super().step(closure)
            with torch.no_grad():
                model.mid.weight.copy_(kept)
            return result

    model = Net()
    found = first(train(model, Forgetful(model.parameters(), lr=0.1), tmp_path))
    assert found.code == "silent_no_update"
    assert found.sites == ("mid.weight",)


def test_updates_under_the_precision_of_the_weights(tmp_path: Path) -> None:
    model = Net().bfloat16()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)
    session = watch(model, optimizer, tmp_path)
    for x, y in batches(30):
        optimizer.zero_grad()
        F.cross_entropy(model(x.bfloat16()).float(), y).backward()
        optimizer.step()
    session.stop()
    assert first(session).code in ("update_below_precision", "silent_no_update")


def test_a_group_without_a_rate(tmp_path: Path) -> None:
    model = Net()
    groups = [
        {"params": [*model.body.parameters(), *model.head.parameters()]},
        {"params": model.mid.parameters(), "lr": 0.0},
    ]
    found = first(train(model, torch.optim.Adam(groups, lr=0.01), tmp_path))
    assert found.code == "zero_lr_group"
    assert set(found.sites) == {"mid.weight", "mid.bias"}


def test_nan_in_a_modules_forward(tmp_path: Path) -> None:
    class Log(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.log(x.abs() - (1.0 if state["step"] >= 25 else -1.0))

    state = {"step": 0}
    model = nn.Sequential(nn.Linear(10, 16), nn.Tanh(), Log(), nn.Linear(16, 3))
    session = train(
        model,
        torch.optim.SGD(model.parameters(), lr=0.01),
        tmp_path,
        before_step=lambda step: state.update(step=step + 1),
    )
    found = first(session)
    assert (found.code, found.sites, found.first_step) == ("nonfinite_origin", ("2",), 25)


def test_nan_only_in_backward(tmp_path: Path) -> None:
    class Root(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.sqrt(x.clamp(min=0))

    model = nn.Sequential(nn.Linear(10, 16), nn.ReLU(), Root(), nn.Linear(16, 3))
    found = first(train(model, torch.optim.SGD(model.parameters(), lr=0.01), tmp_path))
    assert found.code == "nonfinite_origin"
    assert found.first_step == 0
    assert "2" in found.sites


def test_a_loss_that_is_not_finite_by_itself(tmp_path: Path) -> None:
    model = Net()
    lose = lambda out, y: F.cross_entropy(out, y) / (0.0 if next(count) >= 20 else 1.0)  # noqa: E731
    count = iter(range(1000))
    found = first(train(model, torch.optim.SGD(model.parameters(), lr=0.01), tmp_path, lose=lose))
    assert (found.code, found.sites, found.first_step) == ("nonfinite_origin", ("(loss)",), 20)


def test_a_loss_that_is_lost_between_two_looks_on_a_device(tmp_path: Path) -> None:
    """There nobody can look back, for reading the loss would wait: where it began is not known, and not said to be."""
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    session = watch(model, optimizer, tmp_path, every=8)
    session._watcher._look_back = no_look
    for step, (x, y) in enumerate(batches(30)):
        if step == 19:
            with torch.no_grad():
                model.get_parameter(next(name for name, _ in model.named_parameters())).mul_(float("nan"))
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        optimizer.step()
    session.stop()
    found = first(session)
    assert (found.code, found.first_step) == ("nonfinite_origin", 19)
    assert "not known" in found.message
    assert "(loss)" not in found.sites
    assert "every=1" in found.remedy


def no_look() -> None:
    return None


def test_a_batch_that_is_not_finite(tmp_path: Path) -> None:
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    session = watch(model, optimizer, tmp_path)
    for step, (x, y) in enumerate(batches(30)):
        if step == 17:
            x[3, 2] = float("inf")
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        optimizer.step()
    session.stop()
    found = first(session)
    assert (found.code, found.first_step) == ("nonfinite_batch", 17)


def test_a_buffer_that_is_not_finite(tmp_path: Path) -> None:
    model = nn.Sequential(nn.Linear(10, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 3))

    def poison(step: int) -> None:
        if step == 12:
            model[1].running_var[3] = float("nan")

    found = first(train(model, torch.optim.SGD(model.parameters(), lr=0.05), tmp_path, before_step=poison))
    assert (found.code, found.sites, found.first_step) == ("nonfinite_buffer", ("1.running_var",), 12)


def test_nan_from_the_optimizer(tmp_path: Path) -> None:
    class Careless(torch.optim.SGD):
        def step(self, closure: Any = None) -> Any:
            result = super().step(closure)
            with torch.no_grad():
                if len(seen) == 15:
                    model.mid.bias[0] = float("nan")
            seen.append(1)
            return result

    seen: list[int] = []
    model = Net()
    found = first(train(model, Careless(model.parameters(), lr=0.1), tmp_path))
    assert (found.code, found.sites, found.first_step) == ("nonfinite_origin", ("mid.bias",), 15)


def test_vanishing_gradients(tmp_path: Path) -> None:
    layers: list[nn.Module] = []
    for _ in range(18):
        layers += [nn.Linear(10, 10), nn.Sigmoid()]
    model = nn.Sequential(*layers, nn.Linear(10, 3))
    assert first(train(model, torch.optim.SGD(model.parameters(), lr=0.1), tmp_path)).code == "vanishing_gradients"


def test_updates_that_are_too_large(tmp_path: Path) -> None:
    model = Net()
    found = first(train(model, torch.optim.Adam(model.parameters(), lr=1.0), tmp_path, num_steps=60))
    assert found.code == "update_too_large"


def test_updates_that_are_too_small(tmp_path: Path) -> None:
    model = Net()
    found = first(train(model, torch.optim.SGD(model.parameters(), lr=1e-7), tmp_path))
    assert found.code == "update_too_small"


def _gan(folder: Path) -> DebugSession:
    model = nn.ModuleDict({"g": nn.Linear(4, 2), "d": nn.Sequential(nn.Linear(2, 16), nn.ReLU(), nn.Linear(16, 1))})
    first_optimizer = torch.optim.Adam(model["d"].parameters(), lr=1e-3)
    second = torch.optim.Adam(model["g"].parameters(), lr=1e-3)
    session = watch(model, [first_optimizer, second], folder)
    for _ in range(40):
        real, noise = torch.randn(16, 2) + 3, torch.randn(16, 4)
        fake = model["g"](noise)
        first_optimizer.zero_grad()
        (F.softplus(-model["d"](real)).mean() + F.softplus(model["d"](fake.detach())).mean()).backward()
        first_optimizer.step()
        second.zero_grad()
        F.softplus(-model["d"](fake)).mean().backward()
        second.step()
    session.stop()
    assert session.step == 40
    return session


def _scaled(folder: Path) -> DebugSession:
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**40, growth_interval=20)
    session = watch(model, optimizer, folder)
    for x, y in batches(40):
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype=torch.float16):
            loss = F.cross_entropy(model(x), y)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
    session.stop()
    assert session._watcher.totals().num_skipped > 0
    return session


def _lbfgs(folder: Path) -> DebugSession:
    model = Net(torch.tanh)
    optimizer = torch.optim.LBFGS(model.parameters(), lr=0.1)
    session = watch(model, optimizer, folder)
    x, y = next(batches(1))

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        return loss

    for _ in range(10):
        optimizer.step(closure)
    session.stop()
    assert session.step == 10
    return session


def _accumulating(folder: Path) -> DebugSession:
    model = Net()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    session = watch(model, optimizer, folder)
    for step, (x, y) in enumerate(batches(80)):
        (F.cross_entropy(model(x), y) / 4).backward()
        if step % 4 == 3:
            optimizer.step()
            optimizer.zero_grad()
    session.stop()
    assert session.step == 20
    assert set(session.run.metric("num_backwards").values) == {4.0}
    return session


def _frozen_backbone(folder: Path) -> DebugSession:
    model = Net()
    model.body.requires_grad_(False)
    model.mid.requires_grad_(False)
    return train(model, torch.optim.Adam(model.head.parameters(), lr=0.01), folder)


def _converged(folder: Path) -> DebugSession:
    model = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.2)
    session = watch(model, optimizer, folder)
    x = torch.randn(64, 4)
    y = x.sum(1, keepdim=True)
    for _ in range(300):
        optimizer.zero_grad()
        F.mse_loss(model(x), y).backward()
        optimizer.step()
    session.stop()
    return session


def _warming_up(folder: Path) -> DebugSession:
    model = Net()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min(1.0, step / 20))
    session = watch(model, optimizer, folder)
    for x, y in batches(60):
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        optimizer.step()
        scheduler.step()
    session.stop()
    return session


HEALTHY = [_gan, _scaled, _lbfgs, _accumulating, _frozen_backbone, _converged, _warming_up]


@pytest.mark.parametrize("program", HEALTHY, ids=lambda program: program.__name__.strip("_"))
def test_healthy_trainings_are_silent(program: Any, tmp_path: Path) -> None:
    session = program(tmp_path)
    assert sum(session._watcher.guard.errors.values()) == 0, session._watcher.guard.last_traceback
    assert session.diagnosis.causes == ()


@pytest.mark.parametrize("size", [1, 7, 1000])
def test_findings_do_not_depend_on_how_the_run_is_cut(size: int, tmp_path: Path) -> None:
    model = nn.Sequential(*[layer for _ in range(12) for layer in (nn.Linear(10, 10), nn.Sigmoid())], nn.Linear(10, 3))
    optimizer = torch.optim.SGD([*model[0].parameters(), *model[4:].parameters()], lr=0.1)
    session = train(model, optimizer, tmp_path)
    whole = session.findings
    assert {f.code for f in whole} == {"vanishing_gradients", "trainable_params_not_in_optimizer"}
    detection = Detection()
    detection.observe(spans(session.run, size=size))
    assert tuple(detection.findings()) == whole
    assert detection.errors == {}


@pytest.mark.parametrize(("rate", "is_told"), [(0.1, False), (1.0, True)])
def test_a_few_noisy_batches_at_first_are_no_divergence(tmp_path: Path, rate: float, is_told: bool) -> None:
    """With eight samples a batch the first losses go up and down as they like; where it comes to nothing, it was nothing."""
    torch.manual_seed(4)
    model, truth = nn.Linear(8, 1), torch.randn(8, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=rate)
    session = watch(model, optimizer, tmp_path)
    losses = []
    for _ in range(60):
        x = torch.randn(8, 8)
        loss = (model(x) - x @ truth).pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    session.stop()
    assert max(losses[:6]) > 2 * losses[0], "this seed rises first"
    assert ("update_too_large" in [cause.code for cause in session.diagnosis.causes]) is is_told


class TwoWays(nn.Module):
    """An encoder, a decoder that nobody's loss reads, and a head that takes the code without its graph."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder, self.decoder, self.head = nn.Linear(10, 4), nn.Linear(4, 10), nn.Linear(4, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        code = self.encoder(x)
        self.decoder(code)
        return self.head(code.detach())


def test_the_graph_is_cut_where_the_data_went(tmp_path: Path) -> None:
    """Not behind whatever else ran before the head."""
    model = TwoWays()
    found = first(train(model, torch.optim.SGD(model.parameters(), lr=0.01), tmp_path))
    assert (found.code, found.sites[:2]) == ("detached_graph", ("encoder", "head"))
