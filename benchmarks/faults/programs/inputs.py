"""What goes in: scales, outliers, broken values, nothing at all, too slowly."""

from __future__ import annotations

import time
from collections.abc import Iterable

import torch
import torch.nn.functional as F
from benchmarks.faults.catalogue import Outcome, finished, program, ready
from benchmarks.faults.data import batches, cancer, cancer_raw, cancer_regression, digits, digits_raw
from benchmarks.faults.models import mlp
from benchmarks.faults.training import fit
from torch.utils.data import DataLoader, Dataset

import stethoscope


@program(step=0)
def f54_unscaled_inputs(seed: int) -> Outcome:
    """Areas of 2,000 beside smoothnesses of 0.1, straight into the first layer."""
    torch.manual_seed(seed)
    data, model = cancer_raw(), mlp(30, 32, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    checkup = ready(model, (data.x[:128], data.y[:128]), F.cross_entropy, optimizer)
    session = stethoscope.watch(model, optimizer)
    fit(session, model, optimizer, batches(data.x, data.y, size=32, steps=150, seed=seed), log_batches=True)
    return finished(session, checkup)


@program(step=40, sudden=True)
def f55_inf_in_one_batch(seed: int) -> Outcome:
    """One value of one sample is infinite, and every weight is NaN after it."""
    torch.manual_seed(seed)
    data, model = cancer(), mlp(30, 32, 2)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    session = stethoscope.watch(model, optimizer)
    for number, (x, y) in enumerate(batches(data.x, data.y, size=32, steps=80, seed=seed)):
        if number == 40:
            x[3, 10] = float("inf")
        session.log_batch(x, y)
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        optimizer.step()
    return finished(session)


@program(step=60, sudden=True)
def f56_one_outlier(seed: int) -> Outcome:
    """A misplaced decimal point: one value is 10,000 where the others are about 1."""
    torch.manual_seed(seed)
    data, model = cancer_regression(), mlp(29, 32, 1)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    session = stethoscope.watch(model, optimizer)
    for number, (x, y) in enumerate(batches(data.x, data.y, size=32, steps=120, seed=seed)):
        if number == 60:
            x[5, 7] = 1e4
        session.log_batch(x, y)
        optimizer.zero_grad()
        F.mse_loss(model(x).squeeze(1), y).backward()
        optimizer.step()
    return finished(session)


@program(step=0)
def f57_inputs_zeroed(seed: int) -> Outcome:
    """Whole-number division: pixels of 0 to 16 // 255 are all 0."""
    torch.manual_seed(seed)
    data, model = digits_raw(), mlp(64, 64, 10)
    images = (data.x.to(torch.uint8) // 255).float()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    checkup = ready(model, (images[:64], data.y[:64]), F.cross_entropy, optimizer)
    session = stethoscope.watch(model, optimizer)
    fit(session, model, optimizer, batches(images, data.y, steps=120, seed=seed), log_batches=True)
    return finished(session, checkup)


@program(step=0)
def f64_normalised_twice(seed: int) -> Outcome:
    """Divided by 255 when loaded, and by 255 again in the loop."""
    torch.manual_seed(seed)
    data, model = digits_raw(), mlp(64, 64, 10)
    loaded = data.x * (255 / 16) / 255
    images = loaded / 255
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    checkup = ready(model, (images[:64], data.y[:64]), F.cross_entropy, optimizer)
    session = stethoscope.watch(model, optimizer)
    fit(session, model, optimizer, batches(images, data.y, steps=120, seed=seed), log_batches=True)
    return finished(session, checkup)


class _OnDisk(Dataset[tuple[torch.Tensor, torch.Tensor]]):
    """Batches that are read and decoded for 12 ms each, one after the other."""

    def __init__(self, read: Iterable[tuple[torch.Tensor, torch.Tensor]]) -> None:
        self.batches = list(read)

    def __len__(self) -> int:
        return len(self.batches)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        time.sleep(0.012)
        return self.batches[index]


@program(step=0)
def f73_slow_loader(seed: int) -> Outcome:
    """A DataLoader without workers waits for the disk; the step itself takes two milliseconds."""
    torch.manual_seed(seed)
    data, model = digits(), mlp(64, 64, 10)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    session = stethoscope.watch(model, optimizer)
    for x, y in DataLoader(_OnDisk(batches(data.x, data.y, steps=100, seed=seed)), batch_size=None):
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        optimizer.step()
    return finished(session)
