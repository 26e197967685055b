"""Thinning: keeping a run inside its disk budget.

Old segments first: of every bucket of steps only the last row of each site stays, exact as it was, and the
stored minimum, maximum, mean and last of each bucket stay too. Steps around findings are kept whole. Scalars
and events are never thinned. Each pass makes buckets four times larger. What went is counted in the manifest.
As in sealing, a file goes only after the manifest that names its replacement is durable.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from stethoscope.kernels.columns import COLUMNS, NUM_COLUMNS
from stethoscope.record import IntArray, SiteInfo
from stethoscope.store.locate import rank_folders
from stethoscope.store.manifest import Manifest, Segment
from stethoscope.store.pieces import ALL_COLUMNS
from stethoscope.store.pyramid import BASE_LEVEL, Buckets, buckets_table, refold
from stethoscope.store.scan import Problem
from stethoscope.store.seal import PYRAMID_GROUP_ROWS, describe_segment, only_one, sweep
from stethoscope.store.segment import ColumnCache, SealedTable, SegmentPiece
from stethoscope.store.sums import write_sealed
from stethoscope.store.tables import SortedRows, rows_table, sort_rows, to_parquet

FIRST_BUCKET: Final = 16
LARGEST_BUCKET: Final = 1 << 16
_FACTOR: Final = 4


@dataclasses.dataclass(slots=True)
class ThinReport:
    """What thinning did."""

    bytes_before: int = 0
    bytes_after: int = 0
    rows_dropped: int = 0
    segments: int = 0
    is_within_budget: bool = True


def thin(folder: Path, disk_bytes: int, keep_steps: Iterable[tuple[int, int]] = ()) -> ThinReport:
    """Thins the oldest segments until the run fits in `disk_bytes`; `keep_steps` (first, last) stay whole."""
    run, kept = Path(folder), list(keep_steps)
    report = ThinReport(bytes_before=folder_bytes(run))
    report.bytes_after = report.bytes_before
    folders = rank_folders(run)
    while report.bytes_after > disk_bytes:
        progress = False
        for rank, place in folders.items():
            if report.bytes_after <= disk_bytes:
                break
            with only_one(place) as is_mine:
                if is_mine and _thin_one(run, rank, place, kept, report):
                    progress = True
            report.bytes_after = folder_bytes(run)
        if not progress:
            break
    report.is_within_budget = report.bytes_after <= disk_bytes
    return report


def folder_bytes(run: Path) -> int:
    """The size of everything in the run's folder."""
    total = 0
    for path in run.rglob("*"):
        try:
            total += path.stat().st_size if path.is_file() else 0
        except OSError:
            continue  # sealed or swept away meanwhile
    return total


def _thin_one(run: Path, rank: int, place: Path, kept: list[tuple[int, int]], report: ThinReport) -> bool:
    """Thins the least thinned segment and, among those, the oldest. False where nothing is left to thin."""
    manifest = Manifest.load(place)
    sweep(run, rank, place, manifest)
    todo = [n for n, s in enumerate(manifest.segments) if "rows" in s.files and s.thinned < LARGEST_BUCKET]
    todo.sort(key=lambda n: (manifest.segments[n].thinned, manifest.segments[n].first_step or 0))
    for number in todo:
        old = manifest.segments[number]
        new = _thinner(run, old, manifest.sites, kept)
        if new is None:
            continue
        manifest.segments[number] = new
        manifest.save(place)
        sweep(run, rank, place, manifest)
        report.segments += 1
        report.rows_dropped += new.rows_dropped - old.rows_dropped
        return True
    return False


def _thinner(run: Path, old: Segment, infos: list[SiteInfo], kept: list[tuple[int, int]]) -> Segment | None:
    """The segment with larger buckets, written beside the old one; None where the old one is damaged."""
    bucket = max(old.thinned * _FACTOR, FIRST_BUCKET)
    piece = SegmentPiece(run, old, np.arange(len(infos)), ColumnCache(0))
    chunks = list(piece.chunks(ALL_COLUMNS, np.ones(len(infos), bool), -(2**63), 2**63 - 1))
    buckets = _read_buckets(run, old)
    if piece.problems or buckets is None:
        return None
    rows = _flat(chunks)
    slim = rows.keep(_kept_rows(rows, bucket, kept))
    files = {name: file for name, file in old.files.items() if name not in ("rows", "pyramid")}
    parts = f"{old.parts[0]:06d}-{old.parts[-1]:06d}"
    stem = f"part-{old.key.ordinal:04d}-{old.key.token}-{parts}-t{old.version + 1}"

    def write(table: str, data: Any, **options: int) -> None:
        path = f"{table}/rank={old.key.rank}/{stem}.parquet"
        files[table] = write_sealed(run, path, to_parquet(data, **options))

    write("rows", rows_table(slim, infos, old.key.ordinal))
    level = max(BASE_LEVEL, bucket.bit_length() - 1)
    folded = buckets_table(refold(buckets, level), infos, old.key.ordinal)
    write("pyramid", folded, row_group_rows=PYRAMID_GROUP_ROWS)
    new = describe_segment(old.key, old.parts, slim, files)
    new.thinned, new.version = bucket, old.version + 1
    new.rows_dropped = old.rows_dropped + len(rows) - len(slim)
    return new


def _kept_rows(rows: SortedRows, bucket: int, kept: list[tuple[int, int]]) -> npt.NDArray[np.bool_]:
    """The last row of each site's bucket, and every row of the steps to keep."""
    starts = rows.steps // bucket
    mask = np.ones(len(rows), bool)
    mask[:-1] = (starts[1:] != starts[:-1]) | (rows.sites[1:] != rows.sites[:-1])
    for first, last in kept:
        mask |= (rows.steps >= first) & (rows.steps <= last)
    return mask


def _flat(chunks: list[Any]) -> SortedRows:
    steps: list[IntArray] = []
    sites: list[IntArray] = []
    for chunk in chunks:
        if chunk.is_dense:
            sites.append(np.repeat(chunk.sites, len(chunk.steps)))
            steps.append(np.tile(chunk.steps, len(chunk.sites)))
        else:
            sites.append(chunk.sites)
            steps.append(chunk.steps)
    table = np.concatenate([chunk.values.reshape(-1, NUM_COLUMNS) for chunk in chunks])
    calls = np.concatenate([chunk.calls.reshape(-1) for chunk in chunks])
    return sort_rows(np.concatenate(steps), np.concatenate(sites), table, calls)


def _read_buckets(run: Path, segment: Segment) -> Buckets | None:
    """The stored buckets of a segment; None where they cannot be trusted."""
    problems: list[Problem] = []
    table = SealedTable(run, segment.files["pyramid"], problems)
    names = [f"{column}_{part}" for part in ("min", "max", "mean", "last", "count") for column in COLUMNS]
    read = table.read(list(range(table.num_groups())), ["site", "step", *names])
    if read is None or problems:
        return None
    columns = [read.column(name).to_numpy() for name in names]
    stacked = [np.stack(columns[k : k + NUM_COLUMNS], 1) for k in range(0, len(names), NUM_COLUMNS)]
    sites, steps = read.column("site").to_numpy().astype(np.int64), read.column("step").to_numpy()
    low, high, mean, last = (part.astype(np.float64) for part in stacked[:4])
    return Buckets(sites, steps, low, high, mean, last, stacked[4].astype(np.int64))
