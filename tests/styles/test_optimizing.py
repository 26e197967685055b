"""Every way to take a step: rows, step numbers, ledger and bits, one test a style."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.optim import lr_scheduler

from stethoscope.record import Kind, Site
from tests.styles.bench import AT_STEPS, Bench, judge

STEPS = 12


def net(width: int = 16) -> nn.Sequential:
    return nn.Sequential(nn.Linear(6, width), nn.Tanh(), nn.Linear(width, 3))


def batch(step: int, size: int = 16) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(step)
    x = torch.randn(size, 6, generator=generator)
    return x, x[:, :3].argmax(1)


@pytest.fixture(autouse=True)
def one_thread() -> Any:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def plain_loop(bench: Bench, model: nn.Module, optimizer: Any, after: Any = lambda loss: None) -> None:
    for step in range(STEPS):
        x, y = batch(step)
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        after(loss)
        bench.tick(loss)


def test_accumulation(tmp_path: Path) -> None:
    def style(bench: Bench) -> None:
        model = net()
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
        bench.watch(model, optimizer)
        for step in range(STEPS):
            for micro in range(4):
                x, y = batch(10 * step + micro)
                loss = F.cross_entropy(model(x), y) / 4
                loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            bench.tick(loss)

    watched = judge(style, tmp_path)
    run = watched.session.run
    assert set(run.metric("num_backwards").values) == {4.0}
    block = run.block(0, STEPS)
    place = [i.site for i in block.sites].index(Site("0", Kind.ACTIVATION))
    assert set(block.calls[:, place]) == {4}


OPTIMIZERS: dict[str, Any] = {
    "sgd": lambda p: torch.optim.SGD(p, lr=0.1),
    "sgd_foreach": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, foreach=True),
    "sgd_fused": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, fused=True),
    "adam_foreach": lambda p: torch.optim.Adam(p, lr=0.01, foreach=True),
    "adam_fused": lambda p: torch.optim.Adam(p, lr=0.01, fused=True),
    "adamw_fused_amsgrad": lambda p: torch.optim.AdamW(p, lr=0.01, fused=True, amsgrad=True),
    "adam_tensor_lr": lambda p: torch.optim.Adam(p, lr=torch.tensor(0.01), foreach=False),
    "adagrad": lambda p: torch.optim.Adagrad(p, lr=0.05),
    "adadelta": lambda p: torch.optim.Adadelta(p, lr=1.0),
    "rmsprop": lambda p: torch.optim.RMSprop(p, lr=0.005),
    "nadam": lambda p: torch.optim.NAdam(p, lr=0.01),
    "radam": lambda p: torch.optim.RAdam(p, lr=0.01),
    "adamax": lambda p: torch.optim.Adamax(p, lr=0.01),
    "asgd": lambda p: torch.optim.ASGD(p, lr=0.05),
    "rprop": lambda p: torch.optim.Rprop(p, lr=0.005),
    "maximize": lambda p: torch.optim.SGD(p, lr=0.05, maximize=True),
}


@pytest.mark.parametrize("name", list(OPTIMIZERS))
def test_optimizers_of_every_kind(name: str, tmp_path: Path) -> None:
    def style(bench: Bench) -> None:
        model = net()
        optimizer = OPTIMIZERS[name](model.parameters())
        bench.watch(model, optimizer)
        for step in range(STEPS):
            x, y = batch(step)
            optimizer.zero_grad()
            loss = F.cross_entropy(model(x), y) * (-1 if name == "maximize" else 1)
            loss.backward()
            optimizer.step()
            bench.tick(loss)

    watched = judge(style, tmp_path)
    assert watched.session.run.metric("lr").values[0] > 0


class Overriding(torch.optim.SGD):
    """Steps twice as far, the second time by its parent's step."""

    def step(self, closure: Any = None) -> Any:
        with torch.no_grad():
            for group in self.param_groups:
                for p in group["params"]:
                    p.mul_(0.999)
        return super().step(closure)


class Own(torch.optim.Optimizer):
    """An optimizer that never heard of torch's own."""

    def __init__(self, params: Any) -> None:
        super().__init__(params, {"lr": 0.1})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is not None:
                    self.state[p]["sign"] = p.grad.sign()
                    p.sub_(group["lr"] * 0.05 * self.state[p]["sign"])


@pytest.mark.parametrize("kind", ["overriding", "own", "patched"])
def test_optimizers_that_define_step(kind: str, tmp_path: Path) -> None:
    def style(bench: Bench) -> None:
        model = net()
        if kind == "patched":
            optimizer: Any = torch.optim.SGD(model.parameters(), lr=0.1)
            bench.watch(model, optimizer)
            inner = optimizer.step
            optimizer.step = lambda *args, **kwargs: inner(*args, **kwargs)
        else:
            optimizer = (Overriding(model.parameters(), lr=0.1)) if kind == "overriding" else Own(model.parameters())
            bench.watch(model, optimizer)
        plain_loop(bench, model, optimizer)

    # An overriding step runs the hooks of the instance twice: the outer pair is the step, the test's hears both.
    if kind == "overriding":
        judge(style, tmp_path, kinds=(Kind.ACTIVATION, Kind.OUTPUT, Kind.ACTIVATION_GRADIENT))
    else:
        judge(style, tmp_path)


def test_a_step_that_overrides_is_one_step_with_its_whole_change(tmp_path: Path) -> None:
    model = net()
    optimizer = Overriding(model.parameters(), lr=0.1)
    bench = Bench(tmp_path)
    bench.watch(model, optimizer)
    changes = []
    for step in range(4):
        x, y = batch(step)
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        before = model[0].weight.detach().double().clone()
        optimizer.step()
        changes.append((model[0].weight.detach().double() - before).norm().item())
        bench.tick(0.0)
    run = bench.finish()
    assert run.series("0", "update", "norm")["0.weight"].values == pytest.approx(changes, rel=1e-5)


def test_several_optimizers_of_one_model(tmp_path: Path) -> None:
    def style(bench: Bench) -> None:
        model = net()
        first = torch.optim.AdamW(model[0].parameters(), lr=0.01)
        second = torch.optim.SGD(model[2].parameters(), lr=0.1)
        bench.watch(model, first, second)
        for step in range(STEPS):
            x, y = batch(step)
            loss = F.cross_entropy(model(x), y)
            first.zero_grad()
            second.zero_grad()
            loss.backward()
            first.step()
            second.step()
            bench.tick(loss)

    watched = judge(style, tmp_path)
    assert {"lr", "lr.1"} <= set(watched.session.run.metrics())


def gan(bench: Bench, critic_steps: int) -> None:
    g, d = nn.Linear(4, 6), nn.Sequential(nn.Linear(6, 12), nn.LeakyReLU(0.2), nn.Linear(12, 1))
    g_opt = torch.optim.Adam(g.parameters(), lr=0.003)
    d_opt = torch.optim.Adam(d.parameters(), lr=0.003)
    bench.watch({"g": g, "d": d}, g_opt, d_opt)
    generator = torch.Generator().manual_seed(0)
    for _ in range(STEPS):
        for turn in range(critic_steps):
            real, noise = torch.randn(16, 6, generator=generator) + 2, torch.randn(16, 4, generator=generator)
            d_opt.zero_grad()
            d_loss = (d(g(noise).detach()) - d(real)).mean()
            d_loss.backward()
            d_opt.step()
            if turn < critic_steps - 1:
                bench.tick(d_loss)
        noise = torch.randn(16, 4, generator=generator)
        g_opt.zero_grad()
        g_loss = -d(g(noise)).mean()
        g_loss.backward()
        g_opt.step()
        bench.tick(g_loss)


def test_two_models_and_two_optimizers_in_turn(tmp_path: Path) -> None:
    watched = judge(lambda bench: gan(bench, 1), tmp_path)
    paths = {info.site.module for info in watched.session.run.sites}
    assert {"g", "d.0", "d.2"} <= paths


def test_one_optimizer_steps_more_often(tmp_path: Path) -> None:
    """Five steps of the critic for one of the generator: five Steps, the generator's in the last of them."""
    watched = judge(lambda bench: gan(bench, 5), tmp_path)
    assert watched.num_steps == 5 * STEPS
    run = watched.session.run
    assert list(run.series("g", "gradient")["g.weight"].steps) == list(range(4, 5 * STEPS, 5))
    assert len(run.series("d.0", "gradient")["d.0.weight"].steps) == 5 * STEPS


def test_lbfgs(tmp_path: Path) -> None:
    def style(bench: Bench) -> None:
        model = net()
        optimizer = torch.optim.LBFGS(model.parameters(), lr=0.1, max_iter=4)
        bench.watch(model, optimizer)
        x, y = batch(0, 64)

        def closure() -> torch.Tensor:
            optimizer.zero_grad()
            loss = F.cross_entropy(model(x), y)
            loss.backward()
            return loss

        for _ in range(STEPS):
            bench.tick(optimizer.step(closure))

    watched = judge(style, tmp_path, kinds=(Kind.GRADIENT, Kind.WEIGHT, Kind.UPDATE, Kind.ACTIVATION))
    assert set(watched.session.run.metric("num_backwards").values) <= {4.0, 5.0}


@pytest.mark.parametrize("keyword", [True, False])
def test_sgd_with_a_closure(keyword: bool, tmp_path: Path) -> None:
    def style(bench: Bench) -> None:
        model = net()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        bench.watch(model, optimizer)
        for step in range(STEPS):
            x, y = batch(step)

            def closure(x: Any = x, y: Any = y) -> torch.Tensor:
                optimizer.zero_grad()
                loss = F.cross_entropy(model(x), y)
                loss.backward()
                return loss

            bench.tick(optimizer.step(closure=closure) if keyword else optimizer.step(closure))

    judge(style, tmp_path)


def test_stepping_inside_backward(tmp_path: Path) -> None:
    def style(bench: Bench) -> None:
        model = net()
        optimizers = {p: torch.optim.Adam([p], lr=0.01) for p in model.parameters()}
        bench.watch(model, *optimizers.values())

        def apply(parameter: torch.Tensor) -> None:
            optimizers[parameter].step()
            optimizers[parameter].zero_grad()

        for p in model.parameters():
            p.register_post_accumulate_grad_hook(apply)
        for step in range(STEPS):
            x, y = batch(step)
            loss = F.cross_entropy(model(x), y)
            loss.backward()
            bench.tick(loss)

    judge(style, tmp_path)


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_compiled_step(when: str, tmp_path: Path) -> None:
    def style(bench: Bench) -> None:
        torch._dynamo.reset()
        model = net()
        optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
        if when == "before":
            step_fn = torch.compile(optimizer.step, backend="aot_eager")
            bench.watch(model, optimizer)
        else:
            bench.watch(model, optimizer)
            step_fn = torch.compile(optimizer.step, backend="aot_eager")
        for step in range(STEPS):
            x, y = batch(step)
            optimizer.zero_grad()
            loss = F.cross_entropy(model(x), y)
            loss.backward()
            step_fn()
            bench.tick(loss)
        torch._dynamo.reset()

    judge(style, tmp_path)


SCHEDULERS: dict[str, Any] = {
    "step": lambda o: lr_scheduler.StepLR(o, 3),
    "cosine": lambda o: lr_scheduler.CosineAnnealingLR(o, STEPS),
    "onecycle": lambda o: lr_scheduler.OneCycleLR(o, max_lr=0.05, total_steps=STEPS + 1),
    "sequential": lambda o: lr_scheduler.SequentialLR(
        o,
        [lr_scheduler.LinearLR(o, 0.1, total_iters=3), lr_scheduler.ExponentialLR(o, 0.9)],
        milestones=[3],
    ),
    "chained": lambda o: lr_scheduler.ChainedScheduler(
        [lr_scheduler.ExponentialLR(o, 0.95), lr_scheduler.ExponentialLR(o, 0.9)]
    ),
    "lambda": lambda o: lr_scheduler.LambdaLR(o, lambda step: min(1.0, (step + 1) / 5)),
    "cyclic": lambda o: lr_scheduler.CyclicLR(o, 0.01, 0.1, step_size_up=3, cycle_momentum=False),
}


@pytest.mark.filterwarnings("ignore:The epoch parameter:UserWarning")  # an older SequentialLR warns of itself
@pytest.mark.parametrize("name", [*SCHEDULERS, "plateau"])
def test_schedulers(name: str, tmp_path: Path) -> None:
    rates: list[float] = []

    def style(bench: Bench) -> None:
        rates.clear()
        model = net()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
        scheduler = SCHEDULERS[name](optimizer) if name != "plateau" else lr_scheduler.ReduceLROnPlateau(optimizer)
        bench.watch(model, optimizer)
        for step in range(STEPS):
            x, y = batch(step)
            optimizer.zero_grad()
            loss = F.cross_entropy(model(x), y)
            loss.backward()
            rates.append(optimizer.param_groups[0]["lr"])
            optimizer.step()
            scheduler.step(loss.item()) if name == "plateau" else scheduler.step()
            bench.tick(loss)

    watched = judge(style, tmp_path)
    run = watched.session.run
    assert run.metric("lr").values == pytest.approx(rates)
    assert run.events("totals")[-1].body["num_scheduler_steps"] == STEPS


bound_before = torch.nn.utils.clip_grad_norm_
bound_value_before = torch.nn.utils.clip_grad_value_


@pytest.mark.parametrize("how", ["norm", "norm_foreach", "norm_bound", "value", "value_bound", "parts"])
def test_clipping(how: str, tmp_path: Path) -> None:
    norms: list[float] = []

    def style(bench: Bench) -> None:
        norms.clear()
        model = net()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        bench.watch(model, optimizer)
        for step in range(STEPS):
            x, y = batch(step)
            optimizer.zero_grad()
            loss = F.cross_entropy(model(x), y)
            loss.backward()
            norms.append(torch.stack([p.grad.double().norm() for p in model.parameters()]).norm().item())
            if how.startswith("value"):
                clip = bound_value_before if how == "value_bound" else torch.nn.utils.clip_grad_value_
                clip(model.parameters(), 0.01)
            elif how == "parts":
                norm = torch.nn.utils.get_total_norm([p.grad for p in model.parameters()])
                torch.nn.utils.clip_grads_with_norm_(model.parameters(), 0.05, norm)
            else:
                clip = bound_before if how == "norm_bound" else torch.nn.utils.clip_grad_norm_
                clip(model.parameters(), 0.05, foreach=how == "norm_foreach")
            optimizer.step()
            bench.tick(loss)

    watched = judge(style, tmp_path)
    run = watched.session.run
    if how.startswith("value"):
        assert set(run.metric("clip_value").values) == {0.01}
        assert len(run.metric("clip_value").steps) == STEPS
    else:
        assert run.metric("grad_norm").values == pytest.approx(norms, rel=1e-5)
        assert set(run.metric("clip_norm").values) == {0.05}


@pytest.mark.parametrize("unscale", [False, True])
@pytest.mark.parametrize("fused", [False, True])
def test_grad_scaler(fused: bool, unscale: bool, tmp_path: Path) -> None:
    """Values unscaled, the losses too; a step that is skipped is counted and is no Step."""
    skipped_at = (3, 7)

    def style(bench: Bench) -> None:
        model = net()
        optimizer = torch.optim.Adam(model.parameters(), lr=0.01, fused=fused)
        scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
        bench.watch(model, optimizer)
        # A fused optimizer is handed scaled gradients and unscales them itself.
        bench.truth.scale = lambda: scaler.get_scale() if fused and not unscale else 1.0
        for step in range(STEPS):
            x, y = batch(step)
            optimizer.zero_grad()
            loss = F.cross_entropy(model(x), y)
            scaler.scale(loss).backward()
            bad = step in skipped_at
            if bad:
                model[0].weight.grad[0, 0] = float("inf")
            if unscale:
                scaler.unscale_(optimizer)
                torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5, error_if_nonfinite=False)
            scaler.step(optimizer)
            scaler.update()
            # A fused optimizer steps and leaves everything as it is: a Step, marked as skipped.
            if fused or not bad:
                bench.tick(loss)

    plain = Bench(None)
    style(plain)
    watched = Bench(tmp_path)
    style(watched)
    assert plain.losses == watched.losses
    for name, value in plain.state().items():
        assert torch.equal(value, watched.state()[name]), name
    run = watched.finish()
    assert watched.session.step == (STEPS if fused else STEPS - len(skipped_at))
    assert run.events("totals")[-1].body["num_skipped"] == len(skipped_at)
    assert [e.step for e in run.events("skipped_step")] == ([3, 7] if fused else [3, 6])
    assert run.metric("loss").values == pytest.approx(watched.losses, rel=1e-6)
    assert watched.session.diagnosis.causes == ()
    watched.compare(run, AT_STEPS)
    gradients = run.series("0", "activation_gradient", "norm")["0"]
    assert gradients.values.max() < 1.0, "the scale of 1,024 is divided out"


def test_a_scaler_between_two_optimizers(tmp_path: Path) -> None:
    def style(bench: Bench) -> None:
        model = net()
        first = torch.optim.SGD(model[0].parameters(), lr=0.1)
        second = torch.optim.SGD(model[2].parameters(), lr=0.1)
        scaler = torch.amp.GradScaler("cpu", init_scale=256.0)
        bench.watch(model, first, second)
        for step in range(STEPS):
            x, y = batch(step)
            first.zero_grad()
            second.zero_grad()
            loss = F.cross_entropy(model(x), y)
            scaler.scale(loss).backward()
            scaler.step(first)
            scaler.step(second)
            scaler.update()
            bench.tick(loss)

    watched = judge(style, tmp_path, kinds=AT_STEPS)
    assert watched.session.run.metric("loss").values == pytest.approx(watched.losses, rel=1e-6)


@pytest.mark.parametrize("kind", ["ema", "swa", "by_hand"])
def test_averages_of_the_weights(kind: str, tmp_path: Path) -> None:
    def style(bench: Bench) -> None:
        from torch.optim.swa_utils import SWALR, AveragedModel, get_ema_multi_avg_fn

        model = net()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        bench.watch(model, optimizer)
        if kind == "by_hand":
            average: Any = copy.deepcopy(model).requires_grad_(False)
        else:
            average = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.9) if kind == "ema" else None)
        scheduler = SWALR(optimizer, 0.05) if kind == "swa" else None
        for step in range(STEPS):
            x, y = batch(step)
            optimizer.zero_grad()
            loss = F.cross_entropy(model(x), y)
            loss.backward()
            optimizer.step()
            if kind == "by_hand":
                with torch.no_grad():
                    for slow, fast in zip(average.parameters(), model.parameters(), strict=True):
                        slow.lerp_(fast, 0.1)
            else:
                average.update_parameters(model)
            if scheduler is not None:
                scheduler.step()
            with torch.no_grad():
                average(x)
            # A forward of the average with gradients on is not the model's.
            average(x).sum()
            bench.tick(loss)

    # The average is a copy of the model with the test's own hooks in it: only what is measured at steps is compared.
    judge(style, tmp_path, kinds=AT_STEPS)
