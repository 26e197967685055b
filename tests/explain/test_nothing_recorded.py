"""What is said where little or nothing was recorded: no tick without evidence that it learns."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from stethoscope import cli
from stethoscope.explain import State, diagnose
from stethoscope.kernels import measure
from stethoscope.record import Kind, Site, SiteInfo
from stethoscope.store import RunWriter, open_run, seal


def write(folder: Path, num_steps: int = 40) -> None:
    rng = np.random.default_rng(0)
    writer = RunWriter.create(folder, {"name": "calm"})
    writer.sites([SiteInfo(Site("layer", Kind.GRADIENT, "weight"), (64,), "float32", 64)])
    for step in range(num_steps):
        writer.rows(step, np.arange(1), measure([rng.normal(size=64)]))
        writer.scalars(step, {"loss": 1.0 / (1 + step)})
    writer.close("finished")
    seal(folder, final=True)


def test_a_run_of_which_nothing_can_be_read_is_not_clean(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Silence over what cannot be read is no tick, and no success in a pipeline."""
    write(tmp_path)
    assert diagnose(tmp_path).verdict.state is State.LEARNS
    assert cli.main(["diagnose", str(tmp_path)]) == 0
    assert "✓" in capsys.readouterr().out
    for rows in tmp_path.glob("rows/**/*.parquet"):
        rows.write_bytes(rows.read_bytes()[:100])
    assert cli.main(["diagnose", str(tmp_path)]) == 3
    said = capsys.readouterr().out
    assert "nothing can be said" in said
    assert "✓" not in said


def test_a_run_without_a_step(tmp_path: Path) -> None:
    write(tmp_path, 0)
    run = open_run(tmp_path)
    assert diagnose(run).verdict.text == "No step was recorded: nothing can be said."


def test_sealed_rows_without_their_manifest_are_damage(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(tmp_path)
    (tmp_path / "rank-0" / "manifest.json").unlink()
    run = open_run(tmp_path)
    assert run.state == "damaged"
    assert diagnose(run).verdict.text == "No step can be read: nothing can be said."
    assert cli.main(["doctor", str(tmp_path)]) == 0
    assert "manifest.json at byte 0: is gone" in " ".join(capsys.readouterr().out.split())
    assert cli.main(["diagnose", str(tmp_path)]) == 3
