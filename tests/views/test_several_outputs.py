"""Modules that return a tuple or a dict, and a model whose own output is the cause: their rows and figures are full."""

from __future__ import annotations

import base64
from pathlib import Path

import numpy as np
import pytest

from stethoscope.analyse.bins import Mark
from stethoscope.analyse.history import reader
from stethoscope.record import Evidence, Finding, Kind, Severity, Site, SiteInfo
from stethoscope.views.common.glyphs import Screen
from stethoscope.views.common.styled_text import to_text
from stethoscope.views.pagedata import OpenRun, flow, layer
from stethoscope.views.pagedata.heat import heat_data
from stethoscope.views.report import report_data
from stethoscope.views.tui.layer_page import layer_page
from stethoscope.views.tui.view import View
from tests.store.run_making import write_findings
from tests.views import synthetic

RETURNED = {
    "encoder": ("hidden", "pooled"),
    "encoder.proj": ("",),
    "gru": ("0", "1"),
    "lstm": ("0", "1.0", "1.1"),
    "head": ("",),
}
TYPES = {"": "Net", "encoder": "Encoder", "encoder.proj": "Linear", "gru": "GRU", "lstm": "LSTM", "head": "Linear"}
BROKE_AT = 150
OUTPUTS = (Kind.ACTIVATION, Kind.ACTIVATION_GRADIENT)


def story(site: Site, step: int) -> np.ndarray | None:
    """The model's second output, and it alone, holds NaN from a step on."""
    if site == Site("", Kind.OUTPUT, "1") and step >= BROKE_AT:
        return synthetic.row(1.0, num_nan=4)
    return synthetic.healthy(site, step)


def desk_with_cause(folder: Path, where: str) -> OpenRun:
    sites = [Site(module, kind, name) for kind in OUTPUTS for module, names in RETURNED.items() for name in names]
    sites += [
        Site(module, kind, "weight")
        for kind in (Kind.WEIGHT, Kind.GRADIENT)
        for module in ("encoder.proj", "gru", "head")
    ]
    sites += [Site("", Kind.INPUT, "0"), Site("", Kind.OUTPUT, "0"), Site("", Kind.OUTPUT, "1")]
    infos = [SiteInfo(site, (8, 8), "float32", synthetic.NUM_ELEMENTS) for site in sites]
    modules = [{"path": path, "type": kind, "num_parameters": 10} for path, kind in TYPES.items()]
    synthetic.write_run(folder, story, infos=infos, info={"model": {"type": "Net", "modules": modules}})
    cause = Finding(
        "nonfinite_origin",
        Severity.CRITICAL,
        f"{where} was the first to produce NaN.",
        BROKE_AT,
        200,
        (where,),
        (
            Evidence("largest value in head", 0.2, 0.2, site="head", kind="activation", stat="abs_max"),
            Evidence(f"non-finite values in {where}", 4.0, 0.0, site=where, kind="output", stat="num_nonfinite"),
        ),
    )
    write_findings(folder, [cause])
    return OpenRun(folder)


@pytest.fixture(scope="module")
def viewed(tmp_path_factory):
    return desk_with_cause(tmp_path_factory.mktemp("runs") / "20261116-130000-net-3f9a01", "(root).1")


def marks_of(packed):
    found = np.frombuffer(base64.b64decode(packed["marks"]), np.uint8)
    return found.reshape(-1, packed["count"])


def test_a_models_outputs_are_named_after_the_root():
    assert Site("", Kind.OUTPUT, "1").path == "(root).1"
    assert Site("", Kind.OUTPUT).path == "(root)"
    assert Site("", Kind.WEIGHT, "scale").path == "scale"
    assert Site("gru", Kind.ACTIVATION, "1").path == "gru.1"
    for pattern in ("(root).1", "(root)", "(root)*", "1"):
        assert Site("", Kind.OUTPUT, "1").matches(pattern)
    assert not Site("gru", Kind.ACTIVATION, "1").matches("1")


@pytest.mark.parametrize("is_large", [False, True])
@pytest.mark.parametrize("kind", OUTPUTS)
def test_every_row_of_the_heatmap_is_full(viewed, kind, is_large, monkeypatch):
    monkeypatch.setattr(reader, "LARGE_VALUES", 0 if is_large else 10**9)
    found = heat_data(viewed, kind, "norm", (1, 200, 100), rows=range(len(viewed.tree(kind))))
    assert [row[0] for row in found["tree"]] == list(RETURNED)
    assert (marks_of(found) == Mark.PLAIN).all()


def test_a_row_is_what_its_module_returns_taken_together(viewed):
    found = heat_data(viewed, Kind.ACTIVATION, "norm", (1, 200, 200), rows=[2])
    values = np.frombuffer(base64.b64decode(found["values"]), np.float32)
    parts = [viewed.run.series(f"gru.{n}", "activation", "norm")[f"gru.{n}"].values for n in (0, 1)]
    np.testing.assert_allclose(values, np.hypot(*parts), rtol=1e-6)


def test_the_flow_has_a_value_at_every_node(viewed):
    found = flow.flow_data(viewed, Kind.ACTIVATION_GRADIENT, (1, 200, 50))
    assert {"gru", "lstm"} <= {node["path"] for node in found["nodes"] if node["row"] >= 0}
    assert (marks_of(found) == Mark.PLAIN).all()


@pytest.mark.parametrize("where", ["(root).1", "1", "(loss)"])
def test_the_report_shows_what_the_model_returned(tmp_path, where):
    found = report_data(desk_with_cause(tmp_path / "20261116-130000-net-3f9a01", where), "0.1.0")["layer"]
    assert (found["path"], found["head"]["type"], found["head"]["shape"]) == ("(root)", "Net", [8, 8])
    assert found["head"]["numParameters"] == 60
    shown = {track["key"]: set(marks_of(track["series"])[0]) for track in found["tracks"]}
    assert next(iter(shown)) == "Largest value in head"
    assert shown["Largest output 0"] == {Mark.PLAIN}
    assert shown["Largest output 1"] == {Mark.PLAIN, Mark.NAN}
    assert found["findings"] or where != "(root).1"


def test_no_empty_figure_where_nothing_was_measured(tmp_path):
    path = synthetic.write_run(tmp_path / "20261116-130000-none-3f9a02")
    write_findings(path, [Finding("nonfinite_origin", Severity.CRITICAL, "NaN in the loss.", 9, 9, ("(loss)",))])
    assert report_data(OpenRun(path), "0.1.0")["layer"] is None


def test_the_name_of_a_tensor_opens_its_module(viewed):
    for asked, path in (("gru.1", "gru"), ("encoder.hidden", "encoder"), ("(root).1", "(root)"), ("gru.weight", "gru")):
        _opens(viewed, asked, path)


def _opens(viewed, asked, path):
    assert layer.layer_data(viewed, asked, (1, 200, 50))["path"] == path
    page = layer_page(viewed, asked, View(), Screen(100, False, True), 40)
    shown = to_text(page.lines)
    assert shown.startswith(path)
    assert "Largest output" in shown
