"""A long run is drawn from its stored buckets: the same picture as from its rows, and no row read for it."""

import importlib

import numpy as np
import pytest

from stethoscope.analyse.bins import Mark
from stethoscope.analyse.history import reader
from stethoscope.explain import Diagnosis
from stethoscope.kernels.columns import INDEX, NUM_COLUMNS, NUM_COUNTS
from stethoscope.record import Kind, Site, SiteInfo
from stethoscope.store import Run, RunWriter, seal
from stethoscope.store import spool as spool_module
from stethoscope.views.common.open_run import OpenRun
from stethoscope.views.pagedata.heat import heat_data
from stethoscope.views.pagedata.overview import minimap_data

NUM_STEPS = 1200
LOST_AT, SPIKE_AT = 700, 300


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    patch = pytest.MonkeyPatch()
    patch.setattr(spool_module, "ROTATE_STEPS", 16)
    patch.setattr(importlib.import_module("stethoscope.store.seal"), "SEAL_FILES", 2)
    path = tmp_path_factory.mktemp("runs") / "20261116-120000-long-aaaaaa"
    writer = RunWriter.create(path, {"name": "long"})
    names = [f"layers.{n}.{part}" for n in range(4) for part in ("attn", "mlp")]
    writer.sites([SiteInfo(Site(name, Kind.GRADIENT, "weight"), (8, 8), "float32", 64) for name in names])
    rng = np.random.default_rng(0)
    for step in range(NUM_STEPS):
        table = np.full((len(names), NUM_COLUMNS), 0.5)
        table[:, 0], table[:, 1:NUM_COUNTS] = 64, 0
        table[:, INDEX["norm"]] = rng.uniform(0.9, 1.1, len(names))
        if step == SPIKE_AT:
            table[2:4, INDEX["norm"]] = 40.0
        if step == LOST_AT:
            table[5, INDEX["num_nan"]] = 3
        writer.rows(step, np.arange(len(names)), table)
        writer.scalars(step, {"loss": 1.0})
    writer.flush(30)
    writer.close("finished")
    seal(path, final=True)
    patch.undo()
    return path


def cells(answer):
    import base64

    shape = len(answer["rows"]), answer["count"]
    values = np.frombuffer(base64.b64decode(answer["values"]), "<f4").reshape(shape)
    marks = np.frombuffer(base64.b64decode(answer["marks"]), np.uint8).reshape(shape)
    return values, marks, np.frombuffer(base64.b64decode(answer["usual"]), "<f4")


def test_buckets_show_what_the_rows_show(folder, monkeypatch):
    view = (0, NUM_STEPS - 1, 19)  # bins of 64 steps either way
    small = heat_data(OpenRun(folder), Kind.GRADIENT, "norm", view)
    monkeypatch.setattr(reader, "LARGE_VALUES", 100)
    large = heat_data(OpenRun(folder), Kind.GRADIENT, "norm", view)
    assert (small["start"], small["size"], small["count"]) == (large["start"], large["size"], large["count"])
    left, right = cells(small), cells(large)
    np.testing.assert_array_equal(left[1], right[1])
    np.testing.assert_allclose(left[0], right[0], rtol=0.12)
    np.testing.assert_allclose(left[2], right[2], rtol=0.05)
    assert (right[1] == Mark.NAN).sum() >= 1
    assert right[0].max() == pytest.approx(np.hypot(40, 40), rel=0.01)


def test_the_whole_run_is_drawn_without_its_rows(folder, monkeypatch):
    monkeypatch.setattr(reader, "LARGE_VALUES", 100)
    monkeypatch.setattr(reader, "AT_ONCE_VALUES", 100)
    viewed = OpenRun(folder)
    assert viewed.diagnosis is not None
    monkeypatch.setattr(Run, "matrix", lambda *_, **__: pytest.fail("rows were read"))
    monkeypatch.setattr(Run, "block", lambda *_, **__: pytest.fail("rows were read"))
    heat_data(viewed, Kind.GRADIENT, "norm", (0, NUM_STEPS - 1, 370), exact=False)
    minimap_data(viewed)
    zoomed = heat_data(viewed, Kind.GRADIENT, "norm", (200, 400, 370), exact=False)
    assert zoomed["exact"] is False
    assert zoomed["size"] == 64


def test_whoever_stays_sees_every_step(folder, monkeypatch):
    monkeypatch.setattr(reader, "LARGE_VALUES", 100)
    monkeypatch.setattr(reader, "AT_ONCE_VALUES", 100)
    sharp = heat_data(OpenRun(folder), Kind.GRADIENT, "norm", (290, 310, 370), exact=True)
    assert sharp["exact"] is True
    assert sharp["size"] == 1
    values, _, _ = cells(sharp)
    assert values[:, SPIKE_AT - 290].max() == pytest.approx(np.hypot(40, 40), rel=0.01)
    assert values[:, SPIKE_AT - 289].max() < 2


def test_other_statistics_come_from_buckets_too(folder, monkeypatch):
    monkeypatch.setattr(reader, "LARGE_VALUES", 100)
    for stat in ("abs_max", "mean", "min", "num_tiny", "zero_fraction", "kurtosis"):
        answer = heat_data(OpenRun(folder), Kind.GRADIENT, stat, (0, NUM_STEPS - 1, 19))
        values, marks, _ = cells(answer)
        assert np.isfinite(values[marks == Mark.PLAIN]).all(), stat


def test_the_report_does_not_grow_with_the_run(folder, monkeypatch):
    """Of a run ten times as long it is no larger: everything in it is in bins."""
    from stethoscope.views.report import report_html

    monkeypatch.setattr(reader, "LARGE_VALUES", 100)
    monkeypatch.setattr("stethoscope.analyse.history.series.LONG_STEPS", 100)
    viewed = OpenRun(folder)
    viewed._examined = Diagnosis()
    text = report_html(viewed, "1.2.3")
    assert len(text) < 600_000
    assert "default-src 'none'" in text
    assert "http://" not in text.replace("http://www.w3.org/", "")
