"""Two ranks in one run: replicas that part, the same data twice, sums for means. The other rank's gradient is computed here."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from stethoscope.record import Finding
from stethoscope.store import Run, open_run
from tests.detect.trainings import Net, watch
from tests.detect.written import codes, find

STEPS = 24
OURS = {"rank_desync", "same_data_on_ranks", "gradients_summed_across_ranks"}
Lose = Callable[[nn.Module, torch.Tensor, torch.Tensor], torch.Tensor]


def cross_entropy(model: nn.Module, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return F.cross_entropy(model(x), y)


def halved(model: nn.Module, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return F.cross_entropy(model(x), y) / 2


def conv_net() -> nn.Module:
    return nn.Sequential(nn.Unflatten(1, (1, 10)), nn.Conv1d(1, 8, 3), nn.ReLU(), nn.Flatten(), nn.Linear(64, 3))


class Distributed:
    """Trains rank after rank; what the collective would give is computed from both ranks' batches."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self._folder, self._monkeypatch = folder / "run", monkeypatch

    def train(
        self,
        make: Callable[[], nn.Module] = Net,
        *,
        reduce: str = "mean",
        only: str = "",
        same_data: bool = False,
        lose: Lose = cross_entropy,
        sync_every: int = 0,
        seeds: tuple[int, int] = (0, 0),
    ) -> Run:
        for rank in (0, 1):
            self._monkeypatch.setenv("RANK", str(rank))
            self._monkeypatch.setenv("WORLD_SIZE", "2")
            torch.manual_seed(seeds[rank])
            self._one(make(), rank, reduce, only, same_data, lose, sync_every)
        return open_run(self._folder)

    def _one(
        self, model: nn.Module, rank: int, reduce: str, only: str, same: bool, lose: Lose, sync_every: int
    ) -> None:
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
        session = watch(model, optimizer, self._folder.parent, run=self._folder)
        start = copy.deepcopy(model.state_dict())
        for step in range(STEPS):
            mine, other = _batch(step, 0 if same else rank), _batch(step, 0 if same else 1 - rank)
            twin = copy.deepcopy(model)
            lose(twin, *other).backward()
            session.log_batch(*mine)
            optimizer.zero_grad()
            lose(model, *mine).backward()
            for (name, parameter), theirs in zip(model.named_parameters(), twin.parameters(), strict=True):
                if reduce != "none" and name.startswith(only):
                    total = parameter.grad + theirs.grad
                    parameter.grad = total / 2 if reduce == "mean" else total
            optimizer.step()
            if sync_every and step % sync_every == sync_every - 1:
                model.load_state_dict(start)
        session.stop()


def _batch(step: int, rank: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(1000 * rank + step)
    x = torch.randn(16, 10, generator=generator)
    return x, x[:, :3].argmax(1)


@pytest.fixture
def ranks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Distributed:
    return Distributed(tmp_path, monkeypatch)


def ours(run: Run) -> list[Finding]:
    whole = find(run)
    assert repr(find(run, 5)) == repr(whole)
    return [f for f in whole if f.code in OURS]


def test_ranks_that_average_are_silent(ranks: Distributed) -> None:
    run = ranks.train()
    assert run.ranks == (0, 1)
    assert ours(run) == []


@pytest.mark.parametrize("make", [Net, conv_net])
def test_replicas_that_part(ranks: Distributed, make: Callable[[], nn.Module]) -> None:
    (found,) = ours(ranks.train(make, reduce="none"))
    assert (found.code, found.first_step) == ("rank_desync", 0)
    assert len(found.sites) == len(list(make().parameters()))


def test_a_head_that_is_not_averaged(ranks: Distributed) -> None:
    (found,) = ours(ranks.train(reduce="mean", only="body"))
    assert found.code == "rank_desync"
    assert {"head.weight", "head.bias"} <= set(found.sites)
    assert not any(site.startswith("body") and found.first_step == 0 for site in found.sites[:2])


@pytest.mark.parametrize("make", [Net, conv_net])
def test_the_same_data_on_both_ranks(ranks: Distributed, make: Callable[[], nn.Module]) -> None:
    (found,) = ours(ranks.train(make, same_data=True))
    assert (found.code, found.first_step, found.last_step) == ("same_data_on_ranks", 0, STEPS - 1)


@pytest.mark.parametrize("make", [Net, conv_net])
def test_gradients_that_are_summed(ranks: Distributed, make: Callable[[], nn.Module]) -> None:
    (found,) = ours(ranks.train(make, reduce="sum"))
    assert found.code == "gradients_summed_across_ranks"
    assert found.evidence[0].value == pytest.approx(2.0, rel=1e-3)


def test_a_sum_of_losses_that_were_divided_is_right(ranks: Distributed) -> None:
    assert ours(ranks.train(reduce="sum", lose=halved)) == []


def test_parts_of_a_model_differ_from_the_start(ranks: Distributed) -> None:
    assert ours(ranks.train(reduce="none", seeds=(0, 1), same_data=True)) == []


def test_replicas_that_meet_again_are_on_purpose(ranks: Distributed) -> None:
    assert ours(ranks.train(reduce="none", sync_every=8)) == []


def test_one_rank_has_no_views_by_rank(tmp_path: Path) -> None:
    from stethoscope.analyse.span import spans
    from tests.detect.trainings import train

    model: Any = Net()
    session = train(model, torch.optim.SGD(model.parameters(), lr=0.1), tmp_path, num_steps=10)
    assert all(span.by_rank == {} for span in spans(session.run))
    assert not codes(find(session.run)) & OURS
    assert session.run.events("replicas") == []
