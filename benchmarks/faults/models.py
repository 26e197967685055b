"""The right models that programs share; a program whose bug is in the model writes its own."""

from __future__ import annotations

import itertools

import torch
import torch.nn.functional as F
from torch import nn


def mlp(*widths: int, activation: type[nn.Module] = nn.ReLU, dropout: float = 0.0) -> nn.Sequential:
    """Linear layers with an activation between them."""
    layers: list[nn.Module] = []
    for wide, narrow in itertools.pairwise(widths):
        layers += [nn.Linear(wide, narrow), activation()]
        if dropout:
            layers.append(nn.Dropout(dropout))
    return nn.Sequential(*layers[: -2 if dropout else -1])


class Classifier(nn.Module):
    """An encoder of two layers and a head, by name."""

    def __init__(self, num_inputs: int = 64, width: int = 64, num_classes: int = 10) -> None:
        super().__init__()
        self.encoder = nn.Linear(num_inputs, width)
        self.middle = nn.Linear(width, width)
        self.head = nn.Linear(width, num_classes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Logits."""
        return self.head(F.relu(self.middle(F.relu(self.encoder(x)))))


class ConvNet(nn.Module):
    """Two convolutions with BatchNorm, for 8 x 8 images."""

    def __init__(self, width: int = 16, num_classes: int = 10, dropout: float = 0.0) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(1, width, 3, padding=1)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, padding=1)
        self.bn2 = nn.BatchNorm2d(width)
        self.dropout = nn.Dropout(dropout)
        self.head = nn.Linear(width * 4, num_classes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Logits."""
        x = F.max_pool2d(F.relu(self.bn1(self.conv1(x))), 2)
        x = F.max_pool2d(F.relu(self.bn2(self.conv2(x))), 2)
        return self.head(self.dropout(x.flatten(1)))


class Attention(nn.Module):
    """Causal self-attention by torch's fused kernel."""

    def __init__(self, width: int, num_heads: int = 2, *, causal: bool = True) -> None:
        super().__init__()
        self.q, self.k, self.v, self.out = (nn.Linear(width, width) for _ in range(4))
        self.num_heads, self.causal = num_heads, causal

    def forward(self, x: torch.Tensor, mask: torch.Tensor | None = None) -> torch.Tensor:
        """The same shape; `mask` is True where a key may be seen."""
        batch, length, width = x.shape
        q, k, v = (
            layer(x).view(batch, length, self.num_heads, width // self.num_heads).transpose(1, 2)
            for layer in (self.q, self.k, self.v)
        )
        seen = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, is_causal=self.causal)
        return self.out(seen.transpose(1, 2).reshape(batch, length, width))


class Block(nn.Module):
    """Attention and a feed-forward layer, normalised before each."""

    def __init__(self, width: int, num_heads: int = 2, *, causal: bool = True, dropout: float = 0.0) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attn = Attention(width, num_heads, causal=causal)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: torch.Tensor, mask: torch.Tensor | None = None) -> torch.Tensor:
        """The same shape."""
        x = x + self.dropout(self.attn(self.norm1(x), mask))
        return x + self.dropout(self.down(F.gelu(self.up(self.norm2(x)))))


class CharModel(nn.Module):
    """A character-level language model."""

    def __init__(
        self,
        vocabulary: int,
        width: int = 32,
        length: int = 32,
        depth: int = 2,
        *,
        causal: bool = True,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        self.embed = nn.Embedding(vocabulary, width)
        self.position = nn.Embedding(length, width)
        self.blocks = nn.ModuleList(Block(width, causal=causal, dropout=dropout) for _ in range(depth))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, vocabulary)
        nn.init.normal_(self.embed.weight, std=0.1)
        nn.init.normal_(self.position.weight, std=0.1)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        """Logits for the next letter."""
        x = self.embed(ids) + self.position.weight[: ids.shape[1]]
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


class Recurrent(nn.Module):
    """A recurrent layer and a head on its last state."""

    def __init__(self, kind: type[nn.RNNBase], num_inputs: int, width: int, num_outputs: int, **options: str) -> None:
        super().__init__()
        self.rnn = kind(num_inputs, width, batch_first=True, **options)  # type: ignore[arg-type]
        self.head = nn.Linear(width, num_outputs)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """From (batch, time, features)."""
        return self.head(self.rnn(x)[0][:, -1])


def next_letter_loss(logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """Cross entropy over every position, padding (0) left out."""
    return F.cross_entropy(logits.flatten(0, 1), targets.flatten(), ignore_index=0)
