"""Bins, ratios and groups, each against a direct computation."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stethoscope.analyse.bins import Bins, Mark, bins_over, trend
from stethoscope.analyse.grouping import fitting_depth
from stethoscope.analyse.history import grid, history, log_ratios, usual_of
from stethoscope.kernels import columns
from stethoscope.record import Kind, Site, SiteInfo
from stethoscope.store import open_run
from tests.views import synthetic


@settings(deadline=None)
@given(st.lists(st.integers(0, 10**6), min_size=1, max_size=60, unique=True).map(sorted), st.integers(1, 100))
def test_bins_cover_every_step_in_at_most_the_width(steps, width):
    array = np.array(steps, dtype=np.int64)
    bins = bins_over(array, width)
    places = bins.index(array)
    assert 1 <= len(bins) <= width
    assert bins.size & (bins.size - 1) == 0
    assert all(start % bins.size == 0 for start in bins.starts.tolist())
    assert places.min() == 0
    assert places.max() == len(bins) - 1
    assert np.all(np.diff(places) >= 0)


def test_bins_are_no_finer_than_the_recorded_rate():
    assert bins_over(np.arange(0, 160, 8), 200).size == 8


def test_no_steps_no_bins():
    assert len(bins_over(np.zeros(0, np.int64), 80)) == 0
    assert Bins(np.zeros(0, np.int64), 1).column(3) is None


def test_ratio_is_log2_of_the_size_over_the_median():
    values = np.array([[1.0, 0.0], [2.0, 0.0], [-8.0, 0.0]])
    usual = usual_of(values)
    assert usual.tolist() == [2.0, 0.0]
    assert log_ratios(values, usual)[:, 0].tolist() == [-1.0, 0.0, 2.0]
    assert log_ratios(values, usual)[:, 1].tolist() == [0.0, 0.0, 0.0]


def test_usual_of_mostly_zeros_is_over_the_others():
    assert usual_of(np.array([[0.0], [0.0], [0.0], [4.0]])).tolist() == [4.0]
    assert np.isnan(usual_of(np.array([[np.nan]]))[0])


def test_trend_keeps_spikes_nan_and_inf():
    steps = np.arange(16, dtype=np.int64)
    values = np.array([1.0] * 5 + [90.0] + [1.0] * 2 + [np.nan] + [1.0] * 3 + [np.inf] + [2.0] * 3)
    out, marks = trend(steps, values, bins_over(steps, 4))
    assert out[:2].tolist() == [1.0, 90.0]
    assert marks.tolist() == [Mark.PLAIN, Mark.PLAIN, Mark.NAN, Mark.INF]


def test_a_jump_inside_a_bin_shows_where_it_went_not_where_it_came_from():
    steps = np.arange(12, dtype=np.int64)
    values = np.array([1.0] * 9 + [7.0] * 3)
    assert trend(steps, values, bins_over(steps, 3))[0].tolist() == [1.0, 1.0, 7.0]


TENSORS = {
    ("net.a", "weight"): (3.0, 64),
    ("net.a", "bias"): (4.0, 8),
    ("net.b", "weight"): (1.0, 16),
}


@pytest.fixture
def small(tmp_path):
    infos = [
        SiteInfo(Site(module, Kind.GRADIENT, name), (size,), "float32", size)
        for (module, name), (_, size) in TENSORS.items()
    ]

    def story(site, step):
        norm, size = TENSORS[site.module, site.name]
        return synthetic.row(norm * step, num_elements=size)

    path = synthetic.write_run(tmp_path / "run", story, infos=infos, steps=range(1, 6))
    with open_run(path) as run:
        yield run


def test_norms_of_a_group_add_in_quadrature(small):
    found = history(small, "gradient", depth=2)
    assert [row.name for row in found.rows] == ["net.a", "net.b"]
    np.testing.assert_allclose(found.values[:, 0], 5.0 * np.arange(1, 6))
    assert found.usual.tolist() == [15.0, 3.0]


@pytest.mark.parametrize("stat", ["std", "mean_abs", "kurtosis", "rms", "zero_fraction", "max", "num_zero", "norm"])
def test_a_group_is_the_merge_of_its_rows(small, stat):
    found = history(small, "gradient", stat, depth=1)
    rows = [synthetic.row(norm * 3, num_elements=size)[None] for norm, size in TENSORS.values()]
    together = columns.merge(columns.merge(rows[0], rows[1]), rows[2])
    np.testing.assert_allclose(found.values[2, 0], columns.stat(together, stat)[0], rtol=1e-6)


def test_deeper_than_the_modules_shows_tensors(small):
    assert [row.name for row in history(small, depth=3).rows] == [
        "net.a.weight",
        "net.a.bias",
        "net.b.weight",
    ]


def test_the_worst_of_a_bin_wins(tmp_path):
    def story(site, step):
        del site
        return synthetic.row(64.0 if step == 9 else 1.0, num_nan=step == 2, num_inf=step in (3, 6))

    path = synthetic.write_run(tmp_path / "run", story, modules=["a"], steps=range(16))
    with open_run(path) as run:
        cells = grid(history(run, "gradient"), 4)
    assert cells.marks[0].tolist() == [Mark.NAN, Mark.INF, Mark.PLAIN, Mark.PLAIN]
    assert cells.levels[0, 2] == pytest.approx(6.0)
    assert cells.levels[0, 3] == pytest.approx(0.0)


def test_a_tensor_that_is_partly_nan_is_nan_although_its_norm_is_finite(tmp_path):
    path = synthetic.write_run(
        tmp_path / "run", lambda site, step: synthetic.row(1.0, num_nan=1), modules=["a"], steps=range(4)
    )
    with open_run(path) as run:
        found = history(run, "gradient")
    assert np.all(found.marks == Mark.NAN)
    assert np.isnan(found.last(0)[1])


def test_usual_before_a_fault_is_what_was_usual(tmp_path):
    def story(site, step):
        del site
        return synthetic.row(1.0 if step < 20 else 100.0)

    path = synthetic.write_run(tmp_path / "run", story, modules=["a"], steps=range(100))
    with open_run(path) as run:
        assert history(run).usual.tolist() == [100.0]
        assert history(run, usual_before=20).usual.tolist() == [1.0]
        assert history(run, usual_before=3).usual.tolist() == [100.0]


def test_the_depth_that_fits():
    many = [Site(f"layers.{n}.{part}", Kind.GRADIENT, "weight") for n in range(12) for part in ("a", "b")]
    assert fitting_depth(many, 24) == 3
    assert fitting_depth(many, 23) == 2
    assert fitting_depth([Site(f"layers.{n}", Kind.GRADIENT, "weight") for n in range(48)], 24) == 2
    assert fitting_depth([Site("", Kind.GRADIENT, "weight")], 24) == 1


def test_a_run_without_this_kind_gives_no_rows(small):
    found = history(small, "activation")
    assert found.rows == ()
    assert len(grid(found, 40).bins) == 0


def test_noise_does_not_darken_a_wide_bin_but_a_spike_does(tmp_path):
    noise = np.random.default_rng(0).lognormal(0.0, 0.4, 1024)

    def story(site, step):
        return synthetic.row(20.0 if site.module == "b" and step == 700 else noise[step])

    path = synthetic.write_run(tmp_path / "run", story, modules=["a", "b"], steps=range(1024))
    with open_run(path) as run:
        levels = np.abs(grid(history(run, "gradient"), 16).levels)
    assert levels[0].max() < np.log2(1.5)
    assert np.flatnonzero(levels[1] > np.log2(1.5)).tolist() == [700 // 64]
