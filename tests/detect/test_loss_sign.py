"""Errors that are made larger: found by the sign that graph and optimizer give, whatever else goes wrong then."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch.nn import functional as F

from tests.detect.trainings import Net, train

Lose = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


def negated(out: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return -F.cross_entropy(out, y)


@pytest.fixture(autouse=True)
def seeded() -> None:
    torch.manual_seed(0)


@pytest.mark.parametrize("rate", [0.1, 0.5])
@pytest.mark.parametrize(("lose", "maximize"), [(negated, False), (F.cross_entropy, True)], ids=["minus", "maximize"])
def test_one_sign_too_many(tmp_path: Path, rate: float, lose: Lose, maximize: bool) -> None:
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=rate, maximize=maximize)
    causes = train(model, optimizer, tmp_path, num_steps=60, lose=lose).diagnosis.causes
    assert [cause.code for cause in causes] == ["errors_maximised"], "what else goes wrong comes of it"
    assert ("optimizer maximizes" in causes[0].message) is maximize


@pytest.mark.parametrize(
    ("lose", "maximize"),
    [
        (F.cross_entropy, False),
        (negated, True),
        (lambda out, y: F.cross_entropy(out, y) - 10 * out.logsumexp(1).mean(), False),
        (lambda out, y: out.gather(1, y[:, None]).tanh().neg().mean(), False),
    ],
    ids=["an error", "two signs", "among terms", "a score"],
)
def test_signs_that_belong_so(tmp_path: Path, lose: Lose, maximize: bool) -> None:
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, maximize=maximize)
    session = train(model, optimizer, tmp_path, num_steps=60, lose=lose)
    assert "errors_maximised" not in [finding.code for finding in session.diagnosis.findings]
