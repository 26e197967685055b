"""compare(a, b) beyond two real arrays: complex numbers, sets of names, models, checkpoints, ids, runs."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from scipy import stats as scipy_stats

import stethoscope
from stethoscope import TensorInspector, compare
from stethoscope.instruments.array_input import ArrayError
from stethoscope.instruments.comparison import TensorComparison
from stethoscope.instruments.comparison_groups import GroupComparison
from stethoscope.instruments.comparison_runs import ORDER, RunComparison
from stethoscope.instruments.tensor_looks import LookComparison
from stethoscope.record import Kind


@pytest.mark.parametrize("framework", ["numpy", "torch", "mixed"])
def test_complex_numbers_are_compared_as_numbers(framework: str) -> None:
    rng = np.random.default_rng(0)
    a = (rng.standard_normal((4, 5)) + 1j * rng.standard_normal((4, 5))).astype(np.complex64)
    b = a.copy()
    b[2, 3] += 3 + 4j
    b[0, 1] += 1e-3
    x = torch.from_numpy(a) if framework == "torch" else a
    found = compare(x, b if framework == "numpy" else torch.from_numpy(b))
    assert isinstance(found, TensorComparison)
    assert (found.shape_first, found.dtype_first, found.ulp_dtype) == ((4, 5), "complex64", "float32")
    assert [one.index for one in found.worst] == [(2, 3), (0, 1)]
    assert (found.worst[0].first, found.worst[0].second) == (complex(a[2, 3]), complex(b[2, 3]))
    error = np.abs(a.astype(complex) - b)
    assert found.max_abs_error == pytest.approx(error.max(), rel=1e-6)
    assert found.num_different == 2
    assert found.relative_error == pytest.approx(np.linalg.norm(error) / np.linalg.norm(b), rel=1e-5)
    truth = np.vdot(b, a).real / (np.linalg.norm(a) * np.linalg.norm(b))
    assert found.cosine == pytest.approx(truth, rel=1e-5)
    parts = [np.concatenate([v.real.ravel(), v.imag.ravel()]) for v in (a, b)]
    assert found.ks_distance == pytest.approx(scipy_stats.ks_2samp(*parts).statistic, abs=1e-9)


def test_complex_against_real_and_lists_of_complex() -> None:
    found = compare(np.array([1 + 0j, 2 + 1j]), np.array([1.0, 2.0]))
    assert (found.num_different, found.max_abs_error, found.worst[0].index) == (1, 1.0, (1,))
    assert compare([1 + 1j, 2], [1 + 1j, 2]).equal


def test_models_dicts_and_checkpoints_are_compared_by_name(tmp_path: Path) -> None:
    torch.manual_seed(0)
    first, second = torch.nn.Linear(3, 2), torch.nn.Linear(3, 2)
    second.load_state_dict(first.state_dict())
    assert compare(first, second).equal is True
    with torch.no_grad():
        second.bias[1] += 0.5
    found = compare(first, second)
    assert isinstance(found, GroupComparison)
    assert list(found.different) == ["bias"]
    assert found["weight"].equal
    assert found["bias"].worst[0].index == (1,)
    assert found.max_abs_error == pytest.approx(0.5)
    save_file({**second.state_dict(), "extra": torch.ones(1)}, tmp_path / "after.safetensors")
    by_file = compare(dict(first.named_parameters()), tmp_path / "after.safetensors")
    assert list(by_file.different) == ["bias"]
    assert (by_file.only_first, by_file.only_second) == ((), ("extra",))
    assert not by_file.equal
    assert str(by_file).startswith("1 of 2 arrays differ\n  bias: 1 element differs")
    assert "only in the second: extra" in str(by_file)
    assert "shapes differ" in str(compare({"w": np.ones(2)}, {"w": np.ones(3)}))


def test_what_cannot_be_compared_is_said(tmp_path: Path) -> None:
    with pytest.raises(ArrayError, match="single array"):
        compare(np.ones(3), {"a": np.ones(3)})
    with pytest.raises(ArrayError, match="checkpoint"):
        compare(tmp_path / "none.safetensors", {})


def test_ids_name_tensors_not_numbers() -> None:
    inspector = TensorInspector()
    a, b = torch.arange(6.0), torch.arange(6.0)
    b[4] = 9.0
    first, second = inspector.inspect_tensor(a, "a"), inspector.inspect_tensor(b, "b")
    found = inspector.compare(first, second)
    assert isinstance(found, TensorComparison)
    assert [one.index for one in found.worst] == [(4,)]
    b.mul_(2.0)  # what the id named is no longer there
    by_look = inspector.compare(first, second)
    assert isinstance(by_look, LookComparison)
    assert by_look.mean_change == pytest.approx((20.0 - 15.0) / 6)
    assert "by what was remembered" in str(by_look)
    with pytest.raises(stethoscope.StethoscopeError, match="no such look"):
        inspector.compare(first, 99)
    assert inspector.compare(a, a).equal


def _train(folder: Path, seed: int, steps: int = 12) -> stethoscope.DebugSession:
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(6, 32), torch.nn.ReLU(), torch.nn.Linear(32, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    session = stethoscope.watch(
        model, optimizer, dir=str(folder), quiet=True, companion="off", every=1, histogram_every=1
    )
    torch.manual_seed(1)
    for step in range(steps):
        if step == 5:
            torch.manual_seed(seed)
        x = torch.randn(16, 6)
        optimizer.zero_grad()
        (model(x) - x.sum(1, keepdim=True)).square().mean().backward()
        optimizer.step()
    session.stop()
    return session


def test_runs_are_compared_by_what_both_recorded(tmp_path: Path) -> None:
    one, same, other = _train(tmp_path, 1), _train(tmp_path, 1), _train(tmp_path, 2, steps=20)
    alike = compare(one.run, same.run)
    assert isinstance(alike, RunComparison)
    assert alike.equal is True
    assert alike.first_different_step is None
    assert "single elements are not recorded" in str(alike)
    apart = compare(one.run, str(other.folder))
    assert (apart.equal, apart.first_different_step, apart.num_steps) == (False, 5, 12)
    assert apart.sites[0].site.kind is Kind.INPUT  # the data came first
    weight = next(s for s in apart.sites if s.site.path == "0.weight" and s.site.kind is Kind.WEIGHT)
    assert (weight.num_steps, weight.sketch_step) == (12, 11)
    assert 0 < weight.relative_distance < 0.5
    assert weight.cosine > 0.8
    with pytest.raises(ArrayError, match="only be compared with a run"):
        compare(one.run, np.ones(3))


def test_every_kind_has_its_place() -> None:
    assert set(ORDER) == set(Kind)
