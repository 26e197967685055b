"""Transformers: tied weights, logits that grow, masks that are missing."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from benchmarks.faults.catalogue import Outcome, finished, program, ready
from benchmarks.faults.data import text, windows
from benchmarks.faults.models import Block, CharModel, next_letter_loss
from benchmarks.faults.training import fit
from torch import nn

import stethoscope


@program(site="embed*|head*", step=0)
def f47_tied_by_value(seed: int) -> Outcome:
    """`copy_` makes head and embedding equal once; `head.weight = embed.weight` would keep them one."""
    torch.manual_seed(seed)
    _, vocabulary = text()
    model = CharModel(vocabulary)
    with torch.no_grad():
        model.head.weight.copy_(model.embed.weight)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    feed = list(windows(steps=120, seed=seed))
    checkup = ready(model, feed[0], next_letter_loss, optimizer)
    session = stethoscope.watch(model, optimizer)
    fit(session, model, optimizer, feed, next_letter_loss)
    return finished(session, checkup)


@program(site="blocks.*.attn*")
def f48_attention_logits_blow_up(seed: int) -> Outcome:
    """Queries and keys learn thirty times faster than the rest: their product runs away and every row becomes one-hot."""
    torch.manual_seed(seed)
    _, vocabulary = text()
    model = CharModel(vocabulary)
    sharp = [p for name, p in model.named_parameters() if ".attn.q." in name or ".attn.k." in name]
    rest = [p for name, p in model.named_parameters() if ".attn.q." not in name and ".attn.k." not in name]
    optimizer = torch.optim.AdamW([{"params": rest}, {"params": sharp, "lr": 3e-2}], lr=1e-3)
    session = stethoscope.watch(model, optimizer)
    fit(session, model, optimizer, windows(steps=200, seed=seed), next_letter_loss)
    return finished(session)


@program(site="blocks.*|(root)")
def f50_causal_mask_missing(seed: int) -> Outcome:
    """Every letter sees the letter that it should predict."""
    torch.manual_seed(seed)
    _, vocabulary = text()
    model = CharModel(vocabulary, causal=False)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    feed = next(iter(windows(seed=seed)))
    return Outcome(checkup=ready(model, feed, next_letter_loss, optimizer, causal=True))


class PooledText(nn.Module):
    """Its attention and its mean look at padding as if it were text."""

    def __init__(self, vocabulary: int, width: int = 32) -> None:
        super().__init__()
        self.embed = nn.Embedding(vocabulary, width)
        self.block = Block(width, causal=False)
        self.head = nn.Linear(width, 2)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        """Logits."""
        return self.head(self.block(self.embed(ids)).mean(1))


@program()
def f51_padding_unmasked(seed: int) -> Outcome:
    """What stands in the padding changes the answer."""
    torch.manual_seed(seed)
    _, vocabulary = text()
    model = PooledText(vocabulary)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    x, _ = next(iter(windows(size=32, seed=seed)))
    y = (x == x[0, 0]).any(1).long()
    x = x.clone()
    for row, length in enumerate(torch.randint(8, 28, (32,)).tolist()):
        x[row, length:] = 0
    return Outcome(checkup=ready(model, (x, y), F.cross_entropy, optimizer, pad_id=0))
