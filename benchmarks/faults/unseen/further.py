"""Unseen, a third draw: the codes whose rules were weakest, on models, data and optimizers that no other program has.

Written before the rules were looked at for them; what was missed is reported beside what was found.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from benchmarks.faults.catalogue import Outcome, finished, program
from benchmarks.faults.data import batches, cancer, diabetes, digit_images, digits, text, windows, wine
from benchmarks.faults.models import CharModel, mlp, next_letter_loss
from benchmarks.faults.training import fit
from torch import nn

import stethoscope


@program()
def u09x_negative_absolute_error(seed: int) -> Outcome:
    """Regression with `-l1_loss`, taken for a score; validation logs the mean absolute error."""
    torch.manual_seed(seed)
    data, model = diabetes(), mlp(10, 32, 1)
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    session = stethoscope.watch(model, optimizer)
    fit(
        session,
        model,
        optimizer,
        batches(data.x, data.y, size=32, steps=150, seed=seed),
        lambda output, y: -F.l1_loss(output.squeeze(1), y),
        log_loss=True,
        validate=lambda: {"mae": F.l1_loss(model(data.val_x).squeeze(1), data.val_y).item()},
        validate_every=15,
    )
    return finished(session)


@program(step=0)
def u10x_language_model_at_a_third(seed: int) -> Outcome:
    """A transformer with AdamW at 0.3 where 3e-3 was meant."""
    torch.manual_seed(seed)
    _, vocabulary = text()
    model = CharModel(vocabulary)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.3)
    session = stethoscope.watch(model, optimizer)
    fit(session, model, optimizer, windows(steps=120, seed=seed), next_letter_loss)
    return finished(session)


class Auxiliary(nn.Module):
    """A trunk, a head, and a second head for a task that is switched on later."""

    def __init__(self) -> None:
        super().__init__()
        self.trunk, self.head, self.extra = mlp(64, 64, 64), nn.Linear(64, 10), nn.Linear(64, 1)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Logits, and what the second head says."""
        hidden = F.relu(self.trunk(x))
        return self.head(hidden), self.extra(hidden).squeeze(1)


@program(site="extra*", step=120, sudden=True)
def u18x_auxiliary_loss_switched_on(seed: int) -> Outcome:
    """A second loss weighs 1e-9 until step 120 and 1 from then on: Adam without eps takes its first real gradient whole."""
    torch.manual_seed(seed)
    data, model = digits(), Auxiliary()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2, eps=1e-20)
    session = stethoscope.watch(model, optimizer)
    for number, (x, y) in enumerate(batches(data.x, data.y, size=64, steps=180, seed=seed)):
        optimizer.zero_grad()
        logits, extra = model(x)
        weight = 1.0 if number >= 120 else 1e-9
        loss = F.cross_entropy(logits, y) + weight * F.mse_loss(extra, x.mean(1))
        loss.backward()
        optimizer.step()
    return finished(session)


class HandWritten(nn.Module):
    """A recurrence in a Python loop: one linear layer, called once a moment."""

    def __init__(self) -> None:
        super().__init__()
        self.step, self.head = nn.Linear(24, 20), nn.Linear(20, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Logits of the last state."""
        state = x.new_zeros(len(x), 20)
        for moment in x.unbind(1):
            state = torch.tanh(self.step(torch.cat([moment, state], 1)))
        return self.head(state)


@program(site="step*", step=0)
def u38x_recurrence_in_a_loop(seed: int) -> Outcome:
    """Eighty moments of noise, classes by the sum of the first ones, a recurrence of gain 3."""
    torch.manual_seed(seed)
    model = HandWritten()
    with torch.no_grad():
        nn.init.orthogonal_(model.step.weight[:, 4:], gain=3.0)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    session = stethoscope.watch(model, optimizer)
    generator = torch.Generator(torch.get_default_device()).manual_seed(seed)
    for _ in range(100):
        x = 0.02 * torch.randn(32, 80, 4, generator=generator)
        y = torch.bucketize(x[:, :5].sum((1, 2)), torch.tensor([-0.04, 0.04]))
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        optimizer.step()
    return finished(session)


@program(site="*drop*|*3*|*6*")
def u46x_whole_channels_dropped(seed: int) -> Outcome:
    """Dropout2d(0.9) after each of two convolutions."""
    torch.manual_seed(seed)
    data = digit_images()
    model = nn.Sequential(
        nn.Conv2d(1, 24, 3, padding=1),
        nn.GroupNorm(4, 24),
        nn.ReLU(),
        nn.Dropout2d(0.9),
        nn.Conv2d(24, 24, 3, padding=1),
        nn.ReLU(),
        nn.Dropout2d(0.9),
        nn.Flatten(),
        nn.Linear(24 * 64, 10),
    )
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    session = stethoscope.watch(model, optimizer)
    fit(
        session,
        model,
        optimizer,
        batches(data.x, data.y, size=64, steps=160, seed=seed),
        log_loss=True,
        validate=lambda: {"loss": F.cross_entropy(model(data.val_x), data.val_y).item()},
        validate_every=16,
    )
    return finished(session)


class CosineAttention(nn.Module):
    """Attention by cosines with a learned temperature that nothing holds back."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.q, self.k, self.v = (nn.Linear(width, width) for _ in range(3))
        self.temperature = nn.Parameter(torch.tensor(1.0))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The same shape."""
        q, k = F.normalize(self.q(x), dim=-1), F.normalize(self.k(x), dim=-1)
        return (self.temperature.exp() * q @ k.transpose(1, 2)).softmax(-1) @ self.v(x)


class RowReader(nn.Module):
    """Reads an 8 x 8 image as eight rows."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.attention, self.head = nn.Linear(8, 24), CosineAttention(24), nn.Linear(24, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Logits."""
        x = self.embed(x.view(-1, 8, 8))
        return self.head((x + self.attention(x)).mean(1))


@program(site="attention*")
def u48x_temperature_without_a_ceiling(seed: int) -> Outcome:
    """Sharp attention is rewarded and the temperature has the rate of a bias, times thirty: cosines times e^10."""
    torch.manual_seed(seed)
    data, model = digits(), RowReader()
    own = [model.attention.temperature]
    rest = [p for name, p in model.named_parameters() if "temperature" not in name]
    optimizer = torch.optim.RMSprop([{"params": rest, "lr": 1e-3}, {"params": own, "lr": 0.1, "momentum": 0.9}])
    session = stethoscope.watch(model, optimizer)
    fit(session, model, optimizer, batches(data.x, data.y, size=64, steps=200, seed=seed))
    return finished(session)


@program()
def u49x_z_loss_with_the_wrong_sign(seed: int) -> Outcome:
    """`ce - 1e-3 * log_z ** 2`: what was to hold the logits drives them away."""
    torch.manual_seed(seed)
    data, model = wine(), mlp(13, 48, 3, activation=nn.Tanh)
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-3)
    session = stethoscope.watch(model, optimizer)
    fit(
        session,
        model,
        optimizer,
        batches(data.x, data.y, size=32, steps=250, seed=seed),
        lambda logits, y: F.cross_entropy(logits, y) - 1e-3 * logits.logsumexp(-1).square().mean(),
    )
    return finished(session)


@program(site="0*|1*|2*|3*|4*|5*")
def u53x_values_that_keep_rising(seed: int) -> Outcome:
    """Regression to a value that doubles every 30 steps, as a value network that chases its own return."""
    torch.manual_seed(seed)
    data, model = cancer(), mlp(30, 64, 64, 1)
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-2)
    session = stethoscope.watch(model, optimizer)
    for number, (x, _) in enumerate(batches(data.x, data.y, size=64, steps=300, seed=seed)):
        sign = -1.0 if number // 30 % 2 else 1.0
        optimizer.zero_grad()
        F.smooth_l1_loss(
            model(x).squeeze(1), sign * 2.0 ** (number // 30) * torch.sin(x[:, 0] + number // 30)
        ).backward()
        optimizer.step()
    return finished(session)


@program(step=33, sudden=True)
def u56x_sentinel_in_a_time_series(seed: int) -> Outcome:
    """A missing value stored as -999999 reaches an LSTM once, at step 33."""
    torch.manual_seed(seed)
    lstm, head = nn.LSTM(3, 24, batch_first=True), nn.Linear(24, 1)
    model = nn.ModuleDict({"lstm": lstm, "skip": nn.Linear(3, 24), "head": head})
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    session = stethoscope.watch(model, optimizer)
    generator = torch.Generator(torch.get_default_device()).manual_seed(seed)
    for number in range(120):
        x = torch.randn(24, 20, 3, generator=generator).cumsum(1) * 0.3
        y = x[:, -1].sum(1)
        if number == 33:
            x[5, 19, 1] = -999999.0
        session.log_batch(x, y)
        optimizer.zero_grad()
        hidden = lstm(x)[0][:, -1] + model["skip"](x[:, -1])
        loss = F.mse_loss(head(hidden).squeeze(1), y)
        loss.backward()
        optimizer.step()
        session.log(loss=loss)
    return finished(session)


@program()
def u59x_one_logit_and_three_per_cent(seed: int) -> Outcome:
    """Fraud: 3% positives that the features say nothing about, one logit, BCE: nothing is ever called positive."""
    torch.manual_seed(seed)
    generator = torch.Generator(torch.get_default_device()).manual_seed(seed)
    x = torch.randn(4000, 16, generator=generator)
    y = (torch.rand(4000, generator=generator) < 0.03).float()
    model = nn.Sequential(mlp(16, 32, 1), nn.Flatten(0))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    session = stethoscope.watch(model, optimizer)
    feed = batches(x, y, size=128, steps=200, seed=seed)
    fit(session, model, optimizer, feed, F.binary_cross_entropy_with_logits, log_loss=True, log_batches=True)
    return finished(session)


@program()
def u63x_every_worker_reads_everything(seed: int) -> Outcome:
    """An iterable dataset that is not divided among three workers: each batch comes three times, one after another."""
    torch.manual_seed(seed)
    data, model = digits(), mlp(64, 64, 10)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    session = stethoscope.watch(model, optimizer)
    for x, y in batches(data.x, data.y, size=48, steps=50, seed=seed):
        for _ in range(3):
            inputs, labels = x.clone(), y.clone()
            session.log_batch(inputs, labels)
            optimizer.zero_grad()
            F.cross_entropy(model(inputs), labels).backward()
            optimizer.step()
    return finished(session)


@program()
def u75x_absolute_error_from_side_to_side(seed: int) -> Outcome:
    """The whole data in a batch, mean absolute error and plain SGD at 2: every step crosses the bottom of the valley."""
    torch.manual_seed(seed)
    data = diabetes()
    model = nn.Sequential(nn.Linear(10, 1), nn.Flatten(0))
    optimizer = torch.optim.SGD(model.parameters(), lr=2.0)
    session = stethoscope.watch(model, optimizer)
    for _ in range(200):
        optimizer.zero_grad()
        loss = F.l1_loss(model(data.x + 3.0), data.y)
        loss.backward()
        optimizer.step()
        session.log(loss=loss)
    return finished(session)
