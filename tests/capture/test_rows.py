"""A run's rows equal a float64 computation from the tensors themselves, for every site and statistic."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn import functional as F

import stethoscope
from stethoscope.kernels import reference
from stethoscope.kernels.columns import COLUMNS, COUNTS, merge
from stethoscope.record import Kind, Site
from tests.models import MODELS, make_batch

STEPS = 4


class Truth:
    """The same rows by hooks of our own, in float64."""

    def __init__(self, model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> None:
        self.rows: dict[tuple[int, Site], np.ndarray[Any, Any]] = {}
        self.calls: dict[tuple[int, Site], int] = defaultdict(int)
        self.step = 0
        self._model, self._optimizer = model, optimizer
        containers = (torch.nn.Sequential, torch.nn.ModuleList)
        for path, module in model.named_modules():
            if path and type(module) not in containers:
                module.register_forward_hook(lambda _m, _a, out, p=path: self._output(p, out))
        model.register_forward_pre_hook(lambda _m, args: self.see(Site("", Kind.INPUT, "0"), args[0]))
        model.register_forward_hook(lambda _m, _a, out: self.see(Site("", Kind.OUTPUT), out))

    def _output(self, path: str, out: Any) -> None:
        named = [("", out)] if isinstance(out, torch.Tensor) else list(_flatten(out))
        for name, tensor in named:
            self.see(Site(path, Kind.ACTIVATION, name), tensor)
            if tensor.requires_grad:
                site = Site(path, Kind.ACTIVATION_GRADIENT, name)
                tensor.register_hook(lambda g, s=site: self.see(s, g))

    def see(self, site: Site, tensor: torch.Tensor) -> None:
        row = reference.row(tensor.detach().clone().to(torch.float64))
        row[COLUMNS.index("num_tiny")] = reference.row(tensor.detach().clone())[COLUMNS.index("num_tiny")]
        key = (self.step, site)
        self.rows[key] = merge(self.rows[key], row) if key in self.rows else row
        self.calls[key] += 1

    def before_step(self) -> None:
        self._old = {name: p.detach().clone() for name, p in self._model.named_parameters()}
        for name, p in self._model.named_parameters():
            if p.grad is not None:
                self.see(_site(name, Kind.GRADIENT), p.grad)

    def after_step(self) -> None:
        for name, p in self._model.named_parameters():
            self.see(_site(name, Kind.WEIGHT), p)
            change = p.detach().double() - self._old[name].double()
            self.see(_site(name, Kind.UPDATE), change)
            for key, value in self._optimizer.state[p].items():
                if isinstance(value, torch.Tensor) and value.dim():
                    self.see(_site(name, Kind.OPTIMIZER_STATE, f".{key}"), value)
        for name, buffer in self._model.named_buffers():
            if buffer.is_floating_point():
                self.see(_site(name, Kind.BUFFER), buffer)
        self.step += 1


def _flatten(value: Any, name: str = "") -> Any:
    if isinstance(value, torch.Tensor):
        yield name, value
    elif isinstance(value, (tuple, list)):
        for position, item in enumerate(value):
            yield from _flatten(item, f"{name}.{position}" if name else str(position))


def _site(name: str, kind: Kind, suffix: str = "") -> Site:
    module, _, own = name.rpartition(".")
    return Site(module, kind, own + suffix)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("name", list(MODELS))
def test_rows_equal_the_tensors(name: str, dtype: torch.dtype, tmp_path: Path) -> None:
    torch.manual_seed(3)
    model = MODELS[name][0]().to(dtype)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    truth = Truth(model, optimizer)
    session = stethoscope.watch(model, optimizer, dir=str(tmp_path), quiet=True, companion="off", every=1)
    generator = torch.Generator().manual_seed(1)
    for _ in range(STEPS):
        optimizer.zero_grad()
        for _ in range(2):
            x, y = make_batch(name, generator)
            x = x.to(dtype) if x.is_floating_point() else x
            (F.cross_entropy(model(x), y) / 2).backward()
        truth.before_step()
        optimizer.step()
        truth.after_step()
    session.stop()
    run = stethoscope.open_run(session.run.path)
    block = run.block(0, STEPS)
    seen = set()
    for position, info in enumerate(block.sites):
        for at, step in enumerate(block.steps):
            if not block.present[at, position]:
                continue
            key = (int(step), info.site)
            expected = truth.rows[key]
            _assert_row(block.rows[at, position], expected, f"{info.site} at {step}", dtype)
            assert block.calls[at, position] == truth.calls[key], info.site
            seen.add(key)
    assert seen == set(truth.rows)


def _assert_row(found: Any, expected: Any, where: str, dtype: torch.dtype) -> None:
    for position, column in enumerate(COLUMNS):
        a, b = found[position], expected[position]
        if column in COUNTS:
            assert a == b, f"{column} of {where}: {a} against {b}"
        elif np.isnan(b):
            assert np.isnan(a) or column in ("skewness", "kurtosis"), f"{column} of {where}: {a} against null"
        else:
            scale = (
                max(abs(expected[COLUMNS.index("abs_max")]), 1e-30)
                if column in ("mean", "skewness", "kurtosis")
                else 0.0
            )
            floor = 1e-6 * (scale if column == "mean" else 1.0 if scale else 0.0)
            assert a == pytest.approx(b, rel=2e-5, abs=floor), f"{column} of {where}: {a} against {b}"


def test_a_large_tensor_is_sampled_and_says_so(tmp_path: Path) -> None:
    model = torch.nn.Linear(100, 50)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    session = stethoscope.watch(
        model, optimizer, dir=str(tmp_path), quiet=True, companion="off", update_sample=256, every=1
    )
    for _ in range(3):
        optimizer.zero_grad()
        before = model.weight.detach().clone()
        model(torch.randn(8, 100)).square().mean().backward()
        optimizer.step()
    change = model.weight.detach() - before
    session.stop()
    info = next(i for i in session.run.sites if i.site == Site("", Kind.UPDATE, "weight"))
    assert info.measured == "sampled"
    record = session.run.record(info.site, 2)
    assert record is not None
    assert record.stats["count"] == 256
    rms = record.stats["norm"] / 16
    assert rms == pytest.approx(change.square().mean().sqrt().item(), rel=0.2)


def test_layers_narrow_what_is_measured(tmp_path: Path) -> None:
    model = MODELS["transformer"][0]()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    session = stethoscope.watch(
        model, optimizer, dir=str(tmp_path), quiet=True, companion="off", layers=("blocks.1.*",), every=1
    )
    x, y = make_batch("transformer", torch.Generator().manual_seed(0))
    F.cross_entropy(model(x), y).backward()
    optimizer.step()
    session.stop()
    measured = {i.site.module for i in session.run.sites if i.site.kind is Kind.GRADIENT}
    assert measured
    assert all(path.startswith("blocks.1.") for path in measured)
