"""Unseen: labels and how samples are drawn (F59-F63)."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from benchmarks.faults.catalogue import Outcome, finished, program, ready
from benchmarks.faults.data import batches, cancer, diabetes, digit_images, digits, wine
from benchmarks.faults.models import ConvNet, mlp
from benchmarks.faults.training import fit, score

import stethoscope


@program()
def u59_one_class_of_four_swallows_the_rest(seed: int) -> Outcome:
    """Noise with 90% of one class of four: every prediction is that class."""
    torch.manual_seed(seed)
    generator = torch.Generator(torch.get_default_device()).manual_seed(seed)
    x = torch.randn(2000, 12, generator=generator)
    y = torch.where(torch.rand(2000, generator=generator) < 0.9, 2, torch.randint(4, (2000,), generator=generator))
    model = mlp(12, 32, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    session = stethoscope.watch(model, optimizer)
    fit(session, model, optimizer, batches(x, y, size=64, steps=200, seed=seed), log_batches=True)
    return finished(session)


@program(site="*3*")
def u60_target_among_the_features(seed: int) -> Outcome:
    """Regression: column 3 is the target with a little noise."""
    torch.manual_seed(seed)
    data, model = diabetes(), mlp(10, 32, 1)
    x = data.x.clone()
    x[:, 3] = data.y + 0.01 * torch.randn(len(data.y))
    return Outcome(checkup=ready(model, (x[:300], data.y[:300].unsqueeze(1)), F.mse_loss))


@program()
def u61_validation_is_half_of_training(seed: int) -> Outcome:
    """A CNN; the split forgot to remove the validation images from training."""
    torch.manual_seed(seed)
    data, model = digit_images(), ConvNet()
    val_x, val_y = data.x[100:200], data.y[100:200]
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
    session = stethoscope.watch(model, optimizer)

    def validate() -> dict[str, float]:
        session.log_batch(val_x, val_y)
        return score(model, val_x, val_y)

    fit(
        session,
        model,
        optimizer,
        batches(data.x, data.y, size=32, steps=120, seed=seed),
        log_batches=True,
        validate=validate,
        validate_every=30,
    )
    return finished(session)


@program(step=0)
def u62_sorted_binary_labels(seed: int) -> Outcome:
    """First all benign, then all malignant."""
    torch.manual_seed(seed)
    data, model = cancer(), mlp(30, 32, 2)
    order = data.y.argsort()
    x, y = data.x[order], data.y[order]
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    session = stethoscope.watch(model, optimizer)
    for _ in range(6):
        for start in range(0, len(x) - 24, 24):
            inputs, labels = x[start : start + 24], y[start : start + 24]
            session.log_batch(inputs, labels)
            optimizer.zero_grad()
            F.cross_entropy(model(inputs), labels).backward()
            optimizer.step()
    return finished(session)


@program()
def u63_same_noise_in_every_epoch(seed: int) -> Outcome:
    """The generator is seeded again for every batch: the same rows and the same noise, sixty times."""
    torch.manual_seed(seed)
    data, model = wine(), mlp(13, 32, 3)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    session = stethoscope.watch(model, optimizer)
    for number in range(120):
        generator = torch.Generator(torch.get_default_device()).manual_seed(seed + number % 4)
        rows = torch.randint(len(data.x), (32,), generator=generator)
        x = data.x[rows] + 0.1 * torch.randn(32, 13, generator=generator)
        session.log_batch(x, data.y[rows])
        optimizer.zero_grad()
        F.cross_entropy(model(x), data.y[rows]).backward()
        optimizer.step()
    return finished(session)


@program(step=0)
def u62b_runs_of_ten_classes(seed: int) -> Outcome:
    """Digits in the order of their labels, batches of 48: one class, or the border of two."""
    torch.manual_seed(seed)
    data, model = digits(), mlp(64, 64, 10)
    order = data.y.argsort()
    x, y = data.x[order], data.y[order]
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    session = stethoscope.watch(model, optimizer)
    feed = [(x[start : start + 48], y[start : start + 48]) for start in range(0, len(x) - 48, 48)]
    for _ in range(4):
        fit(session, model, optimizer, feed, log_batches=True)
    return finished(session)
