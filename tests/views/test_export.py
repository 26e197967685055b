"""Exports: read back by the programs they are for, whole or not there, and clear about what cannot be done."""

from __future__ import annotations

import csv
import json
import struct
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from stethoscope.cli import main
from stethoscope.kernels import histogram
from stethoscope.record import Evidence, Finding, Kind, Severity, Site, SiteInfo
from stethoscope.store import RunWriter, open_run
from stethoscope.views.export import TABLES, export_run
from stethoscope.views.export.tensorboard import masked_crcs
from tests.store.run_making import write_findings
from tests.views import synthetic

NASTY = "=cmd|' /C calc'!A0</script>\x1b[2J"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A run with rows, metrics, events, histograms, findings; some numbers are none, some names hostile."""
    path = tmp_path_factory.mktemp("runs") / "20261116-130000-made-3f9a01"
    infos = [SiteInfo(Site(module, Kind.GRADIENT, "weight"), (8, 8), "float32", 64) for module in ("a", "b.c", NASTY)]
    writer = RunWriter.create(path, {"name": "made"})
    writer.sites(infos)
    for step in range(1, 21):
        rows = [synthetic.row(0.5 * step), synthetic.row(2.0), synthetic.row(1.0, num_nan=step // 20)]
        writer.rows(step, np.arange(3, dtype=np.uint32), np.array(rows))
        writer.scalars(step, {"loss": float("nan") if step == 20 else 1.0 / step, "step_ms": 100.0})
    table = np.zeros((1, histogram.NUM_BINS), dtype=np.uint32)
    table[0, histogram.bin_index(np.array([-3.0, 0.0, 0.0, 1.5, 1.5, 1.6]))] += 1
    writer.vectors(10, "histogram", np.array([0], np.uint32), table)
    writer.event(7, "skipped_step", {"why": "Inf", "scale": float("inf")})
    assert writer.flush()
    writer.close()
    write_findings(
        path,
        [
            synthetic.CAUSE,
            Finding("odd", Severity.WARNING, NASTY, 3, 4, (NASTY,), (Evidence("x", float("nan"), None),)),
        ],
    )
    return path


@pytest.mark.parametrize("form", ["parquet", "arrow"])
def test_numbers_come_back_to_the_bit(folder, tmp_path, form):
    with open_run(folder) as run:
        written = export_run(run, form, tmp_path / "out")
        assert [file.table for file in written] == list(TABLES)
        for file in written:
            if form == "parquet":
                found = pq.read_table(file.path)
            else:
                with pa.OSFile(str(file.path)) as source:
                    found = pa.ipc.open_file(source).read_all()
            assert found.num_rows == file.num_rows
            expected = run.to_arrow(file.table)
            assert found.schema == expected.schema
            for name in expected.column_names:
                a, b = (table[name].to_pylist() for table in (found, expected))
                assert all(x == y or (x != x and y != y) for x, y in zip(a, b, strict=True))


def lines_of(path):
    return path.read_text(encoding="utf-8").splitlines()


def test_csv_is_read_by_the_csv_module_and_holds_no_formula(folder, tmp_path):
    with open_run(folder) as run:
        (file,) = export_run(run, "csv", tmp_path / "rows.csv")
        assert (file.table, file.num_rows) == ("rows", 60)
        everything = export_run(run, "csv", tmp_path / "all")
    lines = list(csv.DictReader(lines_of(tmp_path / "rows.csv")))
    assert len(lines) == 60
    mine = [line for line in lines if line["module"] == "a"]
    assert float(mine[-1]["norm"]) == 10.0
    assert int(mine[-1]["step"]) == 20
    for written in everything:
        for line in csv.reader(lines_of(written.path)):
            assert not any(cell.startswith(("=", "@", "\t")) for cell in line)
            assert not any("\x1b" in cell for cell in line)
    shapes = [json.loads(line["shape"]) for line in csv.DictReader(lines_of(tmp_path / "all" / "sites.csv"))]
    assert shapes == [[8, 8]] * 3


def test_jsonl_is_strict_json_with_bodies_as_objects(folder, tmp_path):
    with open_run(folder) as run:
        export_run(run, "jsonl", tmp_path / "out")

    def refuse(word):
        raise AssertionError(word)

    def read(table):
        text = (tmp_path / "out" / f"{table}.jsonl").read_text(encoding="utf-8")
        return [json.loads(line, parse_constant=refuse) for line in text.splitlines()]

    loss = {body["step"]: body["value"] for body in read("scalars") if body["name"] == "loss"}
    assert loss[4] == 0.25
    assert loss[20] == "NaN"
    assert {"why": "Inf", "scale": "Infinity"} in [body["body"] for body in read("events")]
    assert {Finding.from_json(body).code for body in read("findings")} == {synthetic.CAUSE.code, "odd"}
    assert len(read("rows")) == 60


def test_tensorboard_reads_the_event_file(folder, tmp_path):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    with open_run(folder) as run:
        (file,) = export_run(run, "tensorboard", tmp_path / "logs", stats=["norm", "abs_max"])
    assert "tfevents" in file.path.name
    read = EventAccumulator(str(tmp_path / "logs"), size_guidance={"scalars": 0, "histograms": 0, "tensors": 0})
    read.Reload()
    tags = read.Tags()
    assert {"loss", "step_ms", "gradient_norm/a.weight", "gradient_abs_max/b.c.weight"} <= set(tags["scalars"])
    loss = read.Scalars("loss")
    assert [event.step for event in loss] == list(range(1, 21))
    assert loss[3].value == 0.25
    assert np.isnan(loss[19].value)
    assert loss[10].wall_time - loss[0].wall_time == pytest.approx(1.0)
    assert [event.value for event in read.Scalars("gradient_norm/a.weight")] == [0.5 * step for step in range(1, 21)]
    (shown,) = read.Histograms("gradient/a.weight")
    value = shown.histogram_value
    assert (shown.step, value.num) == (10, 3)
    assert list(np.diff(value.bucket_limit) > 0) == [True] * (len(value.bucket_limit) - 1)
    at = dict(zip(value.bucket_limit, value.bucket, strict=True))
    assert at[-2.0] == 1
    assert at[2.0] == 1
    assert {"findings/exploding_gradients", "findings/odd"} <= set(tags["tensors"])
    words = read.Tensors("findings/odd")[0].tensor_proto.string_val[0].decode()
    assert "<" not in words
    assert "\x1b" not in words


def test_checksum_is_the_castagnoli_one():
    # The check value of CRC-32C for "123456789" is 0xE3069283 (Koopman's and RFC 3720's tables).
    crc = 0xE3069283
    masked = ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF
    assert masked_crcs([b"123456789", b"", struct.pack("<Q", 9), b"123456789"])[::3] == [masked, masked]


def run_cli(folder, *words):
    return main(["export", str(folder), *words])


def test_command_says_what_it_wrote(folder, tmp_path, capsys):
    assert run_cli(folder, "-o", str(tmp_path / "x.parquet"), "--table", "scalars") == 0
    assert "40 scalars rows" in capsys.readouterr().out
    assert run_cli(folder, "-o", str(tmp_path / "all"), "--format", "csv", "--json") == 0
    body = json.loads(capsys.readouterr().out)
    assert [file["table"] for file in body["files"]] == list(TABLES)


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["-o", "out", "--format", "xlsx"], "Unknown format: xlsx"),
        (["-o", "out"], "No format is named"),
        (["-o", "x.csv", "--table", "weights"], "There is no such table: weights"),
        (["-o", "x.csv", "--table", "rows", "--table", "sites"], "One file holds one table"),
        (["-o", "there", "--format", "csv"], "There is something at this path already"),
        (["-o", "there/x.csv/y.csv"], "It cannot be written there"),
        (["-o", "out", "--format", "tensorboard", "--stat", "median"], "Unknown statistic: median"),
        (["-o", "out", "--format", "tensorboard", "--table", "rows"], "TensorBoard takes no tables"),
    ],
)
def test_what_cannot_be_done_is_said_and_leaves_nothing(folder, tmp_path, monkeypatch, capsys, words, expected):
    monkeypatch.chdir(tmp_path)
    Path("there").mkdir()
    Path("there/x.csv").write_text("mine")
    assert run_cli(folder, *words) == 2
    assert expected in capsys.readouterr().err
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["there", "x.csv"]
    assert Path("there/x.csv").read_text() == "mine"


def test_path_that_is_no_run_and_run_without_data(tmp_path, capsys):
    assert run_cli(tmp_path, "-o", str(tmp_path / "x.csv")) == 2
    assert "not a run folder" in capsys.readouterr().err
    empty = synthetic.write_run(tmp_path / "empty", steps=range(0))
    assert run_cli(empty, "-o", str(tmp_path / "x.csv")) == 3
    assert "no data" in capsys.readouterr().err
    assert not (tmp_path / "x.csv").exists()


def test_run_without_findings_or_events_has_empty_tables(tmp_path):
    plain = synthetic.write_run(tmp_path / "plain", steps=range(1, 3))
    with open_run(plain) as run:
        for form in ("csv", "jsonl", "parquet", "arrow"):
            counts = {file.table: file.num_rows for file in export_run(run, form, tmp_path / form)}
            assert counts["findings"] == 0
            assert counts["rows"] == 40
