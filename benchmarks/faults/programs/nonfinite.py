"""Where NaN and Inf come from: logarithms, roots, hidden branches, constant features, empty attention rows."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from benchmarks.faults.catalogue import Outcome, finished, program, ready
from benchmarks.faults.data import batches, digits, digits_raw, moons, text, windows
from benchmarks.faults.models import ConvNet, mlp
from benchmarks.faults.training import fit
from torch import nn

import stethoscope


class LogProbability(nn.Module):
    """Softmax, then log: log(0) once a class is certain enough."""

    def __init__(self, num_inputs: int, num_classes: int) -> None:
        super().__init__()
        self.linear = nn.Linear(num_inputs, num_classes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Log-probabilities."""
        return torch.log(F.softmax(self.linear(x), dim=-1))


class LogNet(nn.Module):
    """Features and a head."""

    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Sequential(nn.Linear(64, 64), nn.ReLU())
        self.head = LogProbability(64, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Log-probabilities."""
        return self.head(self.features(x))


@program(site="head*", sudden=True)
def f30_log_of_zero(seed: int) -> Outcome:
    """A sample far from the others makes one probability 0, its logarithm -Inf, and the loss NaN."""
    torch.manual_seed(seed)
    data, model = digits(), LogNet()
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    session = stethoscope.watch(model, optimizer)
    began = None
    for number, (x, y) in enumerate(batches(data.x, data.y, steps=120, seed=seed)):
        if number == 60:
            x[7] *= 50
            y[7] = (y[7] + 1) % 10
        optimizer.zero_grad()
        loss = F.nll_loss(model(x), y)
        if began is None and not torch.isfinite(loss):
            began = number
        loss.backward()
        optimizer.step()
    return finished(session, step=began)


class PairDistance(nn.Module):
    """Euclidean distance; the derivative of its root is infinite at 0."""

    def forward(self, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        """One number per pair."""
        return (a - b).square().sum(-1).sqrt()


class Siamese(nn.Module):
    """An encoder for both sides of a pair."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = mlp(64, 64, 16)
        self.distance = PairDistance()

    def forward(self, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        """Distances."""
        return self.distance(self.encoder(a), self.encoder(b))


@program(site="distance|encoder*", step=40, sudden=True)
def f31_sqrt_at_zero(seed: int) -> Outcome:
    """At step 40 a sample is paired with itself: the loss is finite, its gradient is NaN."""
    torch.manual_seed(seed)
    data, model = digits(), Siamese()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    session = stethoscope.watch(model, optimizer)
    for number, (x, y) in enumerate(batches(data.x, data.y, size=64, steps=80, seed=seed)):
        a, b, same = x[:32], x[32:].clone(), (y[:32] == y[32:]).float()
        if number == 40:
            b[3], same[3] = a[3], 1.0
        optimizer.zero_grad()
        far = model(a, b)
        loss = (same * far + (1 - same) * F.relu(2.0 - far)).mean()
        loss.backward()
        optimizer.step()
    return finished(session)


class SignedRoot(nn.Module):
    """`where` keeps the NaN out of the output, not out of the gradient."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The root where there is one, 0 elsewhere."""
        return torch.where(x > 0, torch.sqrt(x), torch.zeros_like(x))


class RootNet(nn.Module):
    """A root between two layers."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(2, 32)
        self.root = SignedRoot()
        self.second = nn.Linear(32, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Logits."""
        return self.second(self.root(self.first(x)))


@program(site="root|first*", step=0)
def f32_where_hides_a_nan(seed: int) -> Outcome:
    """The branch that is not taken still has a gradient: 0 times NaN."""
    torch.manual_seed(seed)
    data, model = moons(), RootNet()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    session = stethoscope.watch(model, optimizer)
    fit(session, model, optimizer, batches(data.x, data.y, steps=60, seed=seed))
    return finished(session)


class Standardise(nn.Module):
    """By the batch's own mean and deviation; pixel 0 of every digit is 0, and so is its deviation."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Each feature with mean 0 and deviation 1."""
        return (x - x.mean(0)) / x.std(0)


class StandardisedNet(nn.Module):
    """Normalises, then classifies."""

    def __init__(self) -> None:
        super().__init__()
        self.standardise = Standardise()
        self.net = mlp(64, 64, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Logits."""
        return self.net(self.standardise(x))


@program(site="standardise|*batch*|*0*", step=0)
def f33_constant_feature(seed: int) -> Outcome:
    """0/0 in three corners of the image that are never written on."""
    torch.manual_seed(seed)
    data, model = digits_raw(), StandardisedNet()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    checkup = ready(model, (data.x[:256], data.y[:256]), F.cross_entropy, optimizer)
    session = stethoscope.watch(model, optimizer)
    fit(session, model, optimizer, batches(data.x, data.y, steps=60, seed=seed), log_batches=True)
    return finished(session, checkup)


class MaskedAttention(nn.Module):
    """Attention written out, with padding masked by -inf."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.q, self.k, self.v = (nn.Linear(width, width) for _ in range(3))

    def forward(self, x: torch.Tensor, padding: torch.Tensor) -> torch.Tensor:
        """`padding` is True where a key must not be seen."""
        scores = self.q(x) @ self.k(x).transpose(1, 2) / x.shape[-1] ** 0.5
        scores = scores.masked_fill(padding[:, None, :], float("-inf"))
        return F.softmax(scores, dim=-1) @ self.v(x)


class TextClassifier(nn.Module):
    """Is there a digit in the piece of text?"""

    def __init__(self, vocabulary: int, width: int = 32) -> None:
        super().__init__()
        self.embed = nn.Embedding(vocabulary, width, padding_idx=0)
        self.attn = MaskedAttention(width)
        self.head = nn.Linear(width, 2)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        """Logits."""
        x = self.embed(ids)
        return self.head((x + self.attn(x, ids == 0)).mean(1))


@program(site="attn*", step=30, sudden=True)
def f34_fully_masked_row(seed: int) -> Outcome:
    """At step 30 an empty text arrives: all of its keys are masked, and softmax over nothing is NaN."""
    torch.manual_seed(seed)
    ids, vocabulary = text()
    model = TextClassifier(vocabulary)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    feed = list(windows(steps=80, size=32, seed=seed))
    digit_like = ids[0]
    empty = feed[0][0].clone()
    empty[5] = 0
    checkup = ready(model, (empty, (empty == digit_like).any(1).long()), F.cross_entropy, optimizer)
    session = stethoscope.watch(model, optimizer)
    for number, (x, _) in enumerate(feed):
        y = (x == digit_like).any(1).long()
        x = x.clone()
        x[:, 24:] = 0
        if number == 30:
            x[5] = 0
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        optimizer.step()
    return finished(session, checkup)


@program(site="bn1*", step=30, sudden=True)
def f80_nan_in_a_buffer(seed: int) -> Outcome:
    """A look at a broken batch under no_grad, in training mode: the running mean keeps the NaN for ever."""
    torch.manual_seed(seed)
    data, model = digits(), ConvNet()
    images = data.x.view(-1, 1, 8, 8)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    session = stethoscope.watch(model, optimizer)
    for number, (x, y) in enumerate(batches(images, data.y, steps=80, seed=seed)):
        if number == 30:
            broken = x.clone()
            broken[0, 0, 0, 0] = float("nan")
            with torch.no_grad():
                model(broken)
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        optimizer.step()
    return finished(session)
