"""Unseen: few bits (F65-F68)."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from benchmarks.faults.catalogue import Outcome, finished, program
from benchmarks.faults.data import batches, digit_images, digits, text, windows
from benchmarks.faults.models import CharModel, ConvNet, mlp, next_letter_loss
from benchmarks.faults.programs.precision import half
from benchmarks.faults.training import fit
from torch import nn

import stethoscope


@program(site="2*", sudden=True, step=40)
def u65_activations_outgrow_fp16(seed: int) -> Outcome:
    """At step 40 the second layer's weights were loaded from a file in other units: its output passes 65,504."""
    torch.manual_seed(seed)
    data, model = digits(), mlp(64, 64, 64, 10)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    session = stethoscope.watch(model, optimizer)
    for number, (x, y) in enumerate(batches(data.x, data.y, steps=70, seed=seed)):
        if number == 40:
            with torch.no_grad():
                model[2].weight.mul_(2e5)
        optimizer.zero_grad()
        with half():
            loss = F.cross_entropy(model(x).float(), y)
        loss.backward()
        optimizer.step()
    return finished(session)


@program(step=0)
def u66_half_precision_cnn_without_scaler(seed: int) -> Outcome:
    """A CNN in fp16 whose loss is one of a hundred terms, weighted by 1e-5."""
    torch.manual_seed(seed)
    data, model = digit_images(), ConvNet()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    session = stethoscope.watch(model, optimizer)
    for x, y in batches(data.x, data.y, size=128, steps=60, seed=seed):
        optimizer.zero_grad()
        with half():
            logits = model(x)
        (1e-5 * F.cross_entropy(logits.float(), y)).backward()
        optimizer.step()
    return finished(session)


@program(step=50, sudden=True)
def u67_scale_falls_after_a_nan_weight(seed: int) -> Outcome:
    """At step 50 one weight of a language model becomes NaN: no step is taken any more."""
    torch.manual_seed(seed)
    _, vocabulary = text()
    model = CharModel(vocabulary, depth=1)
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**12)
    session = stethoscope.watch(model, optimizer)
    for number, (x, y) in enumerate(windows(size=8, steps=110, seed=seed)):
        if number == 50:
            with torch.no_grad():
                model.head.weight[0, 0] = float("nan")
        optimizer.zero_grad()
        with half():
            logits = model(x)
        scaler.scale(next_letter_loss(logits.float(), y)).backward()
        scaler.step(optimizer)
        scaler.update()
    return finished(session)


@program(step=0)
def u68_bf16_language_model(seed: int) -> Outcome:
    """A whole transformer in bf16, SGD at 1e-6."""
    torch.manual_seed(seed)
    _, vocabulary = text()
    model = CharModel(vocabulary).to(torch.bfloat16)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)
    session = stethoscope.watch(model, optimizer)
    for x, y in windows(steps=60, seed=seed):
        optimizer.zero_grad()
        next_letter_loss(model(x).float(), y).backward()
        optimizer.step()
    return finished(session)


@program(step=0)
def u68b_fp16_weights(seed: int) -> Outcome:
    """float16 weights around 1 and a rate of 1e-5."""
    torch.manual_seed(seed)
    data, model = digits(), mlp(64, 64, 10)
    for layer in model:
        if isinstance(layer, nn.Linear):
            nn.init.uniform_(layer.weight, 0.05, 0.15)
    model = model.to(torch.float16)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)
    session = stethoscope.watch(model, optimizer)

    def loss_fn(logits: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return F.cross_entropy(logits.float(), y)

    fit(session, model, optimizer, batches(data.x.half(), data.y, steps=80, seed=seed), loss_fn)
    return finished(session)
