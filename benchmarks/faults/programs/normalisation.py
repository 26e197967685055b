"""Modes and normalisation: BatchNorm without a batch, eval where train belongs and the other way round, dropout."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from benchmarks.faults.catalogue import Outcome, finished, program, ready
from benchmarks.faults.data import batches, digit_images, digits
from benchmarks.faults.models import ConvNet, mlp
from benchmarks.faults.training import fit, score
from torch import nn

import stethoscope


@program(site="bn*", step=0)
def f42_batchnorm_with_batch_of_two(seed: int) -> Outcome:
    """Statistics of two images are noise: what is learned with them does not hold under the running ones."""
    torch.manual_seed(seed)
    data, model = digits(), BatchNormMLP()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    session = stethoscope.watch(model, optimizer)
    fit(session, model, optimizer, batches(data.x, data.y, size=2, steps=250, seed=seed))
    return finished(session)


class BatchNormMLP(nn.Module):
    """BatchNorm over features: its batch statistics rest on the batch alone."""

    def __init__(self) -> None:
        super().__init__()
        self.fc1, self.bn1 = nn.Linear(64, 64), nn.BatchNorm1d(64)
        self.fc2, self.bn2 = nn.Linear(64, 64), nn.BatchNorm1d(64)
        self.head = nn.Linear(64, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Logits."""
        x = F.relu(self.bn1(self.fc1(x)))
        return self.head(F.relu(self.bn2(self.fc2(x))))


@program(site="bn*|dropout*|(root)", step=40, sudden=True)
def f43_eval_while_training(seed: int) -> Outcome:
    """After the first validation nobody calls `model.train()`."""
    torch.manual_seed(seed)
    data, model = digit_images(), ConvNet(dropout=0.2)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    session = stethoscope.watch(model, optimizer)
    for number, (x, y) in enumerate(batches(data.x, data.y, steps=120, seed=seed)):
        if number == 40:
            model.eval()
            with torch.no_grad():
                model(data.val_x)
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        optimizer.step()
    return finished(session)


@program(site="bn*|dropout*|(root)", step=20)
def f44_train_mode_in_eval(seed: int) -> Outcome:
    """Validation with dropout on and BatchNorm learning from the validation set."""
    torch.manual_seed(seed)
    data, model = digit_images(), ConvNet(dropout=0.3)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    session = stethoscope.watch(model, optimizer)
    for number, (x, y) in enumerate(batches(data.x, data.y, steps=120, seed=seed)):
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        optimizer.step()
        if (number + 1) % 20 == 0:
            with session.evaluating(), torch.no_grad():
                session.log(**score(model, data.val_x, data.val_y))
    return finished(session)


class AlwaysDropout(nn.Module):
    """F.dropout is on unless told otherwise."""

    def __init__(self) -> None:
        super().__init__()
        self.fc1, self.fc2 = nn.Linear(64, 64), nn.Linear(64, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Logits."""
        return self.fc2(F.dropout(F.relu(self.fc1(x)), 0.5))


@program()
def f45_functional_dropout_in_eval(seed: int) -> Outcome:
    """The same input gives two outputs after `model.eval()`."""
    torch.manual_seed(seed)
    data, model = digits(), AlwaysDropout()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    return Outcome(checkup=ready(model, (data.x[:64], data.y[:64]), F.cross_entropy, optimizer))


@program()
def f46_dropout_of_95_percent(seed: int) -> Outcome:
    """One unit in twenty is left: the training loss stays far above the validation loss."""
    torch.manual_seed(seed)
    data, model = digits(), mlp(64, 512, 512, 10, dropout=0.95)
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    session = stethoscope.watch(model, optimizer)
    fit(
        session,
        model,
        optimizer,
        batches(data.x, data.y, steps=300, seed=seed),
        log_loss=True,
        validate=lambda: score(model, data.val_x, data.val_y),
        validate_every=10,
    )
    return finished(session)
