"""Readers of bytes outside of the store, and all that draws a run, against bytes of somebody who knows the format.

As in test_store_fuzz: STETHOSCOPE_FUZZ_EXAMPLES=20000 tries for long, and what such a run finds is kept as an example.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import shutil
import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from safetensors.numpy import save

from stethoscope.config import DebugConfig
from stethoscope.explain import diagnose
from stethoscope.hooks.alerts import Alert, WebhookSink
from stethoscope.hooks.pause import PAUSED_FILE, paused_reason
from stethoscope.instruments.array_input import read_safetensors
from stethoscope.kernels import compiled
from stethoscope.kernels.variants import variant_of
from stethoscope.record import ConfigError, RunError, Severity, StethoscopeError
from stethoscope.store import companion_log, folder_bytes, open_run, seal, thin
from stethoscope.store.json_payload import encode_json
from stethoscope.store.sealed_file import SUFFIX
from stethoscope.views.common.open_run import OpenRun
from stethoscope.views.pagedata.query import QueryParams
from stethoscope.views.pagedata.runlist import run_row
from stethoscope.views.pagedata.screens import questions
from tests.record.test_wire import KINDS, records
from tests.store.hostile_folders import edit_manifest, frame, make_good, put_journal, reseal, table
from tests.store.test_store_fuzz import FUZZ, JSON, MUTATIONS, mutated, read_all, replaced

Copy = Callable[[], Path]


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("fuzz") / "run"
    make_good(folder)
    return folder


@pytest.fixture
def fresh(good: Path, tmp_path: Path) -> Copy:
    """A copy of the good run, another one for each example."""

    def copy() -> Path:
        shutil.rmtree(tmp_path / "run", ignore_errors=True)
        return Path(shutil.copytree(good, tmp_path / "run"))

    return copy


def draw_all(run: Path) -> None:
    """The verdict, the row in the list and every question of the page, as JSON that browsers read."""
    with open_run(run) as found:
        json.dumps(diagnose(found).to_json(), allow_nan=True)
    viewed = OpenRun(run)
    json.dumps(run_row(viewed, "key"), allow_nan=False)
    for name, answer in questions().items():
        with contextlib.suppress(StethoscopeError):
            json.dumps(answer(viewed, QueryParams({"path": "blocks.0"} if name == "layer" else {})), allow_nan=False)


@FUZZ
@given(st.data())
def test_events_of_right_types_and_any_values_are_drawn(fresh: Copy, data: st.DataObject) -> None:
    run = fresh()
    kinds = data.draw(st.lists(st.sampled_from(KINDS), min_size=1, max_size=6))
    bodies = [{"kind": kind.KIND, "body": data.draw(records(kind)).to_body()} for kind in kinds]
    put_journal(run, *(frame(encode_json(body), serial=n) for n, body in enumerate(bodies)))
    draw_all(run)


@FUZZ
@given(JSON, st.data())
def test_events_of_wrong_types_are_drawn(fresh: Copy, value: Any, data: st.DataObject) -> None:
    run = fresh()
    kinds = data.draw(st.lists(st.sampled_from(KINDS), min_size=1, max_size=6))
    bodies = [
        {"kind": kind.KIND, "body": replaced(data.draw(records(kind)).to_body(), data.draw, value)} for kind in kinds
    ]
    put_journal(run, *(frame(encode_json(body), serial=n) for n, body in enumerate(bodies)))
    draw_all(run)


@FUZZ
@given(MUTATIONS)
def test_sums_beside_a_table(fresh: Copy, mutations: Any) -> None:
    run = fresh()
    beside = table(run).with_name(table(run).name + SUFFIX)
    sums = mutated(beside.read_bytes(), mutations)
    beside.write_bytes(sums)
    label = table(run).relative_to(run).as_posix()

    def say(manifest: Any) -> None:
        for file in manifest["segments"][0]["files"].values():
            if file["path"] == label:
                file["sums_sha256"] = hashlib.sha256(sums).hexdigest()

    edit_manifest(run, say)
    read_all(run)


@FUZZ
@given(MUTATIONS, st.sampled_from(["rows", "scalars", "events", "pyramid"]))
def test_tables_are_sealed_and_thinned(fresh: Copy, mutations: Any, name: str) -> None:
    run = fresh()
    reseal(run, mutated(table(run, name).read_bytes(), mutations), name)
    for work in (lambda: seal(run, final=True), lambda: thin(run, folder_bytes(run) * 9 // 10)):
        with contextlib.suppress(RunError, OSError):
            work()
    read_all(run)


CHECKPOINT = save({"weight": np.ones((2, 3), np.float32), "bias": np.zeros(3, np.float64), "n": np.arange(4)})
"""Its header says what is where."""
BF16 = CHECKPOINT.replace(b'"F64"', b'"BF16"').replace(b'"shape":[3]', b'"shape":[12]')
BF16 = (int.from_bytes(BF16[:8], "little") + len(BF16) - len(CHECKPOINT)).to_bytes(8, "little") + BF16[8:]


@FUZZ
@given(MUTATIONS, st.sampled_from([CHECKPOINT, BF16]))
@example([("number", 0, 2**63 + 3)], CHECKPOINT)
def test_checkpoints(tmp_path: Path, mutations: Any, raw: bytes) -> None:
    path = tmp_path / "some.safetensors"
    path.write_bytes(mutated(raw, mutations))
    with contextlib.suppress(StethoscopeError):
        assert all(one.dtype.kind == "f" for one in read_safetensors(path).values())


def test_the_checkpoints_are_such(tmp_path: Path) -> None:
    for raw, names in ((CHECKPOINT, {"weight", "bias"}), (BF16, {"weight", "bias"})):
        (tmp_path / "some.safetensors").write_bytes(raw)
        assert set(read_safetensors(tmp_path / "some.safetensors")) == names


@FUZZ
@given(st.binary(max_size=60) | JSON.map(lambda value: json.dumps(value).encode()), st.binary(max_size=20))
@example(b"5", b"")
@example(b'"x"', b"")
@example(b"[" * 100_000, b"")
def test_compiled_kernels_of_any_bytes(tmp_path: Path, line: bytes, image: bytes) -> None:
    variant = variant_of("tensor_sums-float32")
    path = tmp_path / (variant.name + compiled.ENDING)
    path.write_bytes(line + b"\n" + image)
    assert compiled.read(tmp_path, variant) is None
    assert not path.exists(), "it is compiled again"


@FUZZ
@given(st.text(max_size=40) | JSON.map(lambda value: f"[tool.stethoscope]\nevery = {json.dumps(value)}"))
@example("a = " + "[" * 100_000)
@example("[tool]\nstethoscope = 3")
@example("tool = 3")
def test_projects_of_any_text(tmp_path: Path, text: str) -> None:
    (tmp_path / "pyproject.toml").write_text(text, encoding="utf-8", errors="replace")
    with contextlib.chdir(tmp_path), contextlib.suppress(ConfigError):
        DebugConfig.load()


@FUZZ
@given(st.binary(max_size=200))
def test_what_stands_beside_a_run(tmp_path: Path, raw: bytes) -> None:
    for name in (companion_log.NAME, PAUSED_FILE):
        (tmp_path / name).write_bytes(raw)
    assert companion_log.last_line(tmp_path).isprintable()
    assert isinstance(paused_reason(tmp_path), str)


@FUZZ
@given(st.text(max_size=30) | st.text(max_size=20).map("http://{}".format))
@example("http://[")
@example("http://[::1]]")
@example("http://host:port")
@example("http://host:99999")
def test_addresses_of_webhooks(url: str) -> None:
    with contextlib.suppress(ConfigError):
        WebhookSink(url)


class Answering:
    """A server that answers whatever it is asked with these bytes."""

    def __init__(self) -> None:
        self.answer = b""
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                one, _ = self._listener.accept()
                with one, contextlib.suppress(OSError):
                    one.recv(65_536)
                    one.sendall(self.answer)

    def close(self) -> None:
        self._listener.close()


@pytest.fixture(scope="module")
def answering() -> Iterator[Answering]:
    server = Answering()
    yield server
    server.close()


ANSWER = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nContent-Type: text/plain\r\n\r\nok"


@FUZZ
@given(MUTATIONS.map(lambda mutations: mutated(ANSWER, mutations)) | st.binary(max_size=60))
@example(b"garbage\r\n\r\n")
@example(b"HTTP/1.1 200 OK\r\n" + b"a: b\r\n" * 200 + b"\r\n")
@example(b"HTTP/1.1 200 OK\r\n" + b"a" * 70_000 + b"\r\n\r\n")
def test_answers_of_webhooks(answering: Answering, answer: bytes) -> None:
    """Whatever it answers, each alert is counted, and the next one is sent too."""
    answering.answer = answer
    sink = WebhookSink(f"http://127.0.0.1:{answering.port}/", timeout_s=10.0)
    for _ in range(2):
        sink(Alert("it stands", Severity.WARNING, "watch"))
    sink.close(30.0)
    assert sink.num_sent + sink.num_failed == 2
