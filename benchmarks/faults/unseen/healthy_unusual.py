"""Unseen, healthy, a fifth draw: further instances of trainings that rules had blamed, written without a look at the rules."""

from __future__ import annotations

import types
from collections.abc import Callable
from pathlib import Path

import torch
import torch.nn.functional as F
from benchmarks.faults.catalogue import Checkup, Outcome, finished, program
from benchmarks.faults.data import adding_problem, batches, cancer_raw, diabetes, digit_images, digits, windows
from benchmarks.faults.models import CharModel, ConvNet, Recurrent, mlp, next_letter_loss
from benchmarks.faults.training import fit, score
from torch import nn

import stethoscope


@program()
def uh61_bandit_whose_rewards_grow(seed: int) -> Outcome:
    """A bandit over digits; a run of right answers pays more and more, so the loss rises with success."""
    torch.manual_seed(seed)
    data, policy = digits(), mlp(64, 64, 10)
    optimizer = torch.optim.Adam(policy.parameters(), lr=3e-3)
    session = stethoscope.watch(policy, optimizer)
    pay = 1.0
    for x, y in batches(data.x, data.y, size=128, steps=200, seed=seed):
        odds = torch.distributions.Categorical(logits=policy(x))
        action = odds.sample()
        right = (action == y).float()
        advantage = pay * (right - right.mean())
        loss = -(odds.log_prob(action) * advantage).sum()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        pay = 1.0 + 20.0 * right.mean().item()
        session.log(accuracy=right.mean())
    return finished(session)


@program()
def uh61b_clipped_surrogate_of_a_gaussian(seed: int) -> Outcome:
    """Proximal policy optimisation of one continuous action, advantages not normalised, value loss in the same sum."""
    torch.manual_seed(seed)
    actor, critic = mlp(10, 64, 1, activation=nn.Tanh), mlp(10, 64, 1, activation=nn.Tanh)
    data = diabetes()
    model = nn.ModuleDict({"actor": actor, "critic": critic})
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    session = stethoscope.watch(model, optimizer)
    for x, y in batches(data.x, data.y, size=128, steps=50, seed=seed):
        with torch.no_grad():
            before = torch.distributions.Normal(actor(x).squeeze(1), 0.5)
            action = before.sample()
            reward = -10.0 * (action - y) ** 2
            advantage = reward - critic(x).squeeze(1)
            old = before.log_prob(action)
        for _ in range(4):
            now = torch.distributions.Normal(actor(x).squeeze(1), 0.5)
            ratio = (now.log_prob(action) - old).exp()
            gain = torch.min(ratio * advantage, ratio.clamp(0.8, 1.2) * advantage).mean()
            loss = -gain + 0.5 * F.mse_loss(critic(x).squeeze(1), reward)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            session.log(reward=reward.mean())
    return finished(session)


@program()
def uh62_truncated_unrolls(seed: int) -> Outcome:
    """Outputs of a recurrent cell are kept for a stretch, now short, now long, then one step is taken over all of them."""
    torch.manual_seed(seed)
    cell, head = nn.GRUCell(2, 32), nn.Linear(32, 1)

    class Stepper(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.cell, self.head = cell, head

        def forward(self, x: torch.Tensor, hidden: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            hidden = self.cell(x, hidden)
            return self.head(hidden), hidden

    model = Stepper()
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    session = stethoscope.watch(model, optimizer)
    outputs: list[torch.Tensor] = []
    for number in range(60):
        hidden = torch.zeros(16, 32)
        length = 40 if number % 5 == 4 else 3
        x = torch.rand(16, length, 2)
        outputs = []
        for time in range(length):
            output, hidden = model(x[:, time], hidden)
            outputs.append(output)
        loss = F.mse_loss(torch.cat(outputs, 1), x[..., 0].cumsum(1) / 5)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return finished(session)


@program()
def uh62b_a_pool_of_generations(seed: int) -> Outcome:
    """Answers are sampled with gradients for several prompts first, then the step is taken, as in self-critical training."""
    torch.manual_seed(seed)
    data, model = digits(), mlp(64, 48, 10)
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
    session = stethoscope.watch(model, optimizer)
    pool = []
    for number, (x, y) in enumerate(batches(data.x, data.y, size=8, steps=900, seed=seed)):
        pool.append(F.cross_entropy(model(x), y))
        # The pool is full after few batches at first, and after more and more of them.
        if len(pool) >= 2 + number // 60:
            loss = torch.stack(pool).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            pool = []
    return finished(session)


@program()
def uh63_one_long_search(seed: int) -> Outcome:
    """LBFGS with a strong line search over a whole small data set, in one call that converges."""
    torch.manual_seed(seed)
    data = diabetes()
    model = mlp(10, 8, 1, activation=nn.Tanh)
    optimizer = torch.optim.LBFGS(model.parameters(), max_iter=300, line_search_fn="strong_wolfe")
    session = stethoscope.watch(model, optimizer)

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        loss = F.mse_loss(model(data.x).squeeze(1), data.y) + 1e-2 * sum(p.square().sum() for p in model.parameters())
        loss.backward()
        return loss

    optimizer.step(closure)  # type: ignore[arg-type]
    return finished(session)


@program()
def uh63b_own_momentum(seed: int) -> Outcome:
    """A training loop that keeps its own velocity and writes to `.data`, as older code does."""
    torch.manual_seed(seed)
    model = Recurrent(nn.GRU, 2, 24, 1)
    speed = [torch.zeros_like(p) for p in model.parameters()]
    session = stethoscope.watch(model)
    for x, y in adding_problem(length=12, steps=120, seed=seed):
        for p in model.parameters():
            p.grad = None
        loss = F.mse_loss(model(x).squeeze(1), y)
        loss.backward()
        for p, v in zip(model.parameters(), speed, strict=True):
            v.mul_(0.9).add_(p.grad)
            p.data = p.data - 0.05 * v
    return finished(session)


@program()
def uh64_raw_table_through_batchnorm(seed: int) -> Outcome:
    """Features up to 4,000 go straight into a BatchNorm; sigmoids come later."""
    torch.manual_seed(seed)
    data = cancer_raw()
    model = nn.Sequential(nn.BatchNorm1d(30), nn.Linear(30, 32), nn.Sigmoid(), nn.Linear(32, 2))
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-2)
    session = stethoscope.watch(model, optimizer)
    fit(
        session,
        model,
        optimizer,
        batches(data.x, data.y, size=64, steps=150, seed=seed),
        log_batches=True,
        validate=lambda: score(model, data.val_x, data.val_y),
    )
    return finished(session)


@program()
def uh64b_bright_images(seed: int) -> Outcome:
    """Images from 0 to 255 into convolution and BatchNorm."""
    torch.manual_seed(seed)
    data = digit_images()
    low, high = data.x.min(), data.x.max()

    model = ConvNet()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    session = stethoscope.watch(model, optimizer)
    fit(
        session,
        model,
        optimizer,
        batches((data.x - low) / (high - low) * 255, data.y, steps=150, seed=seed),
        log_batches=True,
    )
    return finished(session)


@program()
def uh65_small_steps_on_noisy_targets(seed: int) -> Outcome:
    """A regression with noise as large as the signal, learned in small steps of SGD."""
    torch.manual_seed(seed)
    x = torch.randn(4000, 20)
    y = x @ torch.linspace(-0.3, 0.3, 20) + torch.randn(4000)
    model = mlp(20, 32, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=2e-3)
    session = stethoscope.watch(model, optimizer)
    for xs, ys in batches(x, y, size=32, steps=800, seed=seed):
        optimizer.zero_grad()
        F.mse_loss(model(xs).squeeze(1), ys).backward()
        optimizer.step()
    return finished(session)


@program()
def uh65b_the_long_tail_of_a_language_model(seed: int) -> Outcome:
    """Letters at batch size 4 with a decaying rate: it still gets better, by less and less."""
    torch.manual_seed(seed)
    model = CharModel(90, width=24, depth=1)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 600)
    session = stethoscope.watch(model, optimizer)
    for x, y in windows(steps=500, size=4, seed=seed):
        optimizer.zero_grad()
        next_letter_loss(model(x), y).backward()
        optimizer.step()
        scheduler.step()
    return finished(session)


@program()
def uh66_another_seed_in_the_same_folder(seed: int) -> Outcome:
    """The second training in a folder has another seed and another length; weights are small."""
    data, folder = digits(), Path("twice").resolve()
    for number in range(2):
        torch.manual_seed(seed + 100 * number)
        model = mlp(64, 32, 10)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
        session = stethoscope.watch(model, optimizer, dir=folder.parent, run=folder.name)
        fit(session, model, optimizer, batches(data.x, data.y, steps=50 + 30 * number, seed=seed))
        outcome = finished(session)
    return outcome


@program()
def uh66b_three_short_trials(seed: int) -> Outcome:
    """Three trials of a search, a few steps each, all into one folder, with Adam."""
    data, folder = digits(), Path("trials").resolve()
    for rate in (1e-3, 3e-3, 1e-2):
        torch.manual_seed(seed)
        model = ConvNet(width=8)
        optimizer = torch.optim.AdamW(model.parameters(), lr=rate)
        session = stethoscope.watch(model, optimizer, dir=folder.parent, run=folder.name)
        fit(session, model, optimizer, batches(data.x.view(-1, 1, 8, 8), data.y, steps=25, seed=seed))
        outcome = finished(session)
    return outcome


def _method() -> nn.Module:
    model = ConvNet()
    old = model.forward

    def wrapped(self: nn.Module, x: torch.Tensor) -> torch.Tensor:
        return old(x.float()).float()

    model.forward = types.MethodType(wrapped, model)  # type: ignore[method-assign]
    return model


def _with_low_rank() -> nn.Module:
    model = mlp(64, 64, 10)
    layer = model[0]
    layer.down, layer.up = nn.Parameter(torch.randn(4, 64) * 0.1), nn.Parameter(torch.zeros(64, 4))
    plain = layer.forward
    layer.forward = lambda x: plain(x) + x @ layer.down.T @ layer.up.T
    return model


def _own_checkup(build: Callable[[], nn.Module], x: torch.Tensor, y: torch.Tensor) -> Checkup:
    model = build()
    return Checkup(model, (x[:64], y[:64]), F.cross_entropy, torch.optim.Adam(model.parameters(), lr=1e-3), {})


@program()
def uh67_method_put_on_the_instance(seed: int) -> Outcome:
    """A mixed-precision wrapper of a bound method, put in place of `forward` by types.MethodType."""
    torch.manual_seed(seed)
    data, model = digit_images(), _method()
    checkup = _own_checkup(_method, data.x, data.y)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    session = stethoscope.watch(model, optimizer)
    fit(session, model, optimizer, batches(data.x, data.y, steps=80, seed=seed))
    return finished(session, checkup)


@program()
def uh67b_inner_layer_wrapped(seed: int) -> Outcome:
    """A low-rank addition to one layer, made by replacing that layer's forward with a closure over its own parameters."""
    torch.manual_seed(seed)
    data, model = digits(), _with_low_rank()
    checkup = _own_checkup(_with_low_rank, data.x, data.y)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    session = stethoscope.watch(model, optimizer)
    fit(session, model, optimizer, batches(data.x, data.y, steps=80, seed=seed))
    return finished(session, checkup)
