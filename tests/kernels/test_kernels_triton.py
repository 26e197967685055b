"""The device code agrees with the reference, run by triton's interpreter."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from stethoscope.kernels import launching, measuring, triton
from stethoscope.kernels.pointers import Collected, collect


@pytest.mark.parametrize(("words", "least"), [([], 20), (["pairs"], 7)], ids=["one by one", "in pairs"])
def test_every_case_by_the_interpreter(words: list[str], least: int) -> None:
    pytest.importorskip("triton")
    environment = {**os.environ, "TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-W", "ignore::RuntimeWarning", "-m", "tests.kernels.triton_cases", *words]
    root = Path(__file__).parents[2]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300, check=False, cwd=root)
    assert done.returncode == 0, done.stderr[-2000:]
    assert int(done.stdout) > least


@settings(deadline=None)
@given(
    counts=st.lists(st.integers(0, 500), min_size=1, max_size=30),
    chunk=st.sampled_from([16, 32, 64, 128]),
    last=st.sampled_from([16, 32, 64, 128]),
)
def test_chunks_are_the_tensors_in_order(counts: list[int], chunk: int, last: int) -> None:
    last = min(chunk, last)
    owners, firsts, lengths, starts = triton.cut(np.array(counts), chunk, last)
    for tensor, count in enumerate(counts):
        mine = slice(starts[tensor], starts[tensor + 1])
        assert (owners[mine] == tensor).all()
        assert firsts[mine].tolist() == [0, *np.cumsum(lengths[mine])][: len(firsts[mine])]
        assert lengths[mine].sum() == count
        assert (lengths[mine] > 0).all()
        assert set(lengths[mine][:-1].tolist()) <= {chunk, last}
    assert starts[-1] == len(owners)
    before_last = np.cumsum(lengths) <= sum(counts) - int(triton.LAST_SHARE * sum(counts))
    assert (lengths[~before_last][1:] <= last).all()


def test_spans_are_short_for_small_models_and_long_for_large_ones() -> None:
    found = [triton.span_of(count) for count in (1, 8192, 1 << 20, 12_000_000, 40_000_000, 1 << 27, 1 << 30)]
    assert found == [8192, 8192, 8192, 16384, 40960, 65536, 131072]
    lengths = triton.cut(np.array([1 << 28]), triton.SPAN, triton.LAST_SPAN)[2]
    assert lengths[lengths < triton.SPAN].sum() < 2 * triton.LAST_ELEMENTS


def test_sums_of_nothing_are_null() -> None:
    rows = triton.rows_of_sums(np.array([[0.0] * 7 + [np.inf, -np.inf, np.inf, 1.0] + [0.0] * 5]))
    assert rows[0, :7].tolist() == [0.0] * 7
    assert np.isnan(rows[0, 7:]).all()


def test_a_kernel_that_fails_is_given_up_once(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object, **__: object) -> None:
        raise RuntimeError("no such instruction")

    table = collect([torch.ones(3)])
    assert isinstance(table, Collected)
    table.device = 0
    monkeypatch.setattr(launching, "_given_up", [])
    monkeypatch.setattr(launching, "available", lambda: True)
    monkeypatch.setattr(triton, "launch", broken)
    monkeypatch.setattr(triton, "serves", lambda _: not launching._given_up)
    assert measuring._measure_table(table, None, None) is None
    assert measuring._measure_table(table, None, None) is None
    assert launching.backend() == "torch operations; Triton failed: RuntimeError: no such instruction"
    assert len(launching._given_up) == 1
