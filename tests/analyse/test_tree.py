"""The module tree and the histories of its nodes: order, lists passed over, growth of a live run, memory."""

from __future__ import annotations

import numpy as np
import pytest

from stethoscope.analyse.bins import Mark
from stethoscope.analyse.history import Groups, HistoryReader, history
from stethoscope.analyse.tree import module_tree
from stethoscope.kernels.columns import INDEX
from stethoscope.record import Kind
from stethoscope.store import RunWriter, open_run
from tests.views import synthetic


@pytest.fixture
def run(tmp_path):
    with open_run(synthetic.write_run(tmp_path / "20261116-120000-a-aaaaaa", steps=range(1, 101))) as found:
        yield found


def test_a_list_is_no_row_and_children_follow_their_parent(run):
    tree = module_tree(run, Kind.GRADIENT)
    assert [node.path for node in tree][:4] == ["wte", "layers.0", "layers.0.attn", "layers.0.mlp"]
    assert [node.label for node in tree][:4] == ["wte", "layers.0", "attn", "mlp"]
    assert [node.indent for node in tree][:4] == [0, 0, 1, 1]
    assert all(node.parent < place for place, node in enumerate(tree))


def test_a_node_is_its_group_in_quadrature(run):
    tree = module_tree(run, Kind.GRADIENT)
    shown = HistoryReader(run).nodes(Kind.GRADIENT, "norm", tree)
    place = {node.path: at for at, node in enumerate(tree)}
    parts = np.hypot(shown.values[:, place["layers.1.attn"]], shown.values[:, place["layers.1.mlp"]])
    np.testing.assert_allclose(shown.values[:, place["layers.1"]], parts, rtol=1e-12)


def test_kept_histories_are_what_history_gives(run):
    whole = history(run, Kind.GRADIENT, "norm", depth=2)
    kept = HistoryReader(run).groups(Groups(Kind.GRADIENT, "norm", 2))
    np.testing.assert_array_equal(kept.values, whole.values)
    np.testing.assert_array_equal(kept.marks, whole.marks)
    np.testing.assert_allclose(kept.usual, whole.usual)


def test_reading_in_parts_changes_nothing(run, monkeypatch):
    whole = HistoryReader(run).groups(Groups(Kind.GRADIENT, "norm", 3))
    monkeypatch.setattr("stethoscope.analyse.history.rows.PART_VALUES", 64)
    parts = HistoryReader(run).groups(Groups(Kind.GRADIENT, "norm", 3))
    np.testing.assert_array_equal(parts.values, whole.values)
    np.testing.assert_array_equal(parts.steps, whole.steps)


def test_a_live_run_is_extended_and_equals_a_fresh_reading(tmp_path):
    infos = synthetic.sites_of(synthetic.MODULES)
    writer = RunWriter.create(tmp_path / "20261116-120000-live-aaaaaa", {"name": "live"})
    writer.sites(infos)

    def write(steps):
        for step in steps:
            table = np.array([synthetic.exploding(info.site, step) for info in infos])
            writer.rows(step, np.arange(len(infos), dtype=np.uint32), table)
        assert writer.flush()

    write(range(1, 60))
    with open_run(tmp_path / "20261116-120000-live-aaaaaa") as live:
        kept = HistoryReader(live)
        assert len(kept.groups(Groups(Kind.GRADIENT, "norm", 3)).steps) == 59
        write(range(60, 195))
        live.refresh()
        grown = kept.groups(Groups(Kind.GRADIENT, "norm", 3), before=150)
        fresh = HistoryReader(live).groups(Groups(Kind.GRADIENT, "norm", 3), before=150)
        np.testing.assert_array_equal(grown.values, fresh.values)
        np.testing.assert_array_equal(grown.marks, fresh.marks)
        np.testing.assert_array_equal(grown.usual, fresh.usual)
        assert (grown.marks[-1] == Mark.NAN).all()
    writer.close("finished")


def test_what_is_kept_stays_under_its_bytes(run):
    kept = HistoryReader(run, limit_bytes=1)
    for depth in (1, 2, 3):
        kept.groups(Groups(Kind.GRADIENT, "norm", depth))
    assert len(kept._rows) == 1


def test_frozen_modules_are_rows(tmp_path):
    modules = [
        {"path": "emb", "type": "Embedding", "num_parameters": 8, "trainable": False},
        {"path": "wte", "type": "Embedding", "num_parameters": 8, "trainable": True},
    ]
    path = synthetic.write_run(
        tmp_path / "20261116-120000-f-aaaaaa", modules=["wte"], info={"model": {"modules": modules}}
    )
    with open_run(path) as found:
        tree = module_tree(found, Kind.GRADIENT)
        assert [(node.path, node.frozen) for node in tree] == [("emb", True), ("wte", False)]
        shown = HistoryReader(found).nodes(Kind.GRADIENT, "norm", tree)
        assert shown.values.shape == (200, 2)
        assert np.isnan(shown.values[:, 0]).all()
        assert (shown.marks[:, 0] == Mark.FROZEN).all()


def test_other_statistics_of_groups_are_exact(run):
    tree = module_tree(run, Kind.WEIGHT)
    shown = HistoryReader(run).nodes(Kind.WEIGHT, "abs_max", [node for node in tree if node.path == "layers.0"])
    block = run.block(1, 100)
    sites = [
        n
        for n, info in enumerate(block.sites)
        if info.site.kind is Kind.WEIGHT and info.site.module.startswith("layers.0.")
    ]
    np.testing.assert_allclose(shown.values[:, 0], block.rows[:, sites, INDEX["abs_max"]].max(axis=1))
