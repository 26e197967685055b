"""The demo's patient: a small character-level transformer with one mistake in one block, and the text it learns.

The mistake is one people make: one block's attention is written by hand, with a softmax that does not subtract the
largest score first, and with a z-loss, a small penalty meant to keep scores from growing, that is subtracted where it
should be added. The loss looks better and better. Then the scores pass 88, the logarithm of the largest float32, and
the exponential is Inf.
"""

from __future__ import annotations

import math

import torch
from torch import nn

WIDTH, HEADS, BLOCKS, CONTEXT = 48, 4, 4, 48
FAULTY_BLOCK = 2
NAMES = ("ada", "bob", "eve", "kim", "leo", "mia", "noa", "sam")
THINGS = ("keys", "map", "lamp", "coin", "book", "cup", "ring", "shoe")
PLACES = ("attic", "cellar", "garden", "kitchen", "office", "tower")


def text(num_sentences: int, generator: torch.Generator) -> str:
    """Sentences whose last words repeat the first ones: to finish them, a model must look back."""
    pick = torch.randint(0, 1 << 30, (num_sentences, 3), generator=generator).tolist()
    return "".join(
        f"{(n := NAMES[a % len(NAMES)])} put the {(t := THINGS[b % len(THINGS)])} in the {(p := PLACES[c % len(PLACES)])}. "
        f"the {t} of {n} is in the {p}. "
        for a, b, c in pick
    )


class Attention(nn.Module):
    """Causal self-attention."""

    def __init__(self, *, careless: bool) -> None:
        super().__init__()
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH)
        self.scores = Scores()
        self.weights = CarelessSoftmax() if careless else nn.Softmax(dim=-1)
        self.proj = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Mix every position with those before it."""
        batch, length, _ = x.shape
        q, k, v = self.qkv(x).view(batch, length, 3, HEADS, WIDTH // HEADS).permute(2, 0, 3, 1, 4)
        mask = torch.ones(length, length, dtype=torch.bool, device=x.device).tril()
        scores = self.scores(q, k).masked_fill(~mask, -math.inf)
        self.z_loss = scores.logsumexp(dim=-1).square().mean()
        weights: torch.Tensor = self.weights(scores)
        mixed: torch.Tensor = self.proj((weights @ v).transpose(1, 2).reshape(batch, length, WIDTH))
        return mixed


class Scores(nn.Module):
    """How much each position attends to each other."""

    def forward(self, q: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
        """Scores [batch, heads, length, length]."""
        return q @ k.transpose(-1, -2) / math.sqrt(WIDTH // HEADS)


class CarelessSoftmax(nn.Module):
    """The mistake: exp(88.8) is Inf in float32, and Inf / Inf is NaN."""

    def forward(self, scores: torch.Tensor) -> torch.Tensor:
        """Weights that add up to one, as long as no score is large."""
        exponentials = scores.exp()
        return exponentials / exponentials.sum(dim=-1, keepdim=True)


class Block(nn.Module):
    """Attention, then an MLP, each added to what came in."""

    def __init__(self, *, careless: bool) -> None:
        super().__init__()
        self.ln_1, self.ln_2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.attn = Attention(careless=careless)
        self.mlp = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """One layer of the transformer."""
        x = x + self.attn(self.ln_1(x))
        out: torch.Tensor = x + self.mlp(self.ln_2(x))
        return out


class TinyGPT(nn.Module):
    """The patient."""

    def __init__(self, num_characters: int) -> None:
        super().__init__()
        self.wte = nn.Embedding(num_characters, WIDTH)
        self.wpe = nn.Embedding(CONTEXT, WIDTH)
        self.blocks = nn.ModuleList(Block(careless=number == FAULTY_BLOCK) for number in range(BLOCKS))
        self.ln_f = nn.LayerNorm(WIDTH)
        self.head = nn.Linear(WIDTH, num_characters, bias=False)

    def z_loss(self) -> torch.Tensor:
        """How large the scores of the hand-written attention were in the last forward pass."""
        size: torch.Tensor = self.blocks[FAULTY_BLOCK].attn.z_loss  # type: ignore[union-attr, assignment]
        return size

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Logits of the next character."""
        x = self.wte(tokens) + self.wpe(torch.arange(tokens.shape[1], device=tokens.device))
        for block in self.blocks:
            x = block(x)
        logits: torch.Tensor = self.head(self.ln_f(x))
        return logits
