"""A plain GPT-2 with random weights and random tokens: what the GPU benchmarks train."""

from __future__ import annotations

import contextlib
import dataclasses
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path

import torch
from torch import nn
from torch.nn import functional as F


@dataclasses.dataclass(frozen=True)
class Size:
    layers: int
    width: int
    heads: int
    batch: int
    context: int = 1024
    vocabulary: int = 50304


SIZES = {"124M": Size(12, 768, 12, batch=16), "1.3B": Size(24, 2048, 16, batch=8)}


class Attention(nn.Module):
    def __init__(self, size: Size) -> None:
        super().__init__()
        self.heads = size.heads
        self.qkv = nn.Linear(size.width, 3 * size.width)
        self.out = nn.Linear(size.width, size.width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, width = x.shape
        q, k, v = self.qkv(x).view(batch, length, 3, self.heads, width // self.heads).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.out(y.transpose(1, 2).reshape(batch, length, width))


class Block(nn.Module):
    def __init__(self, size: Size) -> None:
        super().__init__()
        self.norm_1, self.norm_2 = nn.LayerNorm(size.width), nn.LayerNorm(size.width)
        self.attention = Attention(size)
        self.up, self.gelu = nn.Linear(size.width, 4 * size.width), nn.GELU(approximate="tanh")
        self.down = nn.Linear(4 * size.width, size.width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.attention(self.norm_1(x))
        return x + self.down(self.gelu(self.up(self.norm_2(x))))


class GPT(nn.Module):
    """Returns the loss, as most training loops' models do; the head shares the embedding's weight."""

    def __init__(self, size: Size) -> None:
        super().__init__()
        self.tokens = nn.Embedding(size.vocabulary, size.width)
        self.positions = nn.Embedding(size.context, size.width)
        self.blocks = nn.ModuleList(Block(size) for _ in range(size.layers))
        self.norm = nn.LayerNorm(size.width)
        for parameter in self.parameters():
            if parameter.dim() > 1:
                nn.init.normal_(parameter, std=0.02)

    def forward(self, tokens: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        x = self.tokens(tokens) + self.positions.weight[: tokens.shape[1]]
        for block in self.blocks:
            x = block(x)
        logits = F.linear(self.norm(x), self.tokens.weight)
        return F.cross_entropy(logits.view(-1, logits.shape[-1]), targets.reshape(-1))


@contextlib.contextmanager
def alone() -> Iterator[None]:
    """Nobody else measures meanwhile; compiling beside it takes other cores. $MEASURING names the file that says so."""
    name = os.environ.get("MEASURING")
    if not name:
        yield
        return
    with Path(name).open("a") as door:
        fcntl.flock(door, fcntl.LOCK_EX)
        yield
