"""Models whose data-flow graphs are known by hand."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import nn


class ResidualBlock(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(width, width, 3, padding=1), nn.BatchNorm2d(width)
        self.conv2, self.bn2 = nn.Conv2d(width, width, 3, padding=1), nn.BatchNorm2d(width)
        self.relu = nn.ReLU(inplace=True)
        self.out = nn.ReLU(inplace=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.relu(self.bn1(self.conv1(x)))
        y = self.bn2(self.conv2(y))
        y += x
        return self.out(y)


class ResNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 4, 3)
        self.layers = nn.Sequential(ResidualBlock(4), ResidualBlock(4))
        self.fc = nn.Linear(4, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.fc(torch.flatten(F.adaptive_avg_pool2d(self.layers(self.stem(x)), 1), 1))


class Block(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.ln1, self.ln2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.proj = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.fc1, self.fc2 = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)
        self.drop = nn.Dropout(0.1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = self.qkv(self.ln1(x)).chunk(3, dim=-1)
        weights = torch.softmax(q @ k.transpose(-1, -2) / 4.0, dim=-1)
        x = x + self.proj(weights @ v)
        return x + self.drop(self.fc2(F.gelu(self.fc1(self.ln2(x)))))


class Transformer(nn.Module):
    """Pre-norm, with a position parameter on the root and a head tied to the embedding."""

    def __init__(self, depth: int = 2, width: int = 8, vocabulary: int = 11) -> None:
        super().__init__()
        self.embed = nn.Embedding(vocabulary, width)
        self.position = nn.Parameter(torch.zeros(5, width))
        self.blocks = nn.ModuleList(Block(width) for _ in range(depth))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, vocabulary, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, tokens: torch.Tensor) -> dict[str, Any]:
        x = self.embed(tokens) + self.position[: tokens.shape[1]]
        for block in self.blocks:
            x = block(x)
        return {"logits": self.head(self.norm(x)), "hidden": (x,)}


class Tagger(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(9, 4)
        self.lstm = nn.LSTM(4, 6, num_layers=2, batch_first=True)
        self.head = nn.Linear(6, 3)

    def forward(self, tokens: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        out, (hidden, _cell) = self.lstm(self.embed(tokens))
        return self.head(out), hidden


class UNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.down1, self.down2 = nn.Conv2d(1, 2, 3, padding=1), nn.Conv2d(2, 4, 3, padding=1)
        self.pool = nn.MaxPool2d(2)
        self.middle = nn.Conv2d(4, 4, 3, padding=1)
        self.up2, self.up1 = nn.ConvTranspose2d(4, 4, 2, 2), nn.ConvTranspose2d(4, 2, 2, 2)
        self.dec2, self.dec1 = nn.Conv2d(8, 4, 3, padding=1), nn.Conv2d(4, 1, 3, padding=1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        a = F.relu(self.down1(x))
        b = F.relu(self.down2(F.max_pool2d(a, 2)))
        c = self.middle(self.pool(b))
        d = self.dec2(torch.cat([self.up2(c), b], dim=1))
        return self.dec1(torch.cat([self.up1(d), a], dim=1))


class Experts(nn.Module):
    """Top-one routing by index_select and index_add."""

    def __init__(self) -> None:
        super().__init__()
        self.inp = nn.Linear(4, 4)
        self.router = nn.Linear(4, 2)
        self.experts = nn.ModuleList(nn.Linear(4, 4) for _ in range(2))
        self.head = nn.Linear(4, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.inp(x)
        gates = self.router(x).softmax(-1)
        best = gates.argmax(-1)
        out = torch.zeros_like(x)
        for number, expert in enumerate(self.experts):
            rows = torch.nonzero(best == number).flatten()
            part = expert(torch.index_select(x, 0, rows)) * gates[rows, number].unsqueeze(-1)
            out.index_add_(0, rows, part)
        return self.head(out)


class Shared(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.same, self.last = nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(self.same(torch.relu(self.same(self.first(x)))))


class Branches(nn.Module):
    """A frozen trunk, a branch behind a detach, one under no_grad, a module that nobody calls."""

    def __init__(self) -> None:
        super().__init__()
        self.trunk, self.trained = nn.Linear(4, 4).requires_grad_(False), nn.Linear(4, 4)
        self.side, self.teacher, self.after = nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 4)
        self.idle = nn.Linear(4, 4)
        self.head = nn.Linear(4, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.trained(self.trunk(x))
        s = self.side(h.detach())
        with torch.no_grad():
            t = self.teacher(h)
        return self.head(h + s + self.after(t))


class ListInstead(nn.Module):
    """Fault F06: layers in a Python list."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = [nn.Linear(4, 4), nn.Sequential(nn.Linear(4, 4), nn.ReLU())]
        self.head = nn.Linear(4, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = layer(x)
        return nn.Softmax(dim=-1)(self.head(x))
