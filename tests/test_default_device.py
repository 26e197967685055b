"""torch.set_default_device names where tensors are made that nobody placed: ours are placed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402
from torch.nn import functional as F  # noqa: E402

import stethoscope  # noqa: E402


@pytest.fixture
def parts() -> tuple[Any, Any, Any]:
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True)
    model = nn.Sequential(nn.Embedding(20, 16), layer, nn.ReLU(), nn.Linear(16, 20))
    return model, torch.optim.Adam(model.parameters()), torch.randint(0, 20, (8, 12))


def loss_of(output: Any, tokens: Any) -> Any:
    return F.cross_entropy(output.flatten(0, 1), tokens.flatten())


@pytest.mark.parametrize("default", ["cpu", "meta"])
def test_watching_does_not_ask_for_the_default(parts: Any, tmp_path: Path, default: str) -> None:
    model, optimizer, tokens = parts
    with (
        torch.device(default),
        stethoscope.watch(model, optimizer, run=tmp_path / "run", companion="off", quiet=True, every=1) as session,
    ):
        for _ in range(20):
            session.log_batch(tokens, [1, 2, 3, 4, 5, 6, 7, 8])
            optimizer.zero_grad()
            loss_of(model(tokens), tokens).backward()
            optimizer.step()
        session.flush()
        assert session._watcher is not None
        assert not session._watcher.guard.errors
    run = stethoscope.open_run(tmp_path / "run")
    assert {"loss", "output/entropy"} & set(run.metrics())
    assert np.isfinite(run.metric("loss").values).all()
    assert {str(info.site.kind) for info in run.sites} >= {
        "weight",
        "gradient",
        "update",
        "activation",
        "input",
        "target",
    }


def test_a_checkup_says_the_same(parts: Any) -> None:
    model, _, tokens = parts
    optimizer = torch.optim.SGD(model[3].parameters(), lr=0.1)  # all but the head was forgotten
    told = []
    for default in ("cpu", "meta"):
        with torch.device(default):
            found = stethoscope.checkup(model, (tokens, tokens), loss_of, optimizer)
        told.append([(finding.code, finding.message) for finding in found.findings])
    assert told[0] == told[1]
    assert told[0]
