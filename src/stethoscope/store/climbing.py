"""Building the ladder of a rank as its segments are sealed: which units wait, and where the rungs are noted."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from stethoscope.store.coarse import RungPiece, units_below
from stethoscope.store.ladder import STEPS_UP, Unit, climb
from stethoscope.store.manifest import Manifest
from stethoscope.store.pieces import StartKey
from stethoscope.store.segment import ColumnCache, SegmentPiece


def climb_ladder(run: Path, rank: int, place: Path, manifest: Manifest) -> None:
    """Takes segments together where enough of them wait; see `ladder`."""
    keys = sorted({segment.key for segment in manifest.segments})
    if not any(sum(segment.key == key for segment in manifest.segments) >= STEPS_UP for key in keys):
        return
    numbers, cache = np.arange(len(manifest.sites)), ColumnCache(0)
    segments = [SegmentPiece(run, segment, numbers, cache) for segment in manifest.segments]

    def units(key: StartKey, height: int) -> Sequence[Unit]:
        rungs = [RungPiece(run, rung, numbers) for rung in manifest.ladder]
        found: Sequence[Unit] = units_below(segments, rungs)(key, height)
        return found

    for rung in climb(run, rank, len(manifest.sites), manifest.ladder, units, keys):
        manifest.ladder.append(rung)
        manifest.save(place)
