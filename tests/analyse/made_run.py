"""A run made of arrays: what a reader of history asks of one, without a file."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np

from stethoscope.kernels import columns
from stethoscope.kernels.columns import INDEX
from stethoscope.record import Kind, Series, Site, SiteInfo
from stethoscope.store import Block, BucketMatrix, Event, Matrix, Start
from stethoscope.store.downsample.buckets import BASE_LEVEL
from stethoscope.store.downsample.dense import BROKEN_BY, INF, NAN, NO_ROW, DenseBuckets, from_steps
from tests.views import synthetic


@dataclasses.dataclass(frozen=True)
class Frame:
    """Rows of some sites at one step, by one process."""

    process: int
    step: int
    norms: dict[int, float]
    num_nan: int = 0


class MadeRun:
    """Takes frames as a store does: of a step and site that come twice, the later row stands."""

    info: dict[str, object] = {}  # noqa: RUF012 - as a run's

    def __init__(self, names: Sequence[str], kind: Kind = Kind.GRADIENT) -> None:
        self.sites = tuple(SiteInfo(Site(name, kind, "weight"), (8, 8), "float32", 64) for name in names)
        self.rows: dict[tuple[int, int], np.ndarray] = {}
        self.starts: list[Start] = []
        self.generation = 0
        self.has_buckets = True
        self.num_rows_read = 0

    def write(self, frames: Sequence[Frame]) -> None:
        """These frames have come since."""
        for frame in frames:
            for site, norm in frame.norms.items():
                self.rows[frame.step, site] = synthetic.row(norm, num_nan=frame.num_nan)
            known = {start.ordinal: start for start in self.starts}
            old = known.get(frame.process)
            first, last = (frame.step, frame.step) if old is None else (old.first_step, old.last_step)
            known[frame.process] = Start(
                rank=0,
                ordinal=frame.process,
                token="",
                pid=None,
                host="",
                started_at=None,
                ended=None,
                how="live",
                first_step=min(first, frame.step),
                last_step=max(last, frame.step),
            )
            self.starts = list(known.values())
        self.generation += bool(frames)

    @property
    def steps(self) -> np.ndarray:
        return np.unique(np.array([step for step, _ in self.rows], dtype=np.int64))

    def metrics(self) -> Sequence[str]:
        return ()

    def metric(self, name: str) -> Series:
        return Series()

    def block(self, first: int, last: int) -> Block:
        steps = self.steps[(self.steps >= first) & (self.steps <= last)]
        table = np.full((len(steps), len(self.sites), columns.NUM_COLUMNS), np.nan)
        present = np.zeros(table.shape[:2], dtype=bool)
        for (step, site), row in self.rows.items():
            if first <= step <= last:
                at = int(np.searchsorted(steps, step))
                table[at, site], present[at, site] = row, True
        return Block(steps, self.sites, table, present, present.astype(np.int64))

    def matrix(self, kind: Kind, stat: str, *, pattern: str, first: int, last: int) -> Matrix:
        block = self.block(first, last)
        self.num_rows_read += int(block.present.sum())
        taken = [at for at, info in enumerate(self.sites) if info.site.kind == kind and info.site.matches(pattern)]
        sites = tuple(self.sites[at] for at in taken)
        return Matrix(block.steps, sites, columns.stat(block.rows, stat)[:, taken], ~block.present[:, taken])

    def buckets(
        self, kind: Kind, stat: str, first: int, last: int, level: int, *, pattern: str = "*"
    ) -> BucketMatrix | None:
        if not self.has_buckets or level < BASE_LEVEL:
            return None
        out = DenseBuckets.empty(level, first >> level, len(self.sites), (last >> level) - (first >> level) + 1, 1)
        block = self.block(first, last)
        if len(block.steps):
            nan, *infinite = (block.rows[:, :, INDEX[name]] > 0 for name in BROKEN_BY)
            broken = np.where(nan, NAN, np.where(infinite[0] | infinite[1], INF, 0)).astype(np.uint8)
            broken[~block.present] = NO_ROW
            out.add(from_steps(block.steps, block.rows[:, :, [INDEX[stat]]], broken, BASE_LEVEL))
        return BucketMatrix.of(out, self.sites, stat)

    def events(self, kind: str, *, first: int, last: int) -> Sequence[Event]:
        return ()
