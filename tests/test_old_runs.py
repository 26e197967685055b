"""Runs that older versions wrote open, and the same is said of them as on the day they were made: tests/data/make_runs.py."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from stethoscope.cli import main
from stethoscope.store import open_run

DATA = Path(__file__).parent / "data"
RUNS = sorted(path.parent for path in DATA.glob("runs-*/*/run.json"))
WORDING = {"message", "remedy", "text", "label"}
"""Sentences may be said better; what they are about may not change."""
GROWING = {"num_detectors"}


@pytest.mark.parametrize("run", RUNS, ids=lambda path: f"{path.parent.name}/{path.name}")
def test_the_same_is_said_of_an_old_run(
    run: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    files = {path: path.read_bytes() for path in run.rglob("*") if path.is_file()}
    monkeypatch.chdir(run.parent)
    main(["diagnose", run.name, "--json"])
    said = json.loads(capsys.readouterr().out)
    then = json.loads(run.with_name(f"{run.name}.json").read_text())
    assert then["causes"], "the run was made to have something wrong"
    assert _same_fields(said, then) == _without_wording(then)
    assert {path: path.read_bytes() for path in run.rglob("*") if path.is_file()} == files, "reading changes nothing"


@pytest.mark.parametrize("run", RUNS, ids=lambda path: f"{path.parent.name}/{path.name}")
def test_nothing_of_an_old_run_is_damaged(run: Path) -> None:
    with open_run(run) as opened:
        assert len(opened.events()) > 20
        assert opened.problems == []


def test_there_are_old_runs_of_both_forms() -> None:
    assert any(list(run.glob("rank-0/journal-*.stj")) for run in RUNS)
    assert any(list(run.glob("rows/rank=0/*.parquet")) for run in RUNS)


NEWER = """
import importlib.util, json, pathlib, sys

import numpy as np

spec = importlib.util.find_spec("stethoscope")
path = pathlib.Path(spec.submodule_search_locations[0], "kernels", "statistics.py")
spec = importlib.util.spec_from_file_location("stethoscope.kernels.statistics", path)
statistics = importlib.util.module_from_spec(spec)
sys.modules[spec.name] = statistics  # before anything takes its columns from there
spec.loader.exec_module(statistics)
if sys.argv[1] == "newer":
    statistics.COUNT_COLUMNS += (statistics._count("num_negative", "Negative"),)
    statistics.VALUE_COLUMNS += (statistics.Statistic("median", "Median", statistics.Across.MERGED),)
    more = statistics.COUNT_COLUMNS[-1], statistics.VALUE_COLUMNS[-1]
    statistics.STATISTICS = {**statistics.STATISTICS, **{one.name: one for one in more}}

from stethoscope.kernels.columns import COLUMNS
from stethoscope.store import open_run

with open_run(sys.argv[2]) as run:
    said = {}
    for name in statistics.STATISTICS:
        values = run.matrix("gradient", name).values
        said[name] = repr(values.tolist()) if np.isfinite(values).any() else "nothing"
        if name in COLUMNS:
            bucket = run.site_buckets(next(iter(run.series("*", "gradient", "norm"))), name, 6)
            parts = [bucket.min, bucket.max, bucket.mean, bucket.last]
            said[name] += repr([part.tolist() for part in parts if np.isfinite(part).any()])
    print(json.dumps([len(COLUMNS), said, list(map(str, run.problems)), run.state]))
"""


@pytest.mark.parametrize("run", RUNS, ids=lambda path: f"{path.parent.name}/{path.name}")
def test_an_old_run_stays_readable_when_columns_are_added(run: Path) -> None:
    """One among the counts, one at the end: what was measured is as it was, what was not is nothing, nothing is damaged."""

    def said(version: str) -> Any:
        done = subprocess.run(
            [sys.executable, "-W", "error", "-c", NEWER, version, str(run)],
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    (before, known, troubles, state), (after, more, *newer) = said("today"), said("newer")
    assert after == before + 2
    assert [more.pop("num_negative"), more.pop("median")] == ["nothing[]", "nothing[]"]
    assert more == known
    assert newer == [troubles, state] == [[], "finished"]


def _without_wording(body: Any) -> Any:
    if isinstance(body, dict):
        return {key: _without_wording(value) for key, value in body.items() if key not in WORDING | GROWING}
    return [_without_wording(one) for one in body] if isinstance(body, list) else body


def _same_fields(now: Any, then: Any) -> Any:
    """What is said now, as far as it was said then: fields may be added."""
    if isinstance(then, dict) and isinstance(now, dict):
        known = {key: value for key, value in then.items() if key in now and key not in WORDING | GROWING}
        return {key: _same_fields(now[key], value) for key, value in known.items()}
    if isinstance(then, list) and isinstance(now, list) and len(then) == len(now):
        return [_same_fields(one, other) for one, other in zip(now, then, strict=True)]
    return now
