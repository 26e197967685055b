"""Every kind of model and way to call it: rows, step numbers, ledger and bits, one test a style."""

from __future__ import annotations

import threading
import weakref
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

import stethoscope
from stethoscope.record import Kind, Site
from tests.styles.bench import AT_STEPS, Bench, judge
from tests.styles.test_optimizing import STEPS, batch, net, one_thread, plain_loop  # noqa: F401 - the fixture

FORWARD = (Kind.ACTIVATION, Kind.ACTIVATION_GRADIENT, Kind.OUTPUT)


def rows_of(folder: Path, train: Any, **settings: Any) -> Any:
    """A run's rows of a training without hooks of the test's own."""
    torch.manual_seed(5)
    session = train(
        lambda model, optimizer: stethoscope.watch(
            model, optimizer, dir=str(folder), quiet=True, companion="off", every=1, **settings
        )
    )
    session.stop()
    assert sum(session._watcher.guard.errors.values()) == 0, session._watcher.guard.last_traceback
    assert session.diagnosis.causes == ()
    return session.run


def same_rows(first: Any, second: Any, kinds: tuple[Kind, ...]) -> int:
    """Two runs hold the same rows at the same sites."""
    a, b = first.block(0, STEPS), second.block(0, STEPS)
    places = {info.site: n for n, info in enumerate(b.sites)}
    compared = 0
    for n, info in enumerate(a.sites):
        if info.site.kind in kinds:
            m = places[info.site]
            assert (a.present[:, n] == b.present[:, m]).all(), info.site
            assert (a.calls[:, n] == b.calls[:, m]).all(), info.site
            torch.testing.assert_close(torch.from_numpy(a.rows[:, n]), torch.from_numpy(b.rows[:, m]), equal_nan=True)
            compared += int(a.present[:, n].sum())
    return compared


class Blocks(nn.Module):
    def __init__(self, how: str = "plain") -> None:
        super().__init__()
        self.inp, self.out = nn.Linear(6, 16), nn.Linear(16, 3)
        self.blocks = nn.ModuleList(nn.Sequential(nn.Linear(16, 16), nn.Tanh(), nn.Dropout(0.1)) for _ in range(3))
        self.how = how

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.inp(x)
        for block in self.blocks:
            if self.how == "plain":
                x = x + block(x)
            else:
                x = x + checkpoint(block, x, use_reentrant=self.how == "reentrant")
        return self.out(x)


@pytest.mark.parametrize("how", ["reentrant", "nonreentrant"])
def test_activation_checkpointing(how: str, tmp_path: Path) -> None:
    """The same rows as without it: what is computed again is not counted again."""

    def train(how: str) -> Any:
        def run(watch: Any) -> Any:
            model = Blocks(how)
            optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
            session = watch(model, optimizer)
            for step in range(STEPS):
                x, y = batch(step)
                optimizer.zero_grad()
                F.cross_entropy(model(x), y).backward()
                optimizer.step()
            return session

        return run

    plain = rows_of(tmp_path / "plain", train("plain"))
    again = rows_of(tmp_path / "again", train(how))
    assert same_rows(plain, again, (*AT_STEPS, *FORWARD)) > 100


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed, self.body, self.head = nn.Embedding(9, 8), nn.Linear(8, 8), nn.Linear(8, 9, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(torch.tanh(self.body(self.embed(x)))).mean(1)


def test_tied_weights(tmp_path: Path) -> None:
    def style(bench: Bench) -> None:
        model = Tied()
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
        bench.watch(model, optimizer)
        for step in range(STEPS):
            x = torch.randint(0, 9, (8, 4), generator=torch.Generator().manual_seed(step))
            optimizer.zero_grad()
            loss = F.cross_entropy(model(x), x[:, 0])
            loss.backward()
            optimizer.step()
            bench.tick(loss)

    watched = judge(style, tmp_path)
    weights = [i.site for i in watched.session.run.sites if i.site.kind is Kind.WEIGHT and i.site.name == "weight"]
    assert Site("head", Kind.WEIGHT, "weight") not in weights, "one tensor, one site"


def test_frozen_then_unfrozen(tmp_path: Path) -> None:
    def style(bench: Bench) -> None:
        model = net()
        model[0].requires_grad_(False)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        bench.watch(model, optimizer)
        for step in range(STEPS):
            if step == 6:
                model[0].requires_grad_(True)
            x, y = batch(step)
            optimizer.zero_grad()
            loss = F.cross_entropy(model(x), y)
            loss.backward()
            optimizer.step()
            bench.tick(loss)

    watched = judge(style, tmp_path)
    series = watched.session.run.series("0", "gradient")["0.weight"]
    assert list(series.steps) == list(range(6, STEPS))


@pytest.mark.parametrize("how", ["group", "new_optimizer"])
def test_unfrozen_into_the_optimizer(how: str, tmp_path: Path) -> None:
    """A backbone that joins the training later: by add_param_group, or by another optimizer."""

    def style(bench: Bench) -> None:
        model = net()
        model[0].requires_grad_(False)
        optimizer: Any = torch.optim.SGD(model[2].parameters(), lr=0.1)
        bench.watch(model, optimizer, hooks=True)
        for step in range(STEPS):
            if step == 6:
                model[0].requires_grad_(True)
                if how == "group":
                    optimizer.add_param_group({"params": list(model[0].parameters()), "lr": 0.01})
                else:
                    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
            x, y = batch(step)
            optimizer.zero_grad()
            loss = F.cross_entropy(model(x), y)
            loss.backward()
            optimizer.step()
            bench.tick(loss)

    watched = judge(style, tmp_path, kinds=FORWARD)
    run = watched.session.run
    assert list(run.series("0", "update")["0.weight"].steps) == list(range(6, STEPS))
    assert list(run.series("2", "update")["2.weight"].steps) == list(range(STEPS))


def test_layers_added_and_replaced(tmp_path: Path) -> None:
    def style(bench: Bench) -> None:
        model = net()
        optimizer: Any = torch.optim.SGD(model.parameters(), lr=0.1)
        bench.watch(model, optimizer, hooks=False)
        for step in range(STEPS):
            if step == 5:
                model[2] = nn.Linear(16, 8)
                model.append(nn.Linear(8, 3))
                optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
            x, y = batch(step)
            optimizer.zero_grad()
            loss = F.cross_entropy(model(x), y)
            loss.backward()
            optimizer.step()
            bench.tick(loss)

    bench = Bench(tmp_path)
    style(bench)
    run = bench.finish()
    assert bench.session.step == STEPS
    assert list(run.series("3", "gradient")["3.weight"].steps) == list(range(5, STEPS))
    assert list(run.series("3", "weight")["3.weight"].steps) == list(range(5, STEPS))
    assert len(run.series("2", "gradient")["2.weight"].steps) == STEPS
    assert 6 in run.series("3", "activation")["3"].steps
    assert bench.session.diagnosis.causes == ()


def test_layer_at_the_address_of_one_that_is_gone(tmp_path: Path) -> None:
    """Python gives a new layer the address of a replaced one at times: it is a layer of its own all the same."""
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    bench = Bench(tmp_path)
    bench.watch(model, optimizer, hooks=False)
    gone = nn.Linear(3, 3)
    model.append(nn.Linear(3, 3))
    bench.session._watcher.taps._tapped[id(model[3])] = weakref.ref(gone)
    del gone
    optimizer.add_param_group({"params": list(model[3].parameters())})
    for step in range(STEPS):
        x, y = batch(step)
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        bench.tick(loss)
    assert 1 in bench.finish().series("3", "activation")["3"].steps


def test_functional_call(tmp_path: Path) -> None:
    def style(bench: Bench) -> None:
        model = net()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        bench.watch(model, optimizer)
        for step in range(STEPS):
            x, y = batch(step)
            optimizer.zero_grad()
            loss = F.cross_entropy(torch.func.functional_call(model, dict(model.named_parameters()), x), y)
            loss.backward()
            optimizer.step()
            bench.tick(loss)

    judge(style, tmp_path)


@pytest.mark.filterwarnings("ignore::UserWarning:torch.*")
def test_torch_func_transforms(tmp_path: Path) -> None:
    """grad and vmap over the model's parameters: what is computed is the same, and nothing of ours is in the way."""

    def style(bench: Bench) -> None:
        model = net()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        bench.watch(model, optimizer, hooks=False)

        def lose(values: Any, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            return F.cross_entropy(torch.func.functional_call(model, values, x[None]), y[None])

        for step in range(STEPS):
            x, y = batch(step)
            values = {name: p.detach() for name, p in model.named_parameters()}
            gradients = torch.func.vmap(torch.func.grad(lose), (None, 0, 0))(values, x, y)
            for name, p in model.named_parameters():
                p.grad = gradients[name].mean(0)
            optimizer.step()
            bench.tick(0.0)

    judge(style, tmp_path, kinds=AT_STEPS)


def test_a_model_called_several_times_a_step(tmp_path: Path) -> None:
    def style(bench: Bench) -> None:
        model = net()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        bench.watch(model, optimizer)
        for step in range(STEPS):
            x, y = batch(step)
            optimizer.zero_grad()
            first, second = model(x), model(x + 0.1)
            loss = F.cross_entropy(first, y) + (first - second).square().mean()
            loss.backward()
            with torch.no_grad():
                model(x)
            optimizer.step()
            bench.tick(loss)

    watched = judge(style, tmp_path)
    block = watched.session.run.block(0, STEPS)
    assert set(block.calls[:, [i.site for i in block.sites].index(Site("0", Kind.ACTIVATION))]) == {2}


def test_a_model_called_from_threads(tmp_path: Path) -> None:
    """Four threads share one model, as in Hogwild or DataParallel: every call counts once, no row is torn."""
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    bench = Bench(tmp_path)
    bench.watch(model, optimizer, hooks=False)
    failures: list[BaseException] = []

    def work(seed: int, results: list[Any]) -> None:
        try:
            x, y = batch(seed)
            results.append(F.cross_entropy(model(x), y))
        except BaseException as error:
            failures.append(error)

    for step in range(STEPS):
        results: list[Any] = []
        threads = [threading.Thread(target=work, args=(4 * step + n, results)) for n in range(4)]
        [t.start() for t in threads]
        [t.join() for t in threads]
        optimizer.zero_grad()
        loss = torch.stack(results).mean()
        loss.backward()
        optimizer.step()
        bench.tick(loss)
    assert not failures
    assert bench.session.step == STEPS
    run = bench.finish()
    block = run.block(0, STEPS)
    place = [i.site for i in block.sites].index(Site("0", Kind.ACTIVATION))
    assert set(block.calls[:, place]) == {4}
    counts = run.series("0", "activation", "count")["0"]
    assert set(counts.values) == {4 * 16 * 16}
    assert bench.session.diagnosis.causes == ()


@pytest.mark.parametrize("how", ["weight_norm", "spectral_norm", "orthogonal", "own"])
def test_parametrizations(how: str, tmp_path: Path) -> None:
    class Positive(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return F.softplus(x)

    def style(bench: Bench) -> None:
        model = net()
        if how == "weight_norm":
            nn.utils.parametrizations.weight_norm(model[0])
        elif how == "spectral_norm":
            nn.utils.parametrizations.spectral_norm(model[0])
        elif how == "orthogonal":
            nn.utils.parametrizations.orthogonal(model[0])
        else:
            nn.utils.parametrize.register_parametrization(model[0], "weight", Positive())
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
        bench.watch(model, optimizer)
        plain_loop(bench, model, optimizer)

    judge(style, tmp_path)


@pytest.mark.parametrize("optimizer", ["sparse_adam", "sgd"])
def test_sparse_gradients(optimizer: str, tmp_path: Path) -> None:
    def style(bench: Bench) -> None:
        embed, head = nn.Embedding(20, 8, sparse=True), nn.Linear(8, 3)
        model = nn.Sequential(embed, nn.Flatten(), nn.Linear(32, 8), nn.ReLU(), head)
        dense = torch.optim.SGD([p for m in (model[2], head) for p in m.parameters()], lr=0.1)
        sparse: Any = (
            torch.optim.SparseAdam(embed.parameters(), lr=0.01)
            if optimizer == "sparse_adam"
            else torch.optim.SGD(embed.parameters(), lr=0.1)
        )
        bench.watch(model, dense, sparse)
        for step in range(STEPS):
            x = torch.randint(0, 20, (8, 4), generator=torch.Generator().manual_seed(step))
            dense.zero_grad()
            sparse.zero_grad()
            loss = F.cross_entropy(model(x), x[:, 0] % 3)
            loss.backward()
            dense.step()
            sparse.step()
            bench.tick(loss)

    judge(style, tmp_path)


def test_channels_last(tmp_path: Path) -> None:
    def style(bench: Bench) -> None:
        model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 36, 3))
        model = model.to(memory_format=torch.channels_last)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
        bench.watch(model, optimizer)
        for step in range(STEPS):
            x = torch.randn(4, 3, 8, 8, generator=torch.Generator().manual_seed(step))
            optimizer.zero_grad()
            loss = F.cross_entropy(model(x.to(memory_format=torch.channels_last)), torch.arange(4) % 3)
            loss.backward()
            optimizer.step()
            bench.tick(loss)

    judge(style, tmp_path)


@pytest.mark.parametrize("how", ["penalty", "double_backward", "autograd_grad"])
@pytest.mark.filterwarnings("ignore:Using backward.. with create_graph=True:UserWarning")
def test_gradients_of_gradients(how: str, tmp_path: Path) -> None:
    def style(bench: Bench) -> None:
        model = net()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
        bench.watch(model, optimizer)
        for step in range(STEPS):
            x, y = batch(step)
            x.requires_grad_(how == "penalty")
            optimizer.zero_grad()
            loss = F.cross_entropy(model(x), y)
            if how == "penalty":
                (gradient,) = torch.autograd.grad(loss, x, create_graph=True)
                loss = loss + gradient.square().sum()
                loss.backward()
            elif how == "double_backward":
                loss.backward(create_graph=True)
                size = sum(p.grad.square().sum() for p in model.parameters())
                optimizer.zero_grad()
                (loss + 0.1 * size).backward()
            else:
                gradients = torch.autograd.grad(loss, list(model.parameters()))
                for p, gradient in zip(model.parameters(), gradients, strict=True):
                    p.grad = gradient
            optimizer.step()
            bench.tick(loss)

    judge(style, tmp_path)


def test_quantisation_aware_training(tmp_path: Path) -> None:
    from torch.ao.quantization import FakeQuantize, MovingAverageMinMaxObserver

    class Quantised(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc, self.head = nn.Linear(6, 16), nn.Linear(16, 3)
            self.fake = FakeQuantize(MovingAverageMinMaxObserver, quant_min=0, quant_max=255)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.head(self.fake(torch.relu(self.fc(x))))

    def style(bench: Bench) -> None:
        model = Quantised()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        bench.watch(model, optimizer, hooks=False)
        plain_loop(bench, model, optimizer)

    judge(style, tmp_path, kinds=AT_STEPS)


def test_a_model_that_was_on_the_meta_device(tmp_path: Path) -> None:
    def style(bench: Bench) -> None:
        with torch.device("meta"):
            model = net()
        if bench.folder is not None:
            with pytest.warns(stethoscope.StethoscopeWarning, match="meta device"):
                bench.watch(model, hooks=False, given=False)
        else:
            bench.watch(model)
        model.to_empty(device="cpu")
        with torch.no_grad():
            for p in model.parameters():
                p.uniform_(-0.3, 0.3)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        if bench.folder is not None:
            bench.truth.optimizer(optimizer, dict(model.named_parameters()))
        plain_loop(bench, model, optimizer)

    judge(style, tmp_path, kinds=AT_STEPS)


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.float16, torch.complex64])
def test_models_of_every_dtype(dtype: torch.dtype, tmp_path: Path) -> None:
    def style(bench: Bench) -> None:
        bench.dtype = dtype
        model = nn.Sequential(nn.Linear(6, 16, dtype=dtype), nn.Linear(16, 3, dtype=dtype))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
        bench.watch(model, optimizer)
        for step in range(STEPS):
            x, y = batch(step)
            optimizer.zero_grad()
            out = model(x.to(dtype))
            loss = F.cross_entropy(out.abs() if dtype.is_complex else out.float(), y)
            loss.backward()
            optimizer.step()
            bench.tick(loss)

    judge(style, tmp_path)


class Agent(nn.Module):
    """Never called itself: actor and critic are."""

    def __init__(self) -> None:
        super().__init__()
        self.actor, self.critic = nn.Linear(6, 3), nn.Linear(6, 1)


def test_a_model_whose_parts_are_called(tmp_path: Path) -> None:
    def style(bench: Bench) -> None:
        model = Agent()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        bench.watch(model, optimizer)
        for step in range(STEPS):
            x, y = batch(step)
            optimizer.zero_grad()
            loss = F.cross_entropy(model.actor(x), y) + model.critic(x).square().mean()
            loss.backward()
            optimizer.step()
            bench.tick(loss)

    judge(style, tmp_path)
