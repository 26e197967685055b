"""What a reader sees: names, ranks, resumes, live runs, states."""

import dataclasses
import subprocess
import sys
import time

import numpy as np
import pytest

from stethoscope.kernels.columns import NUM_COLUMNS, merge, stat
from stethoscope.record import Finding, Kind, Severity, Site, SiteInfo
from stethoscope.store import FindingsWriter, RunWriter, find_runs, latest_run, new_run_folder, open_run
from stethoscope.store.encoding import stored_floats
from tests.store.run_making import assert_rows, make_run, some_rows, some_sites, write_findings, write_steps

NAMES = [
    "größe.层",
    "nul\0inside",
    "x" * 10_000,
    "a b/../c",
    "<b>&",
    "\x1b[31m",
    "\ud800",
    "",
    "emoji🩺",
    "'; drop",
]


def test_rows_scalars_events_vectors_come_back(tmp_path):
    expected = make_run(tmp_path, num_steps=7, num_sites=4)
    run = open_run(tmp_path)
    assert_rows(run, expected)
    assert run.state == "finished"
    assert run.name == "made"
    assert run.info["seed"] == 7
    assert run.metrics() == ("loss",)
    assert run.metric("loss").at(3) == 0.25
    assert [event.kind for event in run.events()] == ["skipped_step"]
    assert run.events("other") == []
    assert run.last_step == 6
    table = np.stack([expected[step] for step in range(7)])
    for name in ("norm", "rms", "zero_fraction", "num_nonfinite"):
        matrix = run.matrix("gradient", name)
        np.testing.assert_array_equal(matrix.values, stat(table, name))
        assert not matrix.missing.any()
    series = run.series("blocks.2*", "gradient", "mean")
    np.testing.assert_array_equal(series["blocks.2.weight"].values, stat(table, "mean")[:, 2])
    assert run.matrix("weight").values.shape == (0, 0)
    assert list(run.matrix("gradient", first=2, last=4).steps) == [2, 3, 4]
    record = run.record("blocks.1.weight", 2)
    assert record is not None
    assert record.stats["norm"] == stat(table, "norm")[2, 1]
    assert run.record("blocks.1.weight", 99) is None
    with pytest.raises(KeyError, match="known"):
        run.series(stat="nonsense")


def test_vectors_come_back_in_order_of_steps(tmp_path):
    writer = RunWriter.create(tmp_path, {})
    writer.sites(some_sites(3))
    for step in (5, 1, 3):
        writer.vectors(step, "histogram", np.arange(3), np.full((3, 6), step, np.uint32))
    writer.close()
    steps, values = open_run(tmp_path).vectors("histogram", some_sites(3)[1].site)
    assert list(steps) == [1, 3, 5]
    assert values.dtype == np.uint32
    np.testing.assert_array_equal(values[:, 0], [1, 3, 5])
    assert len(open_run(tmp_path).vectors("sketch", some_sites(3)[1].site)[0]) == 0


def test_strange_names_make_the_round_trip(tmp_path):
    infos = [SiteInfo(Site(name, Kind.WEIGHT, name), (1,), "float32", 1) for name in NAMES]
    writer = RunWriter.create(tmp_path, {"name": "\0\x1b"})
    writer.sites(infos)
    table = some_rows(len(infos), 1)
    writer.rows(0, np.arange(len(infos)), table)
    writer.scalars(0, dict.fromkeys(NAMES, 1.5))
    for name in NAMES:
        writer.event(0, name, {name: name})
    writer.close()
    run = open_run(tmp_path)
    assert run.sites == tuple(infos)
    assert set(run.metrics()) == set(NAMES)
    assert [event.kind for event in run.events()] == NAMES
    assert [event.body for event in run.events()] == [{name: name} for name in NAMES]
    np.testing.assert_array_equal(run.block(0, 0).rows[0], stored_floats(table))


def test_two_tensors_of_one_name_count_as_one(tmp_path):
    infos = some_sites(2)
    writer = RunWriter.create(tmp_path, {})
    writer.sites([infos[0], infos[1], infos[0]])
    table = np.abs(some_rows(3, 5))
    table[:, 1:4] = 0
    writer.rows(0, np.arange(3), table)
    writer.close()
    run = open_run(tmp_path)
    assert run.sites == tuple(infos)
    kept = stored_floats(table)
    np.testing.assert_array_equal(run.block(0, 0).rows[0, 0], merge(kept[0], kept[2]))
    np.testing.assert_array_equal(run.block(0, 0).calls[0], [2, 1])


def test_ranks_merge_by_step_and_gaps_stay(tmp_path):
    tables = {}
    for rank in (0, 1):
        writer = RunWriter.create(tmp_path, {}, rank=rank, world_size=2)
        writer.sites(some_sites(2))
        for step in range(rank, 3):
            tables[rank, step] = np.abs(some_rows(2, 10 * rank + step))
            tables[rank, step][:, 1:4] = 0
            writer.rows(step, np.arange(2), tables[rank, step])
        writer.close()
    run = open_run(tmp_path)
    assert run.ranks == (0, 1)
    kept = {key: stored_floats(value) for key, value in tables.items()}
    block = run.block(0, 2)
    np.testing.assert_array_equal(block.rows[0], kept[0, 0])
    np.testing.assert_array_equal(block.rows[2], merge(kept[0, 2], kept[1, 2]))
    np.testing.assert_array_equal(run.matrix("gradient", "norm", rank=1).steps, [1, 2])
    np.testing.assert_array_equal(run.matrix("gradient", "norm").values[2], stat(merge(kept[0, 2], kept[1, 2]), "norm"))


def test_a_resume_shows_the_later_value_and_keeps_both_starts(tmp_path):
    first = make_run(tmp_path, num_steps=6, num_sites=2)
    writer = RunWriter.create(tmp_path, {"again": True})
    writer.sites(some_sites(3))  # one layer more, so that the numbering differs
    second = write_steps(writer, range(4, 8), 3, seed=9)
    writer.close()
    run = open_run(tmp_path)
    assert [(start.first_step, start.last_step) for start in run.starts] == [(0, 5), (4, 7)]
    block = run.block(0, 7)
    np.testing.assert_array_equal(block.rows[3, :2], first[3])
    np.testing.assert_array_equal(block.rows[4], second[4])
    assert not block.present[3, 2]
    assert run.events("start")[0].body["info"] == {"again": True}
    assert run.info.get("again") is None


def test_two_processes_with_one_folder_are_two_starts(tmp_path):
    one, two = RunWriter.create(tmp_path, {}), RunWriter.create(tmp_path, {})
    for number, writer in enumerate((one, two)):
        writer.sites(some_sites(1))
        writer.rows(number, np.arange(1), some_rows(1, number))
    one.close()
    two.close()
    run = open_run(tmp_path)
    assert len(run.starts) == 2
    assert list(run.steps) == [0, 1]
    assert not run.problems


def test_order_does_not_depend_on_the_clock(tmp_path, monkeypatch):
    make_run(tmp_path, num_steps=4, num_sites=2)
    real = time.time
    monkeypatch.setattr("stethoscope.store.writer.time.time", lambda: real() - 1e8)
    writer = RunWriter.create(tmp_path, {})
    writer.sites(some_sites(2))
    second = write_steps(writer, range(2, 4), 2, seed=3)
    writer.close()
    monkeypatch.undo()
    run = open_run(tmp_path)
    assert [start.ordinal for start in run.starts] == [1, 2]
    np.testing.assert_array_equal(run.block(3, 3).rows[0], second[3])
    assert run.state == "finished"


def test_many_ranks_are_merged_a_few_steps_at_a_time(tmp_path, monkeypatch):
    for rank in (0, 1):
        writer = RunWriter.create(tmp_path, {}, rank=rank, world_size=2)
        writer.sites(some_sites(2))
        for step in range(20):
            table = np.abs(some_rows(2, 100 * rank + step))
            table[:, 1:4] = 0
            writer.rows(step, np.arange(2), table)
        writer.close()
    whole = open_run(tmp_path).matrix("gradient", "std")
    monkeypatch.setattr("stethoscope.store.queries._WINDOW_VALUES", 3 * 2 * NUM_COLUMNS)
    windows = open_run(tmp_path).matrix("gradient", "std")
    np.testing.assert_array_equal(windows.values, whole.values)
    assert list(windows.steps) == list(range(20))
    assert len(open_run(tmp_path).matrix("gradient", first=99).steps) == 0


def test_a_live_run_is_followed(tmp_path):
    writer = RunWriter.create(tmp_path, {})
    writer.sites(some_sites(2))
    expected = write_steps(writer, range(3), 2)
    assert writer.flush()
    run = open_run(tmp_path)
    assert run.state == "live"
    assert_rows(run, expected)
    assert not run.refresh()
    expected |= write_steps(writer, range(3, 6), 2)
    assert writer.flush()
    assert run.refresh()
    assert_rows(run, expected)
    writer.close("exception", {"error": "boom"})
    assert run.refresh()
    assert run.state == "crashed"
    assert run.ended is not None
    assert run.ended["body"] == {"error": "boom"}


def test_quiet_runs_are_stale_where_the_process_cannot_be_asked(tmp_path, monkeypatch):
    make_run(tmp_path, ended=None)
    assert open_run(tmp_path).state == "live"
    monkeypatch.setattr("stethoscope.store.starts.STALE_AFTER_S", -1.0)
    assert open_run(tmp_path).state == "stale"


def test_files_rotate_and_each_can_be_read_alone(tmp_path, monkeypatch):
    monkeypatch.setattr("stethoscope.store.spool.ROTATE_STEPS", 3)
    expected = make_run(tmp_path, num_steps=11, num_sites=2)
    files = sorted(tmp_path.glob("rank-0/*.stj"))
    assert len(files) == 4
    assert_rows(open_run(tmp_path), expected)
    files[0].unlink()
    run = open_run(tmp_path)
    assert list(run.steps) == list(range(3, 11))
    assert_rows(run, expected, range(3, 11))
    assert "missing" in run.problems[0].what


def test_findings_keep_the_latest_version(tmp_path):
    make_run(tmp_path)
    old = Finding("plateau", Severity.INFO, "flat", 1, 2)
    new = Finding("plateau", Severity.WARNING, "flat", 1, 3)
    other = Finding("nan", Severity.CRITICAL, "NaN", 0, 0, ("blocks.0.weight",))
    writer = FindingsWriter(tmp_path)
    writer.write([old])
    run = open_run(tmp_path)
    assert run.findings() == [old]
    writer.write([new, other])
    assert run.refresh()
    assert run.findings() == [other, new]
    again = FindingsWriter(tmp_path)
    again.write([new], replace=True)
    run.refresh()
    assert run.findings() == [new]
    assert not run.problems


def test_of_too_many_findings_the_worst_are_read_and_the_rest_is_said(tmp_path):
    make_run(tmp_path)
    notes = [Finding(f"note_{place}", Severity.INFO, "as many as you like", place, place) for place in range(1200)]
    late = Finding("nan", Severity.CRITICAL, "NaN", 5000, 5000)
    write_findings(tmp_path, [*notes, late])
    run = open_run(tmp_path)
    assert len(run.findings()) == 1000
    assert run.findings()[-1] == late
    assert any("201 of the findings are not shown" in problem.what for problem in run.problems)


def test_finding_runs(tmp_path, monkeypatch):
    monkeypatch.setenv("STETHOSCOPE_DIR", str(tmp_path))
    assert latest_run() is None
    assert find_runs() == []
    folders = [new_run_folder(name=name, now=1e9 + place) for place, name in enumerate(("b/é x", "a"))]
    assert folders[0].name.startswith("20010909-014640-b-x-")
    for folder in folders:
        make_run(folder, num_steps=1)
        time.sleep(0.02)
    (tmp_path / "other").mkdir()
    assert find_runs() == folders
    assert latest_run() == folders[1]
    assert find_runs(folders[0]) == [folders[0]]


def test_reading_imports_neither_torch_nor_pyarrow(tmp_path):
    make_run(tmp_path / "run")
    code = (
        "import sys; from stethoscope import store; from pathlib import Path\n"
        f"runs = store.find_runs(Path({str(tmp_path)!r})); run = store.open_run(runs[0]); run.block(0, 9)\n"
        "print([name for name in ('torch', 'pyarrow', 'duckdb') if name in sys.modules], len(run.steps))"
    )
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert shown.stdout.strip() == "[] 4"


def test_sealed_runs_are_read_without_torch(tmp_path):
    make_run(tmp_path)
    code = (
        "import sys; from stethoscope import store; from pathlib import Path\n"
        f"folder = Path({str(tmp_path)!r}); store.seal(folder, final=True); run = store.open_run(folder)\n"
        "run.block(0, 9); run.site_buckets('blocks.0.weight'); run.to_arrow(); run.verify()\n"
        "print('torch' in sys.modules, len(run.steps))"
    )
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert shown.stdout.strip() == "False 4"


def test_bad_input_is_counted_and_never_raised(tmp_path):
    writer = RunWriter.create(tmp_path, {})
    writer.sites(some_sites(2))
    writer.rows(0, np.arange(3), np.zeros((2, NUM_COLUMNS)))
    writer.rows(0, np.arange(2), "no table")
    writer.rows("step", np.arange(2), np.zeros((2, NUM_COLUMNS)))
    writer.rows(2**80, np.arange(2), np.zeros((2, NUM_COLUMNS)))
    writer.scalars(0, {"loss": "high"})
    writer.vectors(0, "sketch", np.arange(2), np.zeros(2))
    writer.vectors(0, "sketch", np.arange(2), np.array([[object()]] * 2))
    writer.event(0, "loop", {("a",): 1})
    assert writer.flush()
    assert writer.counters["rejected"] == 8
    writer.close()
    writer.close()
    writer.rows(1, np.arange(2), np.zeros((2, NUM_COLUMNS)))
    assert not writer.flush()
    assert open_run(tmp_path).losses["rejected"] == 8


def test_sites_that_come_one_by_one_are_described_together(tmp_path):
    """Ten thousand tensors register one at a time; every further file would repeat a frame for each of them."""
    writer = RunWriter.create(tmp_path / "run", {"name": "many"})
    for info in some_sites(400):
        writer.sites([info])
    writer.rows(0, np.arange(400), some_rows(400, 1))
    writer.sites([SiteInfo(Site("late", Kind.WEIGHT, "w"), (1,), "f4", 1)])
    writer.rows(1, np.arange(401), some_rows(401, 2))
    assert writer.flush()
    assert writer.counters["written"] < 20
    writer.close()
    run = open_run(tmp_path / "run")
    assert [info.site.path for info in run.sites] == [f"blocks.{n}.weight" for n in range(400)] + ["late.w"]
    block = run.block(0, 1)
    np.testing.assert_array_equal(block.present.sum(1), [400, 401])
    np.testing.assert_array_equal(block.rows[1], stored_floats(some_rows(401, 2)))


def test_replicas_count_once_and_shards_add_up(tmp_path):
    row = np.abs(some_rows(1, 7))
    row[:, 1:4] = 0
    replica, shard = some_sites(2)
    for rank in (0, 1):
        writer = RunWriter.create(tmp_path, {}, rank=rank, world_size=2)
        writer.sites([replica, dataclasses.replace(shard, measured="shard")])
        writer.rows(0, np.arange(2), np.concatenate([row, row]))
        writer.close()
    block = open_run(tmp_path).block(0, 0)
    kept = stored_floats(row)[0]
    np.testing.assert_array_equal(block.rows[0, 0], kept)
    np.testing.assert_array_equal(block.rows[0, 1], merge(kept, kept))
    np.testing.assert_array_equal(block.calls[0], [1, 2])
