"""Trains a 12-layer GPT whose attention logits grow in layers.7 until fp16 overflows: the run behind the pictures.

The mistake is in one line: the q and k rows of one layer's qkv are scaled a little at every step, as a missing
normalization would let them be. Clipping then starves the other layers, and q·k passes 65,504.
`--healthy` trains the same model without the mistake; `--pause-ms` slows it down, to watch it live; `--growth` lets the mistake
grow slower; `--checkup` examines the model before it is watched, and the run keeps what that found; `--careless` gives it
something to find: no causal mask, and an optimizer that was not given the head.
"""

from __future__ import annotations

import argparse
import math
import time

import torch
from torch import nn
from torch.nn import functional as F

import stethoscope

WIDTH, HEADS, LAYERS, CONTEXT, BATCH, WORDS = 32, 4, 12, 32, 8, 48
SICK_LAYER = 7


class Attention(nn.Module):
    def __init__(self, masked: bool) -> None:
        super().__init__()
        self.masked = masked
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH)
        self.scores = Scores()
        self.softmax = nn.Softmax(dim=-1)
        self.proj = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, _ = x.shape
        q, k, v = self.qkv(x).view(batch, length, 3, HEADS, WIDTH // HEADS).permute(2, 0, 3, 1, 4)
        mask = torch.ones(length, length, dtype=torch.bool).triu(1 if self.masked else length)
        weights = self.softmax(self.scores(q, k).masked_fill(mask, -1e30))
        return self.proj((weights @ v).transpose(1, 2).reshape(batch, length, WIDTH))


class Scores(nn.Module):
    """q·k as mixed precision computes it: the product in float16."""

    def forward(self, q: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
        product = q @ k.transpose(-1, -2)
        return product.half().float() / math.sqrt(WIDTH // HEADS)


class Mlp(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc, self.act, self.proj = nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.proj(self.act(self.fc(x)))


class Layer(nn.Module):
    def __init__(self, masked: bool) -> None:
        super().__init__()
        self.ln_1, self.attn, self.ln_2, self.mlp = nn.LayerNorm(WIDTH), Attention(masked), nn.LayerNorm(WIDTH), Mlp()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.attn(self.ln_1(x))
        return x + self.mlp(self.ln_2(x))


class GPT(nn.Module):
    def __init__(self, masked: bool = True) -> None:
        super().__init__()
        self.wte, self.wpe = nn.Embedding(WORDS, WIDTH), nn.Embedding(CONTEXT, WIDTH)
        self.layers = nn.ModuleList(Layer(masked) for _ in range(LAYERS))
        self.ln_f, self.lm_head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, WORDS, bias=False)
        self.wpe.weight.requires_grad_(False)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.wte(tokens) + self.wpe(torch.arange(tokens.shape[1]))
        for layer in self.layers:
            x = layer(x)
        return self.lm_head(self.ln_f(x))


def batch_of(generator: torch.Generator) -> torch.Tensor:
    """Sequences that count upwards with a step of their own, a little noise in them."""
    start = torch.randint(0, WORDS, (BATCH, 1), generator=generator)
    stride = torch.randint(1, 4, (BATCH, 1), generator=generator)
    words = (start + stride * torch.arange(CONTEXT + 1)) % WORDS
    noise = torch.rand(words.shape, generator=generator) < 0.05
    return torch.where(noise, torch.randint(0, WORDS, words.shape, generator=generator), words)


def token_loss(logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    return F.cross_entropy(logits.flatten(0, 1), targets.flatten())


def train(args: argparse.Namespace) -> None:
    torch.manual_seed(1337)
    torch.set_num_threads(1)
    generator = torch.Generator().manual_seed(1337)
    model = GPT(masked=not args.careless)
    forgotten = model.lm_head.weight if args.careless else None
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad and p is not forgotten], lr=1e-3)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda n: min(1.0, (n + 1) / 20))
    if args.checkup:
        words = batch_of(torch.Generator().manual_seed(7))
        stethoscope.checkup(model, (words[:, :-1], words[:, 1:]), token_loss, optimizer)
    session = stethoscope.watch(model, optimizer, name=args.name, dir=args.dir, overhead=1.0, activations=True)
    lost = 0
    with session:
        for step in range(args.steps):
            tokens = batch_of(generator)
            loss = token_loss(model(tokens[:, :-1]), tokens[:, 1:])
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            schedule.step()
            if not args.healthy and step >= args.fault_at:
                with torch.no_grad():
                    model.layers[SICK_LAYER].attn.qkv.weight[: 2 * WIDTH] *= args.growth
            lost += not math.isfinite(loss.item())
            if lost > 12:
                raise FloatingPointError(f"loss is NaN since step {step - lost + 1}")
            time.sleep(args.pause_ms / 1000)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--dir", default=None)
    parser.add_argument("--name", default="gpt-12l-fp16")
    parser.add_argument("--steps", type=int, default=600)
    parser.add_argument("--fault-at", type=int, default=300)
    parser.add_argument("--healthy", action="store_true")
    parser.add_argument("--growth", type=float, default=1.055)
    parser.add_argument("--checkup", action="store_true")
    parser.add_argument("--careless", action="store_true")
    parser.add_argument("--pause-ms", type=float, default=0.0)
    train(parser.parse_args())
