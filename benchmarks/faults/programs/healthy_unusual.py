"""Healthy: trainings that a rule once blamed, each for what the rule had not understood."""

from __future__ import annotations

import contextlib
from pathlib import Path

import torch
import torch.nn.functional as F
from benchmarks.faults.catalogue import Checkup, Outcome, finished, program
from benchmarks.faults.data import batches, digit_images, digits, windows
from benchmarks.faults.models import CharModel, mlp, next_letter_loss
from benchmarks.faults.training import fit
from torch import nn

import stethoscope


@program()
def h61_policy_gradient_on_growing_returns(seed: int) -> Outcome:
    """Sixty-four walkers in a corridor learn to walk fast: the loss is returns times log-probabilities, and grows with the returns."""
    torch.manual_seed(seed)
    policy = mlp(2, 256, 256, 1)
    nn.init.constant_(policy[4].bias, -1.0)  # at first they hardly leave the wall
    optimizer = torch.optim.Adam(policy.parameters(), lr=1e-3)
    session = stethoscope.watch(policy, optimizer)
    for _ in range(80):
        position, log_probs, rewards = torch.zeros(64), [], []
        for time in range(20):
            state = torch.stack([position / 10, torch.full((64,), time / 20)], dim=1)
            choice = torch.distributions.Normal(policy(state).squeeze(1), 1.0)
            speed = choice.sample()
            log_probs.append(choice.log_prob(speed))
            position = (position + speed.clamp(-3, 3)).clamp(min=0)
            rewards.append(position)
        returns = torch.stack(rewards).flip(0).cumsum(0).flip(0)
        loss = -(torch.stack(log_probs) * returns).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        session.log(reward=torch.stack(rewards).mean())
    return finished(session)


class ActorCritic(nn.Module):
    """Two heads, and the lists of the episode under way."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.actor, self.critic = nn.Linear(6, 32), nn.Linear(32, 4), nn.Linear(32, 1)
        self.kept: list[tuple[torch.Tensor, torch.Tensor]] = []

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Logits of the actions, and the value."""
        hidden = F.relu(self.body(x))
        return self.actor(hidden), self.critic(hidden)


@program()
def h62_lists_of_one_episode(seed: int) -> Outcome:
    """Outputs are kept until the episode ends, and episodes are of very different lengths."""
    torch.manual_seed(seed)
    model, goal = ActorCritic(), torch.randn(6, 4)
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    session = stethoscope.watch(model, optimizer)
    for episode in range(60):
        rewards = []
        for _ in range(4 if episode % 4 < 3 else 60):
            x = torch.randn(6)
            logits, value = model(x)
            choice = torch.distributions.Categorical(logits=logits)
            action = choice.sample()
            model.kept.append((choice.log_prob(action), value))
            rewards.append(float((x @ goal)[action]))
        loss = torch.stack(
            [
                0.5 * (value - r) ** 2 - p * (r - value.detach())
                for (p, value), r in zip(model.kept, rewards, strict=True)
            ]
        ).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        session.log(reward=sum(rewards) / len(rewards))
        model.kept.clear()
    return finished(session)


class _OutOfTimeError(Exception):
    pass


@program()
def h63_one_step_of_many_evaluations(seed: int) -> Outcome:
    """LBFGS takes hundreds of evaluations in its only step, until the script's own limit ends it."""
    torch.manual_seed(seed)
    x = torch.linspace(-1, 1, 200).unsqueeze(1)
    y, model = torch.sin(3 * x), mlp(1, 20, 1, activation=nn.Tanh)
    optimizer = torch.optim.LBFGS(model.parameters(), lr=0.1, max_iter=100_000, tolerance_grad=0, tolerance_change=0)
    session = stethoscope.watch(model, optimizer)
    num_evaluations = 0

    def closure() -> torch.Tensor:
        nonlocal num_evaluations
        num_evaluations += 1
        if num_evaluations > 150:
            raise _OutOfTimeError
        optimizer.zero_grad()
        loss = F.mse_loss(model(x), y)
        loss.backward()
        return loss

    with contextlib.suppress(_OutOfTimeError):
        optimizer.step(closure)  # type: ignore[arg-type]
    return finished(session)


@program()
def h63b_steps_by_hand(seed: int) -> Outcome:
    """No optimizer at all: the weights are moved by two lines, as in a first lesson."""
    torch.manual_seed(seed)
    data, model = digits(), mlp(64, 64, 10)
    session = stethoscope.watch(model)
    for x, y in batches(data.x, data.y, steps=150, seed=seed):
        loss = F.cross_entropy(model(x), y)
        model.zero_grad()
        loss.backward()
        with torch.no_grad():
            for parameter in model.parameters():
                parameter -= 0.1 * parameter.grad
        session.log(loss=loss)
    return finished(session)


@program()
def h64_large_inputs_are_normalised(seed: int) -> Outcome:
    """Pixels up to 255 go into a convolution, and its BatchNorm takes their size away; the head begins too large."""
    torch.manual_seed(seed)
    data = digit_images()
    x = (data.x - data.x.min()) / (data.x.max() - data.x.min()) * 255
    model = nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1, bias=False),
        nn.BatchNorm2d(16),
        nn.ReLU(),
        nn.AvgPool2d(2),
        nn.Flatten(),
        nn.Linear(256, 10),
    )
    nn.init.normal_(model[5].weight)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    session = stethoscope.watch(model, optimizer)
    for images, y in batches(x, data.y, steps=200, seed=seed):
        session.log_batch(images, y)
        optimizer.zero_grad()
        loss = F.cross_entropy(model(images), y)
        loss.backward()
        optimizer.step()
    return finished(session)


@program()
def h65_a_loss_that_falls_slowly(seed: int) -> Outcome:
    """A language model at a careful rate: one percent in a hundred steps, less than single batches differ."""
    torch.manual_seed(seed)
    model = CharModel(90)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.03)
    session = stethoscope.watch(model, optimizer)
    for x, y in windows(steps=420, size=8, seed=seed):
        optimizer.zero_grad()
        loss = next_letter_loss(model(x), y)
        loss.backward()
        optimizer.step()
    return finished(session)


@program()
def h66_the_same_run_folder_again(seed: int) -> Outcome:
    """The script is run twice with the same name and seed: the second training begins anew."""
    data, folder = digits(), Path("again").resolve()
    for _ in range(2):
        torch.manual_seed(seed)
        model = mlp(64, 64, 10)
        optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
        session = stethoscope.watch(model, optimizer, dir=folder.parent, run=folder.name)
        for x, y in batches(data.x, data.y, steps=80, seed=seed):
            optimizer.zero_grad()
            loss = F.cross_entropy(model(x), y)
            loss.backward()
            optimizer.step()
        outcome = finished(session)
    return outcome


def _wrapped() -> nn.Module:
    model = mlp(64, 64, 10)
    plain = model.forward
    model.forward = lambda x: plain(x) * 1.0  # type: ignore[method-assign]
    return model


@program()
def h67_forward_replaced_on_the_instance(seed: int) -> Outcome:
    """A wrapper around the old forward, as libraries put it there: copies of the model must run their own weights."""
    torch.manual_seed(seed)
    data, model, other = digits(), _wrapped(), _wrapped()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    # A copy of ours would hold the original in its forward, so the checkup gets a model of its own.
    checkup = Checkup(
        other, (data.x[:64], data.y[:64]), F.cross_entropy, torch.optim.Adam(other.parameters(), lr=1e-3), {}
    )
    session = stethoscope.watch(model, optimizer)
    fit(session, model, optimizer, batches(data.x, data.y, steps=100, seed=seed))
    return finished(session, checkup)
