"""Few bits: overflow, underflow, the gradient scaler, weights too coarse for the rate."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from benchmarks.faults.catalogue import Outcome, finished, program
from benchmarks.faults.data import batches, cancer_raw, digits
from benchmarks.faults.models import mlp
from benchmarks.faults.training import fit
from torch import nn

import stethoscope


def half() -> torch.autocast:
    """Compute in float16, keep weights in float32."""
    return torch.autocast("cpu", dtype=torch.float16)


@program(step=0)
def f15_clip_before_unscale(seed: int) -> Outcome:
    """The gradients are still multiplied by 65,536 when they are clipped to 1."""
    torch.manual_seed(seed)
    data, model = digits(), mlp(64, 64, 10)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    scaler = torch.amp.GradScaler("cpu")
    session = stethoscope.watch(model, optimizer)
    for x, y in batches(data.x, data.y, steps=120, seed=seed):
        optimizer.zero_grad()
        with half():
            loss = F.cross_entropy(model(x).float(), y)
        scaler.scale(loss).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
    return finished(session)


class Square(nn.Module):
    """Its own input times itself."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """x squared, in x's own precision."""
        return x * x


class SquareNet(nn.Module):
    """A quadratic layer."""

    def __init__(self) -> None:
        super().__init__()
        self.fc1, self.square, self.fc2 = nn.Linear(30, 32), Square(), nn.Linear(32, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Logits."""
        return self.fc2(self.square(self.fc1(x)))


@program(site="square", step=0)
def f65_fp16_overflow(seed: int) -> Outcome:
    """The square of 1,000 is more than float16 can hold (65,504)."""
    torch.manual_seed(seed)
    data, model = cancer_raw(), SquareNet()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-4)
    session = stethoscope.watch(model, optimizer)
    for x, y in batches(data.x, data.y, size=32, steps=60, seed=seed):
        optimizer.zero_grad()
        with half():
            loss = F.cross_entropy(model(x).float(), y)
        loss.backward()
        optimizer.step()
    return finished(session)


@program(step=0)
def f66_fp16_underflow(seed: int) -> Outcome:
    """float16 without a GradScaler: gradients of a small auxiliary loss are below 6e-8 and become 0."""
    torch.manual_seed(seed)
    data, model = digits(), mlp(64, 64, 64, 64, 10)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    session = stethoscope.watch(model, optimizer)
    for x, y in batches(data.x, data.y, size=256, steps=120, seed=seed):
        optimizer.zero_grad()
        with half():
            loss = 2e-5 * F.cross_entropy(model(x).float(), y)
        loss.backward()
        optimizer.step()
    return finished(session)


@program(step=30, sudden=True)
def f67_loss_scale_collapses(seed: int) -> Outcome:
    """From step 30 on a regulariser has an infinite gradient: each step is skipped, each skip halves the scale."""
    torch.manual_seed(seed)
    data, model = digits(), mlp(64, 64, 10)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    scaler = torch.amp.GradScaler("cpu")
    session = stethoscope.watch(model, optimizer)
    for number, (x, y) in enumerate(batches(data.x, data.y, steps=120, seed=seed)):
        optimizer.zero_grad()
        with half():
            loss = F.cross_entropy(model(x).float(), y)
        if number >= 30:
            loss = loss + 1e-3 * (model[0].bias * 0).sqrt().sum()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
    return finished(session)


@program(step=0)
def f68_bf16_weights_tiny_rate(seed: int) -> Outcome:
    """bfloat16 has three digits: adding 1e-6 to 0.1 changes nothing."""
    torch.manual_seed(seed)
    data, model = digits(), mlp(64, 64, 10).bfloat16()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-6, weight_decay=0.0)
    session = stethoscope.watch(model, optimizer)
    fit(session, model, optimizer, batches(data.x.bfloat16(), data.y, steps=120, seed=seed))
    return finished(session)


@program()
def f77_scheduler_advances_on_skipped_steps(seed: int) -> Outcome:
    """The scale grows every five steps until it overflows: one step in six is skipped, and the schedule goes on."""
    torch.manual_seed(seed)
    data, model = digits(), mlp(64, 64, 10)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=3e-3, total_steps=180)
    scaler = torch.amp.GradScaler("cpu", growth_interval=5)
    session = stethoscope.watch(model, optimizer)
    for x, y in batches(data.x, data.y, steps=180, seed=seed):
        optimizer.zero_grad()
        with half():
            loss = F.cross_entropy(model(x).float(), y)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        scheduler.step()
    return finished(session)
