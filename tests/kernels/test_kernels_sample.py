"""A sample reads the same coordinates every time, in any layout."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from stethoscope.kernels import NUM_COLUMNS, Sample, cpu, reference
from tests.kernels.agreement import COMPLEX, FLOATS, FP8, INTEGERS, assert_rows_agree, tensor_of_bits


@pytest.fixture(params=["c", "portable"], autouse=True)
def _kernel(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param == "portable":
        monkeypatch.setattr(cpu, "library", lambda: None)


@pytest.mark.filterwarnings("ignore:ComplexHalf support is experimental")
def test_all_values_where_the_tensor_is_small() -> None:
    tensors = [tensor_of_bits(dtype, 40, 3) for dtype in (*FLOATS, *FP8, *INTEGERS, *COMPLEX)]
    sample = Sample(tensors, size=100)
    host = sample.read(tensors).host
    np.testing.assert_array_equal(host, np.concatenate([reference.values(t)[0] for t in tensors]))


@pytest.mark.parametrize("layout", ["plain", "transposed", "channels_last", "window"])
def test_coordinates_are_logical(layout: str) -> None:
    values = torch.arange(6 * 8 * 10 * 4, dtype=torch.float32).reshape(6, 8, 10, 4)
    tensor = {
        "plain": values,
        "transposed": values.transpose(0, 2),
        "channels_last": values.to(memory_format=torch.channels_last),
        "window": values[1:5, :, 2:9],
    }[layout]
    sample = Sample([tensor], size=50, seed=1)
    assert sample.sizes == (50,)
    read = sample.read([tensor]).host
    np.testing.assert_array_equal(read, sample.read([tensor.contiguous()]).host)
    assert len(set(read)) == 50


def test_what_a_step_changed() -> None:
    tensors = [torch.randn(100, 30), torch.randn(7), torch.zeros(0), torch.randn(5000).to(torch.bfloat16)]
    sample = Sample([tuple(t.shape) for t in tensors], size=64, seed=9)
    before = sample.read(tensors)
    tensors[0].add_(0.5)
    tensors[3][::2] *= 2
    after = sample.read(tensors)
    measured = sample.difference(before, after).result()
    ends = np.cumsum(sample.sizes)[:-1]
    truth = reference.rows(np.split(after.host - before.host, ends))
    assert_rows_agree(measured.rows, truth)
    assert measured.rows[0, 11] == pytest.approx(0.5, rel=1e-6)
    assert measured.rows[1, 4] == 7
    assert measured.unsupported == ()


def test_whether_any_value_of_a_tensor_changed() -> None:
    tensors = [torch.zeros(0), torch.randn(300), torch.randn(7), torch.zeros(0), torch.randn(5), torch.zeros(0)]
    sample = Sample(tensors, size=64, seed=9)
    before = sample.read(tensors)
    tensors[1].add_(1.0)
    tensors[4][2] += 1.0
    changed = sample.any_of(before.host != sample.read(tensors).host)
    assert changed.tolist() == [False, True, False, False, True, False]
    assert Sample([torch.zeros(0)]).any_of(np.zeros(0, dtype=bool)).tolist() == [False]


def test_reading_copies() -> None:
    tensor = torch.ones(4)
    sample = Sample([tensor])
    before = sample.read([tensor])
    tensor.zero_()
    assert before.host.tolist() == [1.0] * 4


def test_two_samples_of_one_seed_are_alike_and_of_two_seeds_are_not() -> None:
    tensor = torch.arange(10_000)
    first, again = Sample([tensor], seed=4).read([tensor]), Sample([(10_000,)], seed=4).read([tensor])
    other = Sample([tensor], seed=5).read([tensor])
    np.testing.assert_array_equal(first.host, again.host)
    assert not np.array_equal(first.host, other.host)


def test_a_tensor_that_changed_its_size_is_missing_not_wrong() -> None:
    tensors = [torch.ones(10), torch.ones(3)]
    sample = Sample(tensors)
    before = sample.read(tensors)
    after = sample.read([torch.ones(12), torch.ones(3) * 2])
    assert after.missing == (0,)
    measured = sample.difference(before, after).result()
    assert measured.unsupported == (0,)
    assert measured.rows[0, 0] == 0
    assert measured.rows[1, 11] == 1.0


def test_nothing_to_sample() -> None:
    sample = Sample([])
    assert sample.difference(sample.read([]), sample.read([])).result().rows.shape == (0, NUM_COLUMNS)
