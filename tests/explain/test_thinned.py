"""A run whose old steps were thinned out says what was found while they were whole."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from stethoscope.explain import diagnose
from stethoscope.kernels.columns import NUM_COLUMNS
from stethoscope.record import Finding, Kind, Severity, Site, SiteInfo
from stethoscope.store import FindingsWriter, RunWriter, open_run, seal, thin

FOUND = Finding(
    code="exploding_gradients",
    severity=Severity.CRITICAL,
    sites=(),
    first_step=7,
    last_step=90,
    message="It grew.",
)


def make(folder: Path) -> None:
    rng = np.random.default_rng(0)
    writer = RunWriter.create(folder, {"name": "long"})
    writer.sites([SiteInfo(Site(f"layers.{n}", Kind.GRADIENT, "weight"), (4,), "float32", 4) for n in range(5)])
    for step in range(600):
        writer.rows(step, np.arange(5), np.abs(rng.normal(size=(5, NUM_COLUMNS))))
    writer.close("finished")
    seal(folder, final=True)


def test_findings_from_before_thinning_stand(tmp_path: Path) -> None:
    make(tmp_path)
    whole = diagnose(tmp_path)
    writer = FindingsWriter(tmp_path)
    writer.write([FOUND], replace=True)
    writer.close()
    assert diagnose(tmp_path).findings == whole.findings, "nothing is missing, so it is looked at again"
    size = sum(path.stat().st_size for path in tmp_path.rglob("*") if path.is_file())
    thin(tmp_path, size // 2)
    assert open_run(tmp_path).thinned
    assert [cause.code for cause in diagnose(tmp_path).causes] == ["exploding_gradients"]


def test_a_search_that_was_cut_off_tells_what_it_had_and_that_it_was(tmp_path: Path) -> None:
    make(tmp_path)
    FindingsWriter(tmp_path).write([FOUND], replace=True)
    whole = diagnose(tmp_path)
    assert [f.code for f in whole.findings] != [FOUND.code], "nothing is missing, so what was cut off is not needed"
    size = sum(path.stat().st_size for path in tmp_path.rglob("*") if path.is_file())
    thin(tmp_path, size // 2)
    told = diagnose(tmp_path)
    assert FOUND.code in [cause.code for cause in told.causes]
    assert any("the search that saw them whole is still under way" in words for words in told.verdict.reservations)


def test_without_a_companion_what_is_left_is_looked_at(tmp_path: Path) -> None:
    make(tmp_path)
    size = sum(path.stat().st_size for path in tmp_path.rglob("*") if path.is_file())
    thin(tmp_path, size // 2)
    assert FOUND.code not in [finding.code for finding in diagnose(tmp_path).findings]
