"""One reader, whatever it reads: rows and buckets agree, what has grown equals what is read at once, a window is a slice."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stethoscope.analyse.bins import Mark
from stethoscope.analyse.history import Groups, HistoryReader, Recorded, grid, reader
from stethoscope.analyse.tree import module_tree
from stethoscope.record import Kind
from tests.analyse.made_run import Frame, MadeRun

NAMES = ["wte", "layers.0.attn", "layers.0.mlp", "layers.1.attn", "layers.1.mlp"]
STATS = ["norm", "abs_max", "abs_min", "min", "max", "num_zero", "mean_abs"]


def made(table: np.ndarray, broken_at: int | None = None) -> MadeRun:
    """A run of these norms, [steps, sites]; NaN where a site was not recorded."""
    run = MadeRun(NAMES[: table.shape[1]])
    for step, row in enumerate(table):
        there = {site: float(norm) for site, norm in enumerate(row) if not np.isnan(norm)}
        run.write([Frame(0, step, there, num_nan=int(step == broken_at))])
    return run


def random_table(seed: int, num_steps: int, num_sites: int, missing: float = 0.0) -> np.ndarray:
    rng = np.random.default_rng(seed)
    table = 10.0 ** rng.uniform(-3, 3, (num_steps, num_sites))
    table[rng.random(table.shape) < 0.05] = 0.0
    table[rng.random(table.shape) < missing] = np.nan
    return table


def read(run: Recorded, stat: str = "norm", **how):
    return HistoryReader(run).nodes(Kind.GRADIENT, stat, module_tree(run, Kind.GRADIENT), **how)


@pytest.fixture
def always_large(monkeypatch):
    for name in ("LARGE_VALUES", "AT_ONCE_VALUES", "MAX_EXACT_VALUES"):
        monkeypatch.setattr(reader, name, -1)


def from_rows_and_buckets(run: MadeRun, stat: str, **how):
    """The same question answered from either."""
    rows = read(run, stat, **how)
    with pytest.MonkeyPatch.context() as patch:
        for name in ("LARGE_VALUES", "AT_ONCE_VALUES", "MAX_EXACT_VALUES"):
            patch.setattr(reader, name, -1)
        buckets = read(run, stat, **how)
    assert rows.is_exact
    assert not buckets.is_exact
    return rows, buckets


def in_buckets(rows, buckets):
    """The values and marks of each bucket's steps."""
    for index, start in enumerate(buckets.steps.tolist()):
        inside = rows.window(start, start + buckets.bucket_steps - 1)
        if len(inside.steps):
            yield index, inside


def extremes(values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    return np.fmin.reduce(values, axis=0), np.fmax.reduce(values, axis=0)


@settings(deadline=None, max_examples=25)
@given(st.integers(0, 10**6), st.integers(1, 400), st.sampled_from(STATS), st.floats(0.0, 0.5), st.booleans())
def test_of_one_site_buckets_hold_what_the_rows_hold(seed, num_steps, stat, missing, is_broken):
    table = random_table(seed, num_steps, 1, missing)
    table[0] = 1.0
    run = made(table, broken_at=num_steps // 2 if is_broken and not np.isnan(table[num_steps // 2]) else None)
    rows, buckets = from_rows_and_buckets(run, stat)
    assert buckets.low is not None
    assert buckets.high is not None
    for index, inside in in_buckets(rows, buckets):
        low, high = extremes(inside.values)
        np.testing.assert_allclose(buckets.low[index], low, rtol=1e-6)
        np.testing.assert_allclose(buckets.high[index], high, rtol=1e-6)
        np.testing.assert_allclose(buckets.values[index], np.nanmean(inside.values, axis=0), rtol=1e-5)
    left, right = grid(rows, len(buckets.steps)), grid(buckets, len(buckets.steps))
    if left.bins.size == right.bins.size:
        np.testing.assert_array_equal(left.marks, right.marks)


@settings(deadline=None, max_examples=25)
@given(st.integers(0, 10**6), st.integers(64, 300), st.sampled_from(STATS))
def test_no_step_of_a_group_lies_outside_of_its_buckets(seed, num_steps, stat):
    table = 10.0 ** np.random.default_rng(seed).uniform(-3, 3, (num_steps, 5))
    rows, buckets = from_rows_and_buckets(made(table), stat)
    assert buckets.low is not None
    assert buckets.high is not None
    for index, inside in in_buckets(rows, buckets):
        room = 1e-5 * np.abs(buckets.values[index])
        assert (buckets.low[index] <= buckets.values[index] + room).all()
        assert (buckets.high[index] >= buckets.values[index] - room).all()
        if stat != "mean_abs":  # only whole rows can be merged, which buckets do not hold
            low, high = extremes(inside.values)
            assert (buckets.low[index] <= low + 1e-6 * np.abs(low)).all()
            assert (buckets.high[index] >= high - 1e-6 * np.abs(high)).all()


@settings(deadline=None, max_examples=25)
@given(st.integers(0, 10**6), st.integers(64, 300), st.floats(0.0, 0.5))
def test_the_largest_element_of_a_group_is_exact_in_buckets(seed, num_steps, missing):
    rows, buckets = from_rows_and_buckets(made(random_table(seed, num_steps, 5, missing)), "abs_max")
    assert buckets.high is not None
    for index, inside in in_buckets(rows, buckets):
        np.testing.assert_allclose(buckets.high[index], extremes(inside.values)[1], rtol=1e-6)


@settings(deadline=None, max_examples=25)
@given(st.integers(0, 10**6))
def test_norms_that_stray_little_add_up_in_buckets_as_in_rows(seed):
    """The stated closeness: groups of healthy sites, in a bucket's mean, to a few percent."""
    table = np.random.default_rng(seed).uniform(0.9, 1.1, (256, 5))
    rows, buckets = from_rows_and_buckets(made(table), "norm")
    for index, inside in in_buckets(rows, buckets):
        np.testing.assert_allclose(buckets.values[index], inside.values.mean(axis=0), rtol=0.01)
    np.testing.assert_allclose(buckets.usual, rows.usual, rtol=0.05)


@settings(deadline=None, max_examples=25)
@given(st.integers(0, 10**6), st.integers(1, 12), st.sampled_from(["norm", "kurtosis", "num_zero"]))
def test_what_has_grown_equals_what_is_read_at_once(seed, num_looks, stat):
    """Frames of a step come one by one, a second process lags behind, a third goes back to a checkpoint."""
    rng = np.random.default_rng(seed)
    frames = [
        Frame(0, step, {site: float(rng.lognormal())}) for step in range(60) for site in rng.permutation(3).tolist()
    ]
    for step in range(50):  # some steps behind
        frames.insert(3 * step + 20, Frame(1, step, {3: float(rng.lognormal())}))
    frames += [Frame(2, step, {site: float(rng.lognormal()) for site in range(5)}) for step in range(30, 75)]
    run = MadeRun(NAMES)
    kept = HistoryReader(run)
    cuts = sorted(rng.integers(0, len(frames), num_looks).tolist())
    for begin, end in zip([0, *cuts], [*cuts, len(frames)], strict=True):
        run.write(frames[begin:end])
        tree = module_tree(run, Kind.GRADIENT)
        for before in (None, 40):
            grown = kept.nodes(Kind.GRADIENT, stat, tree, before=before)
            fresh = HistoryReader(run).nodes(Kind.GRADIENT, stat, tree, before=before)
            np.testing.assert_array_equal(grown.steps, fresh.steps)
            np.testing.assert_array_equal(grown.values, fresh.values)
            np.testing.assert_array_equal(grown.marks, fresh.marks)
            np.testing.assert_array_equal(grown.usual, fresh.usual)


def test_of_a_run_that_grew_only_its_end_is_read():
    run = MadeRun(NAMES)
    run.write([Frame(0, step, dict.fromkeys(range(5), 1.0)) for step in range(1000)])
    kept = HistoryReader(run)
    groups = Groups(Kind.GRADIENT, "norm", 2)
    kept.groups(groups)
    run.num_rows_read = 0
    kept.groups(groups)
    assert run.num_rows_read == 0
    run.write([Frame(0, 1000, dict.fromkeys(range(5), 1.0))])
    assert len(kept.groups(groups).steps) == 1001
    assert 0 < run.num_rows_read < 200


def test_steps_that_were_thinned_out_are_gone_from_what_was_kept():
    run = MadeRun(NAMES)
    run.write([Frame(0, step, dict.fromkeys(range(5), 1.0)) for step in range(100)])
    kept = HistoryReader(run)
    groups = Groups(Kind.GRADIENT, "norm", 2)
    kept.groups(groups)
    run.rows = {(step, site): row for (step, site), row in run.rows.items() if step > 50 or step % 8 == 7}
    run.write([Frame(0, 100, dict.fromkeys(range(5), 1.0))])
    np.testing.assert_array_equal(kept.groups(groups).steps, run.steps)


@settings(deadline=None, max_examples=25)
@given(st.integers(0, 10**6), st.integers(0, 99), st.integers(0, 99), st.sampled_from(STATS))
def test_a_window_is_a_slice(seed, first, last, stat):
    first, last = min(first, last), max(first, last)
    run = made(random_table(seed, 100, 5, missing=0.2))
    whole, part = read(run, stat), read(run, stat, window=(first, last))
    inside = (whole.steps >= first) & (whole.steps <= last)
    np.testing.assert_array_equal(part.steps, whole.steps[inside])
    np.testing.assert_array_equal(part.values, whole.values[inside])
    np.testing.assert_array_equal(part.marks, whole.marks[inside])
    np.testing.assert_array_equal(part.usual, whole.usual)


def test_a_short_window_of_a_long_run_is_read_from_its_rows(monkeypatch):
    run = made(random_table(0, 300, 5))
    whole = read(run)
    monkeypatch.setattr(reader, "LARGE_VALUES", 0)
    part = read(run, window=(100, 140))
    np.testing.assert_array_equal(part.values, whole.window(100, 140).values)
    assert part.is_exact
    hurried = HistoryReader(run)
    monkeypatch.setattr(reader, "AT_ONCE_VALUES", 0)
    coarse = hurried.nodes(Kind.GRADIENT, "norm", module_tree(run, Kind.GRADIENT), (100, 140), has_time=False)
    assert coarse.can_be_refined
    assert not coarse.is_exact
    np.testing.assert_allclose(coarse.usual, part.usual)


def test_a_window_of_buckets_holds_the_bucket_that_it_begins_in(always_large):
    del always_large
    buckets = read(made(random_table(0, 300, 2)))
    assert buckets.steps.tolist() == [0, 64, 128, 192, 256]
    assert buckets.window(100, 192).steps.tolist() == [64, 128, 192]
    assert buckets.window(128, 191).steps.tolist() == [128]


def test_a_spike_in_a_bucket_is_seen_however_coarse_the_picture(always_large):
    del always_large
    table = np.ones((512, 1))
    table[300] = 500.0
    for width in (8, 2, 1):
        cells = grid(read(made(table)), width, raw=True)
        assert cells.bins.size == 512 // width
        assert cells.levels.max() == 500.0
    table[77] = 0.0
    assert grid(read(made(table)), 8, raw=True).levels[0].tolist() == [1.0, 0.0, 1.0, 1.0, 500.0, 1.0, 1.0, 1.0]


def test_without_buckets_a_long_run_is_read_from_its_rows(always_large):
    del always_large
    run = made(random_table(0, 100, 3))
    run.has_buckets = False
    assert read(run).is_exact
    assert read(run).values.shape[0] == 100


def test_all_sites_together_are_one_tensor():
    table = random_table(3, 50, 5, missing=0.3)
    table[:, 0] = 1.0
    run = made(table, broken_at=20)
    series = HistoryReader(run).together(Kind.GRADIENT, "norm").series(0)
    expected = np.sqrt(np.nansum(np.square(table), axis=1))
    expected[20] = np.nan
    np.testing.assert_allclose(series.values, expected, rtol=1e-12)


def test_nothing_recorded_is_no_history():
    run = MadeRun([])
    assert read(run).values.shape == (0, 0)
    assert len(HistoryReader(run).together(Kind.GRADIENT, "norm").series(0)) == 0
    assert len(grid(read(run), 80).bins) == 0


def test_a_groups_norms_that_are_tiny_or_huge_stay_so():
    table = np.array([[3e-200, 4e-200], [3e200, 4e200]])
    shown = HistoryReader(made(table)).together(Kind.GRADIENT, "norm")
    np.testing.assert_allclose(shown.values[:, 0], [5e-200, 5e200])
    assert shown.marks[:, 0].tolist() == [Mark.PLAIN, Mark.PLAIN]
