"""Small models and their batches, shared by the tests."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn

Batch = tuple[torch.Tensor, torch.Tensor]


class Mlp(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc1, self.drop, self.fc2 = nn.Linear(12, 24), nn.Dropout(0.3), nn.Linear(24, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.fc2(self.drop(torch.relu(self.fc1(x))))


class ConvNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(1, 6, 3),
            nn.BatchNorm2d(6),
            nn.ReLU(inplace=True),
            nn.Conv2d(6, 6, 3),
            nn.BatchNorm2d(6),
            nn.ReLU(),
        )
        self.head = nn.Linear(6 * 16, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.body(x).flatten(1))


class Transformer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(16, 16)
        self.blocks = nn.ModuleList(
            nn.TransformerEncoderLayer(16, 2, 32, dropout=0.1, batch_first=True, norm_first=True) for _ in range(2)
        )
        self.head = nn.Linear(16, 16)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.embed(x)
        for block in self.blocks:
            x = block(x)
        return self.head(x).mean(1)


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lstm, self.head = nn.LSTM(5, 10, num_layers=2, dropout=0.1, batch_first=True), nn.Linear(10, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.lstm(x)[0][:, -1])


def _floats(*shape: int) -> Callable[[torch.Generator], torch.Tensor]:
    return lambda generator: torch.randn(shape, generator=generator)


MODELS: dict[str, tuple[Callable[[], nn.Module], Callable[[torch.Generator], torch.Tensor], int]] = {
    "mlp": (Mlp, _floats(8, 12), 4),
    "conv": (ConvNet, _floats(8, 1, 8, 8), 4),
    "transformer": (Transformer, lambda g: torch.randint(0, 16, (4, 6), generator=g), 16),
    "lstm": (Recurrent, _floats(4, 7, 5), 4),
}


def make_batch(name: str, generator: torch.Generator) -> Batch:
    _, inputs, num_classes = MODELS[name]
    x = inputs(generator)
    return x, torch.randint(0, num_classes, (len(x),), generator=generator)
