"""Healthy: few bits used well."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from benchmarks.faults.catalogue import Outcome, finished, program
from benchmarks.faults.data import batches, digits, text, windows
from benchmarks.faults.models import CharModel, mlp
from benchmarks.faults.programs.precision import half
from torch import nn

import stethoscope


def train_with_scaler(seed: int, init_scale: float) -> Outcome:
    """fp16 as the manual says."""
    torch.manual_seed(seed)
    data, model = digits(), mlp(64, 64, 10)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    scaler = torch.amp.GradScaler("cpu", init_scale=init_scale)
    session = stethoscope.watch(model, optimizer)
    for x, y in batches(data.x, data.y, steps=150, seed=seed):
        session.log_batch(x, y)
        optimizer.zero_grad()
        with half():
            loss = F.cross_entropy(model(x).float(), y)
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 5.0)
        scaler.step(optimizer)
        scaler.update()
        session.log(loss=loss)
    return finished(session)


@program()
def h09_first_skips_of_a_scaler(seed: int) -> Outcome:
    """The first scale is too large: a few skips until it fits."""
    return train_with_scaler(seed, 2.0**24)


@program()
def h25_fp16_with_a_working_scaler(seed: int) -> Outcome:
    """Clipped after unscale_, no skip."""
    return train_with_scaler(seed, 2.0**14)


class Fp8Linear(nn.Linear):
    """Weights and inputs rounded to eight bits on the way in, gradients straight through."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """x W + b with rounded x and W."""
        return F.linear(_rounded(x), _rounded(self.weight), self.bias)


def _rounded(x: torch.Tensor) -> torch.Tensor:
    return x + (x.to(torch.float8_e4m3fn).to(x.dtype) - x).detach()


@program()
def h28_bf16_and_fp8_noise(seed: int) -> Outcome:
    """A language model under bf16 autocast with a head in fp8: noisy, finite, learning."""
    torch.manual_seed(seed)
    _, vocabulary = text()
    model = CharModel(vocabulary)
    model.head = Fp8Linear(32, vocabulary)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    session = stethoscope.watch(model, optimizer)
    for x, y in windows(steps=150, seed=seed):
        session.log_batch(x, y)
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype=torch.bfloat16):
            logits = model(x)
        loss = F.cross_entropy(logits.float().flatten(0, 1), y.flatten())
        loss.backward()
        optimizer.step()
        session.log(loss=loss)
    return finished(session)
