"""Runs for the tests: small, seeded, with the values that were handed in."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from stethoscope.kernels.columns import NUM_COLUMNS, NUM_COUNTS
from stethoscope.record import Finding, Kind, Site, SiteInfo
from stethoscope.store import FindingsWriter, RunWriter
from stethoscope.store.encoding import stored_floats


def some_sites(num_sites: int, prefix: str = "blocks") -> list[SiteInfo]:
    return [SiteInfo(Site(f"{prefix}.{n}", Kind.GRADIENT, "weight"), (4, 4), "float32", 16) for n in range(num_sites)]


def some_rows(num_rows: int, seed: int) -> np.ndarray:
    rng = np.random.default_rng(seed)
    table = rng.normal(size=(num_rows, NUM_COLUMNS)) * 10.0 ** rng.integers(-6, 6, (num_rows, NUM_COLUMNS))
    table[:, :NUM_COUNTS] = rng.integers(0, 1 << 20, (num_rows, NUM_COUNTS))
    return table


def write_steps(writer: RunWriter, steps: range, num_sites: int, seed: int = 0) -> dict[int, np.ndarray]:
    """Rows and a loss for each step; returns the rows as a reader must give them back."""
    expected = {}
    for step in steps:
        table = some_rows(num_sites, seed * 100_000 + step)
        writer.rows(step, np.arange(num_sites), table)
        writer.scalars(step, {"loss": 1.0 / (step + 1)})
        expected[step] = stored_floats(table)
    return expected


def make_run(
    folder: Path, num_steps: int = 4, num_sites: int = 3, *, ended: str | None = "finished"
) -> dict[int, np.ndarray]:
    writer = RunWriter.create(folder, {"name": "made", "seed": 7})
    writer.sites(some_sites(num_sites))
    expected = write_steps(writer, range(num_steps), num_sites)
    writer.event(num_steps - 1, "skipped_step", {"why": "Inf"})
    assert writer.flush()
    if ended is not None:
        writer.close(ended)
        return expected
    # As a killed process leaves it: no END frame, and a process that is gone.
    writer._is_inert = True
    writer._bell.ring()
    writer._thread.join()
    writer._spool.close()
    return expected


def write_findings(folder: Path, findings: Sequence[Finding]) -> None:
    """What a search found that has come to its end."""
    writer = FindingsWriter(folder)
    writer.write(findings)
    writer.close()


def journals(folder: Path) -> list[Path]:
    return sorted(folder.glob("rank-*/journal-*.stj"))


def assert_rows(run, expected: dict[int, np.ndarray], steps=None) -> None:
    """Every expected row, and no other value."""
    chosen = sorted(expected) if steps is None else list(steps)
    block = run.block(min(chosen), max(chosen))
    assert list(block.steps) == chosen
    for place, step in enumerate(chosen):
        assert block.present[place].all()
        np.testing.assert_array_equal(block.rows[place], expected[step])
