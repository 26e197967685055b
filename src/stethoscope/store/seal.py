"""Sealing: closed journal files become Parquet segments.

Two rules make it safe to be killed at any moment: everything a seal writes is durable before the manifest
that names it is, and a journal goes only after the manifest that replaces it is durable. What a killed seal
left behind is swept up by the next. Damaged journals stay as they are: they are still read, and evidence.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from stethoscope.kernels.columns import NUM_COLUMNS
from stethoscope.store.catalogue import Catalogue
from stethoscope.store.downsample.buckets import buckets_table, fold_rows
from stethoscope.store.downsample.building import build_rollups
from stethoscope.store.inside import list_folder, remove_file
from stethoscope.store.journal_piece import JournalPiece
from stethoscope.store.locate import TABLES, parse_journal_name, rank_folders
from stethoscope.store.manifest import MOST_ROWS, Manifest, Segment, StartNote, pack_runs
from stethoscope.store.manifest import NAME as MANIFEST
from stethoscope.store.pieces import ALL_COLUMNS, FIRST_STEP, LAST_STEP, Chunk, StartKey
from stethoscope.store.private import open_file
from stethoscope.store.runfile import sync_folder
from stethoscope.store.sealed_file import SUFFIX, Sealed, write_sealed
from stethoscope.store.sitetable import SiteTable
from stethoscope.store.tables import (
    SortedRows,
    events_table,
    rows_table,
    scalars_table,
    sort_rows,
    to_parquet,
    vectors_table,
)

SEAL_BYTES: Final = 16 << 20
SEAL_FILES: Final = 8
"""Journals that hold something, sealed together at most."""
_MOST_FILES: Final = 512
"""All journals of one segment: the manifest is written once a segment, so files that hold nothing must not have one each."""
_MEMORY_BYTES: Final = 4 << 20
"""What a seal keeps of payloads: each is needed once more, soon."""
BUCKET_GROUP_ROWS: Final = 4096
LOCK: Final = ".sealing"


@dataclasses.dataclass(slots=True)
class SealReport:
    """What a seal did."""

    journals: int = 0
    segments: int = 0
    rows: int = 0
    bytes_before: int = 0
    bytes_after: int = 0
    skipped: list[str] = dataclasses.field(default_factory=list)
    """Damaged journals, left as they are."""
    is_busy: bool = False
    """Another process was sealing; nothing was done."""


def seal(folder: Path, *, final: bool = False, at_bytes: int | None = None) -> SealReport:
    """Seals what is closed, at least `at_bytes` or a few files at a time; with `final`, all of processes that have ended."""
    report = SealReport()
    run, at_bytes = Path(folder), SEAL_BYTES if at_bytes is None else at_bytes
    for rank, rank_folder in rank_folders(run).items():
        if is_bare(rank_folder) or (not final and not _has_enough(rank_folder, at_bytes)):
            continue
        with only_one(rank_folder) as is_mine:
            if not is_mine:
                report.is_busy = True
                continue
            _seal_rank(run, rank, rank_folder, final, report, at_bytes)
    return report


def is_bare(rank_folder: Path) -> bool:
    """Whether a rank's folder holds neither journals nor a manifest: nothing to be done, and no lock to be left in it."""
    names = [entry.name for entry in list_folder(rank_folder.parent, rank_folder.name)]
    return MANIFEST not in names and not any(name.endswith(".stj") for name in names)


def _has_enough(rank_folder: Path, at_bytes: int) -> bool:
    """Whether a process start could have closed files enough, by their names and sizes alone."""
    found: dict[tuple[int, str], list[int]] = {}
    for entry in list_folder(rank_folder.parent, rank_folder.name):
        named = parse_journal_name(entry.name)
        if named is not None and entry.is_file:
            found.setdefault(named[:2], []).append(entry.num_bytes)
    return any(sum(sizes) >= at_bytes or len(sizes) >= SEAL_FILES for sizes in found.values())


@contextlib.contextmanager
def only_one(folder: Path) -> Iterator[bool]:
    """Whether this process alone may rewrite a rank's sealed files, for as long as the block runs."""
    import fcntl

    descriptor = open_file(folder / LOCK)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield False
            return
        yield True
    finally:
        os.close(descriptor)


def _seal_rank(run: Path, rank: int, rank_folder: Path, final: bool, report: SealReport, at_bytes: int) -> None:
    manifest = Manifest.load(rank_folder)
    sweep(run, rank, rank_folder, manifest)
    catalogue = Catalogue(run, only_rank=rank, memory_bytes=_MEMORY_BYTES)
    catalogue.update()
    for group in _sealable_groups(catalogue, final, report, at_bytes):
        table = SiteTable()
        for info in manifest.sites:
            table.add(info)
        segment, sites = _write_segment(run, group, table, catalogue.sites)
        manifest.sites = sites
        manifest.segments.append(segment)
        _note_start(manifest, group)
        manifest.save(rank_folder)
        for piece in group:
            report.bytes_before += piece.file.num_bytes
            remove_file(run, piece.file.label)
        sync_folder(rank_folder)
        report.journals += len(group)
        report.segments += 1
        report.rows += segment.num_rows
        report.bytes_after += segment.num_bytes
    build_rollups(run, rank, rank_folder, manifest)


def _sealable_groups(
    catalogue: Catalogue, final: bool, report: SealReport, at_bytes: int
) -> Iterator[list[JournalPiece]]:
    """Journals of one process start that can be sealed together, in order."""
    alive = {StartKey(s.rank, s.ordinal, s.token) for s in catalogue.starts if s.how in ("live", "stale")}
    by_start: dict[StartKey, list[JournalPiece]] = {}
    for piece in catalogue.journals():
        by_start.setdefault(piece.key, []).append(piece)
    for key, pieces in by_start.items():
        newest = pieces[-1].part
        over = [one for one in pieces if one.is_closed or one.part < newest or (final and key not in alive)]
        group: list[JournalPiece] = []
        num_rows = num_bytes = num_filled = 0
        for piece in over:
            if not _can_be_sealed(piece):
                report.skipped.append(piece.file.label)
                continue
            if group and num_rows + piece.num_rows > MOST_ROWS:
                yield group
                group, num_rows, num_bytes, num_filled = [], 0, 0, 0
            group.append(piece)
            num_rows += piece.num_rows
            num_bytes += piece.file.num_bytes
            num_filled += not piece.is_empty
            if num_bytes >= at_bytes or num_filled >= SEAL_FILES or len(group) >= _MOST_FILES:
                yield group
                group, num_rows, num_bytes, num_filled = [], 0, 0, 0
        if group and final:
            yield group


def _can_be_sealed(piece: JournalPiece) -> bool:
    """Not a damaged journal, nor one of more rows than a segment holds: both are read as they are."""
    is_damaged = piece.file.damage or piece.problems or (piece.file.tail and not piece.file.tail.is_torn_tail)
    return not is_damaged and piece.num_rows <= MOST_ROWS


def _note_start(manifest: Manifest, group: list[JournalPiece]) -> None:
    note = manifest.starts.setdefault(group[0].key, StartNote())
    for piece in group:
        note.take(piece)
        if piece.file.tail is not None:
            manifest.problems.append(piece.file.tail)


def _write_segment(
    run: Path, group: list[JournalPiece], table: SiteTable, known: SiteTable
) -> tuple[Segment, list[Any]]:
    """Writes the group's tables; the sites get their numbers in the manifest's own table."""
    numbers = np.array([table.add(info) for info in known.infos], np.int64)
    infos = table.infos
    key, parts = group[0].key, [piece.part for piece in group]
    rows = gather_rows(group, numbers)
    stem = f"part-{key.ordinal:04d}-{key.token}-{parts[0]:06d}-{parts[-1]:06d}"
    files: dict[str, Sealed] = {}

    def write(label: str, suffix: str, data: Any, **options: int) -> None:
        path = f"{label.partition(':')[0]}/rank={key.rank}/{stem}{suffix}.parquet"
        files[label] = write_sealed(run, path, to_parquet(data, **options))

    if len(rows):
        write("rows", "", rows_table(rows, infos, key.ordinal))
        write(
            "pyramid",
            "",
            buckets_table(fold_rows(rows), infos, key.ordinal),
            row_group_rows=BUCKET_GROUP_ROWS,
        )
    scalars = scalars_table((block for piece in group for block in piece.scalars()), key.ordinal)
    # One by one, not as a list: as objects they are many times what they are as columns.
    events = events_table((entry for piece in group for entry in piece.events()), key.ordinal)
    for label, table_of in (("scalars", scalars), ("events", events)):
        if table_of.num_rows:
            write(label, "", table_of)
    for rank_folder, (name, entries) in enumerate(sorted(_gather_vectors(group, numbers).items())):
        write(f"vectors:{rank_folder}:{name[0]}", f"-{rank_folder}", vectors_table(entries, infos, key.ordinal))
    return describe_segment(key, parts, rows, files), infos


def describe_segment(key: StartKey, parts: list[int], rows: SortedRows, files: dict[str, Sealed]) -> Segment:
    """What the manifest says of a segment."""
    steps, sites = np.unique(rows.steps), np.unique(rows.sites)
    is_dense = len(rows) == len(steps) * len(sites)
    return Segment(key, parts, pack_runs(steps), pack_runs(sites), len(rows), is_dense, files)


def gather_rows(group: list[JournalPiece], numbers: npt.NDArray[np.int64]) -> SortedRows:
    """All rows of the journals, sorted."""
    wanted = np.ones(len(numbers), bool)
    chunks = [c for piece in group for c in piece.chunks(ALL_COLUMNS, wanted, FIRST_STEP, LAST_STEP)]
    if not chunks:
        none = np.empty(0, np.int64)
        return SortedRows(none, none, np.empty((0, NUM_COLUMNS)), none)
    regular = _regular_rows(chunks, numbers)
    if regular is not None:
        return regular
    steps = np.concatenate([np.full(len(c.sites), c.steps, np.int64) for c in chunks])
    sites = numbers[np.concatenate([c.sites for c in chunks])]
    table, calls = np.concatenate([c.values for c in chunks]), np.concatenate([c.calls for c in chunks])
    return sort_rows(steps, sites, table, calls)


def _regular_rows(chunks: list[Chunk], numbers: npt.NDArray[np.int64]) -> SortedRows | None:
    """The same sites at each step, steps rising, as runs mostly are: turned around instead of sorted."""
    sites = numbers[chunks[0].sites]
    steps = np.array([c.steps for c in chunks], np.int64)
    if not bool((np.diff(steps) > 0).all()) or not all(np.array_equal(c.sites, chunks[0].sites) for c in chunks):
        return None
    order = np.argsort(sites)
    table = np.empty((len(sites), len(steps), NUM_COLUMNS))
    calls = np.empty((len(sites), len(steps)), np.int64)
    for rank_folder, chunk in enumerate(chunks):
        table[:, rank_folder], calls[:, rank_folder] = chunk.values[order], chunk.calls[order]
    return SortedRows(
        np.tile(steps, len(sites)),
        np.repeat(sites[order], len(steps)),
        table.reshape(-1, NUM_COLUMNS),
        calls.reshape(-1),
    )


_Entry = tuple[int, int, npt.NDArray[Any]]


def _gather_vectors(group: list[JournalPiece], numbers: npt.NDArray[np.int64]) -> dict[tuple[str, str], list[_Entry]]:
    """From name and dtype to (step, site, values), sorted by site, then step; of equals the later stays."""
    latest: dict[tuple[str, str], dict[tuple[int, int], npt.NDArray[Any]]] = {}
    for piece in group:
        for name, step, sites, values in piece.all_vectors():
            kept = latest.setdefault((name, values.dtype.str), {})
            for site, vector in zip(sites.tolist(), values, strict=True):
                kept[int(numbers[site]), step] = vector
    return {key: [(step, site, kept[site, step]) for site, step in sorted(kept)] for key, kept in latest.items()}


def sweep(run: Path, rank: int, rank_folder: Path, manifest: Manifest) -> None:
    """Removes what the manifest does not name (an unfinished seal's files) and journals it has replaced."""
    named = {file.path for segment in manifest.segments for file in segment.files.values()}
    named |= {rollup.file.path for rollup in manifest.rollups}
    gone = []
    for table in TABLES:
        folder = f"{table}/rank={rank}"
        labels = [f"{folder}/{entry.name}" for entry in list_folder(run, folder) if not entry.is_folder]
        gone += [label for label in labels if label.removesuffix(SUFFIX) not in named]
    names = [entry.name for entry in list_folder(run, rank_folder.name) if not entry.is_folder]
    gone += [
        f"{rank_folder.name}/{name}" for name in names if name.startswith(".manifest.json.") and name.endswith(".new")
    ]
    journals = [name for name in names if parse_journal_name(name) is not None]
    sealed = {(key.ordinal, key.token, part) for key, part in manifest.sealed_parts()} if journals else set()
    gone += [f"{rank_folder.name}/{name}" for name in journals if parse_journal_name(name) in sealed]
    for label in gone:
        remove_file(run, label)
