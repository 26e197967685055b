"""What of a rank's journals was sealed into which segments; replaced whole, under its own checksum.

The manifest is the one place where a seal becomes true: before it is replaced the journals count, after it
the segments do. It also keeps what journals said about their process starts, and the problems found in them.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from stethoscope.record import IntArray, RunDamagedError, RunNotFoundError, SiteInfo
from stethoscope.store.checked import Fields, checked_end, checked_head, checked_losses
from stethoscope.store.downsample.rollup import Rollup
from stethoscope.store.frame_file import Problem
from stethoscope.store.json_payload import EncodingError
from stethoscope.store.pieces import MOST_PROBLEMS, MOST_SITES, StartKey, checked_key, checked_parts
from stethoscope.store.runfile import dump, load, write_durably
from stethoscope.store.sealed_file import Sealed
from stethoscope.store.sitetable import site_info

if TYPE_CHECKING:
    from stethoscope.store.journal_piece import JournalPiece

NAME: Final = "manifest.json"
MOST_ROWS: Final = 1 << 20
"""Rows of one segment: with all their columns they take 150 MB of a reader's memory."""
_TABLES: Final = frozenset({"rows", "scalars", "events", "pyramid"})
_VECTORS: Final = re.compile(r"vectors:\d{1,6}:", re.ASCII)
_PART: Final = re.compile(r"part-\d{4,9}-[0-9a-f]{8}-[\d\-t]{1,80}\.parquet", re.ASCII)
Runs = list[list[int]]


@dataclasses.dataclass(slots=True)
class StartNote:
    """What the journals of one process start said about it."""

    head: dict[str, Any] = dataclasses.field(default_factory=dict)
    ended: dict[str, Any] | None = None
    losses: dict[str, int] = dataclasses.field(default_factory=dict)
    last_time: float = 0.0

    def take(self, piece: JournalPiece) -> None:
        """Add what the next journal says."""
        self.head = self.head or dict(piece.file.head or {})
        self.ended = piece.ended or self.ended
        self.losses = piece.losses or self.losses
        self.last_time = max(self.last_time, piece.last_time)


@dataclasses.dataclass(slots=True)
class Segment:
    """Some journal files of one process start, as sealed files by table name."""

    key: StartKey
    parts: list[int]
    steps: Runs
    sites: Runs
    num_rows: int
    is_dense: bool
    """Whether every one of `sites` has every one of `steps`: then a row's index follows from both."""
    files: dict[str, Sealed]
    thinned: int = 0
    """Steps per bucket of which only the last row is kept (outside the steps kept whole); 0: all rows."""
    rows_dropped: int = 0
    version: int = 0

    @property
    def first_step(self) -> int | None:
        """The first step that has rows."""
        return self.steps[0][0] if self.steps else None

    @property
    def last_step(self) -> int | None:
        """The last step that has rows."""
        if not self.steps:
            return None
        first, count, stride = self.steps[-1]
        return first + (count - 1) * stride

    @property
    def num_bytes(self) -> int:
        """Size of all its files."""
        return sum(file.num_bytes for file in self.files.values())

    def to_json(self) -> dict[str, Any]:
        """As plain JSON values."""
        body = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        body["key"] = self.key.to_json()
        body["files"] = {name: file.to_json() for name, file in self.files.items()}
        return body

    @classmethod
    def from_json(cls, body: Any, rank: int, num_sites: int) -> Segment:
        """The inverse of `to_json`; EncodingError where a field is not so, or reaches outside of this rank's files."""
        fields = Fields(body, "a segment")
        key = checked_key(fields.items("key"), rank)
        files = {
            name: _checked_file(Sealed.from_json(file), name, rank) for name, file in fields.object("files").items()
        }
        parts = checked_parts(fields.items("parts", int))
        steps = checked_runs(fields.items("steps", list), -(2**62), 2**62)
        sites = checked_runs(fields.items("sites", list), 0, num_sites - 1)
        found = cls(
            key,
            parts,
            steps,
            sites,
            fields.whole("num_rows", 0, MOST_ROWS),
            fields.flag("is_dense"),
            files,
            fields.whole("thinned", 0, 1 << 24),
            fields.whole("rows_dropped", 0),
            fields.whole("version", 0, 1 << 24),
        )
        sizes = [sum(count for _, count, _ in runs) for runs in (steps, sites)]
        if found.is_dense != (found.num_rows == sizes[0] * sizes[1]) or found.num_rows < max(sizes):
            raise EncodingError("num_rows of a segment is not that of its steps and sites")
        return found


@dataclasses.dataclass(slots=True)
class Manifest:
    """All that is sealed of one rank."""

    sites: list[SiteInfo] = dataclasses.field(default_factory=list)
    starts: dict[StartKey, StartNote] = dataclasses.field(default_factory=dict)
    segments: list[Segment] = dataclasses.field(default_factory=list)
    problems: list[Problem] = dataclasses.field(default_factory=list)
    rollups: list[Rollup] = dataclasses.field(default_factory=list)

    def sealed_parts(self) -> set[tuple[StartKey, int]]:
        """The journal files that segments have replaced."""
        return {(segment.key, part) for segment in self.segments for part in segment.parts}

    def save(self, folder: Path) -> None:
        """Puts the manifest in place, durably."""
        starts = [{"key": key.to_json(), **dataclasses.asdict(note)} for key, note in self.starts.items()]
        body = {
            "sites": [info.to_json() for info in self.sites],
            "starts": starts,
            "segments": [segment.to_json() for segment in self.segments],
            "problems": [problem.to_json() for problem in self.problems],
            "ladder": [rollup.to_json() for rollup in self.rollups],
        }
        write_durably(folder / NAME, dump(body, indent=None))  # thousands of sites: indenting takes seconds

    @classmethod
    def load(cls, folder: Path) -> Manifest:
        """The manifest of a rank's folder, empty where there is none. RunError where it cannot be trusted."""
        try:
            body = load(folder.parent, f"{folder.name}/{NAME}")
        except RunNotFoundError:
            return cls()
        try:
            return cls._from_json(body, int(folder.name.removeprefix("rank-")))
        except EncodingError as error:
            raise RunDamagedError(f"The manifest cannot be understood ({error})", where=folder / NAME) from error

    @classmethod
    def _from_json(cls, body: Any, rank: int) -> Manifest:
        fields = Fields(body, "the manifest")
        sites = [site_info(info) for info in fields.items("sites", dict)]
        if len(sites) > MOST_SITES:
            raise EncodingError(f"more than {MOST_SITES} sites")
        found = cls(
            sites=sites,
            starts=dict(_checked_start(entry, rank) for entry in fields.items("starts", dict)),
            segments=[Segment.from_json(segment, rank, len(sites)) for segment in fields.items("segments", dict)],
            problems=[_checked_problem(problem) for problem in fields.items("problems", dict)[:MOST_PROBLEMS]],
            rollups=[Rollup.from_json(rollup, rank, len(sites)) for rollup in fields.items("ladder", dict, [])],
        )
        files = [file.path for segment in found.segments for file in segment.files.values()]
        files += [rollup.file.path for rollup in found.rollups]
        if len(set(files)) < len(files):
            raise EncodingError("a sealed file is named twice")
        return found


def _checked_start(body: Any, rank: int) -> tuple[StartKey, StartNote]:
    fields = Fields(body, "a process start")
    ended = fields.object("ended", None)
    note = StartNote(
        checked_head(fields.object("head")),
        None if ended is None else checked_end(ended)[0],
        checked_losses(fields.object("losses")),
        float(fields.number("last_time", 0.0)),
    )
    return checked_key(fields.items("key"), rank), note


def _checked_problem(body: Any) -> Problem:
    fields = Fields(body, "a problem")
    return Problem(
        fields.text("file", most=1000),
        fields.whole("offset"),
        fields.text("what", most=10_000),
        fields.whole("frames_lost", 0, 2**63, None),
        fields.flag("is_torn_tail", False),
    )


def _checked_file(file: Sealed, label: str, rank: int) -> Sealed:
    """The file, where it is one of this table and rank."""
    table = label if label in _TABLES else "vectors" if _VECTORS.match(label) else ""
    stem = file.path.removeprefix(f"{table}/rank={rank}/")
    if not table or stem == file.path or not _PART.fullmatch(stem):
        raise EncodingError(f"path of a sealed file is not one of this table and rank: {file.path!r:.100}")
    return file


def checked_runs(runs: list[Any], low: int, high: int) -> Runs:
    """[first, count, stride] triples that rise from `low` to `high` and do not stand for too many numbers."""
    last, total = low - 1, 0
    for run in runs:
        if len(run) != 3 or not all(isinstance(part, int) and not isinstance(part, bool) for part in run):
            raise EncodingError("a run of numbers is not three whole numbers")
        first, count, stride = run
        if first <= last or count < 1 or stride < 1 or first + (count - 1) * stride > high:
            raise EncodingError(f"a run of numbers does not rise, or is outside of {low} to {high}: {run!r:.100}")
        last, total = first + (count - 1) * stride, total + count
    if total > MOST_ROWS:
        raise EncodingError(f"runs stand for {total} numbers, more than {MOST_ROWS}")
    return runs


def pack_runs(values: Iterable[int] | IntArray) -> Runs:
    """Rising whole numbers as [first, count, stride] triples: a million regular steps are one of them."""
    numbers = np.asarray(values, np.int64)
    strides = np.diff(numbers)
    changes = np.append(np.flatnonzero(strides[1:] != strides[:-1]) + 1, len(strides))
    runs: Runs = []
    index = 0
    while index < len(numbers):
        if index + 1 == len(numbers):
            runs.append([int(numbers[index]), 1, 1])
            break
        count = int(changes[np.searchsorted(changes, index, side="right")]) - index + 1
        runs.append([int(numbers[index]), count, int(strides[index])])
        index += count
    return runs


def unpack_runs(runs: Runs) -> IntArray:
    """The inverse of `pack_runs`."""
    if not runs:
        return np.empty(0, np.int64)
    return np.concatenate([first + stride * np.arange(count, dtype=np.int64) for first, count, stride in runs])
