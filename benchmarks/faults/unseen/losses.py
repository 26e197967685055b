"""Unseen: the loss (F09, F24-F29, F49, F78, F82) and what the finished run shows (F46, F58, F74)."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from benchmarks.faults.catalogue import Outcome, finished, program, ready
from benchmarks.faults.data import (
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
from benchmarks.faults.models import CharModel, ConvNet, mlp, next_letter_loss
from benchmarks.faults.training import fit, score
from torch import nn

import stethoscope


@program()
def u09_minus_sign_left_over(seed: int) -> Outcome:
    """A reward was replaced by a loss and `- reward` stayed: CNN, ten classes, validation error rises."""
    torch.manual_seed(seed)
    data, model = digit_images(), ConvNet()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    session = stethoscope.watch(model, optimizer)

    def validate() -> dict[str, float]:
        found = score(model, data.val_x, data.val_y)
        return {"error": 1 - found["accuracy"], "val_loss": found["loss"]}

    fit(
        session,
        model,
        optimizer,
        batches(data.x, data.y, steps=150, seed=seed),
        lambda logits, y: -F.cross_entropy(logits, y),
        log_loss=True,
        validate=validate,
        validate_every=10,
    )
    return finished(session)


@program(step=0)
def u24_log_softmax_after_softmax(seed: int) -> Outcome:
    """A CNN that ends in F.softmax, and nn.CrossEntropyLoss."""
    torch.manual_seed(seed)
    data, model = digit_images(), nn.Sequential(ConvNet(), nn.Softmax(dim=1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    checkup = ready(model, (data.x[:64], data.y[:64]), nn.CrossEntropyLoss(), optimizer)
    session = stethoscope.watch(model, optimizer)
    fit(session, model, optimizer, batches(data.x, data.y, steps=100, seed=seed), nn.CrossEntropyLoss())
    return finished(session, checkup)


@program(step=0)
def u25_sigmoid_in_multi_label(seed: int) -> Outcome:
    """Ten labels at once: sigmoid in the model and in the loss."""
    torch.manual_seed(seed)
    data, model = digits(), nn.Sequential(mlp(64, 64, 10), nn.Sigmoid())
    y = F.one_hot(data.y, 10).float()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    checkup = ready(model, (data.x[:64], y[:64]), F.binary_cross_entropy_with_logits, optimizer)
    session = stethoscope.watch(model, optimizer)
    feed = batches(data.x, y, steps=100, seed=seed)
    fit(session, model, optimizer, feed, F.binary_cross_entropy_with_logits)
    return finished(session, checkup)


class CentredByBatch(nn.Module):
    """Subtracts the mean over the wrong dimension."""

    def __init__(self) -> None:
        super().__init__()
        self.net = mlp(13, 32, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Logits."""
        out = self.net(x)
        return out - out.mean(0, keepdim=True)


@program()
def u26_centred_over_the_batch(seed: int) -> Outcome:
    """mean(0) instead of mean(1)."""
    torch.manual_seed(seed)
    data, model = wine(), CentredByBatch()
    return Outcome(checkup=ready(model, (data.x[:64], data.y[:64]), F.cross_entropy))


@program(step=0)
def u27_l1_broadcasts(seed: int) -> Outcome:
    """(B) against (B, 1) the other way round, with a smooth L1 loss."""
    torch.manual_seed(seed)
    data, model = diabetes(), nn.Sequential(mlp(10, 32, 1), nn.Flatten(0))
    y = data.y.unsqueeze(1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    checkup = ready(model, (data.x[:48], y[:48]), F.smooth_l1_loss, optimizer)
    session = stethoscope.watch(model, optimizer)
    fit(session, model, optimizer, batches(data.x, y, size=48, steps=100, seed=seed), F.smooth_l1_loss)
    return finished(session, checkup)


@program(step=0)
def u28_relu6_on_regression_output(seed: int) -> Outcome:
    """ReLU6 behind a tanh network, on a target of both signs."""
    torch.manual_seed(seed)
    data, model = diabetes(), nn.Sequential(mlp(10, 32, 32, 1, activation=nn.Tanh), nn.ReLU6(), nn.Flatten(0))
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    checkup = ready(model, (data.x[:64], data.y[:64]), F.mse_loss, optimizer)
    session = stethoscope.watch(model, optimizer)
    fit(session, model, optimizer, batches(data.x, data.y, size=32, steps=150, seed=seed), F.mse_loss)
    return finished(session, checkup)


@program()
def u29_sum_of_squares(seed: int) -> Outcome:
    """A home-made `((a - b) ** 2).sum()`."""
    torch.manual_seed(seed)
    data, model = diabetes(), nn.Sequential(mlp(10, 32, 1), nn.Flatten(0))
    return Outcome(checkup=ready(model, (data.x[:64], data.y[:64]), lambda a, b: ((a - b) ** 2).sum()))


@program()
def u46_dropout_everywhere(seed: int) -> Outcome:
    """Dropout of 0.9 on a CNN's features."""
    torch.manual_seed(seed)
    data, model = digit_images(), ConvNet(dropout=0.93)
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    session = stethoscope.watch(model, optimizer)
    fit(
        session,
        model,
        optimizer,
        batches(data.x, data.y, steps=200, seed=seed),
        log_loss=True,
        validate=lambda: score(model, data.val_x, data.val_y),
        validate_every=10,
    )
    return finished(session)


@program()
def u49_temperature_learned_without_bound(seed: int) -> Outcome:
    """A learned shift that the loss cannot see is pushed by a regulariser of the wrong sign."""
    torch.manual_seed(seed)
    data, model = digits(), mlp(64, 64, 10)
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
    session = stethoscope.watch(model, optimizer)
    for x, y in batches(data.x, data.y, steps=300, seed=seed):
        optimizer.zero_grad()
        logits = model(x)
        (F.cross_entropy(logits, y) - 0.1 * logits.mean()).backward()
        optimizer.step()
    return finished(session)


@program()
def u58_labels_of_another_file(seed: int) -> Outcome:
    """Labels belong to other rows: wine, a wide network, Adam."""
    torch.manual_seed(seed)
    data, model = wine(), mlp(13, 256, 256, 3)
    y = data.y[torch.randperm(len(data.y))]
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    session = stethoscope.watch(model, optimizer)
    fit(
        session,
        model,
        optimizer,
        batches(data.x, y, size=32, steps=300, seed=seed),
        log_loss=True,
        validate=lambda: score(model, data.val_x, data.val_y),
        validate_every=10,
    )
    return finished(session)


@program()
def u74_overfit_regression(seed: int) -> Outcome:
    """Eighty rows of diabetes and 70,000 weights."""
    torch.manual_seed(seed)
    data, model = diabetes(), mlp(10, 256, 256, 1)
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    session = stethoscope.watch(model, optimizer)
    best, onset = float("inf"), 0

    def validate() -> dict[str, float]:
        nonlocal best, onset
        loss = F.mse_loss(model(data.val_x).squeeze(1), data.val_y).item()
        if loss < best:
            best, onset = loss, session.step
        return {"loss": loss}

    fit(
        session,
        model,
        optimizer,
        batches(data.x[:80], data.y[:80].unsqueeze(1), size=40, steps=300, seed=seed),
        F.mse_loss,
        log_loss=True,
        validate=validate,
        validate_every=10,
    )
    return finished(session, step=onset)


@program(step=0)
def u78_whole_loss_clamped(seed: int) -> Outcome:
    """`loss.clamp(max=4)` on a regression whose errors are larger: no gradient for most samples."""
    torch.manual_seed(seed)
    data, model = moons(noise=0.1), mlp(2, 32, 1)
    y = 4.0 * data.y.float() - 1.0
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    session = stethoscope.watch(model, optimizer)
    for x, target in batches(data.x, y, steps=120, seed=seed):
        optimizer.zero_grad()
        errors = (model(x).squeeze(1) - target).square()
        torch.clamp(errors, max=4.0).mean().backward()
        optimizer.step()
    return finished(session)


@program(site="head*", step=0)
def u82_vocabulary_head_too_wide(seed: int) -> Outcome:
    """A language model's head from a unit normal: the first loss is many times ln V."""
    torch.manual_seed(seed)
    _, vocabulary = text()
    model = CharModel(vocabulary)
    nn.init.normal_(model.head.weight, std=5.0)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    feed = list(windows(steps=100, seed=seed))
    checkup = ready(model, feed[0], next_letter_loss, optimizer)
    session = stethoscope.watch(model, optimizer)
    fit(session, model, optimizer, feed, next_letter_loss)
    return finished(session, checkup)


@program(site="2*", step=0)
def u82b_head_bias_of_a_hundred(seed: int) -> Outcome:
    """One class's bias was filled with 100."""
    torch.manual_seed(seed)
    data, model = cancer(), mlp(30, 32, 2)
    with torch.no_grad():
        model[2].bias[0] = 100.0
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    checkup = ready(model, (data.x[:64], data.y[:64]), F.cross_entropy, optimizer)
    session = stethoscope.watch(model, optimizer)
    fit(session, model, optimizer, batches(data.x, data.y, size=32, steps=120, seed=seed))
    return finished(session, checkup)
