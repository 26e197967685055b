"""Tensors that are not plain: their values, or named unsupported; never an exception, never a wrong row."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
import torch

from stethoscope import kernels
from stethoscope.kernels import Extras, cpu, reference
from tests.kernels.agreement import assert_rows_agree


@pytest.fixture(params=["c", "portable"], autouse=True)
def _kernel(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param == "portable":
        monkeypatch.setattr(cpu, "library", lambda: None)


def start_among_others(tensor: torch.Tensor) -> kernels.Measured:
    """Measured between two ordinary ones, whose rows must not suffer."""
    ordinary = torch.tensor([1.0, 2.0, 4.0])
    measured = kernels.measure_async([ordinary, tensor, ordinary], extras=Extras(True, True)).result()
    truth = reference.row(ordinary)
    assert_rows_agree(measured.rows[[0, 2]], np.stack([truth, truth]))
    return measured


def quantised() -> torch.Tensor:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return torch.quantize_per_tensor(torch.ones(3), 0.1, 0, torch.qint8)


def with_gaps() -> torch.Tensor:
    offsets, lengths = torch.tensor([0, 3, 6]), torch.tensor([2, 3])
    return torch.nested.nested_tensor_from_jagged(torch.ones(6, 2), offsets, lengths)


def fake() -> torch.Tensor:
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode():
        return torch.ones(3)


def freed() -> torch.Tensor:
    whole = torch.ones(1000)
    view = whole[500:]
    whole.untyped_storage().resize_(0)
    return view


@pytest.mark.parametrize(
    "make",
    [quantised, with_gaps, fake, freed, lambda: torch.ones(3, device="meta"), lambda: torch.ones(3).to_mkldnn()],
    ids=["quantised", "jagged with gaps", "fake", "freed", "meta", "mkldnn"],
)
def test_unsupported_is_named(make) -> None:  # type: ignore[no-untyped-def]
    measured = start_among_others(make())
    assert measured.unsupported == (1,)
    assert measured.rows[1, 0] == 0
    assert np.isnan(measured.rows[1, 7:]).all()


def test_jagged_tensors_give_the_values_of_their_rows() -> None:
    rows = [torch.randn(2, 3), torch.randn(4, 3)]
    measured = start_among_others(torch.nested.nested_tensor(rows, layout=torch.jagged))
    assert measured.unsupported == ()
    assert_rows_agree(measured.rows[1:2], reference.row(torch.cat(rows))[None])


@pytest.mark.parametrize("layout", ["coo", "uncoalesced", "csr", "bsr", "complex coo"])
@pytest.mark.filterwarnings("ignore:Sparse")
def test_sparse_tensors_count_the_zeros_they_leave_out(layout: str) -> None:
    dense = torch.zeros(8, 6)
    dense[1, 2], dense[3, 0], dense[7, 5] = 2.0, -1.0, 5.0
    if layout == "uncoalesced":
        position = torch.tensor([[1, 1, 3, 7], [2, 2, 0, 5]])
        tensor = torch.sparse_coo_tensor(position, torch.tensor([0.5, 1.5, -1.0, 5.0]), (8, 6))
    elif layout == "complex coo":
        dense = dense.to(torch.complex64)
        tensor = dense.to_sparse()
    else:
        blocked = dense.to_sparse_bsr((2, 2))
        tensor = {"coo": dense.to_sparse(), "csr": dense.to_sparse_csr(), "bsr": blocked}[layout]
    measured = start_among_others(tensor)
    assert measured.unsupported == ()
    assert_rows_agree(measured.rows[1], reference.row(dense))
    assert measured.histograms is not None
    np.testing.assert_array_equal(measured.histograms[1], reference.histogram(dense))


def test_conjugate_and_negated_views() -> None:
    number = torch.tensor([1 + 2j, 3 - 4j])
    for view in (number.conj(), number.conj().imag, number.conj().imag[:1], number.conj().real):
        assert_rows_agree(start_among_others(view).rows[1], reference.row(view.resolve_conj().resolve_neg()))


def test_subclasses_that_are_still_tensors() -> None:
    class Tagged(torch.Tensor):
        pass

    tensor = torch.randn(9).as_subclass(Tagged)
    assert_rows_agree(start_among_others(tensor).rows[1], reference.row(tensor.as_subclass(torch.Tensor)))
    parameter = torch.nn.Parameter(torch.randn(4, 4))
    assert_rows_agree(start_among_others(parameter).rows[1], reference.row(parameter))


def test_a_tensor_inside_vmap_is_unsupported_and_the_transform_goes_on() -> None:
    seen = []

    def body(x: torch.Tensor) -> torch.Tensor:
        seen.append(kernels.measure_async([x]).result().unsupported)
        return x * 2

    doubled = torch.vmap(body)(torch.ones(3, 2))
    assert seen == [(0,)]
    assert doubled.sum() == 12


def test_nothing_is_left_in_the_graph() -> None:
    weight = torch.randn(5, 5, requires_grad=True)
    product = (weight * 2).t()
    version = product._version
    kernels.measure_async([weight, product], extras=Extras(True, True)).result()
    product.sum().backward()
    assert product._version == version
    assert weight.grad is not None
    assert (weight.grad == 2).all()


def test_a_dtensor_gives_its_local_shard() -> None:
    import torch.distributed as dist
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import DTensor, Shard

    dist.init_process_group("gloo", rank=0, world_size=1, store=dist.HashStore())
    try:
        local = torch.randn(6, 4)
        sharded = DTensor.from_local(local, init_device_mesh("cpu", (1,)), [Shard(0)])
        assert_rows_agree(start_among_others(sharded).rows[1], reference.row(local))
    finally:
        dist.destroy_process_group()
