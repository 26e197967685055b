"""Run folders that an attacker made: each case turns a copy of a good run into one that lies, leads outside or wants too much.

Whoever makes them knows the format: checksums and hashes are right, only what they cover is not.
"""

from __future__ import annotations

import dataclasses
import hashlib
import io
import json
import operator
import os
import shutil
import socket
import struct
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import zstandard

from stethoscope.record import Evidence, Finding, Severity, events
from stethoscope.store import FindingsWriter, RunWriter, seal
from stethoscope.store.encoding import encode_rows, shuffle
from stethoscope.store.frames import _FIELDS, HEADER_BYTES, MAGIC, FrameKind, checksum, read_header
from stethoscope.store.json_payload import encode_json
from stethoscope.store.runfile import dump, parse
from stethoscope.store.scalars_payload import encode_scalars
from stethoscope.store.sealed_file import SUFFIX, block_sums
from tests.store.run_making import some_rows, some_sites

HOSTILE = "20261118-120000-hostile-bbbbbb"
CASES: dict[str, Callable[[Path, Path], None]] = {}
"""From name to what it does to (run folder, a folder outside of it that nobody may touch)."""


def case(name: str) -> Callable[[Any], Any]:
    def register(make: Callable[[Path, Path], None]) -> Callable[[Path, Path], None]:
        assert name not in CASES, name
        CASES[name] = make
        return make

    return register


def make_good(folder: Path) -> None:
    """A run with everything in it: sealed tables, an open journal, events, vectors, findings, a description."""
    info = {
        "name": "good",
        "config": {"ignore": [], "expect": [], "companion": "process"},
        "optimizers": ["AdamW"],
        "model": {
            "type": "Net",
            "modules": [
                {
                    "path": f"blocks.{n}",
                    "type": "Linear",
                    "detail": "",
                    "num_parameters": 16,
                    "trainable": True,
                    "source": None,
                }
                for n in range(3)
            ],
        },
    }
    for turn in range(2):
        writer = RunWriter.create(folder, info)
        writer.sites(some_sites(3))
        for step in range(40 * turn, 40 * turn + 40):
            index = np.arange(3) if step % 3 else np.array([0, 2])
            writer.rows(step, index, some_rows(len(index), step))
            writer.scalars(step, {"loss": 1.0 / (step + 1), "lr": 0.1, "step_ms": 2.0})
            writer.vectors(step, "histogram", index[:1], np.full((1, 8), step, np.uint32))
        writer.event(3, "ownership", {"groups": [{"optimizer": "AdamW", "sites": ["blocks.0.weight"], "lr": 0.1}]})
        writer.event(
            5,
            "graph",
            {"nodes": [{"path": "blocks.0", "calls": 1}], "edges": [{"source": "blocks.0", "target": "blocks.1"}]},
        )
        assert writer.flush()
        writer.close("finished")
        if not turn:
            seal(folder, final=True)
    findings = FindingsWriter(folder)
    findings.write(
        [
            Finding(
                "loss_rises", Severity.WARNING, "The loss rises.", 3, 39, ("blocks.0.weight",), (Evidence("loss", 2.0),)
            )
        ]
    )
    findings.close()


# What lies in a good run.


def journal(run: Path) -> Path:
    return sorted(run.glob("rank-0/journal-*.stj"))[-1]


def findings_file(run: Path) -> Path:
    return sorted(run.glob("findings/*.stf"))[-1]


def table(run: Path, name: str = "rows") -> Path:
    return sorted(run.glob(f"{name}/rank=0/*.parquet"))[0]


PLACES: dict[str, Callable[[Path], Path]] = {
    "run.json": lambda run: run / "run.json",
    "manifest": lambda run: run / "rank-0/manifest.json",
    "journal": journal,
    "findings": findings_file,
    "rows": table,
    "scalars": lambda run: table(run, "scalars"),
    "sums": lambda run: table(run).with_name(table(run).name + SUFFIX),
    "lock": lambda run: run / "rank-0/.sealing",
    "gitignore": lambda run: run / ".gitignore",
}
FOLDERS = (
    "rank-0",
    "rows",
    "rows/rank=0",
    "scalars/rank=0",
    "events/rank=0",
    "pyramid/rank=0",
    "vectors/rank=0",
    "findings",
)


def clear(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def _links_and_specials() -> None:
    def link_file(place: Callable[[Path], Path]) -> Callable[[Path, Path], None]:
        def make(run: Path, outside: Path) -> None:
            path = place(run)
            if path.exists():
                shutil.copy(path, outside / path.name)
            clear(path)
            path.symlink_to(outside / path.name)

        return make

    def link_folder(label: str) -> Callable[[Path, Path], None]:
        def make(run: Path, outside: Path) -> None:
            target = outside / label.replace("/", "-")
            shutil.move(run / label, target)
            (target / "part-9999-ffffffff-000000-000000.parquet").write_bytes(b"precious")
            (run / label).symlink_to(target)

        return make

    def replaced(place: Callable[[Path], Path], put: Callable[[Path], object]) -> Callable[[Path, Path], None]:
        def make(run: Path, _: Path) -> None:
            path = place(run)
            clear(path)
            put(path)

        return make

    def paused(make: Callable[[Path, Path], None]) -> Callable[[Path, Path], None]:
        def pause(run: Path, outside: Path) -> None:
            (run / "paused").write_text("hook 'halt' at step 3\n")
            make(run, outside)

        return pause

    def put_socket(path: Path) -> None:
        with socket.socket(socket.AF_UNIX) as made:
            here = Path.cwd()
            os.chdir(path.parent)  # a socket's whole path is bounded
            try:
                made.bind(path.name)
            finally:
                os.chdir(here)

    for name, place in PLACES.items():
        case(f"{name} is a link outside")(link_file(place))
        case(f"{name} is a FIFO")(replaced(place, os.mkfifo))
        case(f"{name} is a folder")(replaced(place, Path.mkdir))
    for name in ("run.json", "manifest", "journal", "findings", "rows"):
        case(f"{name} is a link to /dev/zero")(replaced(PLACES[name], lambda path: path.symlink_to("/dev/zero")))
        case(f"{name} is 20 GB of nothing")(replaced(PLACES[name], _sparse))
    for name in ("run.json", "manifest", "journal"):
        case(f"{name} is a socket")(replaced(PLACES[name], put_socket))
    for name in ("run.json", "manifest", "journal", "findings", "rows", "sums"):
        case(f"{name} is empty")(replaced(PLACES[name], Path.touch))
    for label in FOLDERS:
        case(f"folder {label} is a link outside")(link_folder(label))
    for name in ("paused", "resume"):
        named = operator.methodcaller("__truediv__", name)
        case(f"{name} is a link outside")(paused(link_file(named)))
        for what, put in {"a FIFO": os.mkfifo, "a folder": Path.mkdir, "20 GB of nothing": _sparse}.items():
            case(f"{name} is {what}")(paused(replaced(named, put)))
        case(f"{name} is a link to /dev/zero")(
            paused(replaced(named, operator.methodcaller("symlink_to", "/dev/zero")))
        )


def _sparse(path: Path) -> None:
    with path.open("wb") as file:
        file.truncate(20 << 30)


_links_and_specials()


@case("another rank is a link to /")
def _(run: Path, _outside: Path) -> None:
    (run / "rank-1").symlink_to("/")


@case("captures is a link outside")
def _(run: Path, outside: Path) -> None:
    (run / "captures").symlink_to(outside)


@case("a folder links to itself")
def _(run: Path, _outside: Path) -> None:
    shutil.rmtree(run / "rows/rank=0")
    (run / "rows/rank=0").symlink_to("../../rows/rank=0")


# Names and numbers of files.

NAMES = {
    "a journal numbered 99999999999": "rank-0/journal-0001-aaaaaaaa-99999999999.stj",
    "a journal numbered 9999999": "rank-0/journal-0001-aaaaaaaa-9999999.stj",
    "a journal of start 999999999": "rank-0/journal-999999999-aaaaaaaa-000000.stj",
    "a journal in other digits": "rank-0/journal-٠٠٠١-aaaaaaaa-000000.stj",
    "a rank of eleven digits": "rank-99999999999/journal-0001-aaaaaaaa-000000.stj",
    "a rank in other digits": "rank-٣/journal-0001-aaaaaaaa-000000.stj",
    "a name with a terminal escape": "rank-0/journal-\x1b[31m.stj",
    "a name that is not UTF-8": os.fsdecode(b"rank-0/journal-\xff.stj"),
}
for _name, _label in NAMES.items():

    @case(_name)
    def _(run: Path, _outside: Path, label: str = _label) -> None:
        (run / label).parent.mkdir(exist_ok=True)
        shutil.copy(journal(run), run / label)


@case("5,000 empty journals")
def _(run: Path, _outside: Path) -> None:
    for n in range(5000):
        (run / f"rank-0/journal-0009-aaaaaaaa-{n:06d}.stj").touch()


@case("60,000 names in a rank's folder")
def _(run: Path, _outside: Path) -> None:
    for n in range(60_000):
        os.close(os.open(run / f"rank-0/x{n}", os.O_CREAT | os.O_WRONLY))


@case("2,000 ranks")
def _(run: Path, _outside: Path) -> None:
    for n in range(1, 2001):
        (run / f"rank-{n}").mkdir()


# Frames: checksums are right.


def frame(payload: bytes, kind: int = FrameKind.EVENT, **changes: Any) -> bytes:
    """A frame whose header says what it is told to, under a right checksum."""
    values = {
        "magic": MAGIC,
        "kind": int(kind),
        "flags": 0,
        "zero": 0,
        "file_id": b"hostile!",
        "sequence": 0,
        "serial": 0,
        "step": 1,
        "time": 1e9,
        "stored": len(payload),
        "raw": len(payload),
        "sum": checksum(payload),
    } | changes
    head = _FIELDS.pack(*values.values())
    return head + checksum(head) + payload


def head_frame(**changes: Any) -> bytes:
    body = {"format_version": 1, "started_at": 1e9, "process": {"pid": 1, "host": "nowhere"}} | changes
    return frame(encode_json(body), FrameKind.FILE)


def put_journal(
    run: Path, *frames: bytes, head: bytes | None = None, name: str = "journal-0007-aaaaaaaa-000000.stj"
) -> None:
    """One more journal of a start of its own; the sequence numbers are set right unless a frame has one."""
    sites = frame(encode_json({"first": 0, "sites": [info.to_json() for info in some_sites(3)]}), FrameKind.SITES)
    out = []
    for n, one in enumerate([head or head_frame(), sites, *frames]):
        header = read_header(one) if len(one) >= HEADER_BYTES and one[:4] == MAGIC and _is_plain(one) else None
        out.append(_numbered(one, n) if header is not None and header.sequence == 0 else one)
    (run / "rank-0" / name).write_bytes(b"".join(out))


def _is_plain(one: bytes) -> bool:
    try:
        read_header(one)
    except ValueError:
        return False
    return True


def _numbered(one: bytes, sequence: int) -> bytes:
    fields = list(_FIELDS.unpack_from(one))
    fields[5] = sequence
    head = _FIELDS.pack(*fields)
    return head + checksum(head) + one[HEADER_BYTES:]


def bomb(num_bytes: int, kind: int = FrameKind.EVENT, head: bytes = b"") -> bytes:
    raw = head + bytes(num_bytes - len(head))
    packed = zstandard.ZstdCompressor(level=3).compress(raw)
    return frame(packed, kind, flags=1, raw=len(raw))


def rows_payload(num_rows: int, tags: bytes | None = None, num_columns: int = 17) -> bytes:
    """Rows of constants only, as many as are asked for."""
    tags = tags if tags is not None else bytes([1, 0, *([0] * num_columns)])
    return (
        struct.pack("<IHBB", num_rows, num_columns, 1, 0)
        + tags
        + struct.pack("<I", 0)
        + struct.pack("<d", 1.0) * (num_columns + 1)
    )


def _num_columns() -> int:
    from stethoscope.kernels.columns import NUM_COLUMNS

    return NUM_COLUMNS


WIDE = _num_columns()
EVENT = encode_json({"kind": "note", "body": {}})
MANY_ROWS = rows_payload(1 << 22, num_columns=WIDE)
ENDS = (-(2**63), 2**63 - 1)
FRAMES: dict[str, Callable[[], list[bytes]]] = {
    "a frame of 1 GB in 33 kB": lambda: [bomb(1 << 30)],
    "300 frames of 60 MB each": lambda: [bomb(60 << 20, FrameKind.VECTORS)] * 300,
    "a length of 2**63": lambda: [frame(EVENT, stored=2**63)],
    "an unpacked length of 2**63": lambda: [frame(EVENT, raw=2**63)],
    "an unpacked length that lies": lambda: [frame(EVENT, raw=1 << 20)],
    "zstd that does not say its size": lambda: [_sizeless()],
    "zstd that is none": lambda: [frame(b"not zstd at all", flags=1, raw=1 << 20)],
    "150,000 empty events": lambda: [frame(EVENT)] * 150_000,
    "a time that is NaN": lambda: [frame(EVENT, time=float("nan"))],
    "a time of 1e300": lambda: [frame(EVENT, time=1e300)],
    "steps at both ends of 64 bits": lambda: [
        frame(rows_payload(3, num_columns=WIDE), FrameKind.ROWS, step=s) for s in ENDS
    ],
    "steps a trillion apart": lambda: [
        frame(rows_payload(3, num_columns=WIDE), FrameKind.ROWS, step=s * 10**12) for s in range(40)
    ],
    "scalars at both ends of 64 bits": lambda: [
        frame(encode_scalars([(s, {"loss": 1.0})]), FrameKind.SCALARS, step=s) for s in ENDS
    ],
    "scalars of format 1 at both ends of 64 bits": lambda: [
        frame(_scalars_of_step(["loss"]), FrameKind.SCALARS_OF_STEP, step=s) for s in ENDS
    ],
    "a serial of 2**64": lambda: [frame(EVENT, serial=2**64 - 1)],
    "a sequence of 2**64": lambda: [frame(EVENT, sequence=2**64 - 1)],
    "a kind of 255": lambda: [frame(EVENT, 255)],
    "4 billion rows of constants": lambda: [frame(rows_payload(2**32 - 1, num_columns=WIDE), FrameKind.ROWS)],
    "4 million rows of constants, 40 times": lambda: [frame(MANY_ROWS, FrameKind.ROWS, step=n) for n in range(40)],
    "rows with unknown forms": lambda: [frame(rows_payload(3, bytes([1, 0, *([77] * WIDE)]), WIDE), FrameKind.ROWS)],
    "rows whose maxima follow from themselves": lambda: [
        frame(rows_payload(3, bytes([1, 0, *([8] * WIDE)]), WIDE), FrameKind.ROWS)
    ],
    "rows of no column": lambda: [frame(rows_payload(3, bytes([1, 0]), 0), FrameKind.ROWS)],
    "rows called NaN times": lambda: [frame(_nan_calls(), FrameKind.ROWS)],
    "rows of all numbers Inf": lambda: [
        frame(encode_rows(np.arange(3, dtype=np.uint32), np.full((3, WIDE), np.inf)), FrameKind.ROWS)
    ],
    "vectors 4 billion wide": lambda: [frame(_vectors(3, 2**32 - 1, 1), FrameKind.VECTORS)],
    "4 billion vectors of nothing": lambda: [frame(_vectors(2**32 - 1, 0, 1), FrameKind.VECTORS)],
    "vectors with an odd index": lambda: [frame(_vectors(3, 1, 9), FrameKind.VECTORS)],
    "vectors of objects": lambda: [frame(_vectors(3, 1, 1, dtype="|O"), FrameKind.VECTORS)],
    "scalars named by numbers": lambda: [frame(_scalars_of_step([1, 2]), FrameKind.SCALARS_OF_STEP)],
    "scalars named by an object": lambda: [frame(_scalars_of_step({"a": 1}), FrameKind.SCALARS_OF_STEP)],
    "more scalars than there are": lambda: [frame(struct.pack("<II", 2**32 - 1, 2) + b"[]", FrameKind.SCALARS_OF_STEP)],
    "tables of scalars named by numbers": lambda: [frame(_scalars([1, 2]), FrameKind.SCALARS)],
    "4 billion scalars of one step": lambda: [frame(_scalars(["a"], counts=[2**32 - 1]), FrameKind.SCALARS)],
    "scalars of names that there are not": lambda: [frame(_scalars(["a"], codes=[2**32 - 1]), FrameKind.SCALARS)],
    "more steps with scalars than there are": lambda: [
        frame(struct.pack("<III", 2**32 - 1, 0, 2) + b"[]", FrameKind.SCALARS)
    ],
    "an event that is a list": lambda: [frame(b"[1,2]")],
    "an event whose body is a list": lambda: [frame(encode_json({"kind": "graph", "body": [1]}))],
    "an event whose kind is an object": lambda: [frame(encode_json({"kind": {}, "body": {}}))],
    "an event nested 900 deep": lambda: [frame(b'{"kind":"note","body":{"a":' + b"[" * 900 + b"]" * 900 + b"}}")],
    "an event nested a million deep": lambda: [frame(b"[" * 1_000_000)],
    "an event with a number of 4,000 digits": lambda: [frame(b'{"kind":"note","body":{"a":' + b"9" * 4000 + b"}}")],
    "an event of 30 million values": lambda: [frame(b'{"kind":"note","body":{"a":[' + b"[]," * (10 << 20) + b"[]]}}")],
    "an event that is not UTF-8": lambda: [frame(b'{"kind":"\xff\xfe","body":{}}')],
    "an event named by a terminal escape": lambda: [
        frame(encode_json({"kind": "\x1b]0;x\x07", "body": {"\x1b[2J": "\u202e"}}))
    ],
    "sites from 2**40 on": lambda: [
        frame(encode_json({"first": 2**40, "sites": [some_sites(1)[0].to_json()]}), FrameKind.SITES)
    ],
    "sites that are texts": lambda: [frame(encode_json({"first": 0, "sites": ["a", "b"]}), FrameKind.SITES)],
    "sites of an unknown kind": lambda: [_sites({"kind": "x"})],
    "sites with a shape of texts": lambda: [_sites({"shape": ["a"]})],
    "sites with a shape of 2**62": lambda: [_sites({"shape": [2**62] * 9})],
    "losses that are texts": lambda: [frame(encode_json({"dropped_rows": "many"}), FrameKind.HEALTH)],
    "losses that are a list": lambda: [frame(b"[]", FrameKind.HEALTH)],
    "an end that is a list": lambda: [frame(b"[]", FrameKind.END)],
    "an end named by a list": lambda: [frame(encode_json({"ended": ["finished"], "losses": {}}), FrameKind.END)],
}


def _sites(changes: dict[str, Any]) -> bytes:
    return frame(encode_json({"first": 0, "sites": [some_sites(1)[0].to_json() | changes]}), FrameKind.SITES)


def _sizeless() -> bytes:
    packed = zstandard.ZstdCompressor(write_content_size=False).compress(bytes(1 << 20))
    return frame(packed, flags=1, raw=1 << 20)


def _nan_calls() -> bytes:
    raw = bytearray(rows_payload(3, num_columns=WIDE))
    place = 8 + WIDE + 2 + 4
    raw[place : place + 8] = struct.pack("<d", float("nan"))
    return bytes(raw)


def _vectors(count: int, width: int, tag: int, dtype: str = "<u4") -> bytes:
    label = json.dumps(["histogram", dtype]).encode()
    return struct.pack("<IIII", count, width, len(label), tag) + label + struct.pack("<I", 0) + bytes(12)


def _scalars_of_step(names: Any) -> bytes:
    packed = json.dumps(names).encode()
    return struct.pack("<II", len(names), len(packed)) + packed + bytes(8 * len(names))


def _scalars(names: Any, counts: Sequence[int] = (1,), codes: Sequence[int] = (0,)) -> bytes:
    """One step and one number, with what is said of them."""
    packed = json.dumps(names).encode()
    told = b"".join(shuffle(np.array(numbers, "<u4")) for numbers in (counts, codes))
    return struct.pack("<III", 1, 1, len(packed)) + packed + bytes(8) + told + bytes(8)


for _name, _frames in FRAMES.items():

    @case(_name)
    def _(run: Path, _outside: Path, frames: Callable[[], list[bytes]] = _frames) -> None:
        put_journal(run, *frames())


HEADS: dict[str, Any] = {
    "a head whose process is a list": {"process": []},
    "a head whose process id is a text": {"process": {"pid": "1", "host": os.uname().nodename}},
    "a head begun at a text": {"started_at": "yesterday"},
    "a head begun at 1e300": {"started_at": 1e300},
    "a head whose columns are one": {"columns": ["norm"]},
    "a head whose columns repeat": {"columns": ["norm"] * WIDE},
    "a head whose columns are numbers": {"columns": list(range(WIDE))},
    "a head whose format is a text": {"format_version": "1"},
}
for _name, _changes in HEADS.items():

    @case(_name)
    def _(run: Path, _outside: Path, changes: dict[str, Any] = _changes) -> None:
        put_journal(run, frame(rows_payload(3, num_columns=WIDE), FrameKind.ROWS), head=head_frame(**changes))


@case("a head that is a list")
def _(run: Path, _outside: Path) -> None:
    put_journal(run, frame(EVENT), head=frame(b"[]", FrameKind.FILE))


@case("a journal of 90 MB of magic")
def _(run: Path, _outside: Path) -> None:
    (run / "rank-0/journal-0007-aaaaaaaa-000000.stj").write_bytes(MAGIC * (22 << 20))


@case("a journal of 90 MB of zeros")
def _(run: Path, _outside: Path) -> None:
    with (run / "rank-0/journal-0007-aaaaaaaa-000000.stj").open("wb") as file:
        file.truncate(90 << 20)


@case("a journal damaged at 20,000 places")
def _(run: Path, _outside: Path) -> None:
    frames = [_numbered(frame(EVENT), n) for n in range(1, 40_000)]
    put = b"".join(one if n % 2 else b"\0" * 40 for n, one in enumerate(frames))
    (run / "rank-0/journal-0007-aaaaaaaa-000000.stj").write_bytes(head_frame() + put)


# Events that readers take apart.


@case("every kind of event, empty and of other types")
def _(run: Path, _outside: Path) -> None:
    bodies: list[dict[str, Any]] = []
    for kind, declared in events.KINDS.items():
        names = [field.name for field in dataclasses.fields(declared)]
        wrongs = (None, "x", [1], [{}], {"a": 1}, -1, 1e308, True)
        bodies += [{"kind": kind, "body": {} if wrong is None else dict.fromkeys(names, wrong)} for wrong in wrongs]
    put_journal(run, *(frame(encode_json(body), serial=n) for n, body in enumerate(bodies)))


for _kind in ("graph", "ownership", "batch", "modules", "start", "checkup", "loss_graph", "lists"):

    @case(f"a {_kind} event of other types")
    def _(run: Path, _outside: Path, kind: str = _kind) -> None:
        wrong = [
            {"groups": "x", "nodes": "x", "edges": "x", "modules": "x", "info": "x", "sites": "x"},
            {
                "groups": [1],
                "nodes": [1],
                "edges": [1],
                "modules": [1],
                "fingerprints": [1],
                "operations": [1],
                "sites": [1],
            },
            {"groups": [{}], "nodes": [{}], "edges": [{}], "modules": {"a": 1}, "num_classes": "x", "times": "x"},
        ]
        put_journal(run, *(frame(encode_json({"kind": kind, "body": body}), serial=n) for n, body in enumerate(wrong)))


# run.json


def edit_run(run: Path, edit: Callable[[dict[str, Any]], Any]) -> None:
    body = parse((run / "run.json").read_bytes(), run)
    edit(body)
    (run / "run.json").write_bytes(dump(body))


INFO: dict[str, Callable[[dict[str, Any]], Any]] = {
    "settings that are a list": lambda body: body["info"].update(config=[]),
    "settings that ignore numbers": lambda body: body["info"]["config"].update(ignore=[1, 2]),
    "settings that expect an object": lambda body: body["info"]["config"].update(expect={"a": 1}),
    "a model of texts": lambda body: body["info"].update(model="Net"),
    "modules that are texts": lambda body: body["info"]["model"].update(modules=["a"]),
    "modules without a path": lambda body: body["info"]["model"].update(modules=[{}]),
    "modules with sizes of texts": lambda body: body["info"]["model"]["modules"][0].update(
        num_parameters="many", source=[1], detail={}
    ),
    "an info that is a list": lambda body: body.update(info=[1]),
    "a run created at a text": lambda body: body.update(created_at="now"),
    "a run created at 1e308": lambda body: body.update(created_at=1e308),
    "a name that is an object": lambda body: body.update(name={"a": 1}),
    "a name of a megabyte": lambda body: body.update(name="x" * (1 << 20)),
    "a name of terminal escapes": lambda body: body.update(name="\x1b[2J\u202e\0<script>"),
    "optimizers that are numbers": lambda body: body["info"].update(optimizers=[1, {}]),
    "versions that are a list": lambda body: body["info"].update(versions=[1]),
    "a format of the future": lambda body: body.update(format_version=999),
    "a format that is a text": lambda body: body.update(format_version="1"),
}
for _name, _edit in INFO.items():

    @case(_name)
    def _(run: Path, _outside: Path, edit: Callable[[dict[str, Any]], Any] = _edit) -> None:
        edit_run(run, edit)


def hashed(head: bytes) -> bytes:
    """The bytes of a file under its own hash, whatever they say."""
    return head + b'\n"sha256": "' + hashlib.sha256(head).hexdigest().encode() + b'"}\n'


for _name, _head in {
    "run.json nested 100,000 deep": b'{"format_version": 1, "a": ' + b"[" * 100_000 + b"]" * 100_000 + b",",
    "run.json of 10 million values": b'{"format_version": 1, "a": [' + b"[]," * (10 << 20) + b"1],",
    "run.json that is no JSON": b"nothing,",
}.items():

    @case(_name)
    def _(run: Path, _outside: Path, head: bytes = _head) -> None:
        (run / "run.json").write_bytes(hashed(head))


# Manifests


def edit_manifest(run: Path, edit: Callable[[dict[str, Any]], Any]) -> None:
    path = run / "rank-0/manifest.json"
    body = parse(path.read_bytes(), path)
    edit(body)
    path.write_bytes(dump(body, indent=None))


def _segment(**changes: Any) -> Callable[[dict[str, Any]], Any]:
    return lambda body: body["segments"][0].update(**changes)


def _path(text: str, name: str = "rows") -> Callable[[dict[str, Any]], Any]:
    return lambda body: body["segments"][0]["files"][name].update(path=text)


MANIFESTS: dict[str, Callable[[dict[str, Any]], Any]] = {
    "a path of ../../": _path("../../outside/precious.parquet"),
    "a path of .. inside a table's folder": _path("rows/rank=0/../../../outside/precious.parquet"),
    "a path that is absolute": _path("/etc/passwd"),
    "a path of another rank": _path("rows/rank=1/part-0001-aaaaaaaa-000000-000000.parquet"),
    "a path with NUL": _path("rows/rank=0/part-\0.parquet"),
    "a path that is a number": lambda body: body["segments"][0]["files"]["rows"].update(path=7),
    "a file named twice": lambda body: body["segments"][0]["files"].update(
        pyramid=dict(body["segments"][0]["files"]["rows"])
    ),
    "a file of 2**62 bytes": lambda body: body["segments"][0]["files"]["rows"].update(num_bytes=2**62),
    "a table of another name": lambda body: body["segments"][0]["files"].update(
        vectors=body["segments"][0]["files"].pop("rows")
    ),
    "steps of a trillion": _segment(steps=[[0, 10**12, 1]]),
    "steps that overflow": _segment(steps=[[2**62, 40, 2**60]]),
    "steps that fall": _segment(steps=[[5, 1, 1], [1, 1, 1]]),
    "steps of stride 0": _segment(steps=[[5, 10, 0]]),
    "steps that are texts": _segment(steps=[["a", "b", "c"]]),
    "steps far apart": _segment(steps=[[0, 40, 10**12]]),
    "sites that are not there": _segment(sites=[[0, 500, 1]]),
    "sites below zero": _segment(sites=[[-5, 3, 1]]),
    "more rows than there are": _segment(num_rows=1 << 19),
    "2**60 rows": _segment(num_rows=2**60),
    "a density that lies": _segment(is_dense=True, num_rows=120),
    "parts of 10**18": _segment(parts=[10**18]),
    "parts that are texts": _segment(parts=["0"]),
    "no part": _segment(parts=[]),
    "a key of another rank": _segment(key=[5, 1, "aaaaaaaa"]),
    "a key of two": _segment(key=[0, 1]),
    "a thinning below zero": _segment(thinned=-4),
    "an unknown field": _segment(surprise=1),
    "segments that are texts": lambda body: body.update(segments=["a"]),
    "segments that are an object": lambda body: body.update(segments={}),
    "no sites": lambda body: body.update(sites=[]),
    "sites of the manifest that are texts": lambda body: body.update(sites=["a"]),
    "a start whose head is a list": lambda body: body["starts"][0].update(head=[]),
    "a start whose end is a text": lambda body: body["starts"][0].update(ended="finished"),
    "a start that ended in a list": lambda body: body["starts"][0].update(ended={"ended": []}),
    "a start whose losses are texts": lambda body: body["starts"][0].update(losses={"dropped_rows": "x"}),
    "a start of no time": lambda body: body["starts"][0].update(last_time=1e300),
    "starts that are missing": lambda body: body.pop("starts"),
    "100,000 problems": lambda body: body.update(problems=[{"file": "x", "offset": 0, "what": "y"}] * 100_000),
    "problems that are texts": lambda body: body.update(problems=["x"]),
    "a rollup outside": lambda body: body.update(ladder=[_rollup("../../outside/precious.parquet")]),
    "a rollup of 2**50 buckets": lambda body: body.update(ladder=[_rollup(count=2**50)]),
    "a rollup that is not there": lambda body: body.update(ladder=[_rollup()]),
}


def _rollup(path: str = "ladder/rank=0/rung-0001-aaaaaaaa-1-000000-000001.parquet", **changes: Any) -> dict[str, Any]:
    file = {"path": path, "num_bytes": 10, "sha256": "0" * 64, "sums_sha256": "0" * 64}
    return {
        "key": [0, 1, "aaaaaaaa"],
        "height": 1,
        "level": 6,
        "parts": [0, 1],
        "first": 0,
        "count": 1,
        "num_sites": 1,
        "group_sites": 1,
        "file": file,
    } | changes


for _name, _edit in MANIFESTS.items():

    @case(_name)
    def _(run: Path, outside: Path, edit: Callable[[dict[str, Any]], Any] = _edit) -> None:
        (outside / "precious.parquet").write_bytes(table(run).read_bytes())
        edit_manifest(run, edit)


@case("a manifest that is a list")
def _(run: Path, _outside: Path) -> None:
    (run / "rank-0/manifest.json").write_bytes(hashed(b"[1,"))


# Parquet under right hashes


def reseal(run: Path, data: bytes, name: str = "rows") -> None:
    """Puts other bytes in a sealed table's place, with hashes that match."""
    path, sums = table(run, name), block_sums(data)
    path.write_bytes(data)
    path.with_name(path.name + SUFFIX).write_bytes(sums)
    entry = {
        "num_bytes": len(data),
        "sha256": hashlib.sha256(data).hexdigest(),
        "sums_sha256": hashlib.sha256(sums).hexdigest(),
    }
    edit_manifest(run, lambda body: body["segments"][0]["files"][name].update(entry))


def parquet(found: Any, **options: Any) -> bytes:
    sink = io.BytesIO()
    pq.write_table(found, sink, compression="zstd", **options)
    return sink.getvalue()


def changed(run: Path, edit: Callable[[Any], Any], name: str = "rows", **options: Any) -> None:
    reseal(run, parquet(edit(pq.read_table(table(run, name), partitioning=None)), **options), name)


@case("a Parquet file of 200 million rows")
def _(run: Path, _outside: Path) -> None:
    sink = io.BytesIO()
    some = pa.table({name: pa.array(np.zeros(4_000_000, np.int64)) for name in ("step", "site", "norm")})
    with pq.ParquetWriter(sink, some.schema, compression="zstd") as writer:
        for _ in range(50):
            writer.write_table(some, row_group_size=4_000_000)
    reseal(run, sink.getvalue())
    reseal(run, sink.getvalue(), "pyramid")


@case("scalars of 100 million rows")
def _(run: Path, _outside: Path) -> None:
    sink = io.BytesIO()
    some = pa.table(
        {
            "step": pa.array(np.zeros(4_000_000, np.int64)),
            "name": pa.array(["loss"] * 4_000_000).dictionary_encode(),
            "start": pa.array(np.zeros(4_000_000, np.int32)),
            "value": pa.array(np.zeros(4_000_000)),
        }
    )
    with pq.ParquetWriter(sink, some.schema, compression="zstd") as writer:
        for _ in range(25):
            writer.write_table(some, row_group_size=4_000_000)
    reseal(run, sink.getvalue(), "scalars")


@case("events that share a text of 10 MB")
def _(run: Path, _outside: Path) -> None:
    body = json.dumps({"kind": "note", "body": {"a": "x" * (10 << 20)}})
    num = 20_000
    reseal(
        run,
        parquet(
            pa.table(
                {
                    "step": pa.array(np.arange(num)),
                    "serial": pa.array(np.arange(num)),
                    "start": pa.array(np.zeros(num, np.int32)),
                    "time": pa.array(np.zeros(num)),
                    "kind": pa.array(["note"] * num),
                    "json": pa.DictionaryArray.from_arrays(pa.array(np.zeros(num, np.int32)), pa.array([body])),
                }
            )
        ),
        "events",
    )


@case("rows that share a module of 10 MB")
def _(run: Path, _outside: Path) -> None:
    def edit(found: Any) -> Any:
        words = pa.DictionaryArray.from_arrays(pa.array(np.zeros(len(found), np.int32)), pa.array(["x" * (10 << 20)]))
        return found.set_column(found.schema.get_field_index("module"), "module", words)

    changed(run, edit)


@case("a page of Parquet that unpacks to 1 GB")
def _(run: Path, _outside: Path) -> None:
    def edit(found: Any) -> Any:
        words = pa.array(["\0" * (900 << 20)]).cast(pa.large_string())
        text = pa.DictionaryArray.from_arrays(pa.array(np.zeros(len(found), np.int32)), words)
        return found.set_column(
            found.schema.get_field_index("name"), "name", text.cast(pa.dictionary(pa.int32(), pa.large_string()))
        )

    changed(run, edit, "scalars")


def _with(name: str, values: Callable[[int], Any]) -> Callable[[Any], Any]:
    return lambda found: found.set_column(found.schema.get_field_index(name), name, values(len(found)))


TABLES: dict[str, tuple[str, Callable[[Any], Any]]] = {
    "a norm of texts": ("rows", _with("norm", lambda n: pa.array(["x"] * n))),
    "a norm of nulls": ("rows", _with("norm", lambda n: pa.nulls(n, pa.float64()))),
    "a norm of lists": ("rows", _with("norm", lambda n: pa.array([[1.0]] * n))),
    "sites of 4 billion": ("rows", _with("site", lambda n: pa.array(np.full(n, 2**32 - 1, np.uint32)))),
    "sites below zero in a table": ("rows", _with("site", lambda n: pa.array(np.full(n, -1, np.int64)))),
    "sites that are fractions": ("rows", _with("site", lambda n: pa.array(np.full(n, 0.5)))),
    "a table without norm": ("rows", lambda found: found.drop(["norm"])),
    "a table of half the rows": ("rows", lambda found: found.slice(0, len(found) // 2)),
    "a table of no rows": ("rows", lambda found: found.slice(0, 0)),
    "a table of 3,000 columns": ("rows", lambda found: pa.table({f"c{n}": [1] for n in range(3000)})),
    "scalars without names": ("scalars", lambda found: found.drop(["name"])),
    "scalars named by numbers in a table": ("scalars", _with("name", lambda n: pa.array(range(n)))),
    "scalars with an escaped name that is none": ("scalars", _with("name", lambda n: pa.array(["\0json:{"] * n))),
    "events that are no JSON": ("events", _with("json", lambda n: pa.array(["{"] * n))),
    "events that are lists": ("events", _with("json", lambda n: pa.array(["[]"] * n))),
    "events of no time": ("events", _with("time", lambda n: pa.array([float("inf")] * n))),
    "events of texts as steps": ("events", _with("step", lambda n: pa.array(["x"] * n))),
    "buckets below zero": ("pyramid", _with("step", lambda n: pa.array(np.full(n, -(2**63))))),
    "buckets of texts": ("pyramid", _with("norm_min", lambda n: pa.array(["x"] * n))),
}
for _name, (_table, _edit) in TABLES.items():

    @case(_name)
    def _(run: Path, _outside: Path, name: str = _table, edit: Callable[[Any], Any] = _edit) -> None:
        changed(run, edit, name)


@case("a Parquet file that is none")
def _(run: Path, _outside: Path) -> None:
    reseal(run, b"PAR1" + os.urandom(500) + b"PAR1")


@case("a Parquet footer of 4 GB")
def _(run: Path, _outside: Path) -> None:
    reseal(run, table(run).read_bytes()[:-8] + b"\xff\xff\xff\xffPAR1")


@case("a Parquet file with its middle gone")
def _(run: Path, _outside: Path) -> None:
    data = table(run).read_bytes()
    reseal(run, data[: len(data) // 4] + data[len(data) // 2 :])


@case("Parquet pages of noise")
def _(run: Path, _outside: Path) -> None:
    data = bytearray(table(run).read_bytes())
    data[4 : len(data) // 2] = os.urandom(len(data) // 2 - 4)
    reseal(run, bytes(data))


@case("Parquet in which every row is a group")
def _(run: Path, _outside: Path) -> None:
    changed(run, lambda found: found, row_group_size=1)


# Findings


def put_findings(run: Path, body: Any) -> None:
    name = "findings/findings-0009-aaaaaaaa.stf"
    (run / name).write_bytes(
        head_frame() + _numbered(frame(body if isinstance(body, bytes) else encode_json(body), FrameKind.FINDINGS), 1)
    )


GOOD_FINDING = {"code": "loss_rises", "severity": "Warning", "message": "x", "first_step": 1, "last_step": 2}
FINDINGS: dict[str, Any] = {
    "findings that are a list": [],
    "findings that are texts": {"replace": False, "findings": ["a"]},
    "findings without replace": {"findings": []},
    "a finding of no severity": {"replace": False, "findings": [GOOD_FINDING | {"severity": "Terrible"}]},
    "a finding at sites of numbers": {"replace": False, "findings": [GOOD_FINDING | {"sites": [1, 2]}]},
    "a finding from a text on": {"replace": False, "findings": [GOOD_FINDING | {"first_step": "1"}]},
    "a finding of an unknown code": {"replace": False, "findings": [GOOD_FINDING | {"code": "\x1b[2J../../x"}]},
    "a finding with texts as evidence": {
        "replace": False,
        "findings": [GOOD_FINDING | {"evidence": [{"label": "a", "value": "b"}]}],
    },
    "a finding with strange evidence": {
        "replace": False,
        "findings": [GOOD_FINDING | {"evidence": [{"label": "a", "value": 1, "z": 2}]}],
    },
    "a finding of steps beyond all": {
        "replace": False,
        "findings": [GOOD_FINDING | {"first_step": -(2**62), "last_step": 2**62}],
    },
    "a finding of a rank of text": {"replace": False, "findings": [GOOD_FINDING | {"rank": "0"}]},
    "20,000 findings": {"replace": False, "findings": [GOOD_FINDING | {"first_step": n} for n in range(20_000)]},
}
for _name, _body in FINDINGS.items():

    @case(_name)
    def _(run: Path, _outside: Path, body: Any = _body) -> None:
        put_findings(run, body)


@case("findings of 1 GB in 33 kB")
def _(run: Path, _outside: Path) -> None:
    (run / "findings/findings-0009-aaaaaaaa.stf").write_bytes(
        head_frame() + _numbered(bomb(1 << 30, FrameKind.FINDINGS), 1)
    )


@dataclasses.dataclass(frozen=True)
class Canaries:
    """What lies outside of the run folders, as it was."""

    root: Path
    before: dict[str, tuple[int, bytes | str]]

    @classmethod
    def of(cls, root: Path) -> Canaries:
        return cls(root, _everything(root))

    def changes(self) -> list[str]:
        """What is not as it was."""
        after = _everything(self.root)
        return sorted(name for name in self.before.keys() | after.keys() if self.before.get(name) != after.get(name))


def _everything(root: Path) -> dict[str, tuple[int, bytes | str]]:
    found: dict[str, tuple[int, bytes | str]] = {}
    for path in root.rglob("*"):
        state = path.lstat()
        content: bytes | str = path.read_bytes() if path.is_file() and not path.is_symlink() else ""
        found[str(path.relative_to(root))] = state.st_mode, content
    return found


def make_case(name: str, good: Path, place: Path) -> tuple[Path, Canaries]:
    """A folder of runs that holds this one case beside a good one, and the canaries outside of it."""
    outside = place / "outside"
    outside.mkdir(parents=True)
    (outside / "precious.txt").write_text("do not touch")
    run = place / "runs" / HOSTILE
    shutil.copytree(good, run, symlinks=True)
    shutil.copytree(good, place / "runs" / "20261118-110000-good-aaaaaa", symlinks=True)
    CASES[name](run, outside)
    return run, Canaries.of(outside)
