"""Sharded models: whatever moment we attach at, only what this rank keeps between steps is read and held."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

import stethoscope
from stethoscope.capture.discovery import Discovery, is_watched, roots
from stethoscope.capture.sites import Names
from stethoscope.record import Kind

pytestmark = pytest.mark.skipif(not dist.is_gloo_available(), reason="this torch has no gloo")


@pytest.fixture
def one_rank() -> Iterator[None]:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def sharded_model(**options: bool) -> nn.Sequential:
    torch.manual_seed(3)
    model = nn.Sequential(nn.Linear(4, 8), nn.Sequential(nn.Linear(8, 8), nn.ReLU()), nn.Linear(8, 2))
    mesh = init_device_mesh("cpu", (1,))
    for layer in (*model, model):
        fully_shard(layer, mesh=mesh, **options)
    return model


def whole_tensors(model: nn.Module) -> list[torch.Tensor]:
    """The tensors that stand in the modules during forward and backward."""
    groups = [
        g for m in model.modules() if hasattr(m, "_get_fsdp_state") for g in m._get_fsdp_state()._fsdp_param_groups
    ]
    return [held._unsharded_param for group in groups for held in group.fsdp_params]


@pytest.mark.usefixtures("one_rank")
@pytest.mark.parametrize("reshard", [True, False])
def test_names_are_those_of_the_shards_at_every_moment(reshard: bool) -> None:
    model = sharded_model(reshard_after_forward=reshard)
    between = {id(p): name for name, p in model.named_parameters()}
    moments = []

    def look() -> None:
        names = Names(model)
        moments.append({key: ".".join(filter(None, position)) for key, position in names.parameters.items()})
        assert roots(set(list(between)[:1])) == [model]

    look()
    model[1][0].register_forward_hook(lambda *_: look())
    model[1][0].register_full_backward_hook(lambda *_: look())
    loss = model(torch.randn(3, 4)).sum()
    look()
    loss.backward()
    look()
    assert len(moments) == 5
    assert all(moment == between for moment in moments)


@pytest.mark.usefixtures("one_rank")
def test_attached_between_forward_and_backward(tmp_path: Path) -> None:
    references = {}
    for watched in (False, True):
        model = sharded_model()
        optimizer = torch.optim.Adam(model.parameters())
        session = None
        for step in range(3):
            loss = model(torch.ones(3, 4)).square().sum()
            if watched and step == 0:
                session = stethoscope.watch(model, optimizer, dir=str(tmp_path), quiet=True, companion="off", every=1)
                assert is_watched(model, [session._watcher])
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
        references[watched] = [sys.getrefcount(tensor) for tensor in whole_tensors(model)]
    assert references[True] == references[False], "nobody of ours holds a whole tensor"
    assert session is not None
    session.stop()
    block = session.run.block(0, 3)
    for position, info in enumerate(block.sites):
        if info.site.kind in (Kind.WEIGHT, Kind.GRADIENT, Kind.UPDATE, Kind.OPTIMIZER_STATE):
            assert block.present[:, position].all(), info.site
        if info.site.kind in (Kind.WEIGHT, Kind.GRADIENT):
            assert info.measured == "shard"
    assert sum(session._watcher.guard.errors.values()) == 0


@pytest.mark.usefixtures("one_rank")
def test_two_trainings_of_a_sharded_model_are_found(tmp_path: Path) -> None:
    sessions: list[Any] = []

    def found(models: dict[str, nn.Module], optimizers: list[torch.optim.Optimizer]) -> None:
        (model,) = models.values()
        sessions.append(stethoscope.watch(model, optimizers, dir=str(tmp_path), quiet=True, companion="off"))

    discovery = Discovery(found)
    discovery.start()
    model = sharded_model(reshard_after_forward=False)
    for kind in (torch.optim.Adam, torch.optim.SGD):
        optimizer = kind(model.parameters(), lr=0.1)
        for _ in range(2):
            model(torch.ones(3, 4)).square().sum().backward()
            optimizer.step()
    discovery.stop()
    assert [session.step for session in sessions] == [2, 2]
    sessions[-1].stop()


def test_storages_can_still_be_resized(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    model = nn.Linear(4, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    inputs, targets = torch.randn(8, 4), torch.randn(8, 2)
    with stethoscope.watch(model, optimizer, dir=str(tmp_path), quiet=True, companion="off", every=1) as session:
        session.log_batch(inputs, targets)
        (model(inputs) - targets).square().mean().backward()
        kept = [inputs, targets, *model.parameters(), *(p.grad for p in model.parameters())]
        optimizer.step()
    for tensor in kept:
        assert tensor is not None
        assert tensor.untyped_storage().resizable()
