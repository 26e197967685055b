"""Taps inside compiled graphs: right numbers, two graphs and no third, nothing left after stop."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch._dynamo.utils import counters
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

import stethoscope
from stethoscope.capture.graph_taps import TAPPED, _targets

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning:torch.*", "ignore::FutureWarning:torch.*")


class Block(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm, self.wide, self.back = nn.LayerNorm(width), nn.Linear(width, 24), nn.Linear(24, width)
        self.relu = nn.ReLU(inplace=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.back(self.relu(self.wide(self.norm(x))))


class Net(nn.Module):
    def __init__(self, again: bool = False) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Block(12) for _ in range(3))
        self.head, self._again = nn.Linear(12, 5), again

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=False) if self._again else block(x)
        return self.head(x)


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.cell, self.head = nn.GRU(6, 7, batch_first=True), nn.Linear(7, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.cell(x)[0][:, -1])


@pytest.fixture(autouse=True)
def fresh_compiler() -> Iterator[None]:
    torch._dynamo.reset()
    counters.clear()
    torch.manual_seed(0)
    yield
    torch._dynamo.reset()


def inputs(model: nn.Module, step: int) -> tuple[torch.Tensor, torch.Tensor]:
    made = torch.Generator().manual_seed(step)
    shape = (8, 4, 6) if isinstance(model, Recurrent) else (8, 12)
    return torch.randn(shape, generator=made), torch.randint(0, 5, (8,), generator=made)


def truth(model: nn.Module, step: int) -> dict[tuple[str, str], float]:
    """Norms of outputs and their gradients in float64, by hooks of the test's own on a copy that runs eagerly."""
    found: dict[tuple[str, str], float] = {}

    def remember(path: str, output: Any) -> None:
        tensor, name = (output, "") if isinstance(output, torch.Tensor) else (output[0], ".0")
        found["activation", path + name] = float(tensor.detach().double().norm())
        tensor.register_hook(
            lambda g: found.__setitem__(("activation_gradient", path + name), float(g.double().norm()))
        )

    handles = [
        module.register_forward_hook(lambda _m, _a, out, path=path: remember(path, out))
        for path, module in model.named_modules()
        if path and not isinstance(module, nn.ModuleList)
    ]
    x, y = inputs(model, step)
    gradients = [p.grad for p in model.parameters()]
    F.cross_entropy(model(x), y).backward()
    for parameter, gradient in zip(model.parameters(), gradients, strict=True):
        parameter.grad = gradient
    for handle in handles:
        handle.remove()
    return found


def train(run: Callable[..., Any], model: nn.Module, optimizer: Any, steps: range) -> None:
    for step in steps:
        x, y = inputs(model, step)
        optimizer.zero_grad()
        F.cross_entropy(run(x), y).backward()
        optimizer.step()


def num_graphs() -> int:
    return int(counters["stats"].get("unique_graphs", 0))


def watched(
    model: nn.Module, run: Any, path: Path, *, before: int = 0, **settings: Any
) -> tuple[Any, dict[tuple[str, str], float]]:
    """Trains nine steps of which every third is looked at; the run, and the truth of the seventh."""
    optimizer = torch.optim.SGD(model.parameters(), 0.05)
    train(run, model, optimizer, range(-before, 0))
    session = stethoscope.watch(
        run, optimizer, run=path, companion="off", quiet=True, activations=True, every=3, **settings
    )
    train(run, model, optimizer, range(6))
    seen = num_graphs()
    expected = truth(copy.deepcopy(model), 6)  # copies carry none of our hooks
    train(run, model, optimizer, range(6, 9))
    assert not session._watcher.guard.errors
    session.stop()
    assert num_graphs() == seen, "no graph is compiled again once both are there"
    return stethoscope.open_run(path), expected


def norms(run: Any, step: int) -> dict[tuple[str, str], float]:
    found = {}
    for kind in ("activation", "activation_gradient"):
        table = run.matrix(kind, "norm")
        line = table.values[list(table.steps).index(step)]
        found |= {(kind, info.site.path): value for info, value in zip(table.sites, line, strict=True)}
    return found


def assert_same(found: dict[tuple[str, str], float], expected: dict[tuple[str, str], float]) -> None:
    assert found.keys() == expected.keys()
    for key, value in expected.items():
        np.testing.assert_allclose(found[key], value, rtol=2e-5, err_msg=str(key))


@pytest.mark.parametrize(("before", "backend"), [(0, "inductor"), (2, "aot_eager")])
def test_outputs_and_gradients_of_a_whole_graph(before: int, backend: str, tmp_path: Path) -> None:
    model = Net()
    run, expected = watched(
        model, torch.compile(model, fullgraph=True, backend=backend), tmp_path / "run", before=before
    )
    assert not counters["graph_break"]
    assert num_graphs() == 2 + (before > 0)
    assert list(run.matrix("activation", "norm").steps) == [0, 3, 6]
    assert_same(norms(run, 6), expected)


def test_parts_compiled_one_by_one(tmp_path: Path) -> None:
    model = Net()
    for block in model.blocks:
        block.compile(backend="aot_eager", fullgraph=True)
    run, expected = watched(model, model, tmp_path / "run")
    assert_same(norms(run, 6), expected)


def test_checkpointing_is_counted_once(tmp_path: Path) -> None:
    model = Net(again=True)
    run, expected = watched(model, torch.compile(model, backend="aot_eager"), tmp_path / "run")
    assert_same(norms(run, 6), expected)
    assert set(run.block(6, 6).calls[0][run.block(6, 6).present[0]].tolist()) == {1}


def test_outputs_that_are_tuples(tmp_path: Path) -> None:
    model = Recurrent()
    run, expected = watched(model, torch.compile(model, backend="aot_eager"), tmp_path / "run")
    found = norms(run, 6)
    assert {key: found[key] for key in expected}.keys() == expected.keys()
    for key, value in expected.items():
        np.testing.assert_allclose(found[key], value, rtol=2e-5, err_msg=str(key))


def test_a_model_compiled_after_watching_began(tmp_path: Path) -> None:
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), 0.05)
    session = stethoscope.watch(
        model, optimizer, run=tmp_path / "run", companion="off", quiet=True, activations=True, every=1
    )
    train(torch.compile(model, backend="aot_eager"), model, optimizer, range(3))
    session.stop()
    table = stethoscope.open_run(tmp_path / "run").matrix("activation_gradient", "norm")
    assert len(table.sites) == 16
    assert np.isfinite(table.values[-1]).all()


def test_two_micro_batches_are_one_row(tmp_path: Path) -> None:
    model = Net()
    run = torch.compile(model, backend="aot_eager", fullgraph=True)
    optimizer = torch.optim.SGD(model.parameters(), 0.05)
    with stethoscope.watch(
        run, optimizer, run=tmp_path / "run", companion="off", quiet=True, activations=True, every=1
    ):
        for step in range(2):
            optimizer.zero_grad()
            for part in range(2):
                x, y = inputs(model, 2 * step + part)
                F.cross_entropy(run(x), y).backward()
            optimizer.step()
    block = stethoscope.open_run(tmp_path / "run").block(1, 1)
    kinds = np.array([info.site.kind in ("activation", "activation_gradient") for info in block.sites])
    assert set(block.calls[0][kinds & block.present[0]].tolist()) == {2}


def test_nothing_is_left_and_evaluation_and_export_are_plain(tmp_path: Path) -> None:
    model = Net()
    run = torch.compile(model, backend="aot_eager", fullgraph=True)
    optimizer = torch.optim.SGD(model.parameters(), 0.05)
    session = stethoscope.watch(
        run, optimizer, run=tmp_path / "run", companion="off", quiet=True, activations=True, every=1
    )
    train(run, model, optimizer, range(2))
    with torch.no_grad():
        run(inputs(model, 0)[0])
    exported = torch.export.export(model, (inputs(model, 0)[0],))
    assert "stethoscope" not in str(exported.graph)
    session.stop()
    assert TAPPED.on is False
    assert not _targets
    after = num_graphs()
    train(run, model, optimizer, range(2, 5))
    assert num_graphs() <= after + 1  # the plain graph, where no step was plain before
    assert not any(module._forward_hooks for module in model.modules())
