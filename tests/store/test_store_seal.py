"""Sealed and live runs read alike; sealing can be killed anywhere."""

import importlib
import os
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from stethoscope.kernels.columns import NUM_COUNTS
from stethoscope.record import Kind, RunDamagedError, RunFormatError, Site, SiteInfo
from stethoscope.store import RunWriter, frame_file, open_run, seal
from stethoscope.store import spool as spool_module
from stethoscope.store import tables as tables_module
from stethoscope.store.inside import open_file
from stethoscope.store.manifest import Manifest, pack_runs, unpack_runs
from tests.store.run_making import assert_rows, journals, make_run, some_rows, some_sites, write_steps
from tests.store.test_store_damage import all_numbers, is_part_of
from tests.store.test_store_reader import NAMES


@pytest.fixture(autouse=True)
def _small_files(monkeypatch):
    monkeypatch.setattr(spool_module, "ROTATE_STEPS", 5)


def whole_of(folder):
    run = open_run(folder)
    vectors = {}
    for info in run.sites:
        steps, values = run.vectors("histogram", info.site)
        vectors[info.site] = steps.tolist(), values.tolist()
    return (
        all_numbers(run),
        vectors,
        run.sites,
        [(s.rank, s.ordinal, s.first_step, s.last_step, s.ended) for s in run.starts],
        run.losses,
        run.state,
        run.metrics(),
        [p.to_json() for p in run.problems],
    )


def make_varied(folder):
    """Two starts that overlap, two ranks, sites that are not always there, odd names, vectors, a crash."""
    for rank, ended in ((0, "finished"), (0, "exception"), (1, "finished")):
        writer = RunWriter.create(folder, {"name": "varied"}, rank=rank, world_size=2)
        writer.sites(some_sites(4) + [SiteInfo(Site(name, Kind.WEIGHT), (1,), "f4", 1) for name in NAMES])
        for step in range(3 * rank, 17 if ended == "finished" else 23):
            index = np.arange(4 + len(NAMES)) if step % 3 else np.array([3, 0, 5])
            table = some_rows(len(index), step)
            if step == 7:
                table[1, NUM_COUNTS:] = np.nan
                table[2, NUM_COUNTS:] = [1e300, -1e-300, np.inf, 5e-324, 1.0, -0.0, 0.0, 3.0, np.nan, -np.inf]
            writer.rows(step, index, table, np.arange(1, len(index) + 1))
            writer.scalars(step, {"loss": step * 0.5, NAMES[step % len(NAMES)]: float("nan") if step == 4 else 1.0})
            writer.event(step, NAMES[step % len(NAMES)], {"step": step})
            writer.vectors(step, "histogram", index[:2], np.full((2, 8), step, np.uint32))
            writer.vectors(step, "units", index[:1], np.full((1, 1 + step % 2), step, np.float32))
        assert writer.flush()
        writer.close(ended)


def test_live_and_sealed_reads_are_equal(tmp_path):
    make_varied(tmp_path)
    before = whole_of(tmp_path)
    report = seal(tmp_path)
    assert report.segments == 0, "too little to be worth it"
    report = seal(tmp_path, final=True)
    assert report.journals > 8
    assert report.skipped == []
    assert journals(tmp_path) == []
    np.testing.assert_equal(whole_of(tmp_path), before)
    assert seal(tmp_path, final=True).segments == 0
    assert open_run(tmp_path).verify() == []


def test_matrix_series_and_buckets_are_equal_too(tmp_path):
    make_varied(tmp_path)
    live = open_run(tmp_path)
    site = some_sites(4)[1].site
    questions = [
        lambda run: run.matrix("gradient", "norm", rank=0).values,
        lambda run: run.matrix("gradient", "rms").values,
        lambda run: run.matrix(None, "mean", first=4, last=9, rank=1).values,
        lambda run: run.series("blocks.2*", stat="std", rank=0)["blocks.2.weight"].values,
        lambda run: run.site_buckets(site, "norm", 2, rank=0).max,
        lambda run: run.site_buckets(site, "norm", 7, rank=1).mean,
        lambda run: run.site_buckets(site, "norm", 6).min,
    ]
    before = [ask(live) for ask in questions]
    seal(tmp_path, final=True)
    sealed = open_run(tmp_path)
    for ask, expected in zip(questions, before, strict=True):
        np.testing.assert_allclose(ask(sealed), expected, rtol=1e-7)
    assert live.refresh()
    for ask, expected in zip(questions, before, strict=True):
        np.testing.assert_allclose(ask(live), expected, rtol=1e-7)


def test_several_row_groups(tmp_path, monkeypatch):
    for module in ("stethoscope.store.tables", "stethoscope.store.segment"):
        monkeypatch.setattr(f"{module}.ROW_GROUP_ROWS", 16)
    monkeypatch.setattr(tables_module.to_parquet, "__kwdefaults__", {"row_group_rows": 16})
    expected = make_run(tmp_path, num_steps=33, num_sites=7)
    seal(tmp_path, final=True)
    run = open_run(tmp_path)
    assert_rows(run, expected)
    fresh = open_run(tmp_path)
    for n, info in enumerate(some_sites(7)):
        series = fresh.series(info.site.path, stat="norm")[info.site]
        np.testing.assert_array_equal(series.values, [expected[step][n, 13] for step in range(33)])
    record = fresh.record("blocks.3.weight", 20)
    assert record is not None
    np.testing.assert_array_equal(list(record.stats.values()), expected[20][3])


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_any_rows_read_the_same_live_and_sealed(tmp_path_factory, data):
    folder = tmp_path_factory.mktemp("run")
    writer = RunWriter.create(folder, {})
    writer.sites(some_sites(5))
    for _ in range(data.draw(st.integers(1, 12))):
        step = data.draw(st.integers(-5, 8))
        index = data.draw(st.lists(st.integers(0, 4), unique=True, max_size=5))
        table = some_rows(len(index), step + 1000)
        if data.draw(st.booleans()):
            table[:, NUM_COUNTS:] = data.draw(st.sampled_from([np.nan, np.inf, 1e-320, 1e200, 0.0, -0.0]))
        writer.rows(step, np.array(index, np.uint32), table)
    writer.close()
    before = whole_of(folder)
    seal(folder, final=True)
    np.testing.assert_equal(whole_of(folder), before)


CALLS = ("open", "write", "fsync", "replace", "unlink")


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
@pytest.mark.parametrize("stride", [5, pytest.param(1, marks=pytest.mark.slow)])
def test_a_seal_killed_at_every_system_call_loses_nothing(tmp_path, stride):
    """Every call of those that change a disk is once the last one, before and after its effect."""
    folder = tmp_path / "run"
    make_run(folder, num_steps=8, num_sites=2)
    before = whole_of(folder)
    place, is_finished = 0, False
    while not is_finished:
        copy = tmp_path / f"copy{place}"
        subprocess.run(["cp", "-a", str(folder), str(copy)], check=True)
        is_finished = seal_until(copy, place)
        np.testing.assert_equal(whole_of(copy), before)
        seal(copy, final=True)
        np.testing.assert_equal(whole_of(copy), before)
        assert journals(copy) == []
        assert ".new" not in {path.suffix for path in copy.rglob("*")}, "what a killed seal left is swept up"
        assert open_run(copy).verify() == []
        subprocess.run(["rm", "-rf", str(copy)], check=True)
        place += stride
    assert place > 60


def seal_until(folder, place):
    """Seals in a child that dies at a system call (even: before it, odd: after). True where it finished."""
    child = os.fork()
    if child:
        return os.waitpid(child, 0)[1] == 0
    count = 0

    def dying(real):
        def call(*args, **options):
            nonlocal count
            count += 1
            if count == place // 2 + 1 and place % 2 == 0:
                os._exit(9)
            result = real(*args, **options)
            if count == place // 2 + 1:
                os._exit(9)
            return result

        return call

    for name in CALLS:
        setattr(os, name, dying(getattr(os, name)))
    try:
        seal(folder, final=True)
    except BaseException:
        os._exit(8)
    os._exit(0)


def test_a_seal_killed_for_real(tmp_path):
    make_run(tmp_path / "run", num_steps=60, num_sites=3)
    before = whole_of(tmp_path / "run")
    code = (
        "import os, sys, threading, time; from pathlib import Path; from stethoscope.store import seal\n"
        "import pyarrow.parquet\n"
        "die = lambda: (time.sleep(float(sys.argv[2])), os.kill(os.getpid(), 9))\n"
        "threading.Thread(target=die, daemon=True).start()\n"
        "seal(Path(sys.argv[1]), final=True)\n"
    )
    for delay in (0.0, 0.005, 0.01, 0.02, 0.04):
        subprocess.run([sys.executable, "-c", code, str(tmp_path / "run"), str(delay)], timeout=60, check=False)
        np.testing.assert_equal(whole_of(tmp_path / "run"), before)


def test_thousands_of_empty_journals_are_not_opened_and_share_manifests(tmp_path, monkeypatch):
    expected = make_run(tmp_path)
    for part in range(1500):
        (tmp_path / f"rank-0/journal-0009-aaaaaaaa-{part:06d}.stj").touch()
    opened, saved = [], []
    monkeypatch.setattr(
        frame_file, "open_file", lambda run, label, most: opened.append(label) or open_file(run, label, most)
    )
    save = Manifest.save
    monkeypatch.setattr(Manifest, "save", lambda self, folder: saved.append(folder) or save(self, folder))
    report = seal(tmp_path, final=True)
    assert report.journals == 1500  # nobody knows whether the newest one's process has ended
    assert not [label for label in opened if "aaaaaaaa" in label]
    assert len(saved) <= 4
    assert [path.name for path in journals(tmp_path)] == ["journal-0009-aaaaaaaa-001499.stj"]
    assert_rows(open_run(tmp_path), expected)


def test_reading_while_another_seals_is_consistent(tmp_path, monkeypatch):
    monkeypatch.setattr(importlib.import_module("stethoscope.store.seal"), "SEAL_FILES", 2)
    writer = RunWriter.create(tmp_path, {})
    writer.sites(some_sites(3))
    expected = write_steps(writer, range(10), 3)
    assert writer.flush()
    failures = []
    stop = threading.Event()

    def read():
        run = open_run(tmp_path)
        while not stop.is_set():
            try:
                run.refresh()
                steps = run.matrix("gradient", "norm").steps
                if list(steps) != list(range(len(steps))) or len(steps) < 10:
                    failures.append(list(steps))
                if run.problems:
                    failures.append(run.problems)
            except Exception as error:
                failures.append(error)

    readers = [threading.Thread(target=read) for _ in range(2)]
    for reader in readers:
        reader.start()
    for first in range(10, 100, 10):
        expected |= write_steps(writer, range(first, first + 10), 3)
        assert writer.flush()
        assert not seal(tmp_path).is_busy
    stop.set()
    for reader in readers:
        reader.join()
    writer.close()
    assert failures == []
    seal(tmp_path, final=True)
    assert_rows(open_run(tmp_path), expected)


def test_one_run_may_be_shared_by_threads(tmp_path, monkeypatch):
    monkeypatch.setattr(importlib.import_module("stethoscope.store.seal"), "SEAL_FILES", 2)
    writer = RunWriter.create(tmp_path, {})
    writer.sites(some_sites(3))
    write_steps(writer, range(10), 3)
    assert writer.flush()
    run = open_run(tmp_path)
    failures = []
    stop = threading.Event()

    def read():
        while not stop.is_set():
            try:
                run.refresh()
                if len(run.series(stat="norm")) != 3 or run.problems or not len(run.metric("loss")):
                    failures.append("incomplete")
            except Exception as error:
                failures.append(error)

    readers = [threading.Thread(target=read) for _ in range(3)]
    for reader in readers:
        reader.start()
    for first in range(10, 60, 10):
        write_steps(writer, range(first, first + 10), 3)
        assert writer.flush()
        seal(tmp_path)
    stop.set()
    for reader in readers:
        reader.join()
    writer.close()
    assert failures == []


def test_a_live_process_is_sealed_only_as_far_as_it_is_closed(tmp_path):
    writer = RunWriter.create(tmp_path, {})
    writer.sites(some_sites(2))
    expected = write_steps(writer, range(12), 2)
    assert writer.flush()
    report = seal(tmp_path, final=True)
    assert report.journals == 2
    assert len(journals(tmp_path)) == 1
    assert_rows(open_run(tmp_path), expected)
    assert open_run(tmp_path).state == "live"
    expected |= write_steps(writer, range(12, 14), 2)
    writer.close()
    again = RunWriter.create(tmp_path, {})
    again.close()
    assert [start.ordinal for start in open_run(tmp_path).starts] == [1, 2]
    assert_rows(open_run(tmp_path), expected)


def test_a_damaged_journal_is_not_sealed(tmp_path):
    make_run(tmp_path, num_steps=12, num_sites=2)
    first = journals(tmp_path)[0]
    data = bytearray(first.read_bytes())
    data[len(data) // 2] ^= 1
    first.write_bytes(data)
    before = all_numbers(open_run(tmp_path))
    report = seal(tmp_path, final=True)
    assert report.skipped == [f"rank-0/{first.name}"]
    assert first.exists()
    assert all_numbers(open_run(tmp_path)) == before
    assert open_run(tmp_path).state == "damaged"


def test_every_bit_of_a_sealed_run_flipped_is_noticed(tmp_path):
    make_run(tmp_path, num_steps=2, num_sites=1)
    seal(tmp_path, final=True)
    whole = all_numbers(open_run(tmp_path))
    files = [path for path in tmp_path.rglob("*") if path.suffix in (".parquet", ".sums", ".json")]
    assert len(files) >= 8
    rng = np.random.default_rng(0)
    for path in files:
        data = path.read_bytes()
        for byte in range(0, len(data), max(1, len(data) // 150)):
            flipped = bytearray(data)
            flipped[byte] ^= 1 << int(rng.integers(8))
            path.write_bytes(flipped)
            check_noticed(tmp_path, path, whole, byte)
        path.write_bytes(data)


@pytest.mark.slow
def test_every_byte_of_a_sealed_run_and_every_bit_of_its_manifest_flipped_is_noticed(tmp_path):
    make_run(tmp_path, num_steps=1, num_sites=1)
    seal(tmp_path, final=True)
    whole = all_numbers(open_run(tmp_path))
    rng = np.random.default_rng(1)
    for path in [path for path in tmp_path.rglob("*") if path.suffix in (".parquet", ".sums", ".json")]:
        data = path.read_bytes()
        every = range(8 * len(data)) if path.suffix == ".json" else 8 * np.arange(len(data))
        for bit in every:
            flipped = bytearray(data)
            flipped[bit // 8] ^= 1 << (bit % 8 if path.suffix == ".json" else int(rng.integers(8)))
            path.write_bytes(flipped)
            check_noticed(tmp_path, path, whole, bit)
        path.write_bytes(data)


def check_noticed(folder, path, whole, place):
    try:
        run = open_run(folder)
        found = all_numbers(run)
    except (RunDamagedError, RunFormatError):
        return
    assert is_part_of(found, whole), f"{path.name} at {place} gave a wrong number"
    assert any(problem.file.endswith(path.name) for problem in run.verify()), f"{path.name} at {place} not noticed"


def test_a_damaged_block_costs_its_row_group_only(tmp_path, monkeypatch):
    monkeypatch.setattr("stethoscope.store.sealed_file.BLOCK_BYTES", 512)
    for module in ("stethoscope.store.tables", "stethoscope.store.segment"):
        monkeypatch.setattr(f"{module}.ROW_GROUP_ROWS", 64)
    monkeypatch.setattr(tables_module.to_parquet, "__kwdefaults__", {"row_group_rows": 64})
    expected = make_run(tmp_path, num_steps=33, num_sites=16)
    seal(tmp_path, final=True)
    (path,) = tmp_path.glob("rows/rank=0/*.parquet")
    data = bytearray(path.read_bytes())
    data[1000] ^= 4
    path.write_bytes(data)
    run = open_run(tmp_path)
    block = run.block(0, 32)
    assert 0 < (~block.present).sum() <= 64
    assert run.problems
    assert run.state == "damaged"
    for s, step in enumerate(block.steps):
        np.testing.assert_array_equal(block.rows[s][block.present[s]], expected[int(step)][block.present[s]])


def test_a_missing_segment_is_an_error_that_says_so(tmp_path):
    make_run(tmp_path, num_steps=3)
    seal(tmp_path, final=True)
    for path in tmp_path.glob("rows/rank=0/*.parquet"):
        path.unlink()
    with pytest.raises(RunDamagedError, match="missing"):
        open_run(tmp_path).block(0, 9)


@settings(deadline=None)
@given(st.lists(st.integers(-(10**6), 10**6), unique=True, max_size=60).map(sorted))
def test_runs_of_numbers_pack_and_unpack(numbers):
    assert unpack_runs(pack_runs(numbers)).tolist() == numbers


READING = """
import os, sys
from stethoscope.store import open_run
run = open_run(sys.argv[1])
assert run.block(0, 40).rows.size and run.metric("loss").values.size and run.events("skipped_step")
assert "pyarrow" in sys.modules
names = [open(f"/proc/self/task/{task}/comm").read().strip() for task in os.listdir("/proc/self/task")]
print(len([name for name in names if not name.startswith("jemalloc")]))
"""


@pytest.mark.skipif(not Path("/proc/self/task").is_dir(), reason="native threads are counted under /proc")
def test_reading_leaves_no_thread_of_arrow(tmp_path):
    """Such a thread, holding a Python file when the interpreter ends, aborts the process: it may be the training."""
    make_run(tmp_path / "run", 40)
    seal(tmp_path / "run")
    single = os.environ | {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
    command = [sys.executable, "-c", READING, str(tmp_path / "run")]
    done = subprocess.run(command, env=single, capture_output=True, text=True, timeout=120, check=False)
    assert (done.returncode, done.stdout.strip()) == (0, "1"), done.stderr
