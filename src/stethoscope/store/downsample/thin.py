"""Thinning: keeping a run inside its disk budget.

Of every bucket of old steps only the last row of each site stays, exact as it was, and the stored minimum, maximum, mean and last of
each bucket stay too; what stays of the other tables says `slim`. Steps around findings are kept whole. Each pass takes the oldest
few segments among those that take up most room at their bucket's size, writes them as one with buckets four times larger, and
so touches a step a few times in a run, however long that is: recent steps stay exact, older ones get ever coarser, and
segments do not become many. What went is counted in the manifest. As in sealing, a file goes only after the manifest that
names its replacement is durable.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, Final

import numpy as np

from stethoscope.kernels.columns import COLUMNS, NUM_COLUMNS
from stethoscope.record import SiteInfo
from stethoscope.store.cache import ByteCache
from stethoscope.store.downsample.buckets import BASE_LEVEL, BucketTable, buckets_table, refold
from stethoscope.store.downsample.selection import Kept, kept_rows, slim_events, slim_scalars, slim_vectors
from stethoscope.store.frame_file import Problem
from stethoscope.store.inside import folder_bytes
from stethoscope.store.locate import rank_folders
from stethoscope.store.manifest import Manifest, Segment
from stethoscope.store.pieces import ALL_COLUMNS, FIRST_STEP, LAST_STEP, Chunk
from stethoscope.store.seal import BUCKET_GROUP_ROWS, describe_segment, is_bare, only_one, sweep
from stethoscope.store.sealed_file import Sealed, write_sealed
from stethoscope.store.sealed_table import SealedTable
from stethoscope.store.segment import SegmentPiece
from stethoscope.store.tables import SortedRows, rows_table, sort_rows, to_parquet

FIRST_BUCKET: Final = 16
LARGEST_BUCKET: Final = 1 << 16
_FACTOR: Final = 4
_TOGETHER: Final = 4
_MOST_ROWS: Final = 64 << 10
"""Segments are joined up to so many rows that remain."""
_ROLLUP_SHARE: Final = 4
"""The part of the budget that rollups may have."""
_COLUMNS: Final = {
    "scalars": ("step", "name", "start", "value"),
    "events": ("step", "serial", "start", "time", "kind", "json"),
    "vectors": ("step", "site", "module", "kind", "name", "start", "values"),
}


class _DamagedError(Exception):
    """A segment of which a block cannot be trusted: it is left as it is."""


@dataclasses.dataclass(slots=True)
class ThinReport:
    """What thinning did."""

    bytes_before: int = 0
    bytes_after: int = 0
    rows_dropped: int = 0
    segments: int = 0
    is_within_budget: bool = True


def thin(
    folder: Path, disk_bytes: int, keep_steps: Iterable[tuple[int, int]] = (), *, upto: int | None = None
) -> ThinReport:
    """Thins old segments until the run fits in `disk_bytes`; `keep_steps` (first, last) stay whole.

    Segments that reach beyond `upto` are left alone: they are yet to be read.
    """
    run, kept = Path(folder), list(keep_steps)
    report = ThinReport(bytes_before=folder_bytes(run))
    report.bytes_after = report.bytes_before
    folders = {rank: rank_folder for rank, rank_folder in rank_folders(run).items() if not is_bare(rank_folder)}
    damaged: set[str] = set()
    while report.bytes_after > disk_bytes:
        progress = False
        for rank, rank_folder in folders.items():
            too_much = report.bytes_after - disk_bytes
            if too_much <= 0:
                break
            one = _Pass(run, rank, rank_folder, kept, upto, damaged, disk_bytes // len(folders) // _ROLLUP_SHARE)
            with only_one(rank_folder) as is_mine:
                if is_mine and one.run_once(too_much, report):
                    progress = True
                    report.bytes_after = folder_bytes(run)
        if not progress:
            break
    report.is_within_budget = report.bytes_after <= disk_bytes
    return report


@dataclasses.dataclass(slots=True)
class _Pass:
    """One rewriting of a few segments of a rank."""

    run: Path
    rank: int
    rank_folder: Path
    kept: Kept
    upto: int | None
    damaged: set[str]
    rollup_bytes: int

    def run_once(self, too_much: int, report: ThinReport) -> bool:
        """Thins some segments. False where nothing is left to thin."""
        manifest = Manifest.load(self.rank_folder)
        sweep(self.run, self.rank, self.rank_folder, manifest)
        if self._drop_rollup(manifest):
            return True
        for group in _groups_to_thin(manifest, too_much, self._is_ready):
            try:
                new = _write_thinned(self.run, group, manifest.sites, self.kept)
            except _DamagedError:
                self.damaged |= {segment.files["rows"].path for segment in group}
                continue
            at = manifest.segments.index(group[0])
            manifest.segments[at : at + len(group)] = [new]
            manifest.save(self.rank_folder)
            sweep(self.run, self.rank, self.rank_folder, manifest)
            report.segments += len(group)
            report.rows_dropped += new.rows_dropped - sum(old.rows_dropped for old in group)
            return True
        return False

    def _drop_rollup(self, manifest: Manifest) -> bool:
        """Where rollups take up too much room the finest, oldest one goes; segments have the same buckets."""
        if sum(rollup.file.num_bytes for rollup in manifest.rollups) <= self.rollup_bytes:
            return False
        for rollup in sorted(manifest.rollups, key=lambda one: (one.height, one.key, one.parts)):
            # The newest of a height says up to where there are some: without it they would be made again.
            if any(
                (o.key, o.height) == (rollup.key, rollup.height) and o.parts > rollup.parts for o in manifest.rollups
            ):
                manifest.rollups.remove(rollup)
                manifest.save(self.rank_folder)
                sweep(self.run, self.rank, self.rank_folder, manifest)
                return True
        return False

    def _is_ready(self, segment: Segment) -> bool:
        """Whether there is something to thin, everybody has read it, and it can be trusted."""
        if "rows" not in segment.files or segment.thinned >= LARGEST_BUCKET:
            return False
        is_read = self.upto is None or (segment.last_step or 0) <= self.upto
        return is_read and segment.files["rows"].path not in self.damaged


def _rollups_over(manifest: Manifest, segment: Segment) -> list[list[int]]:
    """The rollups that stand for a segment too."""
    return [one.parts for one in manifest.rollups if one.stands_for(segment.key, segment.parts[0])]


def _groups_to_thin(manifest: Manifest, too_much: int, is_ready: Callable[[Segment], bool]) -> Iterator[list[Segment]]:
    """Groups to thin, the best first: of the bucket size that takes up most room, the oldest neighbours."""
    segments = manifest.segments
    sizes: dict[int, int] = {}
    for segment in segments:
        if is_ready(segment):
            sizes[segment.thinned] = sizes.get(segment.thinned, 0) + segment.num_bytes
    for level in sorted(sizes, key=lambda one: -sizes[one]):
        at = next(n for n, one in enumerate(segments) if one.thinned == level and is_ready(one))
        group = [segments[at]]
        factor = FIRST_BUCKET if level == 0 else _FACTOR
        for segment in segments[at + 1 :]:
            last = group[-1]
            is_next = segment.key == last.key and segment.parts[0] == last.parts[-1] + 1
            is_next = is_next and _rollups_over(manifest, segment) == _rollups_over(manifest, last)
            rows = (sum(one.num_rows for one in group) + segment.num_rows) // factor
            is_enough = sum(one.num_bytes for one in group) * (factor - 1) // factor >= too_much
            if not is_next or segment.thinned != level or not is_ready(segment) or rows > _MOST_ROWS:
                break
            # Small ones are joined even where fewer would do: every file has a price of its own.
            if len(group) >= _TOGETHER or (is_enough and level == 0):
                break
            group.append(segment)
        yield group


def _write_thinned(run: Path, group: list[Segment], infos: list[SiteInfo], kept: Kept) -> Segment:
    """The segments as one with larger buckets, written beside the old ones."""
    first, level = group[0], group[0].thinned
    bucket = max(level * _FACTOR, FIRST_BUCKET)
    parts = [part for segment in group for part in segment.parts]
    version = max(segment.version for segment in group) + 1
    stem = f"part-{first.key.ordinal:04d}-{first.key.token}-{parts[0]:06d}-{parts[-1]:06d}-t{version}"
    files: dict[str, Sealed] = {}

    def write(label: str, data: Any, suffix: str = "", **options: int) -> None:
        path = f"{label.partition(':')[0]}/rank={first.key.rank}/{stem}{suffix}.parquet"
        files[label] = write_sealed(run, path, to_parquet(data, **options))

    slim, num_rows = _slim_rows(run, group, infos, bucket, kept)
    write("rows", rows_table(slim, infos, first.key.ordinal))
    buckets = refold(_joined_buckets(run, group), max(BASE_LEVEL, bucket.bit_length() - 1))
    write("pyramid", buckets_table(buckets, infos, first.key.ordinal), row_group_rows=BUCKET_GROUP_ROWS)
    for name in ("scalars", "events"):
        tables = [_read_table(run, one.files[name], _COLUMNS[name]) for one in group if name in one.files]
        if tables:
            cut = slim_scalars if name == "scalars" else slim_events
            write(name, cut(_joined(tables), bucket, kept))
    factor = FIRST_BUCKET if level == 0 else _FACTOR
    for number, (name, table) in enumerate(_thin_vectors(run, group, factor, kept)):
        write(f"vectors:{number}:{name}", table, f"-{number}")
    new = describe_segment(first.key, parts, slim, files)
    new.thinned, new.version = bucket, version
    new.rows_dropped = sum(segment.rows_dropped for segment in group) + num_rows - len(slim)
    return new


def _slim_rows(
    run: Path, group: list[Segment], infos: list[SiteInfo], bucket: int, kept: Kept
) -> tuple[SortedRows, int]:
    """What remains of the segments' rows, and how many there were. One segment at a time is in memory."""
    parts, total = [], 0
    for segment in group:
        piece = SegmentPiece(run, segment, np.arange(len(infos)), ByteCache(0))
        for chunk in piece.chunks(ALL_COLUMNS, np.ones(len(infos), bool), FIRST_STEP, LAST_STEP):
            rows = _flatten_rows(chunk)
            total += len(rows)
            parts.append(rows.keep(kept_rows(rows, bucket, kept)))
        if piece.problems:
            raise _DamagedError
    if total != sum(segment.num_rows for segment in group):
        raise _DamagedError
    rows = sort_rows(
        np.concatenate([part.steps for part in parts]),
        np.concatenate([part.sites for part in parts]),
        np.concatenate([part.table for part in parts]),
        np.concatenate([part.calls for part in parts]),
    )
    return rows.keep(kept_rows(rows, bucket, kept)), total


def _flatten_rows(chunk: Chunk) -> SortedRows:
    """A segment's rows, which lie sorted by site, then step."""
    steps, sites = np.asarray(chunk.steps), chunk.sites
    if chunk.is_dense:
        steps, sites = np.tile(steps, len(chunk.sites)), np.repeat(sites, len(steps))
    return SortedRows(steps, sites, chunk.values.reshape(-1, NUM_COLUMNS), chunk.calls.reshape(-1))


def _joined_buckets(run: Path, group: list[Segment]) -> BucketTable:
    """The stored buckets of the segments, sorted by site, then step."""
    parts = [_read_buckets(run, segment) for segment in group]
    sites, steps = (np.concatenate([getattr(part, name) for part in parts]) for name in ("sites", "steps"))
    order = np.lexsort((np.arange(len(steps)), steps, sites))

    def column(name: str) -> Any:
        return np.concatenate([getattr(part, name) for part in parts])[order]

    return BucketTable(
        sites[order], steps[order], column("low"), column("high"), column("mean"), column("last"), column("count")
    )


def _read_buckets(run: Path, segment: Segment) -> BucketTable:
    names = [f"{column}_{part}" for part in ("min", "max", "mean", "last", "count") for column in COLUMNS]
    read = _read_table(run, segment.files["pyramid"], ("site", "step", *names))
    columns = [read.column(name).to_numpy() for name in names]
    stacked = [np.stack(columns[k : k + NUM_COLUMNS], 1) for k in range(0, len(names), NUM_COLUMNS)]
    sites, steps = read.column("site").to_numpy().astype(np.int64), read.column("step").to_numpy()
    low, high, mean, last = (part.astype(np.float64) for part in stacked[:4])
    return BucketTable(sites, steps, low, high, mean, last, stacked[4].astype(np.int64))


def _read_table(run: Path, sealed: Sealed, columns: tuple[str, ...]) -> Any:
    """A whole sealed table, or _DamagedError."""
    problems: list[Problem] = []
    table = SealedTable(run, sealed, problems)
    read = table.read(list(range(table.num_groups())), columns)
    if read is None or problems:
        raise _DamagedError
    return read


def _joined(tables: list[Any]) -> Any:
    import pyarrow as pa

    return tables[0] if len(tables) == 1 else pa.concat_tables(tables).unify_dictionaries().combine_chunks()


def _thin_vectors(run: Path, group: list[Segment], factor: int, kept: Kept) -> Iterator[tuple[str, Any]]:
    """The vectors of the segments by name and type of number, thinned, sorted by site, then step."""
    found: dict[tuple[str, str], list[Any]] = {}
    for segment in group:
        for label in sorted(segment.files):
            if label.startswith("vectors:"):
                table = slim_vectors(_read_table(run, segment.files[label], _COLUMNS["vectors"]), factor, kept)
                found.setdefault((label.split(":", 2)[2], str(table.schema.field("values").type)), []).append(table)
    for (name, _), tables in sorted(found.items()):
        table = _joined(tables)
        yield name, table.sort_by([("site", "ascending"), ("step", "ascending")]) if len(tables) > 1 else table
