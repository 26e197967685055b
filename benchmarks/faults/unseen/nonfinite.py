"""Unseen: where NaN and Inf come from (F30-F34, F55, F80)."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from benchmarks.faults.catalogue import Outcome, finished, program, ready
from benchmarks.faults.data import batches, cancer, diabetes, digit_images, digits, digits_raw, text, windows
from benchmarks.faults.models import ConvNet, mlp
from benchmarks.faults.training import fit
from torch import nn

import stethoscope


@program(site="decoder*|(loss)|(root)", sudden=True)
def u30_hand_written_binary_cross_entropy(seed: int) -> Outcome:
    """`(1 - y) * log(1 - p)` once p is exactly 1: an autoencoder's loss, a high rate."""
    torch.manual_seed(seed)
    data = digits_raw()
    x = (data.x > 8).float()
    model = nn.Sequential()
    model.add_module("encoder", nn.Sequential(nn.Linear(64, 16), nn.ReLU()))
    model.add_module("decoder", nn.Sequential(nn.Linear(16, 64), nn.Sigmoid()))
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-2)
    session = stethoscope.watch(model, optimizer)
    began = None
    for number, (image, _) in enumerate(batches(x, data.y, steps=150, seed=seed)):
        optimizer.zero_grad()
        p = model(image * (60 if number == 90 else 1))
        loss = -(image * torch.log(p) + (1 - image) * torch.log(1 - p)).mean()
        if began is None and not torch.isfinite(loss):
            began = number
        loss.backward()
        optimizer.step()
    return finished(session, step=began)


class NormHead(nn.Module):
    """Scales by the norm of its input, which may be zero."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(32, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Logits."""
        return self.linear(x) * x.square().sum(1, keepdim=True).sqrt()


@program(site="head*|body*|1", step=25, sudden=True)
def u31_norm_of_zero(seed: int) -> Outcome:
    """At step 25 a black image gives features that are all 0: their norm is 0, its derivative is not."""
    torch.manual_seed(seed)
    data = digits_raw()
    model = nn.Sequential()
    model.add_module("body", nn.Sequential(nn.Linear(64, 32, bias=False), nn.Tanh()))
    model.add_module("head", NormHead())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    session = stethoscope.watch(model, optimizer)
    for number, (x, y) in enumerate(batches(data.x / 16, data.y, steps=60, seed=seed)):
        if number == 25:
            x[9] = 0.0
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        optimizer.step()
    return finished(session)


class SafeDivide(nn.Module):
    """0 where the denominator is 0, by `where`."""

    def forward(self, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        """a / b."""
        return torch.where(b != 0, a / b, torch.zeros_like(a))


class RatioNet(nn.Module):
    """A ratio of two learned numbers per sample."""

    def __init__(self) -> None:
        super().__init__()
        self.top, self.bottom = nn.Linear(10, 16), nn.Linear(10, 16)
        self.divide = SafeDivide()
        self.head = nn.Linear(16, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """One number per sample."""
        ratio = self.divide(self.top(x), F.relu(self.bottom(x) + 3.0))
        return self.head(ratio.clamp(-5, 5)).squeeze(1)


@program(site="divide*|top*|bottom*|head*", sudden=True)
def u32_safe_division(seed: int) -> Outcome:
    """x / 0 hidden by `where`; its gradient is 0 times infinity as soon as one denominator is 0."""
    torch.manual_seed(seed)
    data, model = diabetes(), RatioNet()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    session = stethoscope.watch(model, optimizer)
    began = None
    for number, (x, y) in enumerate(batches(data.x, data.y, size=32, steps=80, seed=seed)):
        if number == 35:
            x[4] *= 30
        optimizer.zero_grad()
        F.mse_loss(model(x), y).backward()
        if began is None and any(not torch.isfinite(p.grad).all() for p in model.parameters() if p.grad is not None):
            began = number
        optimizer.step()
    return finished(session, step=began)


class MinMax(nn.Module):
    """To 0..1 by the batch's extremes."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Scaled features."""
        low, high = x.min(0).values, x.max(0).values
        return (x - low) / (high - low)


@program(site="0|*batch*|*7*", step=0)
def u33_constant_column_in_min_max(seed: int) -> Outcome:
    """Column 7 of the table holds one value in every row."""
    torch.manual_seed(seed)
    data, model = cancer(), nn.Sequential(MinMax(), nn.Linear(30, 16), nn.ReLU(), nn.Linear(16, 2))
    x = data.x.clone()
    x[:, 7] = 3.0
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    checkup = ready(model, (x[:128], data.y[:128]), F.cross_entropy, optimizer)
    session = stethoscope.watch(model, optimizer)
    fit(session, model, optimizer, batches(x, data.y, size=32, steps=50, seed=seed), log_batches=True)
    return finished(session, checkup)


class WindowAttention(nn.Module):
    """Sees only letters of its own kind that came before; the first letter sees none."""

    def __init__(self, vocabulary: int, width: int = 16) -> None:
        super().__init__()
        self.embed = nn.Embedding(vocabulary, width)
        self.qk, self.v = nn.Linear(width, width), nn.Linear(width, width)
        self.head = nn.Linear(width, vocabulary)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        """Logits for the next letter."""
        x = self.embed(ids)
        x = x + self.mix(x)
        return self.head(x)

    def mix(self, x: torch.Tensor) -> torch.Tensor:
        """Attention over strictly earlier letters."""
        scores = self.qk(x) @ x.transpose(1, 2)
        length = x.shape[1]
        seen = torch.ones(length, length).tril(diagonal=-1).bool()
        return scores.masked_fill(~seen, float("-inf")).softmax(-1) @ self.v(x)


@program(site="(root)|v*|qk*|head*", step=0)
def u34_strictly_causal_first_row(seed: int) -> Outcome:
    """`diagonal=-1` leaves nothing for the first position to look at."""
    torch.manual_seed(seed)
    _, vocabulary = text()
    model = WindowAttention(vocabulary)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    feed = list(windows(steps=40, seed=seed))

    def loss_fn(logits: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return F.cross_entropy(logits.flatten(0, 1), y.flatten())

    checkup = ready(model, feed[0], loss_fn, optimizer)
    session = stethoscope.watch(model, optimizer)
    fit(session, model, optimizer, feed, loss_fn)
    return finished(session, checkup)


@program(step=17, sudden=True)
def u55_missing_value(seed: int) -> Outcome:
    """A missing value of the table, in the inputs of a regression, at step 17."""
    torch.manual_seed(seed)
    data, model = diabetes(), mlp(10, 32, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    session = stethoscope.watch(model, optimizer)
    for number, (x, y) in enumerate(batches(data.x, data.y, size=16, steps=60, seed=seed)):
        if number == 17:
            x[11, 2] = float("nan")
        session.log_batch(x, y)
        optimizer.zero_grad()
        F.mse_loss(model(x).squeeze(1), y).backward()
        optimizer.step()
    return finished(session)


@program(site="bn2*", step=50, sudden=True)
def u80_variance_of_one_value(seed: int) -> Outcome:
    """A buffer is overwritten with Inf by a broken merge of checkpoints at step 50."""
    torch.manual_seed(seed)
    data, model = digit_images(), ConvNet()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    session = stethoscope.watch(model, optimizer)
    for number, (x, y) in enumerate(batches(data.x, data.y, size=32, steps=100, seed=seed)):
        if number == 50:
            model.bn2.running_var[3] = float("inf")
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        optimizer.step()
    return finished(session)


@program(site="0*|1|2", sudden=True)
def u30b_log_of_a_negative(seed: int) -> Outcome:
    """log of a layer's output that must stay positive and does not."""
    torch.manual_seed(seed)
    data = digits()
    model = nn.Sequential(nn.Linear(64, 32), LogActivation(), nn.Linear(32, 10))
    nn.init.constant_(model[0].bias, 12.0)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    session = stethoscope.watch(model, optimizer)
    began = None
    for number, (x, y) in enumerate(batches(data.x, data.y, steps=80, seed=seed)):
        if number == 45:
            x[2] *= 40
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        if began is None and not torch.isfinite(loss):
            began = number
        loss.backward()
        optimizer.step()
    return finished(session, step=began)


class LogActivation(nn.Module):
    """The logarithm as an activation."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """log(x)."""
        return torch.log(x)
