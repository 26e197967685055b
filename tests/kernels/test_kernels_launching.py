"""Device code is compiled beside, kept on the disk, loaded and launched; no device is needed to see that."""

from __future__ import annotations

import ctypes
import shutil
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import torch

from stethoscope.kernels import compiled, cuda_driver, launching, variants
from stethoscope.kernels.compiled import Binary
from stethoscope.kernels.cuda_driver import Driver, DriverError
from stethoscope.kernels.launching import Preparation
from stethoscope.kernels.variants import Variant, variant_of

HOPPER = 90
GATHER, SKETCHES = Variant("gather_values", "float32"), Variant("tensor_sketches")


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        pytest.skip("no C compiler")
    path = tmp_path_factory.mktemp("driver") / "libcuda.so"
    subprocess.run([compiler, "-shared", "-fPIC", "-o", path, Path(__file__).with_name("fake_cuda.c")], check=True)
    loaded = ctypes.CDLL(str(path))
    loaded.notes.restype = ctypes.POINTER(ctypes.c_int64)
    return loaded


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder for what is compiled, and nothing loaded."""
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(launching, "_functions", {})
    monkeypatch.setattr(launching, "_preparations", {})
    monkeypatch.setattr(launching, "_given_up", [])
    compiled.folder_for.cache_clear()
    yield tmp_path
    compiled.folder_for.cache_clear()


def notes(library: ctypes.CDLL) -> list[int]:
    return list(library.notes()[: library.num_notes()])


def test_a_launch_hands_over_every_argument_as_it_is(library: ctypes.CDLL) -> None:
    driver = Driver(library)
    function = driver.load(1, b"device code", "tensor_sums", 0)
    given = [0x7F12_3456_7890, 5, -1, (1 << 63) - 1, -8388608, 0]
    driver.launch(1, function, 70_000, 8, 128, 12345, given)
    assert notes(library) == [7 + len("tensor_sums"), 70_000, 1, 1, 256, 1, 1, 128, 12345, 0, *given]


def test_a_thread_without_a_context_gets_one(library: ctypes.CDLL) -> None:
    driver = Driver(library)
    library.lose_context()
    driver.launch(0, 9, 3, 1, 0, 0, [1, 2, 3, 4, 5, 6])
    assert notes(library)[-6:] == [1, 2, 3, 4, 5, 6]


def test_what_the_driver_refuses_is_said_by_its_name(library: ctypes.CDLL) -> None:
    driver = Driver(library)
    with pytest.raises(DriverError, match="CUDA_ERROR_INVALID_IMAGE"):
        driver.load(0, b"no code", "tensor_sums", 0)
    driver.load(0, b"device code", "needs_more_shared_memory", 100_000)


def test_names_say_which_variant() -> None:
    found = [*variants.needed(["float32", "float8_e4m3fn"]), *variants.useful(["float32", "float8_e4m3fn"])]
    found += [Variant("tensor_sums", "bool", aligned=True, limited=True), Variant("write_plan")]
    assert [variant_of(variant.name) for variant in found] == found
    assert len({variant.name for variant in found}) == len(found)


def test_what_is_needed_covers_a_step_and_what_is_useful_the_rest() -> None:
    needed, useful = variants.needed(["bfloat16"]), variants.useful(["bfloat16"])
    assert Variant("tensor_sums", "bfloat16", aligned=True) in needed
    assert {Variant("tensor_sums", "float64", aligned) for aligned in (False, True)} <= set(needed)
    assert Variant("gather_values", "bfloat16") in needed
    assert {Variant("chunk_histograms", "bfloat16", aligned=True), SKETCHES} <= set(useful)
    assert not set(needed) & set(useful)


def test_a_file_is_whole_or_not_there(tmp_path: Path) -> None:
    binary = Binary("f", 4, 128, 10, 2, bytes(range(256)) + b"\n\0")
    assert compiled.read(tmp_path, GATHER) is None
    compiled.write(tmp_path, GATHER, binary)
    assert compiled.read(tmp_path, GATHER) == binary
    path = next(tmp_path.iterdir())
    path.write_bytes(path.read_bytes()[:-1])
    assert compiled.read(tmp_path, GATHER) is None
    assert list(tmp_path.iterdir()) == []


def test_other_device_code_has_another_folder(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("triton")
    hopper, ampere = compiled.folder_for(90), compiled.folder_for(80)
    assert hopper.parent == ampere.parent == cache
    assert hopper != ampere
    compiled.folder_for.cache_clear()
    assert "__version__" in compiled._compiler()
    monkeypatch.setattr(compiled, "_compiler", lambda: "__version__ = '99.0'")
    assert compiled.folder_for(90) not in (hopper, ampere)


class NotedFunction:
    """Stands for code that was loaded to a device."""

    def __init__(self, device: int, binary: Binary) -> None:
        assert binary.image.startswith(b"\x7fELF")
        self.device, self.num_arguments = device, binary.num_arguments


@pytest.fixture
def no_device(monkeypatch: pytest.MonkeyPatch, library: ctypes.CDLL) -> None:
    monkeypatch.setattr(launching, "Function", NotedFunction)
    monkeypatch.setattr(cuda_driver, "driver", lambda: Driver(library))


def test_what_was_never_compiled_is_compiled_beside_and_found_later(cache: Path, no_device: None) -> None:
    pytest.importorskip("triton")
    first = Preparation(0, HOPPER)
    began = time.perf_counter()
    first.ask([GATHER], [SKETCHES])
    assert time.perf_counter() - began < 1.0
    assert not first.has_needed
    assert not first.has_all
    assert first.wait()
    assert first.has_needed
    assert first.holds([GATHER, SKETCHES])
    assert launching._functions[0, GATHER].num_arguments == 6
    names = sorted(path.name for path in compiled.folder_for(HOPPER).iterdir())
    assert names == ["gather_values-float32.cubin", "lock", "tensor_sketches.cubin"]
    # The next process has it at once, on any device of the kind.
    later = Preparation(1, HOPPER)
    later.ask([GATHER], [SKETCHES])
    assert later.has_all
    assert later.holds([GATHER])
    assert not launching._given_up


def test_what_does_not_compile_is_done_without(cache: Path, no_device: None) -> None:
    pytest.importorskip("triton")
    waiting = Preparation(0, HOPPER)
    waiting.ask([Variant("gather_values", "no_such_dtype")], [])
    waiting.wait()
    assert waiting.has_all
    assert "no_such_dtype" in launching._given_up[0]
    assert not launching.serves_devices()
    waiting.ask([GATHER], [])
    assert waiting.has_all


def test_a_driver_that_cannot_load_is_done_without(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("triton")

    def refuse(*_: object) -> None:
        raise DriverError("CUDA_ERROR_NO_BINARY_FOR_GPU")

    monkeypatch.setattr(launching, "Function", refuse)
    compiled.write(compiled.folder_for(HOPPER), GATHER, Binary("f", 4, 0, 6, 2, b"\x7fELF"))
    waiting = Preparation(0, HOPPER)
    waiting.ask([GATHER], [])
    assert waiting.has_all
    assert launching.backend().startswith("torch operations; Triton failed: DriverError")


def test_a_compiler_that_dies_is_done_without(cache: Path, no_device: None, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("triton")
    monkeypatch.setattr(sys, "executable", shutil.which("false"))
    waiting = Preparation(0, HOPPER)
    waiting.ask([GATHER], [])
    waiting.wait()
    assert "before gather_values-float32 was compiled" in launching._given_up[0]


def test_compiled_code_takes_what_is_handed_over(tmp_path: Path) -> None:
    pytest.importorskip("triton")
    from stethoscope.kernels.compiling import compile_variant

    code = compile_variant(Variant("write_plan"), HOPPER)
    assert (code.name, code.num_arguments, code.warps, code.shared) == ("write_plan", 6, 1, 0)
    assert code.num_scratch <= 2


def test_a_plan_is_uploaded_in_one_piece() -> None:
    from stethoscope.kernels import triton

    counts = np.array([20_000, 0, 5, 9_000])
    plan = triton.make_plan(torch.device("cpu"), counts, 8192, 4096)
    owners, firsts, lengths, starts = triton.cut(counts, 8192, 4096)
    np.testing.assert_array_equal(plan.owners.numpy(), owners)
    np.testing.assert_array_equal(plan.firsts.numpy(), firsts)
    np.testing.assert_array_equal(plan.lengths.numpy(), lengths)
    np.testing.assert_array_equal(plan.starts.numpy(), starts)
    np.testing.assert_array_equal(plan.done.numpy(), np.zeros(4))
    np.testing.assert_array_equal(plan.counted.numpy(), np.zeros(len(owners)))
    assert plan.num_chunks == len(owners)
    assert {part.untyped_storage().data_ptr() for part in (plan.owners, plan.firsts, plan.done)} == {
        plan.lengths.untyped_storage().data_ptr()
    }
