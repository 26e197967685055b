"""The same findings live and stored: however a run is cut, and whenever a companion looked while it was written."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("sklearn")

from benchmarks.faults.catalogue import load_programs  # noqa: E402
from benchmarks.faults.live import compare, differences, in_pieces, listening, whole  # noqa: E402

from stethoscope.companion import Companion, settled_step  # noqa: E402
from stethoscope.kernels import measure  # noqa: E402
from stethoscope.record import Kind, Site, SiteInfo  # noqa: E402
from stethoscope.store import RunWriter, open_run  # noqa: E402

PROGRAMS = ("F01", "F03", "F30", "F39")
"""A ledger, a run without a step, a NaN, looks at units."""


@pytest.mark.parametrize("key", PROGRAMS)
def test_live_and_stored_and_in_pieces(key: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (("DIR", str(tmp_path)), ("COMPANION", "off"), ("QUIET", "true"), ("EVERY", "1")):
        monkeypatch.setenv(f"STETHOSCOPE_{name}", value)
    monkeypatch.chdir(tmp_path)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with listening(7) as ears:
            folder = load_programs()[key].run(0).run
    finally:
        torch.set_num_threads(threads)
    assert folder is not None
    assert compare(folder, ears.get(folder), 0) == []
    run = open_run(folder)
    stored = whole(run)
    assert stored, "nothing is found in this program: choose another"
    for seed in (1, 2):
        assert differences(stored, in_pieces(run, seed)) == []


def _write(writer: RunWriter, steps: range) -> None:
    writer.sites([SiteInfo(Site("fc", Kind.WEIGHT, "weight"), (4,), "float32", 4)])
    for step in steps:
        writer.rows(step, np.zeros(1, np.uint32), measure([np.ones(4)]))
        writer.scalars(step, {"loss": float("nan") if step > 2 else 1.0})
    assert writer.flush()


def test_the_rank_that_is_behind_settles_what_is_read(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    ahead = RunWriter.create(folder, {}, rank=0, world_size=2)
    behind = RunWriter.create(folder, {}, rank=1, world_size=2)
    _write(ahead, range(10))
    assert settled_step(open_run(folder)) is None
    _write(behind, range(4))
    assert settled_step(open_run(folder)) == 2
    behind.close()
    assert settled_step(open_run(folder)) == 8
    ahead.close()


def test_nothing_is_settled_before_a_continued_run_has_a_row(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    first = RunWriter.create(folder, {})
    assert settled_step(open_run(folder)) is None
    _write(first, range(10))
    first.close("exception")
    second = RunWriter.create(folder, {})
    assert second.flush()
    assert settled_step(open_run(folder)) is None
    _write(second, range(5, 8))
    assert settled_step(open_run(folder)) == 6
    second.close()


def test_a_finding_with_nan_in_its_evidence_is_written_once(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    writer = RunWriter.create(folder, {})
    _write(writer, range(6))
    companion = Companion(folder, disk_bytes=1 << 30)
    assert [finding.code for finding in companion.look()] == ["nonfinite_origin"]
    findings = [file for file in folder.rglob("*finding*") if file.is_file()]
    before = [file.stat().st_size for file in findings]
    assert sum(before) > 0
    companion._tell(companion._detection.findings())
    assert [file.stat().st_size for file in findings] == before
    writer.close()
