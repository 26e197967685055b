"""Every kernel gives the reference's row, on every dtype, layout and corner."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from stethoscope import kernels
from stethoscope.kernels import Extras, cpu, portable, reference
from stethoscope.kernels.columns import merge
from stethoscope.kernels.pointers import collect
from tests.kernels.agreement import (
    COMPLEX,
    FLOATS,
    FP8,
    INTEGERS,
    assert_rows_agree,
    laid_out,
    ordinary_tensor,
    tensor_of_bits,
    with_specials,
)
from tests.kernels.drawing import tensors

CHECKS_OFF = [HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
CALM = settings(deadline=None, max_examples=150, suppress_health_check=CHECKS_OFF)
LOADED = cpu.library()
TOP = LOADED.level if LOADED is not None else 0
LIMITS = st.sampled_from([None, 0.0, 1.0, 65504.0])


@CALM
@given(st.lists(tensors(), max_size=4), LIMITS, st.integers(0, 2))
def test_c_rows(library: cpu.Library, some: list[torch.Tensor], limit: float | None, level: int) -> None:
    library.level = min(level, TOP)
    measured = kernels.measure_async(some, limits=[limit] * len(some)).result()
    assert measured.unsupported == ()
    assert_rows_agree(measured.rows, reference.rows(some, [limit] * len(some)))


@settings(CALM, max_examples=60)
@given(tensors(), LIMITS, st.integers(0, 2**40))
def test_portable_rows_histograms_and_sketches(tensor: torch.Tensor, limit: float | None, seed: int) -> None:
    measured = portable.launch([tensor], [limit], Extras(True, True, seed)).result()
    assert_rows_agree(measured.rows, reference.row(tensor, limit))
    assert measured.histograms is not None
    assert measured.sketches is not None
    np.testing.assert_array_equal(measured.histograms[0], reference.histogram(tensor))
    assert_sketches_agree(measured.sketches[0], tensor, seed)


@CALM
@given(tensors(), st.integers(0, 2**40), st.integers(0, 2))
def test_c_histograms_and_sketches(library: cpu.Library, tensor: torch.Tensor, seed: int, level: int) -> None:
    library.level = min(level, TOP)
    measured = kernels.measure_async([tensor], extras=Extras(True, True, seed)).result()
    assert measured.histograms is not None
    assert measured.sketches is not None
    np.testing.assert_array_equal(measured.histograms[0], reference.histogram(tensor))
    assert_sketches_agree(measured.sketches[0], tensor, seed)


def assert_sketches_agree(found: np.ndarray, tensor: torch.Tensor, seed: int) -> None:
    truth = reference.sketch(tensor, seed)
    flat, _ = reference.values(tensor)
    with np.errstate(over="ignore"):
        total = np.abs(flat[np.isfinite(flat)]).sum()
    if np.isfinite(total):
        np.testing.assert_allclose(found, truth, rtol=1e-6, atol=1e-12 * total)


@CALM
@given(tensors((*FLOATS, torch.int64)), st.floats(0, 1))
def test_the_rows_of_two_halves_merge_into_the_row_of_the_whole(tensor: torch.Tensor, share: float) -> None:
    flat = tensor.reshape(-1)
    cut = int(share * flat.numel())
    halves = reference.rows([flat[:cut], flat[cut:]])
    whole = reference.row(flat)
    assert_rows_agree(merge(halves[0], halves[1]), whole, relative=1e-7)


@pytest.mark.parametrize("level", [0, 1, 2])
@pytest.mark.parametrize("dtype", [*FLOATS, torch.int32, torch.uint8, torch.float8_e5m2], ids=str)
def test_whole_blocks_and_tasks(library: cpu.Library, dtype: torch.dtype, level: int) -> None:
    if level > library.level:
        pytest.skip("this processor has no such instructions")
    library.level = level
    tensor = with_specials(ordinary_tensor(dtype, 64 * 4096 + 4097, 5), 9)
    assert_rows_agree(kernels.measure([tensor]), reference.row(tensor))


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_threads_change_nothing(library: cpu.Library, dtype: torch.dtype) -> None:
    big = ordinary_tensor(dtype, 6_000_001, 3)
    some = [big, *(ordinary_tensor(dtype, 50, seed) for seed in range(20)), big[: 64 * 4096 + 1]]
    rows = []
    for library.num_threads in (1, 2, 5):
        measured = kernels.measure_async(some, extras=Extras(True, True, 1)).result()
        rows.append(measured)
    for other in rows[1:]:
        np.testing.assert_array_equal(other.rows, rows[0].rows)
        np.testing.assert_array_equal(other.histograms, rows[0].histograms)
        np.testing.assert_array_equal(other.sketches, rows[0].sketches)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
def test_a_mean_a_million_times_the_spread(library: cpu.Library, dtype: torch.dtype) -> None:
    tensor = (torch.randn(300_000, generator=torch.Generator().manual_seed(0)) + 1e6).to(dtype)
    assert_rows_agree(kernels.measure([tensor]), reference.row(tensor))


@pytest.mark.parametrize("scale", [1e-320, 1e-200, 1e-80, 1e80, 1e200, 1e308])
def test_float64_beyond_the_range_of_its_own_fourth_powers(library: cpu.Library, scale: float) -> None:
    values = np.random.default_rng(0).uniform(-1, 1, 5000) * scale
    assert_rows_agree(kernels.measure([values]), reference.row(values))


@pytest.mark.parametrize("dtype", [*FLOATS, *FP8, *INTEGERS, *COMPLEX], ids=str)
@pytest.mark.parametrize("with_c", [True, False], ids=["c", "portable"])
@pytest.mark.filterwarnings("ignore:ComplexHalf support is experimental")
def test_every_dtype(dtype: torch.dtype, with_c: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if not with_c:
        monkeypatch.setattr(cpu, "library", lambda: None)
    some = [tensor_of_bits(dtype, 512, 1), tensor_of_bits(dtype, 0, 1), tensor_of_bits(dtype, 1, 2)[0]]
    assert_rows_agree(kernels.measure(some), reference.rows(some))


def test_every_dtype_torch_has_is_measured_or_named_unsupported() -> None:
    dtypes = sorted({d for d in vars(torch).values() if isinstance(d, torch.dtype)}, key=str)
    made = []
    for dtype in dtypes:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                made.append(torch.empty(4, dtype=dtype))
            except (RuntimeError, TypeError):
                continue  # quantised dtypes cannot be made without a scale
    measured = kernels.measure_async(made).result()
    unread = {str(made[position].dtype) for position in measured.unsupported}
    readable = {str(d) for d in (*FLOATS, *FP8, *INTEGERS, *COMPLEX)}
    assert not unread & readable
    assert {str(t.dtype) for t in made} - unread == readable
    assert len(measured.rows) == len(made)


def test_a_channels_last_weight_is_read_where_it_lies(library: cpu.Library) -> None:
    tensor = torch.randn(6, 5, 3, 3).to(memory_format=torch.channels_last)
    table = collect([tensor])
    assert table is not None
    assert table.pointers[0] == tensor.data_ptr()
    assert_rows_agree(kernels.measure([tensor]), reference.row(tensor))
    sketch = kernels.measure_async([tensor], extras=Extras(sketch=True)).result().sketches
    assert sketch is not None
    assert_sketches_agree(sketch[0], tensor, 0)


@pytest.mark.parametrize("layout", ["plain", "transposed", "strided", "window", "expanded"])
def test_numpy_arrays_in_any_layout(layout: str) -> None:
    array = laid_out(ordinary_tensor(torch.float32, 120, 0), layout).numpy()
    assert_rows_agree(kernels.measure([array]), reference.row(array))


def test_anything_that_holds_numbers() -> None:
    arrays = [
        [1.0, 2.0, 3.0],
        4,
        True,
        np.float16(2.5),
        np.array([1, 2], dtype=">i4"),
        np.longdouble([1.5, 2.5]),
        np.array([1 + 1j]),
        [[1, 2], [3, 4]],
        np.zeros((0, 3)),
        torch.ones(2),
        range(5),
    ]
    truth = np.stack([reference.row(array) for array in arrays])
    assert_rows_agree(kernels.measure(arrays), truth)
    assert kernels.measure([]).shape == (0, kernels.NUM_COLUMNS)
    for bad in (["a"], [[1], [2, 3]], object()):
        with pytest.raises(kernels.UnsupportedArrayError):
            kernels.measure([bad])
    with pytest.raises(kernels.UnsupportedArrayError, match="meta"):
        kernels.measure([torch.empty(2, device="meta")])


def test_limits_count_what_is_over_them() -> None:
    tensor = torch.tensor([1.0, -70000.0, 3.0, float("inf")])
    rows = kernels.measure([tensor, tensor, tensor.numpy()], limits=[65504.0, None, 2.0])
    assert rows[:, 6].tolist() == [1.0, 0.0, 2.0]
