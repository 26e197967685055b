"""Healthy: losses that are negative, that jump, that have a floor, that wait before they fall."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from benchmarks.faults.catalogue import Outcome, finished, program
from benchmarks.faults.data import batches, cancer, diabetes, digits
from benchmarks.faults.models import mlp
from benchmarks.faults.training import fit, score
from torch import nn

import stethoscope


@program()
def h06_reinforce(seed: int) -> Outcome:
    """A policy gradient with a baseline: the loss hovers around 0, the reward rises."""
    torch.manual_seed(seed)
    data, policy = digits(), mlp(64, 64, 10)
    optimizer = torch.optim.Adam(policy.parameters(), lr=3e-3)
    session = stethoscope.watch(policy, optimizer)
    baseline = 0.1
    for x, y in batches(data.x, data.y, size=128, steps=250, seed=seed):
        odds = torch.distributions.Categorical(logits=policy(x))
        action = odds.sample()
        reward = (action == y).float()
        optimizer.zero_grad()
        loss = -(odds.log_prob(action) * (reward - baseline)).mean() - 0.01 * odds.entropy().mean()
        loss.backward()
        optimizer.step()
        baseline = 0.9 * baseline + 0.1 * reward.mean().item()
        session.log(loss=loss, reward=reward.mean())
    return finished(session)


@program()
def h12_train_loss_above_validation_loss(seed: int) -> Outcome:
    """Dropout of 0.4 makes training harder than validation, and both fall."""
    torch.manual_seed(seed)
    data, model = digits(), mlp(64, 128, 128, 10, dropout=0.4)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    session = stethoscope.watch(model, optimizer)
    fit(
        session,
        model,
        optimizer,
        batches(data.x, data.y, steps=250, seed=seed),
        log_loss=True,
        log_batches=True,
        validate=lambda: score(model, data.val_x, data.val_y),
        validate_every=10,
    )
    return finished(session)


@program()
def h13_floor_of_label_smoothing(seed: int) -> Outcome:
    """With smoothing 0.2 the loss cannot fall below 0.94: flat at the end, and nothing is wrong."""
    torch.manual_seed(seed)
    data, model = digits(), mlp(64, 128, 10)
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    loss_fn = nn.CrossEntropyLoss(label_smoothing=0.2)
    session = stethoscope.watch(model, optimizer)
    fit(
        session,
        model,
        optimizer,
        batches(data.x, data.y, steps=300, seed=seed),
        loss_fn,
        log_loss=True,
        log_batches=True,
        validate=lambda: score(model, data.val_x, data.val_y, loss_fn),
    )
    return finished(session)


@program()
def h14_curriculum_jump(seed: int) -> Outcome:
    """Three digits for a hundred steps, then all ten: the loss jumps and falls again."""
    torch.manual_seed(seed)
    data, model = digits(), mlp(64, 64, 10)
    easy = data.y < 3
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    session = stethoscope.watch(model, optimizer)
    for part, steps in (((data.x[easy], data.y[easy]), 100), ((data.x, data.y), 150)):
        fit(session, model, optimizer, batches(*part, steps=steps, seed=seed), log_loss=True, log_batches=True)
    return finished(session)


@program()
def h19_long_plateau_then_drop(seed: int) -> Outcome:
    """A deep linear network from small weights sits near a saddle, then learns within a few steps."""
    torch.manual_seed(seed)
    generator = torch.Generator(torch.get_default_device()).manual_seed(seed)
    x = torch.randn(256, 8, generator=generator)
    y = x @ torch.tensor([1.0, -2.0, 0.5, 0.0, 0.0, 1.0, 0.0, -1.0])
    model = nn.Sequential(nn.Linear(8, 16, bias=False), nn.Linear(16, 16, bias=False), nn.Linear(16, 1, bias=False))
    for layer in model:
        nn.init.normal_(layer.weight, std=0.04)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    session = stethoscope.watch(model, optimizer)
    for _ in range(300):
        optimizer.zero_grad()
        loss = F.mse_loss(model(x).squeeze(1), y)
        loss.backward()
        optimizer.step()
        session.log(loss=loss)
    return finished(session)


@program()
def h20_pretrained_head(seed: int) -> Outcome:
    """Fine-tuning begins at a loss of 0.1, far below ln 10."""
    torch.manual_seed(seed)
    data, model = digits(), mlp(64, 64, 10)
    before = torch.optim.Adam(model.parameters(), lr=3e-3)
    for x, y in batches(data.x, data.y, steps=80, seed=seed + 1):
        before.zero_grad()
        F.cross_entropy(model(x), y).backward()
        before.step()
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-4)
    session = stethoscope.watch(model, optimizer)
    fit(
        session,
        model,
        optimizer,
        batches(data.x, data.y, steps=120, seed=seed),
        log_loss=True,
        log_batches=True,
        validate=lambda: score(model, data.val_x, data.val_y),
    )
    return finished(session)


@program()
def h24_inputs_beyond_one(seed: int) -> Outcome:
    """Standardised features reach 12 deviations: long tails, not a mistake."""
    torch.manual_seed(seed)
    data, model = cancer(), mlp(30, 32, 2)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    session = stethoscope.watch(model, optimizer)
    fit(
        session,
        model,
        optimizer,
        batches(data.x, data.y, size=32, steps=200, seed=seed),
        log_loss=True,
        log_batches=True,
        validate=lambda: score(model, data.val_x, data.val_y),
    )
    return finished(session)


@program()
def h20b_regression_with_a_biased_head(seed: int) -> Outcome:
    """The head's bias is set to the mean of the targets, as one should."""
    torch.manual_seed(seed)
    data, model = diabetes(), mlp(10, 32, 1)
    y = data.y * 77 + 152
    nn.init.constant_(model[2].bias, 152.0)
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-2)
    session = stethoscope.watch(model, optimizer)
    fit(
        session,
        model,
        optimizer,
        batches(data.x, y.unsqueeze(1), size=64, steps=200, seed=seed),
        F.mse_loss,
        log_loss=True,
        log_batches=True,
    )
    return finished(session)
