"""The library and the rest of the process: threads, forks, the floating-point mode, imports."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import warnings
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch

from stethoscope import kernels
from stethoscope.kernels import cpu


def run(program: str) -> str:
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_loading_leaves_subnormals_alone() -> None:
    program = """
import numpy as np
from stethoscope.kernels import cpu, measure
tiny = np.float32(1e-40)
assert tiny * np.float32(0.5) != 0
measure([np.full(3_000_000, 1e-40, dtype=np.float32)])
assert tiny * np.float32(0.5) != 0 and np.float64(5e-324) * 1.0 != 0
row = measure([np.array([1e-40, 0, 1], dtype=np.float32)])[0]
print(cpu.library() is not None, int(row[5]), int(row[4]))
"""
    assert run(program).split()[1:] == ["1", "1"]


def test_subnormals_are_counted_even_where_the_processor_flushes_them(library: cpu.Library) -> None:
    tensors = [torch.tensor([1e-40, 0.0, 1.0]), torch.tensor([6e-8, 1.0]).half()]
    if not torch.set_flush_denormal(True):
        pytest.skip("this processor cannot flush subnormals")
    try:
        rows = kernels.measure(tensors)
    finally:
        torch.set_flush_denormal(False)
    assert rows[:, 5].tolist() == [1, 1]
    assert rows[0, 4] == 1


def test_measuring_arrays_imports_no_torch() -> None:
    program = """
import sys
import numpy as np
from stethoscope import kernels
kernels.measure([np.ones(3), [1, 2]])
print(kernels.backend())
assert "torch" not in sys.modules and "triton" not in sys.modules
"""
    assert run(program) == kernels.backend()


def test_the_backend_says_why_there_is_no_library(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cpu, "_load", lambda: "it was not compiled")
    monkeypatch.setattr(cpu, "library", cpu.library.__wrapped__)  # not what another test had it remember
    assert cpu.library() is None
    assert cpu.backend() == "torch operations; no C library: it was not compiled"


def test_calls_from_many_threads(library: cpu.Library) -> None:
    library.num_threads = 3
    tensors = [torch.randn(2_200_000, generator=torch.Generator().manual_seed(n)) for n in range(4)]
    alone = [kernels.measure([tensor, tensor[:100]]) for tensor in tensors]
    with ThreadPoolExecutor(8) as pool:
        chosen = [[tensors[n % 4], tensors[n % 4][:100]] for n in range(32)]
        together = list(pool.map(kernels.measure, chosen))
    for position, rows in enumerate(together):
        np.testing.assert_array_equal(rows, alone[position % 4])


def test_a_forked_child_measures_too(library: cpu.Library) -> None:
    library.num_threads = 2
    array = np.random.default_rng(0).normal(size=3_000_000).astype(np.float32)
    expected = kernels.measure([array])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        child = os.fork()
    if child == 0:
        signal.alarm(20)
        os._exit(0 if np.array_equal(kernels.measure([array]), expected) else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_a_library_of_another_version_is_refused(monkeypatch: pytest.MonkeyPatch, library: cpu.Library) -> None:
    monkeypatch.setattr(cpu, "ABI", -1)
    cpu._load.cache_clear()
    try:
        assert "another version" in cpu.backend()
    finally:
        monkeypatch.undo()
        cpu._load.cache_clear()


@pytest.mark.parametrize(("asked", "expected"), [("1", 1), ("", None), ("lots", None)])
def test_threads_follow_omp_num_threads(monkeypatch: pytest.MonkeyPatch, asked: str, expected: int | None) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", asked)
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    assert cpu.num_threads() == (expected or min(cores or 1, 16))
