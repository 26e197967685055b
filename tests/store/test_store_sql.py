"""Questions in SQL: over live and sealed parts alike, and never over bytes that were not tested."""

import sys

import numpy as np
import pytest

from stethoscope.record import Finding, MissingExtraError, RunDamagedError, Severity, StethoscopeError
from stethoscope.store import RunWriter, open_run, seal
from stethoscope.store import spool as spool_module
from tests.store.run_making import make_run, some_rows, some_sites, write_findings

duckdb = pytest.importorskip("duckdb")


@pytest.fixture(params=["live", "sealed", "half"])
def run(request, tmp_path, monkeypatch):
    monkeypatch.setattr(spool_module, "ROTATE_STEPS", 4)
    make_run(tmp_path, num_steps=10, num_sites=3, ended=None if request.param == "half" else "finished")
    write_findings(tmp_path, [Finding("nan", Severity.CRITICAL, "it's NaN", 3, 9)])
    if request.param != "live":
        seal(tmp_path, final=True)
    return open_run(tmp_path)


def test_rows_scalars_events_sites_findings(run):
    found = run.sql("SELECT step, norm FROM rows WHERE module = 'blocks.1' AND step >= 4 ORDER BY step").to_pydict()
    series = run.series("blocks.1.weight")["blocks.1.weight"]
    assert found["step"] == [4, 5, 6, 7, 8, 9]
    np.testing.assert_array_equal(found["norm"], series.values[4:])
    assert run.sql("SELECT count(*) AS n, min(rank) AS r FROM rows").to_pylist() == [{"n": 30, "r": 0}]
    assert run.sql("SELECT sum(value) AS s FROM scalars WHERE name = 'loss'").to_pylist()[0]["s"] == pytest.approx(
        run.metric("loss").values.sum()
    )
    assert run.sql("SELECT kind FROM events").to_pylist() == [{"kind": "skipped_step"}]
    assert run.sql("SELECT count(*) AS n FROM sites").to_pylist() == [{"n": 3}]
    assert run.sql("SELECT code, severity FROM findings").to_pylist() == [{"code": "nan", "severity": "Critical"}]


def test_to_arrow(run):
    rows = run.to_arrow()
    assert rows.num_rows == 30
    assert {"step", "module", "kind", "name", "rank", "start", "norm", "count"} <= set(rows.column_names)
    assert run.to_arrow("scalars").num_rows == 10
    with pytest.raises(StethoscopeError, match="no table"):
        run.to_arrow("nonsense")


@pytest.mark.parametrize(
    "query",
    [
        "SELECT * FROM read_csv('/etc/passwd')",
        "COPY rows TO '/tmp/out.csv'",
        "INSTALL httpfs",
        "SET enable_external_access = true",
        "ATTACH '/tmp/x.db'",
        "SELECT nonsense FROM rows",
    ],
)
def test_a_query_reaches_nothing_else(run, query):
    with pytest.raises(StethoscopeError):
        run.sql(query)


def test_damage_is_an_error_and_not_a_number(tmp_path):
    make_run(tmp_path, num_steps=10, num_sites=3)
    seal(tmp_path, final=True)
    (path,) = tmp_path.glob("rows/rank=0/*.parquet")
    data = bytearray(path.read_bytes())
    data[600] ^= 1
    path.write_bytes(data)
    with pytest.raises(RunDamagedError, match="damaged"):
        open_run(tmp_path).sql("SELECT sum(norm) FROM rows")
    with pytest.raises(RunDamagedError, match="damaged"):
        open_run(tmp_path).to_arrow()


def test_other_engines_read_the_segments_as_they_are(tmp_path):
    make_run(tmp_path, num_steps=10, num_sites=3)
    seal(tmp_path, final=True)
    files = f"{tmp_path}/rows/*/*.parquet"
    found = duckdb.sql(
        f"SELECT rank, module, count(*) AS n, max(norm) AS top FROM read_parquet('{files}', hive_partitioning=true)"
        " GROUP BY ALL ORDER BY module"
    ).fetchall()
    assert [(rank, module, n) for rank, module, n, _ in found] == [(0, f"blocks.{k}", 10) for k in range(3)]
    assert found[1][3] == open_run(tmp_path).series("blocks.1*")["blocks.1.weight"].values.max()


def test_an_empty_run_and_several_ranks(tmp_path):
    for rank in (0, 1):
        writer = RunWriter.create(tmp_path, {}, rank=rank, world_size=2)
        writer.sites(some_sites(2))
        if rank:
            writer.rows(0, np.arange(2), some_rows(2, 0))
        writer.close()
    run = open_run(tmp_path)
    assert run.sql("SELECT DISTINCT rank FROM rows").to_pylist() == [{"rank": 1}]
    assert run.sql("SELECT * FROM scalars").num_rows == 0


def test_without_duckdb_it_says_what_to_install(tmp_path, monkeypatch):
    make_run(tmp_path)
    monkeypatch.setitem(sys.modules, "duckdb", None)
    with pytest.raises(MissingExtraError, match=r"stethoscope\[sql\]"):
        open_run(tmp_path).sql("SELECT 1")
