"""Sealing happens in a process of its own: the one that follows the run keeps none of the memory that it takes."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from stethoscope.store import open_run

PROGRAM = """
import sys
from pathlib import Path
import numpy as np
from stethoscope.companion import Companion, tidy_in_child
from stethoscope.kernels.columns import NUM_COLUMNS
from stethoscope.record import Kind, Site, SiteInfo
from stethoscope.store import RunWriter

folder, breaks = Path(sys.argv[1]), sys.argv[2] == "breaks"
for start in range(9):  # each of them closes a journal, and eight are enough for a segment
    writer = RunWriter.create(folder, {})
    writer.sites([SiteInfo(Site("layer", Kind.GRADIENT, "weight"), (4,), "float32", 4)])
    for step in range(10 * start, 10 * start + 10):
        writer.rows(step, np.zeros(1, np.uint32), np.ones((1, NUM_COLUMNS)))
    writer.close("finished")
companion = Companion(folder, disk_bytes=1 << 30)
companion._seal_bytes = 1
companion.look()
if breaks:
    companion.tidy = lambda: 1 / 0
tidy_in_child(companion)
assert "pyarrow" not in sys.modules
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="sealed in the process itself")
@pytest.mark.parametrize("how", ["seals", "breaks"])
def test_what_follows_the_run_never_loads_what_seals(how: str, tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(tmp_path / "run"), how], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    run = open_run(tmp_path / "run")
    assert bool(run.catalogue.segments()) == (how == "seals")
    assert run.steps.tolist() == list(range(90)), "nothing is lost either way"
