"""Building the rollups of a rank as its segments are sealed. As in sealing, each is durable before the manifest names it."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import numpy as np

from stethoscope.store.cache import ByteCache
from stethoscope.store.downsample.buckets import BASE_LEVEL
from stethoscope.store.downsample.dense import PARTS, STATS, DenseBuckets
from stethoscope.store.downsample.rollup import LEVELS_PER_HEIGHT, Rollup, RollupPiece, RollupWriter
from stethoscope.store.manifest import Manifest
from stethoscope.store.pieces import StartKey
from stethoscope.store.sealed_file import write_sealed
from stethoscope.store.segment import SegmentPiece

TOGETHER: Final = 16
"""So many segments, or rollups of one height, become one rollup of the next."""
_GROUP_ROWS: Final = 32 << 10
_CHUNK_VALUES: Final = 4 << 20
"""Numbers worked on at a time: what building takes of memory is a few times this."""

Source = SegmentPiece | RollupPiece


def build_rollups(run: Path, rank: int, folder: Path, manifest: Manifest) -> None:
    """Makes every rollup that is due, lowest first."""
    keys = sorted({segment.key for segment in manifest.segments})
    if not any(sum(segment.key == key for segment in manifest.segments) >= TOGETHER for key in keys):
        return
    numbers = np.arange(len(manifest.sites))
    for key in keys:
        own = [segment for segment in manifest.segments if segment.key == key and "pyramid" in segment.files]
        sources: list[Source] = [SegmentPiece(run, segment, numbers, ByteCache(0)) for segment in own]
        for height in itertools.count(1):
            done = [one for one in manifest.rollups if one.key == key and one.height == height]
            last = max((one.parts[1] for one in done), default=-1)
            waiting = sorted((one for one in sources if one.parts[0] > last), key=lambda one: one.parts)
            for begin in range(0, len(waiting) - TOGETHER + 1, TOGETHER):
                rollup = _build_rollup(run, rank, key, height, len(numbers), waiting[begin : begin + TOGETHER])
                if rollup is None:
                    return  # a source is damaged
                manifest.rollups.append(rollup)
                manifest.save(folder)
            if len(waiting) < TOGETHER and not done:
                break
            sources = [
                RollupPiece(run, one, numbers) for one in manifest.rollups if one.key == key and one.height == height
            ]


def _build_rollup(
    run: Path, rank: int, key: StartKey, height: int, num_sites: int, sources: Sequence[Source]
) -> Rollup | None:
    """One rollup, written; None where a source cannot be trusted."""
    level = BASE_LEVEL + LEVELS_PER_HEIGHT * (height - 1)
    first = min(source.span[0] for source in sources) >> level
    count = (max(source.span[1] for source in sources) >> level) - first + 1
    group = max(1, _GROUP_ROWS // count)
    chunk = max(1, _CHUNK_VALUES // (count * len(STATS) * len(PARTS)) // group) * group
    writer = RollupWriter(count)
    for begin in range(0, num_sites, chunk):
        end = min(num_sites, begin + chunk)
        buckets = DenseBuckets.empty(level, first, end - begin, count, len(STATS))
        for source in sources:
            part = source.buckets(begin, end)
            if part is None:
                return None
            buckets.add(part, slice(0, len(part.low)))
        writer.write(buckets, group)
    parts = [sources[0].parts[0], sources[-1].parts[-1]]
    path = f"ladder/rank={rank}/rung-{key.ordinal:04d}-{key.token}-{height}-{parts[0]:06d}-{parts[1]:06d}.parquet"
    sealed = write_sealed(run, path, writer.close())
    return Rollup(key, height, level, parts, first, count, num_sites, group, sealed)
