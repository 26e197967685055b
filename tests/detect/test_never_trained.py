"""A frozen part that nobody ever trained, of each kind that PyTorch initializes; what was trained or is kept so on purpose."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from tests.detect.trainings import watch

STEPS = 30


class Words(nn.Module):
    """An embedding, a recurrence, a head."""

    def __init__(self, recurrence: str) -> None:
        super().__init__()
        self.embed = nn.Embedding(40, 16, padding_idx=0)
        self.reader = getattr(nn, recurrence)(16, 24, batch_first=True)
        self.head = nn.Linear(24, 5)

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        read, _ = self.reader(self.embed(words))
        return self.head(read[:, -1])


def found(model: Words, folder: Path, *, given_all: bool = True) -> list[str]:
    given = model.parameters() if given_all else model.head.parameters()
    optimizer = torch.optim.Adam(given, lr=0.01)
    session = watch(model, optimizer, folder)
    for _ in range(STEPS):
        words = torch.randint(1, 40, (8, 6))
        optimizer.zero_grad()
        F.cross_entropy(model(words), words[:, 0] % 5).backward()
        optimizer.step()
    session.stop()
    return sorted(s for f in session.diagnosis.findings if f.code == "frozen_params" for s in f.sites)


@pytest.fixture(autouse=True)
def seeded() -> None:
    torch.manual_seed(0)


@pytest.mark.parametrize("recurrence", ["LSTM", "GRU", "RNN"])
def test_a_frozen_reader_that_is_as_it_was_made(tmp_path: Path, recurrence: str) -> None:
    model = Words(recurrence)
    for part in (model.embed, model.reader):
        part.requires_grad_(False)
    assert found(model, tmp_path) == ["embed.weight", "reader.weight_hh_l0", "reader.weight_ih_l0"]


@pytest.mark.parametrize("case", ["trained before", "nobody is given it", "sines", "nothing frozen"])
def test_a_reader_that_is_frozen_for_a_reason(tmp_path: Path, case: str) -> None:
    model = Words("LSTM")
    with torch.no_grad():
        if case == "trained before":
            for p in model.parameters():
                p += 0.1 * torch.randn_like(p).cumsum(-1)
        if case == "sines":
            model.embed.weight.copy_(torch.sin(torch.arange(640.0).reshape(40, 16)))
    if case != "nothing frozen":
        model.embed.requires_grad_(False)
        if case != "sines":
            model.reader.requires_grad_(False)
    assert found(model, tmp_path, given_all=case != "nobody is given it") == []
