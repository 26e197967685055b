"""The JSON under /api/: every question on a healthy, a sick, a live and a damaged run; bad questions; caps."""

from __future__ import annotations

import base64
import json
import shutil
from pathlib import Path

import numpy as np
import pytest

from tests.views import synthetic

pytest.importorskip("starlette")
pytest.importorskip("httpx2")

from starlette.testclient import TestClient

from stethoscope.analyse.bins import Mark
from stethoscope.record import Evidence, Finding, Severity
from stethoscope.views.server import make_app
from stethoscope.views.server.access import AccessPolicy
from stethoscope.views.server.app import QUESTIONS
from stethoscope.views.server.run_cache import opaque_id
from tests.store.run_making import write_findings

TOKEN = "the-token-of-these-tests"
SICK = "20261116-130000-gpt-fp16-3f9a01"
HEALTHY = "20261116-120000-gpt-small-aaaaaa"
LIVE = "20261116-140000-gpt-live-bbbbbb"


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs")
    synthetic.write_run(folder / HEALTHY)
    synthetic.write_run(
        folder / SICK,
        synthetic.exploding,
        name="gpt-fp16",
        metrics=synthetic.exploding_metrics,
        ended="exception",
        body={"exception": "FloatingPointError"},
    )
    synthetic.write_run(folder / LIVE, name="gpt-live", ended=None)
    write_findings(folder / SICK, [synthetic.CAUSE, *synthetic.FOLLOWED])
    write_findings(folder / HEALTHY, [])
    return folder


@pytest.fixture(scope="module")
def client(base):
    app = make_app(base, AccessPolicy.at("127.0.0.1", 7654, token=TOKEN))
    with TestClient(app, base_url="http://127.0.0.1:7654", headers={"authorization": f"Bearer {TOKEN}"}) as found:
        yield found


def floats(packed, shape=None):
    values = np.frombuffer(base64.b64decode(packed), "<f4")
    return values if shape is None else values.reshape(shape)


def small(packed, shape=None):
    values = np.frombuffer(base64.b64decode(packed), np.uint8)
    return values if shape is None else values.reshape(shape)


def key(name):
    return opaque_id(Path(name))


def test_the_list_shows_every_run_without_its_path(client, base):
    answer = client.get("/api/runs")
    body = answer.json()
    assert {row["name"] for row in body["runs"]} == {"gpt-small", "gpt-fp16", "gpt-live"}
    states = {row["name"]: row["state"] for row in body["runs"]}
    assert states == {"gpt-small": "finished", "gpt-fp16": "crashed", "gpt-live": "live"}
    assert str(base) not in answer.text
    sick = next(row for row in body["runs"] if row["name"] == "gpt-fp16")
    assert sick["verdict"]["code"] == "exploding_gradients"
    assert sick["verdict"]["nanAt"] == 190
    assert sick["lastLoss"] == "NaN"


@pytest.mark.parametrize("name", [SICK, HEALTHY, LIVE])
@pytest.mark.parametrize("tail", sorted(QUESTIONS))
def test_every_question_has_a_strict_answer(client, name, tail):
    words = {"path": "layers.2.attn"} if tail == "/layer" else {}
    answer = client.get(f"/api/runs/{key(name)}{tail}", params=words)
    assert answer.status_code == 200, answer.text
    assert isinstance(json.loads(answer.text, parse_constant=lambda word: pytest.fail(word)), dict)


def test_the_verdict_says_what_the_findings_say(client):
    body = client.get(f"/api/runs/{key(SICK)}").json()
    cause = body["verdict"]["cause"]
    assert cause["message"] == synthetic.CAUSE.message
    assert cause["confidence"] == pytest.approx(0.96)
    labels = [e["label"] for e in cause["evidence"]]
    assert labels == ["gradient norm", "clip coefficient", "loss"]
    assert cause["evidence"][2]["after"] == "NaN"
    assert all(e["trend"] for e in cause["evidence"])
    steps = [entry["step"] for entry in body["verdict"]["followed"]]
    assert steps == sorted(steps)
    assert {150, 190} <= set(steps)
    assert body["window"][0] < 150
    assert body["window"][1] == 200


def test_the_heatmap_is_the_history_against_before_the_cause(client):
    body = client.get(
        f"/api/runs/{key(SICK)}/heatmap", params={"kind": "gradient", "first": 1, "last": 200, "width": 400}
    ).json()
    shape = (len(body["rows"]), body["count"])
    values, marks, usual = floats(body["values"], shape), small(body["marks"], shape), floats(body["usual"])
    paths = [body["tree"][row][0] for row in body["rows"]]
    row = paths.index("layers.2.attn")
    assert body["size"] == 1
    at = 185 - body["start"]
    assert np.log2(values[row, at] / usual[row]) == pytest.approx(35 / 6, abs=0.3)
    assert (marks[row, 190 - body["start"] :] == Mark.NAN).all()
    assert (marks[row, : 180 - body["start"]] == Mark.PLAIN).all()
    severity = {node[0]: node[6] for node in body["tree"]}
    assert severity["layers.2.attn"] == "Critical"
    assert severity["layers.3.attn"] == ""


def test_a_wide_cell_keeps_the_worst_thing_in_it(client):
    words = {"kind": "gradient", "first": 1, "last": 200, "width": 8, "tree": 0}
    body = client.get(f"/api/runs/{key(SICK)}/heatmap", params=words).json()
    assert body["size"] == 32
    assert "tree" not in body
    marks = small(body["marks"], (len(body["rows"]), body["count"]))
    # The bin from 160 to 191 holds two steps of NaN, and says so.
    assert (marks[:, (190 - body["start"]) // 32] == Mark.NAN).all()


def test_rows_can_be_asked_for_by_number(client):
    words = {"kind": "gradient", "rows": "0-1,3", "width": 50}
    body = client.get(f"/api/runs/{key(SICK)}/heatmap", params=words).json()
    assert body["rows"] == [0, 1, 3]
    assert len(floats(body["values"])) == 3 * body["count"]


def test_lines_have_a_band_and_exact_values_when_zoomed(client):
    wide = client.get(f"/api/runs/{key(HEALTHY)}/series", params={"width": 16}).json()["tracks"]
    loss = next(track for track in wide if track["key"] == "loss")
    series = loss["series"]
    assert series["size"] == 16
    assert (floats(series["low"]) <= floats(series["mean"])).all()
    assert (floats(series["high"]) >= floats(series["mean"])).all()
    near = client.get(f"/api/runs/{key(HEALTHY)}/series", params={"first": 10, "last": 20, "width": 500}).json()[
        "tracks"
    ]
    exact = next(track for track in near if track["key"] == "loss")["series"]
    assert exact["size"] == 1
    assert floats(exact["mean"])[3] == pytest.approx(synthetic.default_metrics(13)["loss"], rel=1e-6)


def test_a_layer_shows_its_own_quantities_and_findings(client):
    body = client.get(f"/api/runs/{key(SICK)}/layer", params={"path": "layers.2.attn"}).json()
    labels = [track["label"] for track in body["tracks"]]
    assert "Gradient norm" in labels
    assert "Weight norm" in labels
    assert [f["code"] for f in body["findings"]] == ["exploding_gradients"]


def test_two_runs_part_where_the_fault_begins(client):
    words = {"a": key(SICK), "b": key(HEALTHY), "kind": "gradient"}
    body = client.get("/api/compare", params=words).json()
    # Step 150 itself is 2**0: the first step that differs is 151.
    assert body["first"]["step"] == 151
    assert body["first"]["path"] == "layers.2.attn"
    paths = [body["tree"][row][0] for row in body["rows"]]
    marks = small(body["marks"], (len(paths), body["count"]))
    assert (marks[:, 5] == 7).all()
    assert body["numShared"] == body["numRows"]
    same = client.get("/api/compare", params={"a": key(SICK), "b": key(SICK)}).json()
    assert same["first"] is None


def test_what_parted_two_runs_has_a_line_and_a_number_of_its_own(client):
    body = client.get("/api/compare", params={"a": key(SICK), "b": key(HEALTHY), "kind": "gradient"}).json()
    line = next(track for track in body["tracks"] if track["key"] == "parted")
    assert (line["label"], line["note"]) == ("Gradient L2", "layers.2.attn")
    grown, usual = (floats(line[side]["mean"]) for side in ("a", "b"))
    at = 185 - line["a"]["start"]
    assert grown[at] / usual[at] == pytest.approx(2 ** (35 / 6), rel=1e-3)
    number = next(row for row in body["outcome"] if row["label"] == "Gradient L2 of layers.2.attn")
    assert number["a"] > 10 * number["b"]
    assert body["nan"] == {"a": 190, "b": None}


def test_a_run_with_itself_in_compare_does_not_lock_up(client):
    assert client.get("/api/compare", params={"a": key(LIVE), "b": key(LIVE)}).status_code == 200
    angles = client.get("/api/compare/angles", params={"a": key(LIVE), "b": key(LIVE)})
    assert angles.status_code == 200
    assert angles.json()["cosine"] is None  # no sketch was written


def test_the_list_says_what_each_run_takes_on_disk(client, base):
    rows = {row["name"]: row for row in client.get("/api/runs").json()["runs"]}
    taken = sum(path.stat().st_size for path in (base / HEALTHY).rglob("*") if path.is_file())
    assert rows["gpt-small"]["numBytes"] == taken
    assert rows["gpt-fp16"]["verdict"]["short"] == "The gradient of layers.2.attn grew without bound"


def test_a_healthy_run_says_how_it_went(client):
    verdict = client.get(f"/api/runs/{key(HEALTHY)}").json()["verdict"]
    rows = {row["label"]: row for row in verdict["course"]["rows"]}
    assert verdict["course"]["columns"] == ["at 1", "at 200"]
    assert rows["loss"]["before"] == pytest.approx(synthetic.default_metrics(1)["loss"])
    assert rows["loss"]["after"] == pytest.approx(synthetic.default_metrics(200)["loss"])
    assert client.get(f"/api/runs/{key(SICK)}").json()["verdict"]["course"] is None


def test_the_slowest_steps_are_told_by_their_parts(client):
    body = client.get(f"/api/runs/{key(HEALTHY)}/profile").json()
    assert [part["label"] for part in body["parts"]] == ["Stethoscope", "other"]
    assert body["slowest"][0]["ms"] == pytest.approx(120.0)
    assert body["slowest"][0]["parts"] == pytest.approx([0.84, 119.16])
    assert sum(part["ms"] for part in body["parts"]) == pytest.approx(body["meanMs"])


@pytest.mark.parametrize(
    ("tail", "words"),
    [
        ("/heatmap", {"kind": "nonsense"}),
        ("/heatmap", {"stat": "nonsense"}),
        ("/heatmap", {"rows": "a"}),
        ("/heatmap", {"rows": "0-100000"}),
        ("/heatmap", {"first": "x"}),
        ("/heatmap", {"first": "9", "last": "1"}),
        ("/layer", {"path": "not.there"}),
        ("/layer", {"path": ""}),
        ("/layer", {"path": "*"}),
        ("/series", {"width": "1e9"}),
        ("/heatmap", {"first": "9" * 400}),
    ],
)
def test_bad_questions_get_a_sentence(client, tail, words):
    answer = client.get(f"/api/runs/{key(SICK)}{tail}", params=words)
    assert answer.status_code == 400
    assert answer.json()["error"]["what"]


@pytest.mark.parametrize("run_id", ["0" * 16, SICK, "..", "%2e%2e", "a" * 5000, "\u202e"])
def test_an_unknown_id_is_not_found(client, run_id):
    answer = client.get(f"/api/runs/{run_id}/heatmap")
    assert answer.status_code in (404, 405)


def test_huge_widths_are_capped(client):
    words = {"width": 10**9, "first": -(10**12), "last": 10**12}
    body = client.get(f"/api/runs/{key(SICK)}/heatmap", params=words).json()
    assert body["count"] <= 4096


def test_a_vanished_run_is_said_to_be_gone(base, tmp_path):
    folder = tmp_path / "runs"
    shutil.copytree(base, folder)
    app = make_app(folder, AccessPolicy.at("127.0.0.1", 7654, token=TOKEN))
    client = TestClient(app, base_url="http://127.0.0.1:7654", headers={"authorization": f"Bearer {TOKEN}"})
    assert client.get(f"/api/runs/{key(SICK)}").status_code == 200
    shutil.rmtree(folder / SICK)
    answer = client.get(f"/api/runs/{key(SICK)}")
    assert answer.status_code == 404
    assert answer.json()["error"]["command"] == "stethoscope list"


def test_damaged_newer_and_linked_runs(base, tmp_path):
    folder = tmp_path / "runs"
    folder.mkdir()
    shutil.copytree(base / HEALTHY, folder / "20261116-110000-broken-cccccc")
    description = folder / "20261116-110000-broken-cccccc" / "run.json"
    description.write_bytes(description.read_bytes().replace(b"gpt-small", b"gpt-smell"))
    (folder / "20261116-150000-linked-dddddd").symlink_to(base / SICK)
    app = make_app(folder, AccessPolicy.at("127.0.0.1", 7654, token=TOKEN))
    client = TestClient(app, base_url="http://127.0.0.1:7654", headers={"authorization": f"Bearer {TOKEN}"})
    rows = client.get("/api/runs").json()["runs"]
    assert len(rows) == 1
    assert "checksum" in rows[0]["trouble"]
    answer = client.get(f"/api/runs/{rows[0]['key']}")
    assert answer.status_code == 409
    assert str(tmp_path) not in answer.text


def test_an_empty_folder_is_an_empty_list(tmp_path):
    app = make_app(tmp_path / "nothing", AccessPolicy.at("127.0.0.1", 7654, token=TOKEN))
    client = TestClient(app, base_url="http://127.0.0.1:7654", headers={"authorization": f"Bearer {TOKEN}"})
    assert client.get("/api/runs").json()["runs"] == []


def test_hostile_names_come_out_as_harmless_text(tmp_path):
    nasty = "<img src=x onerror=alert(1)>\u202e\x1b[31m\x00" + "n" * 10_000
    evidence = (Evidence(nasty, 1.0, 2.0, unit=nasty, site=nasty),)
    finding = Finding("code", Severity.CRITICAL, f"{nasty} broke", 5, 9, (nasty,), evidence, nasty)
    synthetic.write_run(tmp_path / "20261116-120000-x-eeeeee", name=nasty, modules=[nasty, "ok"], steps=range(1, 20))
    write_findings(tmp_path / "20261116-120000-x-eeeeee", [finding])
    app = make_app(tmp_path, AccessPolicy.at("127.0.0.1", 7654, token=TOKEN))
    client = TestClient(app, base_url="http://127.0.0.1:7654", headers={"authorization": f"Bearer {TOKEN}"})
    run_id = client.get("/api/runs").json()["runs"][0]["key"]
    for tail in sorted(QUESTIONS):
        words = {"path": "ok"} if tail == "/layer" else {}
        answer = client.get(f"/api/runs/{run_id}{tail}", params=words)
        assert answer.status_code == 200, tail
        assert "\u202e" not in answer.json().__repr__().replace("\\u202e", "")
        assert "\x00" not in json.dumps(answer.json(), ensure_ascii=False)


def test_the_stream_of_an_unknown_run_is_not_opened(client):
    with client.stream("GET", f"/api/runs/{key('gone')}/stream") as answer:
        assert answer.status_code == 404
