"""Kinds of training in one process, each as a user would write it: `python tests/styles/kinds.py NAME` runs one of them.

What a kind computed is printed to the last bit: losses, weights, the names in state_dict, the random states at its end, and
whether its models can still be copied and pickled. `benchmarks/unharmed.py` runs all of them plain and watched.
"""

from __future__ import annotations

import contextlib
import copy
import hashlib
import io
import itertools
import pickle
import random
import sys
import threading
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader, Dataset, IterableDataset

STEPS = 6
KINDS: dict[str, Callable[[], Any]] = {}
LOSSES: list[float] = []


def kind(function: Callable[[], Any]) -> Callable[[], Any]:
    """Registers a kind under its name in words."""
    KINDS[function.__name__.replace("_", " ")] = function
    return function


def net(width: int = 16) -> nn.Sequential:
    return nn.Sequential(nn.Linear(8, width), nn.ReLU(), nn.Dropout(0.1), nn.Linear(width, 4))


def batch(step: int, size: int = 12) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(step)
    return torch.randn(size, 8, generator=generator), torch.randint(0, 4, (size,), generator=generator)


def note(loss: torch.Tensor) -> torch.Tensor:
    LOSSES.append(float(loss.detach()))
    return loss


def fit(
    model: nn.Module, optimizer: Any, *, after: Callable[[], Any] = lambda: None, closure: bool = False
) -> nn.Module:
    """The plain loop."""
    for step in range(STEPS):
        x, y = batch(step)

        def compute(x: torch.Tensor = x, y: torch.Tensor = y) -> torch.Tensor:
            optimizer.zero_grad()
            loss = note(F.cross_entropy(model(x), y))
            loss.backward()
            return loss

        if closure:
            optimizer.step(compute)
        else:
            compute()
            optimizer.step()
        after()
    return model


# ---- optimizers ----


def _with(name: str, **settings: Any) -> Any:
    model = net()
    return fit(model, getattr(torch.optim, name)(model.parameters(), **settings), closure=name == "LBFGS")


@kind
def sgd() -> Any:
    return _with("SGD", lr=0.1)


@kind
def sgd_with_momentum_foreach() -> Any:
    return _with("SGD", lr=0.1, momentum=0.9, nesterov=True, weight_decay=0.01, foreach=True)


@kind
def adamw() -> Any:
    return _with("AdamW", lr=0.01, amsgrad=True)


@kind
def adamw_fused() -> Any:
    return _with("AdamW", lr=0.01, fused=True)


@kind
def adafactor() -> Any:
    return _with("Adafactor", lr=0.01)


@kind
def rmsprop() -> Any:
    return _with("RMSprop", lr=0.01, centered=True, momentum=0.5)


@kind
def lbfgs() -> Any:
    return _with("LBFGS", lr=0.5, max_iter=4, line_search_fn="strong_wolfe")


@kind
def sparse_adam_on_an_embedding() -> Any:
    model = nn.Sequential(nn.Embedding(20, 8, sparse=True), nn.Flatten(), nn.Linear(24, 4))
    sparse = torch.optim.SparseAdam(model[0].parameters(), lr=0.01)
    dense = torch.optim.Adam(model[2].parameters(), lr=0.01)
    for step in range(STEPS):
        ids = torch.randint(0, 20, (6, 3), generator=torch.Generator().manual_seed(step))
        note(F.cross_entropy(model(ids), ids[:, 0] % 4)).backward()
        sparse.step()
        dense.step()
        model.zero_grad()
    return model


@kind
def an_optimizer_in_backward() -> Any:
    model = net()
    optimizers = {p: torch.optim.SGD([p], lr=0.1) for p in model.parameters()}

    def step(parameter: torch.Tensor) -> None:
        optimizers[parameter].step()  # type: ignore[index]
        optimizers[parameter].zero_grad()  # type: ignore[index]

    for parameter in model.parameters():
        parameter.register_post_accumulate_grad_hook(step)
    for number in range(STEPS):
        x, y = batch(number)
        note(F.cross_entropy(model(x), y)).backward()
    return model


@kind
def an_optimizer_of_the_users() -> Any:
    class Lion(torch.optim.Optimizer):
        @torch.no_grad()
        def step(self, closure: Any = None) -> None:  # type: ignore[override]
            for group in self.param_groups:
                for p in group["params"]:
                    held = self.state[p].setdefault("m", torch.zeros_like(p))
                    p.sub_(group["lr"] * (0.9 * held + 0.1 * p.grad).sign())
                    held.lerp_(p.grad, 0.01)

    model = net()
    return fit(model, Lion(model.parameters(), {"lr": 0.01}))


# ---- loops ----


@kind
def autocast_bf16() -> Any:
    model = net()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    for step in range(STEPS):
        x, y = batch(step)
        with torch.autocast("cpu", torch.bfloat16):
            loss = note(F.cross_entropy(model(x), y))
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    return model


@kind
def fp16_with_a_scaler_that_skips() -> Any:
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**14, growth_interval=2)
    for step in range(STEPS):
        x, y = batch(step)
        with torch.autocast("cpu", torch.float16):
            loss = note(F.cross_entropy(model(x * (1e5 if step == 2 else 1.0)), y))
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
        print(scaler.get_scale())
    return model


@kind
def accumulation() -> Any:
    model = net()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    for step in range(3 * STEPS):
        x, y = batch(step)
        (note(F.cross_entropy(model(x), y)) / 3).backward()
        if step % 3 == 2:
            optimizer.step()
            optimizer.zero_grad()
    return model


@kind
def clipping() -> Any:
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(STEPS):
        x, y = batch(step)
        note(F.cross_entropy(model(x), y)).backward()
        print(float(nn.utils.clip_grad_norm_(model.parameters(), 0.1)).hex())
        nn.utils.clip_grad_value_(model.parameters(), 0.01)
        optimizer.step()
        optimizer.zero_grad()
    return model


@kind
def schedulers() -> Any:
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    warm = torch.optim.lr_scheduler.LinearLR(optimizer, 0.1, total_iters=2)
    cosine = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 4)
    chain = torch.optim.lr_scheduler.SequentialLR(optimizer, [warm, cosine], [2])
    fit(model, optimizer, after=chain.step)
    plateau = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, patience=1)
    fit(model, optimizer, after=lambda: plateau.step(LOSSES[-1]))
    print(optimizer.param_groups[0]["lr"])
    return model


@kind
def a_scheduler_that_warns() -> Any:
    """The scheduler steps before the optimizer does, and an epoch is given: torch warns of both."""
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 2)
    scheduler.step()
    return fit(model, optimizer, after=lambda: scheduler.step(3))


@kind
def averages_of_the_weights() -> Any:
    model = net()
    average = torch.optim.swa_utils.AveragedModel(model, multi_avg_fn=torch.optim.swa_utils.get_ema_multi_avg_fn(0.9))
    shadow = copy.deepcopy(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def after() -> None:
        average.update_parameters(model)
        with torch.no_grad():
            for old, new in zip(shadow.parameters(), model.parameters(), strict=True):
                old.lerp_(new, 0.1)

    fit(model, optimizer, after=after)
    return model, average, shadow


@kind
def several_losses() -> Any:
    model, head = net(), nn.Linear(4, 1)
    optimizer = torch.optim.Adam([*model.parameters(), *head.parameters()], lr=0.01)
    for step in range(STEPS):
        x, y = batch(step)
        out = model(x)
        note(F.cross_entropy(out, y)).backward(retain_graph=True)
        note(head(out).square().mean()).backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=False)
    return model, head


@kind
def gradients_by_autograd_grad() -> Any:
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(STEPS):
        x, y = batch(step)
        loss = note(F.cross_entropy(model(x), y))
        for p, g in zip(model.parameters(), torch.autograd.grad(loss, list(model.parameters())), strict=True):
            p.grad = g
        optimizer.step()
    return model


@kind
def without_an_optimizer() -> Any:
    model = net()
    for step in range(STEPS):
        x, y = batch(step)
        note(F.cross_entropy(model(x), y)).backward()
        with torch.no_grad():
            for p in model.parameters():
                p -= 0.1 * p.grad
                p.grad = None
    return model


@kind
def gradient_penalty() -> Any:
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(STEPS):
        x, y = batch(step)
        x.requires_grad_()
        loss = F.cross_entropy(model(x), y)
        (slope,) = torch.autograd.grad(loss, x, create_graph=True)
        note(loss + slope.square().sum()).backward()
        optimizer.step()
        optimizer.zero_grad()
    return model


@kind
def meta_learning_with_create_graph() -> Any:
    model = nn.Linear(8, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(STEPS):
        x, y = batch(step)
        parts = dict(model.named_parameters())
        inner = F.cross_entropy(torch.func.functional_call(model, parts, (x,)), y)
        slopes = torch.autograd.grad(inner, list(parts.values()), create_graph=True)
        moved = {name: p - 0.1 * g for (name, p), g in zip(parts.items(), slopes, strict=True)}
        x, y = batch(step + 100)
        note(F.cross_entropy(torch.func.functional_call(model, moved, (x,)), y)).backward()
        optimizer.step()
        optimizer.zero_grad()
    return model


@kind
def torch_func_vmap_and_grad() -> Any:
    model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 4))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def loss_of(parts: Any, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return F.cross_entropy(torch.func.functional_call(model, parts, (x[None],)), y[None])

    for step in range(STEPS):
        x, y = batch(step)
        parts = {name: p.detach() for name, p in model.named_parameters()}
        each = torch.func.vmap(torch.func.grad(loss_of), (None, 0, 0))(parts, x, y)
        for name, p in model.named_parameters():
            p.grad = each[name].mean(0)
        optimizer.step()
        note(sum(g.square().sum() for g in each.values()))
    return model


@kind
def a_generative_adversarial_pair() -> Any:
    g, d = (
        nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 8)),
        nn.Sequential(nn.Linear(8, 16), nn.LeakyReLU(), nn.Linear(16, 1)),
    )
    opt_g, opt_d = torch.optim.Adam(g.parameters(), 1e-3), torch.optim.Adam(d.parameters(), 1e-3)
    for step in range(STEPS):
        fake = g(torch.randn(12, 4))
        loss = note(F.softplus(d(fake.detach())).mean() + F.softplus(-d(batch(step)[0])).mean())
        opt_d.zero_grad()
        loss.backward()
        opt_d.step()
        opt_g.zero_grad()
        note(F.softplus(-d(fake)).mean()).backward()
        opt_g.step()
    return g, d


@kind
def q_learning_with_a_target_network() -> Any:
    online, target = net(), net()
    target.load_state_dict(online.state_dict())
    optimizer = torch.optim.RMSprop(online.parameters(), lr=0.01)
    for step in range(STEPS):
        x, action = batch(step)
        with torch.no_grad():
            wanted = torch.randn(len(x)) + 0.9 * target(batch(step + 1)[0]).amax(1)
        note(F.smooth_l1_loss(online(x).gather(1, action[:, None])[:, 0], wanted)).backward()
        optimizer.step()
        optimizer.zero_grad()
        if step % 3 == 2:
            target.load_state_dict(online.state_dict())
    return online, target


@kind
def reinforce() -> Any:
    policy = net()
    optimizer = torch.optim.Adam(policy.parameters(), lr=0.01)
    for step in range(STEPS):
        chosen = torch.distributions.Categorical(logits=policy(batch(step)[0]))
        action = chosen.sample()
        note(-(chosen.log_prob(action) * (action == 1).float()).mean()).backward()
        optimizer.step()
        optimizer.zero_grad()
    return policy


# ---- models ----


def _fit_on(model: nn.Module, make: Callable[[int], torch.Tensor], lr: float = 0.01) -> nn.Module:
    """Train a model towards the classes of `batch` on inputs of its own; its output is averaged to twelve rows of four."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=lr)
    for step in range(STEPS):
        note(F.cross_entropy(model(make(step)), batch(step)[1])).backward()
        optimizer.step()
        optimizer.zero_grad()
    return model


def _noise(*shape: int, dtype: torch.dtype = torch.float32) -> Callable[[int], torch.Tensor]:
    return lambda step: torch.randn(*shape, dtype=dtype, generator=torch.Generator().manual_seed(step))


class Calls(nn.Module):
    """A model written as a function of its parts."""

    def __init__(self, call: Callable[..., torch.Tensor], **parts: nn.Module) -> None:
        super().__init__()
        for name, part in parts.items():
            setattr(self, name, part)
        self.call = call

    def forward(self, x: Any) -> torch.Tensor:
        return self.call(self, x)


def _convolutional() -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(3, 8, 3),
        nn.BatchNorm2d(8),
        nn.ReLU(inplace=True),
        nn.MaxPool2d(2),
        nn.Dropout2d(0.1),
        nn.Flatten(),
        nn.Linear(72, 4),
    )


@kind
def convolutions_and_batch_norm() -> Any:
    return _fit_on(_convolutional(), _noise(12, 3, 8, 8))


@kind
def channels_last() -> Any:
    make = _noise(12, 3, 8, 8)
    model = _convolutional().to(memory_format=torch.channels_last)
    return _fit_on(model, lambda step: make(step).to(memory_format=torch.channels_last))


@kind
def packed_sequences_in_an_lstm() -> Any:
    def call(self: Any, x: torch.Tensor) -> torch.Tensor:
        packed = nn.utils.rnn.pack_padded_sequence(x, [6] * 4 + [4] * 4 + [2] * 4, batch_first=True)
        return self.head(self.lstm(packed)[1][0][-1])

    return _fit_on(
        Calls(call, lstm=nn.LSTM(5, 8, 2, batch_first=True, dropout=0.1), head=nn.Linear(8, 4)), _noise(12, 6, 5)
    )


@kind
def a_gru_cell_unrolled() -> Any:
    def call(self: Any, x: torch.Tensor) -> torch.Tensor:
        state = x.new_zeros(12, 8)
        for moment in x.unbind(1):
            state = self.cell(moment, state)
        return self.head(state)

    return _fit_on(Calls(call, cell=nn.GRUCell(5, 8), head=nn.Linear(8, 4)), _noise(12, 6, 5))


@kind
def multihead_attention() -> Any:
    def call(self: Any, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.attention(x, x, x)[0].mean(1))

    return _fit_on(
        Calls(call, attention=nn.MultiheadAttention(8, 2, 0.1, batch_first=True), head=nn.Linear(8, 4)),
        _noise(12, 5, 8),
    )


@kind
def a_transformer_encoder() -> Any:
    def call(self: Any, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.encoder(x).mean(1))

    layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
    return _fit_on(Calls(call, encoder=nn.TransformerEncoder(layer, 2), head=nn.Linear(8, 4)), _noise(12, 5, 8))


@kind
def a_mixture_of_experts() -> Any:
    def call(self: Any, x: torch.Tensor) -> torch.Tensor:
        weight, chosen = self.gate(x).softmax(-1).topk(2)
        out = x.new_zeros(len(x), 4)
        for number, expert in enumerate(self.experts):
            row, place = (chosen == number).nonzero(as_tuple=True)
            if len(row):
                out = out.index_add(0, row, weight[row, place, None] * expert(x[row]))
        return out

    return _fit_on(
        Calls(call, gate=nn.Linear(8, 4), experts=nn.ModuleList(nn.Linear(8, 4) for _ in range(4))), _noise(12, 8)
    )


@kind
def activation_checkpointing() -> Any:
    def call(self: Any, x: torch.Tensor) -> torch.Tensor:
        x = checkpoint(self.first, x, use_reentrant=False)
        return self.last(checkpoint(self.second, x.requires_grad_(), use_reentrant=True))

    block = lambda: nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Dropout(0.2))  # noqa: E731 - twice the same
    return _fit_on(Calls(call, first=block(), second=block(), last=nn.Linear(8, 4)), _noise(12, 8))


@kind
def weight_norm_and_spectral_norm() -> Any:
    model = net()
    nn.utils.parametrizations.weight_norm(model[0])
    nn.utils.parametrizations.spectral_norm(model[3])
    return _fit_on(model, _noise(12, 8))


@kind
def old_weight_norm() -> Any:
    model = net()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        nn.utils.weight_norm(model[0])
        nn.utils.spectral_norm(model[3])
    return _fit_on(model, _noise(12, 8))


@kind
def lazy_layers() -> Any:
    model = nn.Sequential(nn.LazyConv2d(4, 3), nn.LazyBatchNorm2d(), nn.ReLU(), nn.Flatten(), nn.LazyLinear(4))
    return _fit_on(model, _noise(12, 3, 6, 6))


@kind
def nested_jagged_tensors() -> Any:
    def call(self: Any, x: torch.Tensor) -> torch.Tensor:
        return self.second(self.first(x).relu()).to_padded_tensor(0.0).sum(1)

    def make(step: int) -> torch.Tensor:
        return torch.nested.nested_tensor([_noise(1 + n % 3, 8)(step + n) for n in range(12)], layout=torch.jagged)

    return _fit_on(Calls(call, first=nn.Linear(8, 8), second=nn.Linear(8, 4)), make)


@kind
def complex_numbers() -> Any:
    def call(self: Any, x: torch.Tensor) -> torch.Tensor:
        return self.second(torch.fft.fft(self.first(x))).abs()

    parts = {"first": nn.Linear(8, 8, dtype=torch.complex64), "second": nn.Linear(8, 4, dtype=torch.complex64)}
    return _fit_on(Calls(call, **parts), _noise(12, 8, dtype=torch.complex64))


@kind
def float64() -> Any:
    return _fit_on(net().double(), _noise(12, 8, dtype=torch.float64))


@kind
def bfloat16() -> Any:
    return _fit_on(net().bfloat16(), _noise(12, 8, dtype=torch.bfloat16))


@kind
def quantisation_aware() -> Any:
    model = net()
    fake = torch.ao.quantization.FakeQuantize(observer=torch.ao.quantization.MovingAverageMinMaxObserver)
    model.insert(2, fake)
    return _fit_on(model, _noise(12, 8))


@kind
def an_autograd_function() -> Any:
    class Round(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
            return x.round()

        @staticmethod
        def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
            return grad * 0.5

    return _fit_on(Calls(lambda self, x: self.net(Round.apply(x)), net=net()), _noise(12, 8))


@kind
def hooks_of_the_users() -> Any:
    model, seen = net(), []
    model[0].register_forward_hook(lambda _m, _a, out: out * 1.5)
    model[0].register_full_backward_hook(lambda _m, into, _out: tuple(g if g is None else 0.5 * g for g in into))
    model[3].register_forward_pre_hook(lambda _m, args: (args[0] + 0.1,))
    model[3].weight.register_hook(lambda g: seen.append(float(g.sum())) or 0.9 * g)
    _fit_on(model, _noise(12, 8))
    print(seen)
    return [dict(model.named_parameters())]


@kind
def operations_in_place() -> Any:
    def call(self: Any, x: torch.Tensor) -> torch.Tensor:
        x = self.first(x)
        x = x.mul_(1.5).add_(0.1)
        x[:, 0] = 0.0
        x = x.relu_()
        return self.second(x).clamp_(-5, 5)

    return _fit_on(Calls(call, first=nn.Linear(8, 8), second=nn.Linear(8, 4)), _noise(12, 8))


@kind
def tied_weights() -> Any:
    model = Calls(
        lambda self, x: self.head(self.embed(x).mean(1)), embed=nn.Embedding(4, 8), head=nn.Linear(8, 4, bias=False)
    )
    model.head.weight = model.embed.weight
    return _fit_on(model, lambda step: torch.randint(0, 4, (12, 5), generator=torch.Generator().manual_seed(step)))


@kind
def compiled() -> Any:
    model = net()
    run = torch.compile(model, backend="aot_eager")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(STEPS):
        x, y = batch(step)
        note(F.cross_entropy(run(x), y)).backward()
        optimizer.step()
        optimizer.zero_grad()
    return model


@kind
def a_forward_that_was_replaced() -> Any:
    import functools

    model = net()
    model[0]._old_forward = model[0].forward
    model[0].forward = functools.partial(lambda self, x: self._old_forward(x) * 2.0, model[0])
    _fit_on(model, _noise(12, 8))
    return [dict(model.named_parameters())]


# ---- life ----


@kind
def frozen_then_unfrozen() -> Any:
    model = net()
    model[0].requires_grad_(False)
    optimizer = torch.optim.SGD((p for p in model.parameters() if p.requires_grad), lr=0.1)
    fit(model, optimizer)
    model[0].requires_grad_()
    optimizer.add_param_group({"params": list(model[0].parameters()), "lr": 0.01})
    return fit(model, optimizer)


@kind
def a_model_that_grows() -> Any:
    model = net()
    fit(model, torch.optim.SGD(model.parameters(), lr=0.1))
    model.insert(3, nn.Linear(16, 16))
    return fit(model, torch.optim.SGD(model.parameters(), lr=0.1))


@kind
def two_trainings() -> Any:
    first, second = net(), net(8)
    fit(first, torch.optim.SGD(first.parameters(), lr=0.1))
    return first, fit(second, torch.optim.AdamW(second.parameters(), lr=0.01))


@kind
def copies_in_the_loop() -> Any:
    model, kept = net(), []
    fit(model, torch.optim.SGD(model.parameters(), lr=0.1), after=lambda: kept.append(copy.deepcopy(model)))
    return kept


@kind
def a_checkpoint_and_its_resumption() -> Any:
    model = net()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    fit(model, optimizer)
    file = io.BytesIO()
    torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict(), "whole": model}, file)
    file.seek(0)
    held = torch.load(file, weights_only=False)
    print(sorted(held["model"]))
    again = net()
    again.load_state_dict(held["model"])
    other = torch.optim.AdamW(again.parameters(), lr=0.01)
    other.load_state_dict(held["optimizer"])
    return model, fit(again, other), held["whole"]


@kind
def evaluation_between_steps() -> Any:
    model = nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Dropout(0.2), nn.Linear(16, 4))

    def evaluate() -> None:
        model.eval()
        with torch.no_grad():
            print(float(F.cross_entropy(model(batch(99)[0]), batch(99)[1])).hex())
        model.train()

    return fit(model, torch.optim.SGD(model.parameters(), lr=0.1), after=evaluate)


class Rows(Dataset[Any]):
    """Samples with random noise, as an augmentation makes it."""

    def __len__(self) -> int:
        return 24

    def __getitem__(self, place: int) -> tuple[torch.Tensor, int]:
        return torch.randn(8) + random.random() + float(np.random.rand()), place % 4


def _load(**settings: Any) -> nn.Module:
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loader = DataLoader(Rows(), 6, shuffle=True, **settings)
    for _ in range(2):
        for x, y in loader:
            note(F.cross_entropy(model(x), y)).backward()
            optimizer.step()
            optimizer.zero_grad()
    return model


@kind
def a_loader_in_the_process() -> Any:
    return _load(drop_last=True)


@kind
def a_loader_with_forked_workers() -> Any:
    return _load(num_workers=2, multiprocessing_context="fork", persistent_workers=True)


@kind
def a_loader_with_spawned_workers() -> Any:
    return _load(num_workers=1, multiprocessing_context="spawn")


@kind
def a_stream_of_data() -> Any:
    class Stream(IterableDataset[Any]):
        def __iter__(self) -> Iterator[Any]:
            for step in itertools.count():
                yield batch(step)

    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for x, y in itertools.islice(DataLoader(Stream(), batch_size=None), STEPS):
        note(F.cross_entropy(model(x), y)).backward()
        optimizer.step()
        optimizer.zero_grad()
    return model


@kind
def forward_passes_in_threads() -> Any:
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(STEPS):
        losses: dict[int, torch.Tensor] = {}

        def work(number: int, step: int = step, losses: dict[int, torch.Tensor] = losses) -> None:
            x, y = batch(10 * step + number)
            losses[number] = F.cross_entropy(model(x), y)

        threads = [threading.Thread(target=work, args=(number,)) for number in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        note(sum(losses[number] for number in range(3))).backward()  # type: ignore[arg-type]
        optimizer.step()
        optimizer.zero_grad()
    return model


@kind
def training_in_a_thread() -> Any:
    models: list[nn.Module] = []

    def work() -> None:
        model = net()
        models.append(fit(model, torch.optim.SGD(model.parameters(), lr=0.1)))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    return models


@kind
def an_exception_that_is_caught() -> Any:
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    fit(model, optimizer)
    with contextlib.suppress(RuntimeError):
        model(torch.randn(3, 5))
    return fit(model, optimizer)


@kind
def an_exception_that_ends_it() -> Any:
    model = net()
    fit(model, torch.optim.SGD(model.parameters(), lr=0.1))
    finish(model)
    raise ValueError("the data ran out")


@kind
def an_exit_with_a_code() -> Any:
    model = net()
    fit(model, torch.optim.SGD(model.parameters(), lr=0.1))
    finish(model)
    sys.exit(7)


@kind
def an_interrupt() -> Any:
    model = net()
    fit(model, torch.optim.SGD(model.parameters(), lr=0.1))
    finish(model)
    import os
    import signal

    os.kill(os.getpid(), signal.SIGINT)
    threading.Event().wait(5)


@kind
def warnings_of_every_kind() -> Any:
    """Torch's own and the user's, from Python and from C++, of the first pass and of later ones, once and always."""

    class Odd(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.Linear(8, 4)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            warnings.warn("of the user's forward", stacklevel=1)
            out = F.softmax(self.inner(x))  # the dimension is left to torch, which warns of the caller's line
            return out + torch.randn(12, 4).resize_(12, 4) * torch.ones(4, 12).T.mean()

    def scale(step: int) -> float:
        warnings.warn("of a schedule", stacklevel=2)
        return 0.9**step

    model = Odd()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, scale)
    for step in range(STEPS):
        if step == 3:
            warnings.simplefilter("always")
        x, y = batch(step)
        out = model(x)
        torch.add(out.detach(), torch.zeros(12, 4), out=torch.empty(3))  # C++ warns that it must resize what is given
        note(F.mse_loss(out.sum(1, keepdim=True), y.float())).backward(create_graph=step % 2 == 1)
        scheduler.step()
        optimizer.step()
        model.zero_grad()
    return model


# ---- what came of it ----


def finish(*found: Any) -> None:
    """Print everything that must be the same."""
    models: list[Any] = []
    for one in found:
        models += one if isinstance(one, (list, tuple)) else [one]
    weights, names = hashlib.sha256(), []
    for model in models:
        state = model if isinstance(model, dict) else model.state_dict()
        names.append(list(state))
        for value in state.values():
            if isinstance(value, torch.Tensor):
                weights.update(value.detach().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
    chance = hashlib.sha256(
        torch.get_rng_state().numpy().tobytes() + repr((random.getstate(), np.random.get_state())).encode()
    )
    print("losses", hashlib.sha256(repr([loss.hex() for loss in LOSSES]).encode()).hexdigest(), len(LOSSES))
    print("weights", weights.hexdigest())
    print("random", chance.hexdigest())
    print("names", names)
    for model in models:
        if isinstance(model, nn.Module):
            print("copied", _can(copy.deepcopy, model), "pickled", _can(lambda m: pickle.loads(pickle.dumps(m)), model))


def _can(act: Callable[[Any], Any], model: nn.Module) -> str:
    try:
        act(model)
    except Exception as error:
        return type(error).__name__
    return "yes"


def main(name: str) -> None:
    """Run one kind and print what came of it."""
    torch.set_num_threads(1)
    torch.manual_seed(5)
    random.seed(5)
    np.random.seed(5)
    finish(KINDS[name]())


if __name__ == "__main__":
    main(" ".join(sys.argv[1:]))
