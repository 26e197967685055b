"""Ten thousand layers: what is done for each of them is done once, and the governor does not wait to be asked."""

from __future__ import annotations

import dataclasses
import gc
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import stethoscope
from stethoscope.analyse import span
from stethoscope.capture import lineage, notes, optimizer_probe
from stethoscope.capture.routing import Routing
from stethoscope.capture.schedule import FIRST_COSTS, Schedule
from stethoscope.config import DebugConfig
from stethoscope.detect.input_norms import is_scaled_in_order
from stethoscope.explain import diagnose
from stethoscope.record import Kind, Site, SiteInfo
from stethoscope.store import Run, RunWriter, journal_piece, open_run, spool
from tests.store.run_making import journals, make_run, some_rows, some_sites, write_steps


class CountedList(torch.nn.ModuleList):
    """Counts how often somebody walks over its members."""

    num_walks = 0

    def named_children(self) -> Iterator[tuple[str, Any]]:
        type(self).num_walks += 1
        return super().named_children()


def test_members_of_a_long_list_are_not_walked_over_for_each_of_them() -> None:
    model = torch.nn.Module()
    model.layers = CountedList(torch.nn.Linear(2, 2) for _ in range(500))
    routing = Routing(model)
    for number in range(500):
        routing.see(f"layers.{number}", None, torch.zeros(1, 2))
    assert CountedList.num_walks <= 2


def test_sites_that_every_journal_repeats_are_decoded_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spool, "ROTATE_STEPS", 3)
    writer = RunWriter.create(tmp_path / "run", {"name": "made"})
    writer.sites(some_sites(200))
    write_steps(writer, range(12), 200)
    writer.close()
    decoded: list[int] = []
    decode = journal_piece.decode_json

    def counted(raw: bytes) -> Any:
        decoded.append(raw.count(b"blocks."))
        return decode(raw)

    monkeypatch.setattr(journal_piece, "decode_json", counted)
    with open_run(tmp_path / "run") as run:
        assert len(run.sites) == 200
        assert list(run.steps) == list(range(12))
    assert len(journals(tmp_path / "run")) > 2
    assert sum(decoded) == 200


class CountedDict(dict[str, Any]):
    """Counts how often somebody walks over it."""

    num_walks = 0

    def __iter__(self) -> Iterator[str]:
        self.num_walks += 1
        return super().__iter__()


def test_modules_are_not_walked_over_for_each_of_them_where_a_norm_is_looked_for(tmp_path: Path) -> None:
    """With 10,000 layers the companion took longer over this than over all else."""
    writer = RunWriter.create(tmp_path / "run", {"name": "made"})
    paths = [f"blocks.{number}.linear" for number in range(50)]
    writer.sites([SiteInfo(Site(path, Kind.ACTIVATION, ""), (4,), "float32", 4) for path in ["blocks", *paths, "norm"]])
    writer.rows(0, np.arange(52), some_rows(52, 0))
    writer.close()
    with open_run(tmp_path / "run") as run:
        (one,) = span.spans(run)
    kinds = dict.fromkeys(paths, "Linear") | {"norm": "LayerNorm"} | {path[:-7]: "Holder" for path in paths}
    modules = CountedDict({path: {"path": path, "type": kind} for path, kind in kinds.items()})
    modules["blocks"] = {"path": "blocks", "type": "Holder"}
    assert is_scaled_in_order(dataclasses.replace(one, modules=modules))
    assert modules.num_walks == 1
    modules["blocks.49.linear.inner"] = {"path": "blocks.49.linear.inner", "type": "Tanh"}
    assert is_scaled_in_order(dataclasses.replace(one, modules=modules)), "what did not run does not count"
    modules["blocks.3.linear"]["type"] = "Tanh"
    assert not is_scaled_in_order(dataclasses.replace(one, modules=modules))


def test_spans_of_many_sites_are_short_and_find_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_run(tmp_path / "run", num_steps=40, num_sites=16)
    whole = diagnose(tmp_path / "run")
    monkeypatch.setattr(span, "SPAN_ROWS", 64)
    with open_run(tmp_path / "run") as run:
        assert [len(one.steps) for one in span.spans(run)] == [4] * 10
    assert diagnose(tmp_path / "run").findings == whole.findings


@pytest.mark.parametrize(("cost_ms", "is_rarer"), [(400.0, True), (6.0, False)])
def test_the_governor_acts_at_once_where_looking_is_very_dear(cost_ms: float, is_rarer: bool) -> None:
    schedule = Schedule(DebugConfig())
    for step in range(FIRST_COSTS):
        schedule.step_cost(step, {"gradients": 1.0, "ledger": 0.1, "boundary": cost_ms, "modules": cost_ms})
        changed = schedule.step_took(500.0)
    assert changed is is_rarer
    assert (schedule.shift["boundary"] > 0) is is_rarer


def test_what_grows_with_the_layers_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The graph, the sampled coordinates, the unit gradients; and sites are registered in few calls."""
    monkeypatch.setattr(lineage, "MAX_MODULES", 8)
    monkeypatch.setattr(optimizer_probe, "MAX_SAMPLED", 40 * 70)
    monkeypatch.setattr(notes, "MAX_UNIT_GRADIENTS", 5)
    calls: list[int] = []
    register = RunWriter.sites

    def counted(writer: RunWriter, infos: Sequence[SiteInfo]) -> None:
        calls.append(len(infos))
        register(writer, infos)

    monkeypatch.setattr(RunWriter, "sites", counted)
    model = torch.nn.Sequential(*(torch.nn.Linear(12, 12) for _ in range(20)))
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    session = stethoscope.watch(model, optimizer, run=tmp_path / "run", quiet=True, companion="off")
    assert 40 in calls
    for _ in range(3):
        optimizer.zero_grad()
        model(torch.randn(4, 12)).square().mean().backward()
        optimizer.step()
    session.stop()
    with open_run(tmp_path / "run") as run:
        (graph,) = run.events("graph")
        assert graph.body["status"] == "unknown"
        assert "21 modules" in graph.body["reason"]
        measured = {info.site.path: info.measured for info in run.sites if info.site.kind is Kind.UPDATE}
        assert measured["0.weight"] == "sampled"
        assert measured["0.bias"] == "all"
        record = run.record(Site("0", Kind.UPDATE, "weight"), 0)
        assert record is not None
        assert record.stats["count"] == 70
        weights = [Site(str(number), Kind.GRADIENT, "weight") for number in range(20)]
        assert sum(len(run.vectors("unit_gradient", weight)[0]) for weight in weights) == 5


@pytest.mark.parametrize(("quiet", "num_opened"), [(False, 1), (True, 0)])
def test_stop_reads_the_run_once_and_only_to_speak_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, quiet: bool, num_opened: int
) -> None:
    model = torch.nn.Linear(2, 2)
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    session = stethoscope.watch(model, optimizer, run=tmp_path / "run", quiet=quiet, companion="off")
    model(torch.randn(4, 2)).square().mean().backward()
    optimizer.step()
    opened: list[bool] = []
    begin = Run.__init__

    def counted(run: Run, *args: Any, **settings: Any) -> None:
        opened.append(gc.isenabled())
        begin(run, *args, **settings)

    monkeypatch.setattr(Run, "__init__", counted)
    session.stop()
    assert opened == [False] * num_opened
    assert gc.isenabled()
    assert session.diagnosis.looked_at.num_steps == 1
