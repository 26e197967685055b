"""Unseen: rates, schedules, clipping, decay, epsilon (F10-F18, F75-F77)."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from benchmarks.faults.catalogue import Outcome, finished, program
from benchmarks.faults.data import (
    adding_problem,
    batches,
    cancer,
    diabetes,
    digit_images,
    digits,
    moons,
    text,
    windows,
    wine,
)
from benchmarks.faults.models import CharModel, ConvNet, Recurrent, mlp, next_letter_loss
from benchmarks.faults.programs.healthy_models import TrigramBag
from benchmarks.faults.programs.precision import half
from benchmarks.faults.training import fit
from torch import nn

import stethoscope


@program(step=0)
def u10_sgd_rate_of_20(seed: int) -> Outcome:
    """An MLP and SGD with momentum at 20 instead of 0.1: diverges within a few steps."""
    torch.manual_seed(seed)
    data, model = wine(), mlp(13, 64, 64, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=20.0, momentum=0.9)
    session = stethoscope.watch(model, optimizer)
    fit(session, model, optimizer, batches(data.x, data.y, size=32, steps=80, seed=seed))
    return finished(session)


@program(step=60, sudden=True)
def u10b_rate_jumps_at_step_60(seed: int) -> Outcome:
    """A schedule table with a slipped decimal point: 0.3 from step 60 on, in a CNN with RMSprop."""
    torch.manual_seed(seed)
    data, model = digit_images(), ConvNet()
    optimizer = torch.optim.RMSprop(model.parameters(), lr=1e-3)
    session = stethoscope.watch(model, optimizer)
    for number, (x, y) in enumerate(batches(data.x, data.y, steps=120, seed=seed)):
        optimizer.param_groups[0]["lr"] = 0.3 if number >= 60 else 1e-3
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        optimizer.step()
    return finished(session)


@program(step=0)
def u11_sgd_rate_of_1e_6(seed: int) -> Outcome:
    """A language model and SGD at 1e-6."""
    torch.manual_seed(seed)
    _, vocabulary = text()
    model = CharModel(vocabulary)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-6, momentum=0.9)
    session = stethoscope.watch(model, optimizer)
    fit(session, model, optimizer, windows(steps=80, seed=seed), next_letter_loss)
    return finished(session)


@program(step=0)
def u11z_a_rate_too_low_for_the_time(seed: int) -> Outcome:
    """Adam at 1e-6, each update a hundred-thousandth of its weight and more: ten times the steps would not do either."""
    torch.manual_seed(seed)
    data, model = digits(), mlp(64, 64, 10)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-6)
    session = stethoscope.watch(model, optimizer)
    fit(session, model, optimizer, batches(data.x, data.y, steps=120, seed=seed))
    return finished(session)


@program()
def u12_exponential_decay_per_batch(seed: int) -> Outcome:
    """0.9 per epoch, stepped per batch: the rate is a millionth after 130 of 300 steps."""
    torch.manual_seed(seed)
    data, model = cancer(), mlp(30, 32, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, gamma=0.9)
    session = stethoscope.watch(model, optimizer)
    feed = batches(data.x, data.y, size=16, steps=300, seed=seed)
    fit(session, model, optimizer, feed, scheduler=scheduler)
    return finished(session)


@program()
def u13_warmup_never_stepped(seed: int) -> Outcome:
    """A warm-up from 1% was made and is never advanced: the whole run at 1% of the rate."""
    torch.manual_seed(seed)
    _, vocabulary = text()
    model = CharModel(vocabulary)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min(1.0, (step + 1) / 100))  # noqa: F841
    session = stethoscope.watch(model, optimizer)
    fit(session, model, optimizer, windows(steps=150, seed=seed), next_letter_loss)
    return finished(session)


@program(step=0)
def u14_clip_far_below_the_norm(seed: int) -> Outcome:
    """A CNN clipped at 0.001 while its gradients are about 1."""
    torch.manual_seed(seed)
    data, model = digit_images(), ConvNet()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    session = stethoscope.watch(model, optimizer)
    fit(session, model, optimizer, batches(data.x, data.y, size=32, steps=120, seed=seed), clip=1e-3)
    return finished(session)


@program(step=0)
def u15_clip_before_unscale_language_model(seed: int) -> Outcome:
    """fp16 language model, scale 4,096, clip 0.5, Adam."""
    torch.manual_seed(seed)
    _, vocabulary = text()
    model = CharModel(vocabulary, depth=1)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    scaler = torch.amp.GradScaler("cpu", init_scale=4096.0)
    session = stethoscope.watch(model, optimizer)
    for x, y in windows(steps=80, seed=seed):
        optimizer.zero_grad()
        with half():
            logits = model(x)
        scaler.scale(next_letter_loss(logits.float(), y)).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        scaler.step(optimizer)
        scaler.update()
    return finished(session)


@program(step=0)
def u16_adamw_decay_of_five(seed: int) -> Outcome:
    """AdamW with weight_decay=5 at 1e-2: each step takes 5% of every weight."""
    torch.manual_seed(seed)
    data, model = digit_images(), ConvNet()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, weight_decay=5.0)
    session = stethoscope.watch(model, optimizer)
    fit(session, model, optimizer, batches(data.x, data.y, steps=150, seed=seed))
    return finished(session)


@program(step=0)
def u17_adam_eps_of_a_hundredth(seed: int) -> Outcome:
    """eps=0.1 for a language model whose gradients are a thousandth."""
    torch.manual_seed(seed)
    _, vocabulary = text()
    model = CharModel(vocabulary)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, eps=0.1)
    session = stethoscope.watch(model, optimizer)
    fit(session, model, optimizer, windows(steps=100, seed=seed), next_letter_loss)
    return finished(session)


class RareBranch(nn.Module):
    """A branch for samples with a flag that is almost never set."""

    def __init__(self) -> None:
        super().__init__()
        self.base, self.rare = mlp(30, 32, 2), nn.Linear(30, 2)

    def forward(self, x: torch.Tensor, flag: torch.Tensor) -> torch.Tensor:
        """Logits."""
        return self.base(x) + flag * self.rare(x)


@program(site="rare*", step=200, sudden=True)
def u18_first_gradient_without_momentum(seed: int) -> Outcome:
    """betas=(0, 0.999), eps=1e-15: the branch's first gradient at step 200 makes a step of thirteen times the rate."""
    torch.manual_seed(seed)
    data, model = cancer(), RareBranch()
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-2, betas=(0.0, 0.999), eps=1e-15)
    session = stethoscope.watch(model, optimizer)
    for number, (x, y) in enumerate(batches(data.x, data.y, size=32, steps=260, seed=seed)):
        flag = torch.zeros(32, 1)
        if number == 200:
            flag[:2] = 1.0
        optimizer.zero_grad()
        F.cross_entropy(model(x, flag), y).backward()
        optimizer.step()
    return finished(session)


@program(step=0)
def u75_momentum_free_zigzag(seed: int) -> Outcome:
    """Logistic regression on two moons, one feature in other units: from side to side along it."""
    torch.manual_seed(seed)
    data, model = moons(), nn.Linear(2, 1)
    x = data.x * torch.tensor([1.0, 12.0])
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    session = stethoscope.watch(model, optimizer)
    for _ in range(150):
        optimizer.zero_grad()
        loss = F.binary_cross_entropy_with_logits(model(x).squeeze(1), data.y.float())
        loss.backward()
        optimizer.step()
        session.log(loss=loss)
    return finished(session)


@program()
def u76_adding_problem_never_starts(seed: int) -> Outcome:
    """A small RNN on the adding problem: flat at the variance of the target."""
    torch.manual_seed(seed)
    model = Recurrent(nn.RNN, 2, 16, 1)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    session = stethoscope.watch(model, optimizer)
    for x, y in adding_problem(size=128, length=60, steps=300, seed=seed):
        optimizer.zero_grad()
        loss = F.mse_loss(model(x).squeeze(1), y)
        loss.backward()
        optimizer.step()
        session.log(loss=loss)
    return finished(session)


@program()
def u77_schedule_runs_ahead_while_the_scale_settles(seed: int) -> Outcome:
    """A first scale of 2^60: forty skipped steps, and a linear schedule over 150 that does not wait."""
    torch.manual_seed(seed)
    data, model = diabetes(), mlp(10, 32, 1)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    scheduler = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.01, total_iters=150)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**60)
    session = stethoscope.watch(model, optimizer)
    for x, y in batches(data.x, data.y, size=32, steps=150, seed=seed):
        optimizer.zero_grad()
        with half():
            loss = F.mse_loss(model(x).float().squeeze(1), y)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        scheduler.step()
    return finished(session)


@program()
def u12b_linear_schedule_over_epochs(seed: int) -> Outcome:
    """total_iters counts epochs (20) and is stepped per batch: the rate is 0 for 180 of 200 steps."""
    torch.manual_seed(seed)
    data, model = digits(), mlp(64, 64, 10)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    scheduler = torch.optim.lr_scheduler.PolynomialLR(optimizer, total_iters=20)
    session = stethoscope.watch(model, optimizer)
    fit(session, model, optimizer, batches(data.x, data.y, steps=200, seed=seed), scheduler=scheduler)
    return finished(session)


@program(site="table*", step=0)
def u16b_decay_on_an_embedding(seed: int) -> Outcome:
    """Adam's own weight_decay=1 on a table whose rows are rarely used: the decay is all that moves them."""
    torch.manual_seed(seed)
    ids, _ = text()
    model = TrigramBag(2000, sparse=False)
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-2, weight_decay=1.0)
    session = stethoscope.watch(model, optimizer)
    starts = torch.Generator(torch.get_default_device()).manual_seed(seed)
    for _ in range(150):
        rows = torch.randint(len(ids) - 24, (16,), generator=starts)
        optimizer.zero_grad()
        F.cross_entropy(model(ids[rows[:, None] + torch.arange(24)]), (rows > len(ids) // 2).long()).backward()
        optimizer.step()
    return finished(session)
