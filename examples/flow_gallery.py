"""How the gradient flows through five kinds of network: pictures of each, from a short real training.

    python examples/flow_gallery.py [FOLDER]

Writes `<name>-flow.png` (the model's own data-flow graph, ribbons as wide as the gradient) and `<name>-animation.png`
and `.gif` (every parameter over the steps) to FOLDER, by default `./gallery`.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import torch
from torch import nn
from torch.nn import functional as F

import stethoscope

NUM_STEPS = 40


class Residual(nn.Module):
    """Two convolutions and a way around them."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.conv1, self.norm1 = nn.Conv2d(width, width, 3, padding=1), nn.BatchNorm2d(width)
        self.conv2, self.norm2 = nn.Conv2d(width, width, 3, padding=1), nn.BatchNorm2d(width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.relu(x + self.norm2(self.conv2(F.relu(self.norm1(self.conv1(x))))))


class ResNet(nn.Module):
    """A stem, three residual blocks, a head."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 3, padding=1)
        self.blocks = nn.Sequential(*(Residual(8) for _ in range(3)))
        self.head = nn.Linear(8, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.blocks(self.stem(x)).mean((2, 3)))


class Block(nn.Module):
    """Attention and a small network, each beside the residual stream."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm1, self.attention = nn.LayerNorm(width), nn.MultiheadAttention(width, 4, batch_first=True)
        self.norm2, self.up, self.down = nn.LayerNorm(width), nn.Linear(width, 64), nn.Linear(64, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.norm1(x)
        x = x + self.attention(y, y, y, need_weights=False)[0]
        return x + self.down(F.gelu(self.up(self.norm2(x))))


class TiedTransformer(nn.Module):
    """The output layer uses the embedding's own weight."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(32, 16)
        self.blocks = nn.ModuleList(Block(16) for _ in range(2))
        self.norm = nn.LayerNorm(16)
        self.head = nn.Linear(16, 32, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.embed(x)
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x)).transpose(1, 2)


class Recurrent(nn.Module):
    """Two layers of LSTM over an embedding."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(32, 16)
        self.lstm = nn.LSTM(16, 24, num_layers=2, batch_first=True)
        self.head = nn.Linear(24, 32)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.lstm(self.embed(x))[0]).transpose(1, 2)


class UNet(nn.Module):
    """Down twice, up twice, and across at each level."""

    def __init__(self) -> None:
        super().__init__()
        self.down1, self.down2 = nn.Conv2d(3, 8, 3, padding=1), nn.Conv2d(8, 16, 3, padding=1)
        self.middle = nn.Conv2d(16, 16, 3, padding=1)
        self.up2, self.up1 = nn.Conv2d(32, 8, 3, padding=1), nn.Conv2d(16, 8, 3, padding=1)
        self.head = nn.Conv2d(8, 4, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        first = F.relu(self.down1(x))
        second = F.relu(self.down2(F.max_pool2d(first, 2)))
        x = F.relu(self.middle(F.max_pool2d(second, 2)))
        x = F.relu(self.up2(torch.cat([F.interpolate(x, scale_factor=2), second], 1)))
        return self.head(F.relu(self.up1(torch.cat([F.interpolate(x, scale_factor=2), first], 1))))


class Mixture(nn.Module):
    """Four experts, two of which see each sample."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.router = nn.Linear(12, 16), nn.Linear(16, 4)
        self.experts = nn.ModuleList(nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 16)) for _ in range(4))
        self.head = nn.Linear(16, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.tanh(self.stem(x))
        weight, chosen = self.router(x).softmax(-1).topk(2, -1)
        mixed = torch.zeros_like(x)
        for number, expert in enumerate(self.experts):
            share = (weight * (chosen == number)).sum(-1, keepdim=True)
            rows = share[:, 0].nonzero()[:, 0]
            mixed = mixed.index_add(0, rows, expert(x[rows]) * share[rows])
        return self.head(x + mixed)


Batch = tuple[torch.Tensor, torch.Tensor]


def images(classes: int) -> Batch:
    """Noise, and a class for each picture."""
    return torch.randn(16, 3, 8, 8), torch.randint(classes, (16,))


def pixels() -> Batch:
    """Noise, and a class for each pixel: which channel is largest."""
    x = torch.randn(8, 3, 16, 16)
    return x, x.argmax(1)


def words() -> Batch:
    """A sequence, and the same one shifted."""
    x = torch.randint(32, (8, 13))
    return x[:, :-1], x[:, 1:]


def rows() -> Batch:
    """Rows of numbers, and which part of them is largest."""
    x = torch.randn(64, 12)
    return x, x[:, :5].argmax(1)


NETWORKS: dict[str, tuple[Callable[[], nn.Module], Callable[[], Batch]]] = {
    "resnet": (ResNet, lambda: images(10)),
    "transformer-tied": (TiedTransformer, words),
    "lstm": (Recurrent, words),
    "unet": (UNet, pixels),
    "mixture": (Mixture, rows),
}


def train(name: str, folder: Path) -> stethoscope.DebugSession:
    """A short training of one of them, watched."""
    torch.manual_seed(0)
    make, batch = NETWORKS[name]
    model = make()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    session = stethoscope.watch(
        model, optimizer, name=name, dir=str(folder / "runs"), quiet=True, companion="off", every=1
    )
    for _ in range(NUM_STEPS):
        x, y = batch()
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        optimizer.step()
    return session


def main(folder: Path) -> None:
    """All five, one after the other."""
    folder.mkdir(parents=True, exist_ok=True)
    for name in NETWORKS:
        session = train(name, folder)
        flow, animator = session.flow_visualization(), session.animation()
        flow.save(folder / f"{name}-flow.png")
        animator.export_png(folder / f"{name}-animation.png")
        animator.export_gif(folder / f"{name}-animation.gif", max_pictures=20)
        network = flow.flow_network
        path = flow.critical_paths[0].layers if flow.critical_paths else []
        print(f"{name}: {len(network.nodes)} layers, {len(network.edges)} edges, to the earliest: {' > '.join(path)}")
        session.stop()


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "gallery"))
