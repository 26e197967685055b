"""Every reader of bytes against bytes of somebody who knows the format: an error of ours or a right form, nothing else, in bounds.

STETHOSCOPE_FUZZ_EXAMPLES=20000 tries for long; what such a run finds is kept here as an example.
"""

import contextlib
import hashlib
import json
import os
import resource
import shutil
import struct

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from stethoscope.config import DebugConfig
from stethoscope.record import ConfigError, RunError
from stethoscope.store import open_run
from stethoscope.store.encoding import decode_rows, decode_vectors
from stethoscope.store.frames import FrameError, FrameKind, checksum, read_header, unpack
from stethoscope.store.json_payload import EncodingError, decode_json
from stethoscope.store.runfile import parse
from stethoscope.store.scalars_payload import decode_scalars, encode_scalars
from tests.store.hostile_folders import (
    GOOD_FINDING,
    WIDE,
    edit_manifest,
    edit_run,
    findings_file,
    frame,
    hashed,
    head_frame,
    journal,
    make_good,
    put_findings,
    put_journal,
    reseal,
    rows_payload,
    table,
)
from tests.store.run_making import some_sites

EXAMPLES = int(os.environ.get("STETHOSCOPE_FUZZ_EXAMPLES", "20"))
FUZZ = settings(
    max_examples=EXAMPLES,
    deadline=None,
    derandomize=EXAMPLES <= 20,
    database=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
MOST_KB = 400 << 10

MUTATIONS = st.lists(
    st.tuples(
        st.sampled_from(["flip", "cut", "insert", "double", "swap", "number"]),
        st.integers(0, 2**20),
        st.integers(0, 2**64 - 1),
    ),
    min_size=1,
    max_size=4,
)


def mutated(data, mutations):
    """Bytes flipped, cut out, put in, doubled, swapped, or overwritten by a number that may be a length."""
    out = bytearray(data)
    for how, place, number in mutations:
        at = place % (len(out) + 1)
        if how == "flip" and at < len(out):
            out[at] ^= 1 << (number % 8)
        elif how == "cut":
            del out[at : at + 1 + number % 16]
        elif how == "insert":
            out[at:at] = struct.pack("<Q", number)[: 1 + number % 8]
        elif how == "double":
            out[at:at] = out[at : at + 1 + number % 64]
        elif how == "swap":
            out[at : at + 8] = bytes(reversed(out[at : at + 8]))
        else:
            width = (1, 2, 4, 8)[number % 4]
            out[at : at + width] = struct.pack("<Q", number)[:width]
    return bytes(out)


def read_all(run):
    """Everything that the store can be asked; only errors of ours come out."""
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with contextlib.suppress(RunError, FileNotFoundError), open_run(run) as found:
        found.verify()
        found.series("*")
        found.block(0, 10)
        for name in found.metrics():
            found.metric(name)
        for info in found.sites[:2]:
            found.site_buckets(info.site, "norm")
            found.vectors("histogram", info.site)
        found.buckets(None, "norm", 0, 64, 6)
        found.events()
        found.findings()
        str(found.state), found.losses, found.starts, found.problems
        for one in ("rows", "scalars", "events"):
            found.to_arrow(one)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < MOST_KB


@pytest.fixture(scope="module")
def good(tmp_path_factory):
    folder = tmp_path_factory.mktemp("fuzz") / "run"
    make_good(folder)
    return folder


@pytest.fixture
def fresh(good, tmp_path):
    """A copy of the good run, another one for each example."""

    def copy():
        shutil.rmtree(tmp_path / "run", ignore_errors=True)
        return shutil.copytree(good, tmp_path / "run")

    return copy


def frames_of(path):
    data, place, found = path.read_bytes(), 0, []
    while place < len(data):
        header = read_header(data, place)
        found.append((header, data[place : place + header.frame_bytes]))
        place += header.frame_bytes
    return found


DECODERS = {
    FrameKind.ROWS: decode_rows,
    FrameKind.SCALARS: decode_scalars,
    FrameKind.VECTORS: decode_vectors,
    FrameKind.EVENT: decode_json,
}


@FUZZ
@given(MUTATIONS, st.data())
def test_payloads(good, mutations, data):
    """Each kind of payload, changed: EncodingError, or something that can be unpacked to its end."""
    chosen = [(h, one) for h, one in frames_of(journal(good)) if h.kind in DECODERS]
    header, one = data.draw(st.sampled_from(chosen))
    payload = mutated(unpack(header, one[80:]), mutations)
    with contextlib.suppress(EncodingError):
        found = DECODERS[FrameKind(header.kind)](payload)
        if header.kind == FrameKind.ROWS:
            assert len(found.index) == len(found.calls) == len(found)
            found.table()


@FUZZ
@given(MUTATIONS, st.data())
@example([("number", 40, 2**63)], None)
def test_frames_under_right_checksums(fresh, mutations, data):
    """A frame's header and payload changed, both checksums set right again: a problem, or right forms."""
    run = fresh()
    frames = frames_of(journal(run))
    _, one = frames[-3] if data is None else data.draw(st.sampled_from(frames))
    packed = mutated(one, mutations)
    fields, payload = bytearray(packed[:72].ljust(72, b"\0")), packed[80:]
    fields[64:72] = checksum(payload)
    with contextlib.suppress(FrameError):
        unpack(read_header(bytes(fields) + checksum(bytes(fields)) + payload), payload)
    changed = [bytes(fields) + checksum(bytes(fields)) + payload if other is one else other for _, other in frames]
    journal(run).write_bytes(b"".join(changed))
    read_all(run)


@FUZZ
@given(MUTATIONS, st.sampled_from(["journal", "findings"]))
def test_files_of_frames(fresh, mutations, which):
    run = fresh()
    path = journal(run) if which == "journal" else findings_file(run)
    path.write_bytes(mutated(path.read_bytes(), mutations))
    read_all(run)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=6,
)


def replaced(body, draw, value):
    """The body with one value somewhere in it replaced."""
    if isinstance(body, dict) and body and draw(st.integers(0, 4)):
        key = draw(st.sampled_from(sorted(body)))
        return body | {key: replaced(body[key], draw, value)}
    if isinstance(body, list) and body and draw(st.integers(0, 4)):
        place = draw(st.integers(0, len(body) - 1))
        return [replaced(one, draw, value) if n == place else one for n, one in enumerate(body)]
    return value


def put_somewhere(body, draw, value):
    key = draw(st.sampled_from(sorted(body)))
    body[key] = replaced(body[key], draw, value)


JSON_FRAMES = {
    FrameKind.EVENT: {"kind": "note", "body": {"a": 1}},
    FrameKind.SITES: {"first": 0, "sites": [some_sites(1)[0].to_json()]},
    FrameKind.HEALTH: {"dropped_rows": 1},
    FrameKind.END: {"ended": "finished", "losses": {}},
    FrameKind.FILE: {"format_version": 1, "process": {"pid": 1}, "columns": []},
    FrameKind.FINDINGS: {"replace": False, "findings": [GOOD_FINDING]},
}


@FUZZ
@given(JSON, st.data())
def test_manifests_of_any_types(fresh, value, data):
    run = fresh()
    edit_manifest(run, lambda body: put_somewhere(body, data.draw, value))
    read_all(run)


@FUZZ
@given(JSON, st.data())
def test_descriptions_of_any_types(fresh, value, data):
    run = fresh()
    edit_run(run, lambda body: put_somewhere(body, data.draw, value))
    read_all(run)


@FUZZ
@given(JSON, st.data(), st.sampled_from(sorted(JSON_FRAMES)))
def test_json_frames_of_any_types(fresh, value, data, kind):
    run = fresh()
    body = json.dumps(replaced(JSON_FRAMES[kind], data.draw, value)).encode()
    if kind == FrameKind.FINDINGS:
        put_findings(run, body)
    else:
        rows = frame(rows_payload(3, num_columns=WIDE), FrameKind.ROWS)
        put_journal(run, frame(body, kind), rows, head=frame(body, kind) if kind == FrameKind.FILE else head_frame())
    read_all(run)


@FUZZ
@given(MUTATIONS, st.sampled_from(["rows", "scalars", "events", "pyramid", "vectors"]))
def test_parquet_under_right_hashes(fresh, mutations, name):
    run = fresh()
    files = json.loads((run / "rank-0/manifest.json").read_bytes())["segments"][0]["files"]
    label = next(one for one in files if one.startswith(name))
    data = mutated(table(run, name).read_bytes(), mutations)
    if name != "vectors":
        reseal(run, data, name)
    else:
        table(run, name).write_bytes(data)
        body = {"num_bytes": len(data), "sha256": hashlib.sha256(data).hexdigest(), "sums_sha256": "0" * 64}
        edit_manifest(run, lambda manifest: manifest["segments"][0]["files"][label].update(body))
    read_all(run)


@FUZZ
@given(MUTATIONS)
def test_small_files_under_a_right_hash(good, mutations):
    head = (good / "run.json").read_bytes().rpartition(b'\n"sha256": "')[0]
    with contextlib.suppress(RunError):
        assert isinstance(parse(hashed(mutated(head, mutations)), "run.json"), dict)


@FUZZ
@given(st.binary(max_size=200))
@example(b"[" * 100_000)
@example(b"1" * 5000)
@example(b'{"a": NaN}')
@example(b"\xff\xfe")
def test_json_of_any_bytes(raw):
    with contextlib.suppress(EncodingError):
        decode_json(raw)


@FUZZ
@given(st.dictionaries(st.text(max_size=5), st.floats(allow_nan=False), max_size=4))
def test_scalars_still_come_back(values):
    back = decode_scalars(encode_scalars([(7, values), (8, values)]))
    assert back.values.tolist() == [*values.values()] * 2
    assert back.steps.tolist() == [7] * len(values) + [8] * len(values)


@FUZZ
@given(
    st.sampled_from(["STETHOSCOPE_DISK", "STETHOSCOPE_IGNORE", "STETHOSCOPE_COMPANION", "STETHOSCOPE_QUIET"]),
    st.text(max_size=12),
)
def test_settings_of_any_text(name, value):
    value = value.replace("\0", "").encode("utf-8", "replace").decode()
    before = os.environ.get(name)
    os.environ[name] = value
    try:
        with contextlib.suppress(ConfigError):
            DebugConfig.load()
    finally:
        os.environ.pop(name) if before is None else os.environ.update({name: before})
