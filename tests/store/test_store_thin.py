"""Thinning drops rows, counts them, and keeps what buckets and the asked-for steps say."""

import numpy as np
from run_making import make_run, some_sites

from stethoscope.store import open_run, seal, thin
from stethoscope.store import spool as spool_module
from stethoscope.store.pyramid import fold_series


def test_thinning_keeps_buckets_and_what_was_asked_for(tmp_path, monkeypatch):
    monkeypatch.setattr(spool_module, "ROTATE_STEPS", 128)
    expected = make_run(tmp_path, num_steps=640, num_sites=6)
    seal(tmp_path, final=True)
    run = open_run(tmp_path)
    site = some_sites(6)[2].site
    pyramid = run.pyramid(site, "norm", 6)
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
    np.testing.assert_array_equal(run.pyramid(site, "norm", 6).max, pyramid.max)
    np.testing.assert_allclose(run.pyramid(site, "norm", 7).mean, run.pyramid(site, "norm", 7).mean)
    assert len(run.metric("loss")) == 640
    again = thin(tmp_path, report.bytes_after * 3 // 4, [(300, 309)])
    run.refresh()
    assert again.rows_dropped > 0
    assert set(range(300, 310)) <= set(run.steps.tolist())
    values = np.array([expected[step][2, 13] for step in range(640)])
    coarse = run.pyramid(site, "norm", 9)
    np.testing.assert_array_equal(coarse.max, [values[:512].max(), values[512:].max()])
    np.testing.assert_array_equal(coarse.min, [values[:512].min(), values[512:].min()])
    np.testing.assert_allclose(coarse.mean, [values[:512].mean(), values[512:].mean()], rtol=1e-6)
    np.testing.assert_array_equal(coarse.last, [values[511], values[639]])


def test_pyramid_of_nulls():
    values = np.array([np.nan, 1.0, 3.0, np.nan, np.nan, np.nan, np.nan, np.nan])
    pyramid = fold_series(np.arange(8), values, 2)
    np.testing.assert_array_equal(pyramid.mean, [2.0, np.nan])
    np.testing.assert_array_equal(pyramid.max, [3.0, np.nan])
    np.testing.assert_array_equal(pyramid.last, [np.nan, np.nan])
    assert pyramid.count.tolist() == [2, 0]
