"""The networks of the fourth draw: a graph, letters, pixels, patches, a series, angles, departments, half precision."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from benchmarks.faults.models import mlp
from torch import nn


class Neighbors(nn.Module):
    """Messages along the edges of a graph, weighed by what the edges carry."""

    def __init__(self) -> None:
        super().__init__()
        self.lift, self.edge, self.mix, self.read = (
            nn.Linear(5, 24),
            mlp(2, 16, 24),
            nn.Linear(48, 24),
            nn.Linear(24, 3),
        )

    def forward(self, nodes: torch.Tensor, edges: torch.Tensor) -> torch.Tensor:
        """Logits of every graph in the batch, from (batch, nodes, 5) and (batch, nodes, nodes, 2)."""
        hidden = F.elu(self.lift(nodes))
        messages = (self.edge(edges) * hidden[:, None]).mean(2)
        return self.read(F.elu(self.mix(torch.cat([hidden, messages], -1))).mean(1))


class Reader(nn.Module):
    """A GRU that reads letters, and a judge of its last state that takes it from an array."""

    def __init__(self, vocabulary: int) -> None:
        super().__init__()
        self.embed, self.gru = nn.Embedding(vocabulary, 16), nn.GRU(16, 32, batch_first=True)
        self.judge = mlp(32, 32, 2)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        """Logits; the state goes through NumPy on its way."""
        state = self.gru(self.embed(ids))[0][:, -1]
        return self.judge(torch.as_tensor(state.detach().cpu().numpy()))


class Segmenter(nn.Module):
    """Down, up, and a skip: classes for every pixel of an 8 x 8 image."""

    def __init__(self, num_classes: int, width: int = 12) -> None:
        super().__init__()
        self.enter = nn.Conv2d(1, width, 3, padding=1)
        self.down = nn.Conv2d(width, 2 * width, 3, stride=2, padding=1)
        self.up = nn.ConvTranspose2d(2 * width, width, 2, stride=2)
        self.leave = nn.Conv2d(2 * width, num_classes, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(batch, classes, 8, 8)."""
        first = F.relu(self.enter(x))
        return self.leave(torch.cat([first, F.relu(self.up(F.relu(self.down(first))))], 1))


class Patches(nn.Module):
    """A small vision transformer by torch's own layers."""

    def __init__(self, num_outputs: int, width: int = 32) -> None:
        super().__init__()
        self.patch = nn.Conv2d(1, width, 2, stride=2)
        self.place = nn.Parameter(0.1 * torch.randn(16, width))
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention = nn.MultiheadAttention(width, 4, batch_first=True)
        self.feed = mlp(width, 64, width, activation=nn.GELU)
        self.head = nn.Linear(width, num_outputs)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """One row of outputs an image."""
        x = self.patch(x).flatten(2).transpose(1, 2) + self.place
        inner = self.norm1(x)
        x = x + self.attention(inner, inner, inner, need_weights=False)[0]
        return self.head((x + self.feed(self.norm2(x))).mean(1))


class Forecast(nn.Module):
    """The next value of a series, never below 0."""

    def __init__(self) -> None:
        super().__init__()
        self.gru, self.head = nn.GRU(1, 24, batch_first=True), nn.Linear(24, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(batch)."""
        return self.head(self.gru(x)[0][:, -1]).squeeze(1).clamp(min=0.0)


class Angles(nn.Module):
    """Classes by the angle between a feature and each class's direction."""

    def __init__(self) -> None:
        super().__init__()
        self.body = mlp(64, 48, 16)
        self.directions = nn.Parameter(torch.randn(10, 16))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Logits: small angles are good."""
        cosines = F.normalize(self.body(x), dim=1) @ F.normalize(self.directions, dim=1).t()
        return -4.0 * torch.acos(cosines.clamp(-1.0, 1.0))


class Departments(nn.Module):
    """Four networks, one of which answers for each sample."""

    def __init__(self) -> None:
        super().__init__()
        self.desk = nn.Linear(64, 4)
        self.departments = nn.ModuleList(mlp(64, 24, 10) for _ in range(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Logits of the department that the desk sends a sample to, times how sure the desk was."""
        share, chosen = self.desk(x).softmax(-1).max(-1)
        answers = x.new_zeros(len(x), 10)
        for number, department in enumerate(self.departments):
            rows = (chosen == number).nonzero().squeeze(1)
            if len(rows):
                answers = answers.index_copy(0, rows, department(x[rows]))
        return share[:, None] * answers


class HalfAttention(nn.Module):
    """Scores in float16, divided by the root of the width after they were made."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.q, self.k, self.v = (nn.Linear(width, width) for _ in range(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The same shape."""
        q, k, v = (layer(x).half() for layer in (self.q, self.k, self.v))
        scores = (q @ k.transpose(1, 2)) / math.sqrt(x.shape[-1])
        return (scores.softmax(-1) @ v).float()


def ink(x: torch.Tensor) -> torch.Tensor:
    """Paper, gray or black, pixel by pixel."""
    return torch.bucketize(F.avg_pool2d(x, 3, 1, 1)[:, 0], torch.tensor([-0.4, 0.4]))
