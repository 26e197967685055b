"""Unseen: what goes in (F54, F56, F57, F64, F73)."""

from __future__ import annotations

import time

import torch
import torch.nn.functional as F
from benchmarks.faults.catalogue import Outcome, finished, program, ready
from benchmarks.faults.data import (
    batches,
    cancer,
    cancer_regression,
    diabetes,
    digit_images,
    digits_raw,
    wine,
)
from benchmarks.faults.models import ConvNet, mlp
from benchmarks.faults.training import fit
from sklearn import datasets

import stethoscope


@program(step=0)
def u54_years_and_prices(seed: int) -> Outcome:
    """Wine with proline in the thousands, Adam, a small network."""
    torch.manual_seed(seed)
    x, y = datasets.load_wine(return_X_y=True)
    inputs, labels = torch.tensor(x, dtype=torch.float32), torch.tensor(y)
    model = mlp(13, 32, 32, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    checkup = ready(model, (inputs[:128], labels[:128]), F.cross_entropy, optimizer)
    session = stethoscope.watch(model, optimizer)
    fit(session, model, optimizer, batches(inputs, labels, size=32, steps=120, seed=seed), log_batches=True)
    return finished(session, checkup)


@program(step=85, sudden=True)
def u56_one_row_in_other_units(seed: int) -> Outcome:
    """At step 85 one row of 16 is in grams instead of kilograms: a thousand times too large."""
    torch.manual_seed(seed)
    data, model = diabetes(), mlp(10, 32, 1)
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    session = stethoscope.watch(model, optimizer)
    for number, (x, y) in enumerate(batches(data.x, data.y, size=16, steps=150, seed=seed)):
        if number == 85:
            x[13] *= 3000
        session.log_batch(x, y)
        optimizer.zero_grad()
        F.mse_loss(model(x).squeeze(1), y).backward()
        optimizer.step()
    return finished(session)


@program(step=0)
def u57_mask_multiplied_the_wrong_way(seed: int) -> Outcome:
    """`x * mask` with the mask's sense reversed: a CNN that sees nothing."""
    torch.manual_seed(seed)
    data, model = digit_images(), ConvNet()
    missing = torch.zeros_like(data.x)
    images = data.x * missing
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    checkup = ready(model, (images[:64], data.y[:64]), F.cross_entropy, optimizer)
    session = stethoscope.watch(model, optimizer)
    fit(session, model, optimizer, batches(images, data.y, steps=80, seed=seed), log_batches=True)
    return finished(session, checkup)


@program(step=0)
def u64_divided_by_the_variance(seed: int) -> Outcome:
    """Standardised, then divided by 1,000 as if it were still in thousandths."""
    torch.manual_seed(seed)
    data, model = cancer(), mlp(30, 64, 64, 2)
    x = data.x / 1000
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    checkup = ready(model, (x[:128], data.y[:128]), F.cross_entropy, optimizer)
    session = stethoscope.watch(model, optimizer)
    fit(session, model, optimizer, batches(x, data.y, size=32, steps=120, seed=seed), log_batches=True)
    return finished(session, checkup)


@program()
def u73_every_fifth_batch_is_read_from_disk(seed: int) -> Outcome:
    """A cache that holds four batches of five: the fifth takes 60 ms."""
    torch.manual_seed(seed)
    data, model = wine(), mlp(13, 32, 3)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    session = stethoscope.watch(model, optimizer)
    for number, (x, y) in enumerate(batches(data.x, data.y, size=16, steps=100, seed=seed)):
        if number % 5 == 0:
            time.sleep(0.06)
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        optimizer.step()
    return finished(session)


@program(step=40, sudden=True)
def u56b_one_pixel(seed: int) -> Outcome:
    """A dead pixel reads 10,000 in one image at step 40: reconstruction by an autoencoder."""
    torch.manual_seed(seed)
    data, model = digits_raw(), mlp(64, 16, 64)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    session = stethoscope.watch(model, optimizer)
    for number, (x, _) in enumerate(batches(data.x / 16, data.y, steps=90, seed=seed)):
        if number == 40:
            x[20, 33] = 1e4
        session.log_batch(x, x)
        optimizer.zero_grad()
        F.mse_loss(model(x), x).backward()
        optimizer.step()
    return finished(session)


@program(step=0)
def u54b_area_in_square_microns(seed: int) -> Outcome:
    """One of 29 standardised columns was left in raw units of a million."""
    torch.manual_seed(seed)
    data, model = cancer_regression(), mlp(29, 32, 1)
    x = data.x.clone()
    x[:, 4] = 1e6 + 2e5 * x[:, 4]
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    checkup = ready(model, (x[:128], data.y[:128].unsqueeze(1)), F.mse_loss, optimizer)
    session = stethoscope.watch(model, optimizer)
    feed = batches(x, data.y.unsqueeze(1), size=32, steps=120, seed=seed)
    fit(session, model, optimizer, feed, F.mse_loss, log_batches=True)
    return finished(session, checkup)
