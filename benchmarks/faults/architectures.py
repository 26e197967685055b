"""Right models with their data and loss, to be drawn at random."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable
from typing import Any

import torch
import torch.nn.functional as F
from benchmarks.faults.data import Split, batches, cancer, digit_images, digits, text, windows
from benchmarks.faults.models import Block, CharModel, ConvNet, mlp, next_letter_loss
from benchmarks.faults.programs.healthy_models import TrigramBag
from torch import nn


@dataclasses.dataclass(frozen=True, slots=True)
class Task:
    """A model, its batches, its loss, and samples held out."""

    model: nn.Module
    batches: Iterable[tuple[torch.Tensor, torch.Tensor]]
    loss: Callable[[nn.Module, torch.Tensor, torch.Tensor], torch.Tensor]
    held_out: tuple[torch.Tensor, torch.Tensor]


@dataclasses.dataclass(frozen=True, slots=True)
class Architecture:
    """How to build a task: from dropout, batch size, number of batches and seed."""

    build: Callable[[float, int, int, int], Task]
    rate: float = 1.0
    """What a good learning rate is multiplied by here."""


def _classify(model: nn.Module, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return F.cross_entropy(model(x).float(), y)


def _next_letter(model: nn.Module, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return next_letter_loss(model(x).float(), y)


def _on(data: Split, model: nn.Module, size: int, steps: int, seed: int, loss: Any = _classify) -> Task:
    return Task(model, batches(data.x, data.y, size, steps, seed), loss, (data.val_x, data.val_y))


def _letters(model: nn.Module, size: int, steps: int, seed: int) -> Task:
    size = min(size, 32)
    return Task(model, windows(32, size, steps, seed), _next_letter, next(iter(windows(32, 64, 1, seed + 99))))


def _mlp(dropout: float, size: int, steps: int, seed: int) -> Task:
    return _on(digits(), mlp(64, 96, 64, 10, dropout=dropout), size, steps, seed)


def _tabular(dropout: float, size: int, steps: int, seed: int) -> Task:
    return _on(cancer(), mlp(30, 48, 2, activation=nn.Tanh, dropout=dropout), size, steps, seed)


def _cnn(dropout: float, size: int, steps: int, seed: int) -> Task:
    return _on(digit_images(), ConvNet(dropout=dropout), size, steps, seed)


def _transformer(dropout: float, size: int, steps: int, seed: int) -> Task:
    return _letters(CharModel(text()[1], dropout=dropout), size, steps, seed)


class LetterRNN(nn.Module):
    """A recurrent language model."""

    def __init__(self, kind: type[nn.RNNBase], vocabulary: int, dropout: float) -> None:
        super().__init__()
        self.embed = nn.Embedding(vocabulary, 24)
        self.rnn = kind(24, 48, batch_first=True)  # type: ignore[call-arg, arg-type]
        self.dropout, self.head = nn.Dropout(dropout), nn.Linear(48, vocabulary)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        """Logits for the next letter."""
        return self.head(self.dropout(self.rnn(self.embed(ids))[0]))


def _lstm(dropout: float, size: int, steps: int, seed: int) -> Task:
    return _letters(LetterRNN(nn.LSTM, text()[1], dropout), size, steps, seed)


def _gru(dropout: float, size: int, steps: int, seed: int) -> Task:
    return _letters(LetterRNN(nn.GRU, text()[1], dropout), size, steps, seed)


def _autoencoder(dropout: float, size: int, steps: int, seed: int) -> Task:
    def loss(model: nn.Module, x: torch.Tensor, _: torch.Tensor) -> torch.Tensor:
        return F.mse_loss(model(x).float(), x.float())

    return _on(digits(), mlp(64, 48, 12, 48, 64, dropout=dropout / 3), size, steps, seed, loss)


class Residual(nn.Module):
    """A small ResNet: three blocks of two convolutions."""

    def __init__(self, dropout: float, width: int = 12) -> None:
        super().__init__()
        self.stem = nn.Conv2d(1, width, 3, padding=1, bias=False)
        self.blocks = nn.ModuleList(
            nn.Sequential(
                nn.BatchNorm2d(width),
                nn.ReLU(),
                nn.Conv2d(width, width, 3, padding=1, bias=False),
                nn.BatchNorm2d(width),
                nn.ReLU(),
                nn.Conv2d(width, width, 3, padding=1, bias=False),
            )
            for _ in range(3)
        )
        self.dropout, self.head = nn.Dropout(dropout), nn.Linear(width, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Logits."""
        x = self.stem(x)
        for block in self.blocks:
            x = x + block(x)
        return self.head(self.dropout(F.relu(x).mean((2, 3))))


def _resnet(dropout: float, size: int, steps: int, seed: int) -> Task:
    return _on(digit_images(), Residual(dropout), size, steps, seed)


class Patches(nn.Module):
    """A small ViT: sixteen patches of 2 x 2 and a class token."""

    def __init__(self, dropout: float, width: int = 32) -> None:
        super().__init__()
        self.patch = nn.Conv2d(1, width, 2, 2)
        self.token = nn.Parameter(torch.zeros(1, 1, width))
        self.position = nn.Parameter(torch.randn(1, 17, width) * 0.02)
        self.blocks = nn.ModuleList(Block(width, causal=False, dropout=dropout) for _ in range(2))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Logits."""
        x = self.patch(x).flatten(2).transpose(1, 2)
        x = torch.cat([self.token.expand(len(x), -1, -1), x], dim=1) + self.position
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x[:, 0]))


def _vit(dropout: float, size: int, steps: int, seed: int) -> Task:
    return _on(digit_images(), Patches(dropout), size, steps, seed)


def _bag(dropout: float, size: int, steps: int, seed: int) -> Task:
    ids, _ = text()
    pieces = ids.unfold(0, 24, 5)
    labels = (torch.arange(len(pieces)) > len(pieces) // 2).long()
    order = torch.randperm(len(pieces), generator=torch.Generator(torch.get_default_device()).manual_seed(seed))
    x, y = pieces[order], labels[order]
    return _on(Split(x[200:], y[200:], x[:200], y[:200]), TrigramBag(3000, sparse=False), size, steps, seed)


class VAE(nn.Module):
    """A variational autoencoder of digits."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder, self.decoder = mlp(64, 48, 16), mlp(8, 48, 64)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """The picture again and the divergence from the prior."""
        mean, log_variance = self.encoder(x).chunk(2, dim=-1)
        z = mean + torch.randn_like(mean) * (log_variance / 2).exp()
        divergence = (mean.square() + log_variance.exp() - 1 - log_variance).sum(-1) / 2
        return self.decoder(z), divergence


def _vae(dropout: float, size: int, steps: int, seed: int) -> Task:
    def loss(model: nn.Module, x: torch.Tensor, _: torch.Tensor) -> torch.Tensor:
        output, divergence = model(x)
        return (output.float() - x.float()).square().sum(-1).mean() / 64 + 0.02 * divergence.float().mean()

    return _on(digits(), VAE(), size, steps, seed, loss)


ARCHITECTURES = {
    "MLP": Architecture(_mlp),
    "tabular MLP": Architecture(_tabular),
    "CNN": Architecture(_cnn),
    "transformer": Architecture(_transformer),
    "LSTM": Architecture(_lstm, 2.0),
    "GRU": Architecture(_gru, 2.0),
    "autoencoder": Architecture(_autoencoder),
    "ResNet": Architecture(_resnet),
    "ViT": Architecture(_vit, 0.7),
    "embedding bag": Architecture(_bag, 2.0),
    "VAE": Architecture(_vae),
}
