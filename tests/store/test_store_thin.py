"""Thinning drops rows, counts them, and keeps what buckets and the asked-for steps say."""

import numpy as np

from stethoscope.record import Finding, Severity
from stethoscope.store import FindingsWriter, RunWriter, open_run, seal, thin
from stethoscope.store import spool as spool_module
from stethoscope.store.downsample.buckets import fold_series
from tests.store.run_making import journals, make_run, some_sites, write_steps


def test_thinning_keeps_buckets_and_what_was_asked_for(tmp_path, monkeypatch):
    monkeypatch.setattr(spool_module, "ROTATE_STEPS", 128)
    expected = make_run(tmp_path, num_steps=640, num_sites=6)
    seal(tmp_path, final=True)
    run = open_run(tmp_path)
    site = some_sites(6)[2].site
    buckets = run.site_buckets(site, "norm", 6)
    size = sum(path.stat().st_size for path in tmp_path.rglob("*") if path.is_file())
    report = thin(tmp_path, size // 2, [(300, 309)])
    assert report.is_within_budget
    assert report.rows_dropped > 0
    run.refresh()
    assert run.verify() == []
    assert sum(t.rows_dropped for t in run.thinned) == report.rows_dropped
    steps = set(run.steps.tolist())
    assert set(range(300, 310)) <= steps
    assert 639 in steps
    for step in (300, 305, 639):
        np.testing.assert_array_equal(run.block(step, step).rows[0], expected[step])
    np.testing.assert_array_equal(run.site_buckets(site, "norm", 6).max, buckets.max)
    np.testing.assert_allclose(run.site_buckets(site, "norm", 7).mean, run.site_buckets(site, "norm", 7).mean)
    assert len(run.metric("loss")) == 640
    again = thin(tmp_path, report.bytes_after * 3 // 4, [(300, 309)])
    run.refresh()
    assert again.rows_dropped > 0
    assert set(range(300, 310)) <= set(run.steps.tolist())
    values = np.array([expected[step][2, 13] for step in range(640)])
    coarse = run.site_buckets(site, "norm", 9)
    np.testing.assert_array_equal(coarse.max, [values[:512].max(), values[512:].max()])
    np.testing.assert_array_equal(coarse.min, [values[:512].min(), values[512:].min()])
    np.testing.assert_allclose(coarse.mean, [values[:512].mean(), values[512:].mean()], rtol=1e-6)
    np.testing.assert_array_equal(coarse.last, [values[511], values[639]])


def test_buckets_of_nulls():
    values = np.array([np.nan, 1.0, 3.0, np.nan, np.nan, np.nan, np.nan, np.nan])
    buckets = fold_series(np.arange(8), values, 2)
    np.testing.assert_array_equal(buckets.mean, [2.0, np.nan])
    np.testing.assert_array_equal(buckets.max, [3.0, np.nan])
    np.testing.assert_array_equal(buckets.last, [np.nan, np.nan])
    assert buckets.count.tolist() == [2, 0]


def make_full_run(folder, num_steps, disk_bytes=2 << 30):
    """Rows, vectors, scalars and looks at every step, a fact now and then."""
    writer = RunWriter.create(folder, {"name": "full"}, disk_bytes=disk_bytes)
    writer.sites(some_sites(4))
    expected = {}
    for step in range(num_steps):
        expected |= write_steps(writer, range(step, step + 1), 4)
        writer.scalars(step, {"steady": 1.0, "noisy": float(np.sin(step * 1.7)), "odd": np.nan if step == 70 else 0.0})
        writer.event(step, "batch", {"fingerprints": [f"{step:x}"]})
        if step % 10 == 0:
            writer.vectors(step, "sketch", np.arange(4), np.full((4, 8), step, np.float32))
        if step % 100 == 0:
            writer.event(step, "eval_begin", {"at": step})
    assert writer.flush()
    writer.close()
    return expected


def folder_size(folder):
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def test_every_table_thins_and_neighbours_are_joined(tmp_path, monkeypatch):
    monkeypatch.setattr(spool_module, "ROTATE_STEPS", 64)
    expected = make_full_run(tmp_path, 1024)
    seal(tmp_path, final=True, at_bytes=1)
    before = open_run(tmp_path)
    noisy = before.metric("noisy").values
    assert len(before.catalogue.segments()) == 17
    buckets = before.site_buckets(some_sites(4)[1].site, "norm", 9)
    report = thin(tmp_path, folder_size(tmp_path) // 6, [(500, 505)])
    assert report.is_within_budget
    run = open_run(tmp_path)
    assert run.verify() == []
    assert len(run.catalogue.segments()) < 8
    assert sum(t.rows_dropped for t in run.thinned) == report.rows_dropped > 0
    np.testing.assert_array_equal(run.site_buckets(some_sites(4)[1].site, "norm", 9).max, buckets.max)
    steps, values = run.vectors("sketch", some_sites(4)[0].site)
    assert 0 < len(steps) < 103
    assert (values == steps[:, None]).all()
    assert 500 in steps
    shown = run.metric("noisy").values
    assert len(shown) < 1024
    assert (shown.min(), shown.max()) == (noisy.min(), noisy.max())
    assert np.isnan(run.metric("odd").values).sum() == 1
    assert len(run.metric("steady")) < len(shown)
    assert [event.step for event in run.events("eval_begin")] == list(range(0, 1024, 100))
    assert 0 < len(run.events("batch")) < 1024
    for step in (500, 505, 1023):
        np.testing.assert_array_equal(run.block(step, step).rows[0], expected[step])


def test_what_nobody_has_read_is_not_thinned(tmp_path, monkeypatch):
    monkeypatch.setattr(spool_module, "ROTATE_STEPS", 64)
    make_full_run(tmp_path, 256)
    seal(tmp_path, final=True, at_bytes=1)
    report = thin(tmp_path, 1, upto=130)
    run = open_run(tmp_path)
    assert not report.is_within_budget
    assert set(range(128, 256)) <= set(run.steps.tolist())
    assert max(t.last_step for t in run.thinned) < 128


def test_recent_steps_stay_exact_in_a_long_run(tmp_path, monkeypatch):
    monkeypatch.setattr(spool_module, "ROTATE_STEPS", 32)
    make_full_run(tmp_path, 1024)
    seal(tmp_path, final=True, at_bytes=1)
    thin(tmp_path, folder_size(tmp_path) // 2)
    steps = open_run(tmp_path).steps
    assert set(range(992, 1024)) <= set(steps.tolist())
    assert len(steps) < 700


def test_journals_are_small_where_there_is_little_room(tmp_path):
    make_full_run(tmp_path / "little", 256, disk_bytes=1 << 20)
    make_full_run(tmp_path / "much", 256)
    assert len(journals(tmp_path / "little")) > len(journals(tmp_path / "much"))


def test_findings_that_change_at_every_look_take_a_bounded_file(tmp_path):
    make_run(tmp_path)
    writer, reader = FindingsWriter(tmp_path), open_run(tmp_path)
    names = [str(number) for number in np.random.default_rng(0).integers(0, 2**62, 400)]
    for last in range(300):
        finding = Finding("plateau", Severity.INFO, " ".join(names), 1, last, tuple(names[last % 100 :]))
        writer.write([finding], replace=True)
        if last % 50 == 0:
            reader.refresh()
    writer.close()
    assert folder_size(tmp_path / "findings") < 600_000
    reader.refresh()
    assert [found.last_step for found in reader.findings()] == [299]
    assert reader.problems == []
