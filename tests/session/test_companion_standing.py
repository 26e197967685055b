"""What the companion tells while a step still stands: a scaler that skips it again and again."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from stethoscope.companion import Companion
from stethoscope.explain import diagnose
from stethoscope.kernels.columns import NUM_COLUMNS
from stethoscope.record import Kind, Site, SiteInfo
from stethoscope.store import RunWriter


def test_a_scale_that_collapses_is_told_before_any_further_step_ends(tmp_path: Path) -> None:
    writer = RunWriter.create(tmp_path, {"name": "scaled"})
    writer.sites([SiteInfo(Site("layer", Kind.GRADIENT, "weight"), (4,), "float32", 4)])
    rng = np.random.default_rng(0)
    for step in range(40):
        writer.rows(step, np.arange(1), np.abs(rng.normal(size=(1, NUM_COLUMNS))))
        writer.scalars(step, {"loss": 1.0, "lr": 1e-3})
    assert writer.flush()
    companion = Companion(tmp_path, disk_bytes=1 << 30)
    assert "loss_scale_collapse" not in [finding.code for finding in companion.look()]
    for times in range(1, 60):
        writer.event(40, "skipped_step", {"times": times, "scale": 2.0 ** (16 - times)})
    assert writer.flush()
    found = [finding for finding in companion.look() if finding.code == "loss_scale_collapse"]
    assert len(found) == 1, "told while the step stands"
    writer.close("finished")
    companion.look(final=True)
    companion._writer.close()
    stored = [finding for finding in diagnose(tmp_path).findings if finding.code == "loss_scale_collapse"]
    assert len(stored) == 1
    assert stored[0].first_step == found[0].first_step
