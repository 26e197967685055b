"""Rollups: many segments as a few files, and the same numbers as the rows give."""

import numpy as np
import pytest

from stethoscope.kernels.columns import INDEX
from stethoscope.record import Kind
from stethoscope.store import RunWriter, open_run, seal
from stethoscope.store import spool as spool_module
from stethoscope.store.downsample import building, dense
from stethoscope.store.downsample.rollup import RollupPiece
from stethoscope.store.manifest import Manifest
from stethoscope.store.segment import SegmentPiece
from tests.store.run_making import make_run, some_rows, some_sites

LEVELS = (6, 7, 8, 10)


@pytest.fixture(autouse=True)
def _small_files(monkeypatch):
    import sys

    monkeypatch.setattr(spool_module, "ROTATE_STEPS", 10)
    monkeypatch.setattr(sys.modules["stethoscope.store.seal"], "SEAL_FILES", 2)
    monkeypatch.setattr(building, "TOGETHER", 3)
    monkeypatch.setattr(building, "_CHUNK_VALUES", 1)


def write(writer, steps, num_sites=3):
    for step in steps:
        table = some_rows(num_sites, step)
        table[:, 1:4] = 0
        if step == 77:
            table[1, INDEX["num_nan"]] = 2
        if step == 401:
            table[2, INDEX["num_neginf"]] = 1
        if step % 50 != 3:
            writer.rows(step, np.arange(num_sites), table)
        else:
            writer.rows(step, np.array([0, 2]), table[[0, 2]])
        writer.scalars(step, {"loss": 1.0})


def folded(run, stat, first, last, level):
    """What the buckets must be, from the rows."""
    matrix = run.matrix(
        Kind.GRADIENT, stat, first=first >> level << level, last=(last >> level << level) + (1 << level) - 1
    )
    starts = np.arange(first >> level << level, last + 1, 1 << level)
    shape = len(matrix.sites), len(starts)
    low, high, mean, rows = (np.full(shape, np.nan) for _ in range(4))
    for place, start in enumerate(starts):
        inside = (matrix.steps >= start) & (matrix.steps < start + (1 << level))
        for site in range(shape[0]):
            there = inside & ~matrix.missing[:, site]
            rows[site, place] = there.sum()
            if there.any():
                values = matrix.values[there, site]
                low[site, place], high[site, place], mean[site, place] = values.min(), values.max(), values.mean()
    return starts, low, high, mean, rows


def assert_as_rows(folder, stat="norm", first=0, last=700):
    for level in LEVELS:
        run = open_run(folder)
        found = run.buckets(Kind.GRADIENT, stat, first, last, level)
        starts, low, high, mean, rows = folded(run, stat, first, last, level)
        assert found.starts.tolist() == starts.tolist()
        whole = [n for n, start in enumerate(starts) if start >= first and start + (1 << level) - 1 <= last]
        np.testing.assert_allclose(found.low[:, whole], low[:, whole], rtol=1e-6)
        np.testing.assert_allclose(found.high[:, whole], high[:, whole], rtol=1e-6)
        scale = np.maximum(np.abs(low), np.abs(high))[:, whole]
        assert np.nanmax(np.abs(found.mean[:, whole] - mean[:, whole]) / scale, initial=0.0) < 1e-6
        np.testing.assert_array_equal(found.rows[:, whole], rows[:, whole])


def test_a_long_run_is_a_few_files_and_says_what_its_rows_say(tmp_path):
    folder = tmp_path / "run"
    writer = RunWriter.create(folder, {"name": "long"})
    writer.sites(some_sites(3))
    write(writer, range(600))
    assert writer.flush()
    seal(folder)
    write(writer, range(600, 701))
    assert writer.flush()
    assert_as_rows(folder)  # rollups, single segments and journals together
    writer.close("finished")
    seal(folder, final=True)
    heights = [rollup.height for rollup in Manifest.load(folder / "rank-0").rollups]
    assert heights.count(1) == 12
    assert heights.count(2) == 4
    assert heights.count(3) == 1
    assert_as_rows(folder)
    assert_as_rows(folder, "abs_max", 128, 639)
    run = open_run(folder)
    broken = run.buckets(Kind.GRADIENT, "norm", 0, 700, 6).broken
    assert broken[1, 77 >> 6] == dense.NAN
    assert broken[2, 401 >> 6] == dense.INF
    assert (broken > 0).sum() == 2
    assert not run.problems


def test_only_what_is_there_is_read(tmp_path, monkeypatch):
    """The whole run at a coarse level touches the highest rollups alone."""
    folder = tmp_path / "run"
    writer = RunWriter.create(folder, {"name": "long"})
    writer.sites(some_sites(3))
    write(writer, range(540))
    writer.close("finished")
    seal(folder, final=True)
    read = []
    kept = RollupPiece.buckets
    monkeypatch.setattr(
        RollupPiece, "buckets", lambda self, *words: (read.append(self.rollup.height), kept(self, *words))[1]
    )
    monkeypatch.setattr(SegmentPiece, "buckets", lambda *_: pytest.fail("a segment was read"))
    assert open_run(folder).buckets(Kind.GRADIENT, "norm", 0, 539, 10) is not None
    assert read == [3]
    read.clear()
    assert open_run(folder).buckets(Kind.GRADIENT, "norm", 0, 63, 6) is not None
    assert read == [1, 1]


def test_a_damaged_rollup_is_said_and_left_out(tmp_path):
    folder = tmp_path / "run"
    writer = RunWriter.create(folder, {"name": "long"})
    writer.sites(some_sites(3))
    write(writer, range(160))
    writer.close("finished")
    seal(folder, final=True)
    file = next((folder / "ladder").rglob("*.parquet"))
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 0xFF
    file.write_bytes(data)
    run = open_run(folder)
    assert run.buckets(Kind.GRADIENT, "norm", 0, 159, 6) is not None
    assert any("ladder/" in problem.file for problem in run.problems)


def test_where_only_rows_can_tell_there_is_no_answer(tmp_path):
    make_run(tmp_path / "run", num_steps=20)
    run = open_run(tmp_path / "run")
    assert run.buckets(Kind.GRADIENT, "norm", 0, 19, 3) is None
    assert run.buckets(Kind.GRADIENT, "rms", 0, 19, 6) is None
    two = tmp_path / "two"
    for rank in (0, 1):
        writer = RunWriter.create(two, {"name": "two"}, rank=rank, world_size=2)
        writer.sites(some_sites(3))
        write(writer, range(4))
        writer.close("finished")
    assert open_run(two).buckets(Kind.GRADIENT, "norm", 0, 3, 6) is None
