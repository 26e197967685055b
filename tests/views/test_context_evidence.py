"""What stands beside a cause's own numbers, how a cause alone is told, and the log as sentences."""

from __future__ import annotations

import base64
import dataclasses

import numpy as np
import pytest

from stethoscope.explain.context_evidence import CLIP, context_evidence, loss_words, metric_series
from stethoscope.explain.diagnosis import Diagnosis
from stethoscope.record import Evidence, Finding, Kind, Series, Severity
from stethoscope.store import Event, RunWriter, open_run
from stethoscope.views.common.open_run import OpenRun
from stethoscope.views.pagedata.event_messages import event_message, says_something
from stethoscope.views.pagedata.followed import followed_entries, lasting
from stethoscope.views.pagedata.log import log_data, num_entries
from stethoscope.views.pagedata.ranks import over_ranks, spread_bins
from stethoscope.views.pagedata.verdict import verdict_data
from stethoscope.views.terminal import render_diagnosis
from tests.store.run_making import write_findings
from tests.views import synthetic
from tests.views.synthetic import CAUSE, FOLLOWED, write_run

BARE = dataclasses.replace(CAUSE, evidence=(Evidence("share of something", 0.1, 0.9),))


def clipped(step: int) -> dict[str, float]:
    return synthetic.exploding_metrics(step) | {"clip_norm": 1.0}


@pytest.fixture
def sick(tmp_path):
    path = write_run(
        tmp_path / "run",
        synthetic.exploding,
        metrics=clipped,
        ended="exception",
        body={"exception": "FloatingPointError"},
    )
    with open_run(path) as run:
        yield run


def test_what_moved_beside_the_cause_is_read_from_the_run(sick):
    found = {e.label: e for e in context_evidence(sick, BARE, 4)}
    assert list(found) == [
        "gradient L2 of layers.2.attn.weight",
        "gradient before clipping",
        "clip coefficient",
        "loss",
    ]
    grown = found["gradient L2 of layers.2.attn.weight"]
    series = next(iter(sick.series("layers.2.attn.weight", Kind.GRADIENT, "norm").values()))
    before = series.values[(series.steps >= 102) & (series.steps < 150)]
    assert grown.before == pytest.approx(float(np.median(before)))
    # The last step at which the loss was a number.
    assert grown.value == pytest.approx(series.at(189))
    assert found["clip coefficient"].before == pytest.approx(1.0)
    assert found["clip coefficient"].value == pytest.approx(1 / (0.9 * 2 ** (39 / 6)), rel=1e-6)
    assert np.isnan(found["loss"].value)


def test_nothing_is_said_twice_and_never_more_than_there_is_room_for(sick):
    assert context_evidence(sick, CAUSE, 5) == []
    assert context_evidence(sick, BARE, 0) == []
    assert [e.label for e in context_evidence(sick, BARE, 1)] == ["loss"]
    assert len(context_evidence(sick, BARE, 2)) == 2


def test_a_layer_that_did_not_move_is_not_shown(tmp_path):
    with open_run(write_run(tmp_path / "run")) as run:
        quiet = dataclasses.replace(BARE, sites=("layers.1.mlp.weight",))
        assert [e.stat for e in context_evidence(run, quiet, 5)] == ["grad_norm", "loss"]
        assert metric_series(run, CLIP) is None


def test_what_the_loss_makes_of_it(sick, tmp_path):
    assert loss_words(sick, BARE) == "The loss is NaN since step 190."
    assert loss_words(sick, CAUSE) == ""
    with open_run(write_run(tmp_path / "flat", ended=None)) as live:
        assert loss_words(live, BARE) == "The loss does not show it yet: 1.61 now, 1.87 before."
        assert lasting(live, BARE) == ["Ongoing, for 51 steps", "The loss is not affected yet"]
        behind = dataclasses.replace(BARE, last_step=180)
        assert lasting(live, behind)[0] == "Ongoing, for 51 steps"
        assert context_evidence(live, behind, 1)[0].value == pytest.approx(live.metric("loss").values[-1])

    def rising(step: int) -> dict[str, float]:
        return synthetic.default_metrics(step) | {"loss": 1.0 if step < 160 else 3.0}

    with open_run(write_run(tmp_path / "up", metrics=rising)) as run:
        assert loss_words(run, BARE) == "The loss rose from a usual 1.00 to 3.00."


def test_a_cause_that_nothing_followed_is_not_told_twice(tmp_path):
    with open_run(write_run(tmp_path / "run")) as run:
        (only,) = followed_entries(run, BARE, ())
        assert only["text"] == "Started in layers.2.attn.weight"
        assert lasting(run, BARE) == ["Lasts to the end, 51 steps", "The loss is not affected"]
        short = dataclasses.replace(BARE, last_step=160)
        assert lasting(run, short)[0] == "Last seen at step 160, 10 steps later"
        assert lasting(run, dataclasses.replace(BARE, last_step=150))[0] == "Seen at this one step"
        several = followed_entries(run, BARE, FOLLOWED)
        assert several[0]["text"] == "The gradient of layers.2.attn grew without bound"
        assert [entry["step"] for entry in several] == [150, 171, 185, 190]


def test_the_page_gets_five_numbers(sick):
    write_findings(sick.path, [BARE])
    cause = verdict_data(OpenRun(sick.path))["cause"]
    assert len(cause["evidence"]) == 1
    assert [one["label"] for one in cause["meanwhile"]][-1] == "loss"
    assert len(cause["meanwhile"]) == 4
    assert all(one["trend"] for one in cause["meanwhile"])
    assert cause["why"].endswith("The loss is NaN since step 190.")


def test_the_picture_opens_the_module_around_the_cause(tmp_path):
    modules = [f"layers.{n}.{part}" for n in range(14) for part in ("attn.qkv", "attn.proj", "mlp.fc")]

    def story(site, step):
        base = synthetic.healthy(site, step)
        return synthetic.row(40.0) if site.module == "layers.5.attn.qkv" and step >= 150 else base

    cause = dataclasses.replace(BARE, sites=("layers.5.attn.qkv.weight",))
    with open_run(write_run(tmp_path / "run", story, modules=modules)) as run:
        lines = render_diagnosis(Diagnosis(causes=(cause,), findings=(cause,)), run, width=100).splitlines()
    at = next(n for n, line in enumerate(lines) if line.startswith("◆ layers.5 "))
    assert lines[at + 1].startswith("◆   attn.qkv")
    assert lines[at + 2].startswith("    attn.proj")
    assert lines[at + 3].startswith("  layers.6 ")


def event(kind, body, step=0):
    return Event(step=step, kind=kind, body=body, time=0.0, rank=0)


def test_events_are_sentences():
    first = event("governor", {"every": {"boundary": 1, "modules": 4}})
    later = event("governor", {"every": {"boundary": 1, "modules": 2}})
    assert event_message(first, None) == (
        "Sampling reduced to keep overhead low: outputs every 4 steps",
        "",
    )
    assert event_message(later, first) == ("Sampling increased: outputs every 2 steps", "")
    told = event_message(event("skipped_step", {"times": 3, "scale": 65536.0}), None)[0]
    assert told == "The scaler skipped the optimizer's step, loss scale 65,536, 3 times so far"
    same = {"factor": 1.0, "by": "NllLoss", "num_targets": 256.0}
    assert not says_something(event("backward", same, 1), event("backward", same))
    assert (
        event_message(event("backward", same), None)[0]
        == "The backward pass starts from the result of NllLoss over 256 targets"
    )
    assert event_message(event("my_own_event", {"some_value": 0.25, "names": ["a", "b"]}), None) == (
        "My own event",
        "some value 0.250, names a, b",
    )


def test_the_log_tells_what_changed_once(tmp_path):
    folder = tmp_path / "run"
    writer = RunWriter.create(folder, {"name": "told"})
    infos = synthetic.sites_of(["wte", "head"])
    writer.sites(infos)
    for step in range(1, 101):
        table = np.array([synthetic.healthy(info.site, step) for info in infos])
        writer.rows(step, np.arange(len(infos), dtype=np.uint32), table)
        writer.scalars(step, synthetic.default_metrics(step))
        writer.event(step, "batch", {"fingerprints": [str(step)]})
        if step in (1, 2, 4, 8):
            writer.event(step, "backward", {"factor": 1.0, "by": "MseLoss", "num_targets": 8.0})
        if step in (10, 20, 80):
            writer.event(step, "governor", {"every": {"modules": {10: 2, 20: 4, 80: 2}[step]}})
    assert writer.flush()
    writer.close("finished")
    found = Finding("plateau", Severity.WARNING, "The loss has not moved.", 50, 100)
    write_findings(folder, [found])
    viewed = OpenRun(folder)
    log = log_data(viewed)
    assert [(one["step"], one["type"]) for one in log["entries"]] == [
        (1, "event"),
        (10, "event"),
        (50, "finding"),
        (80, "event"),
    ]
    assert log["entries"][1]["words"].endswith("outputs every 4 steps")
    assert log["entries"][1]["note"] == "changed 2 times from here to step 20"
    assert log["began"]["words"].startswith("Recording begins")
    assert log["ended"]["words"] == "Finished at step 100"
    assert num_entries(viewed) == 4


def test_several_ranks_are_one_mean_with_a_band(tmp_path):
    class Two:
        ranks = (0, 1)

        def metrics(self):
            return ("loss",)

        def metric(self, name, rank):
            values = np.array([1.0, 2.0, np.nan if rank else 3.0, 4.0][: 4 - rank])
            return Series(np.arange(4 - rank), values + rank)

    spread = over_ranks(Two(), "loss")
    assert spread.mean.steps.tolist() == [0, 1, 2, 3]
    assert spread.mean.values[[0, 1, 3]].tolist() == [1.5, 2.5, 4.0]
    assert np.isnan(spread.mean.values[2])
    packed = spread_bins(spread, (0, 3, 100))
    low, high = (np.frombuffer(base64.b64decode(packed[part]), "<f4") for part in ("low", "high"))
    assert low[:2].tolist() == [1.0, 2.0]
    assert high[:2].tolist() == [2.0, 3.0]
    assert (low[3], high[3]) == (4.0, 4.0)
