"""What of a rank's journals was sealed into which segments; replaced whole, under its own checksum.

The manifest is the one place where a seal becomes true: before it is replaced the journals count, after it
the segments do. It also keeps what journals said about their process starts, and the problems found in them.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final

import numpy as np

from stethoscope.record import IntArray, RunDamagedError, SiteInfo
from stethoscope.store.ladder import Rung
from stethoscope.store.pieces import StartKey
from stethoscope.store.runfile import dump, load, write_durably
from stethoscope.store.scan import Problem
from stethoscope.store.sums import Sealed

NAME: Final = "manifest.json"
Runs = list[list[int]]


@dataclasses.dataclass(slots=True)
class StartNote:
    """What the journals of one process start said about it."""

    head: dict[str, Any] = dataclasses.field(default_factory=dict)
    ended: dict[str, Any] | None = None
    losses: dict[str, int] = dataclasses.field(default_factory=dict)
    last_time: float = 0.0


@dataclasses.dataclass(slots=True)
class Segment:
    """Some journal files of one process start, as sealed files by table name."""

    key: StartKey
    parts: list[int]
    steps: Runs
    sites: Runs
    num_rows: int
    is_dense: bool
    """Whether every one of `sites` has every one of `steps`: then a row's place follows from both."""
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
        return int(unpack_runs(self.steps)[-1]) if self.steps else None

    @property
    def num_bytes(self) -> int:
        """Size of all its files."""
        return sum(file.num_bytes for file in self.files.values())

    def to_json(self) -> dict[str, Any]:
        """As plain JSON values."""
        body = dataclasses.asdict(self)
        body["key"] = [self.key.rank, self.key.ordinal, self.key.token]
        body["files"] = {name: file.to_json() for name, file in self.files.items()}
        return body

    @classmethod
    def from_json(cls, body: dict[str, Any]) -> Segment:
        """The inverse of `to_json`."""
        files = {name: Sealed.from_json(file) for name, file in body["files"].items()}
        return cls(**{**body, "key": StartKey(*body["key"]), "files": files})


@dataclasses.dataclass(slots=True)
class Manifest:
    """All that is sealed of one rank."""

    sites: list[SiteInfo] = dataclasses.field(default_factory=list)
    starts: dict[StartKey, StartNote] = dataclasses.field(default_factory=dict)
    segments: list[Segment] = dataclasses.field(default_factory=list)
    problems: list[Problem] = dataclasses.field(default_factory=list)
    ladder: list[Rung] = dataclasses.field(default_factory=list)

    def sealed_parts(self) -> set[tuple[StartKey, int]]:
        """The journal files that segments have replaced."""
        return {(segment.key, part) for segment in self.segments for part in segment.parts}

    def save(self, folder: Path) -> None:
        """Puts the manifest in place, durably."""
        starts = [
            {"key": [key.rank, key.ordinal, key.token], **dataclasses.asdict(note)}
            for key, note in self.starts.items()
        ]
        body = {
            "sites": [info.to_json() for info in self.sites],
            "starts": starts,
            "segments": [segment.to_json() for segment in self.segments],
            "problems": [problem.to_json() for problem in self.problems],
            "ladder": [rung.to_json() for rung in self.ladder],
        }
        write_durably(folder / NAME, dump(body, indent=None))  # thousands of sites: indenting takes seconds

    @classmethod
    def load(cls, folder: Path) -> Manifest:
        """The manifest of a rank's folder, empty where there is none. RunError where it cannot be trusted."""
        path = folder / NAME
        if not path.exists():
            return cls()
        body = load(path)
        try:
            starts = {StartKey(*entry.pop("key")): StartNote(**entry) for entry in body["starts"]}
            return cls(
                sites=[SiteInfo.from_json(info) for info in body["sites"]],
                starts=starts,
                segments=[Segment.from_json(segment) for segment in body["segments"]],
                problems=[Problem(**problem) for problem in body["problems"]],
                ladder=[Rung.from_json(rung) for rung in body.get("ladder", ())],
            )
        except (KeyError, TypeError, ValueError) as error:
            raise RunDamagedError(f"The manifest cannot be understood ({error})", where=path) from error


def pack_runs(values: Iterable[int] | IntArray) -> Runs:
    """Rising whole numbers as [first, count, stride] triples: a million regular steps are one of them."""
    numbers = np.asarray(values, np.int64)
    strides = np.diff(numbers)
    changes = np.append(np.flatnonzero(strides[1:] != strides[:-1]) + 1, len(strides))
    runs: Runs = []
    place = 0
    while place < len(numbers):
        if place + 1 == len(numbers):
            runs.append([int(numbers[place]), 1, 1])
            break
        count = int(changes[np.searchsorted(changes, place, side="right")]) - place + 1
        runs.append([int(numbers[place]), count, int(strides[place])])
        place += count
    return runs


def unpack_runs(runs: Runs) -> IntArray:
    """The inverse of `pack_runs`."""
    if not runs:
        return np.empty(0, np.int64)
    return np.concatenate(
        [first + stride * np.arange(count, dtype=np.int64) for first, count, stride in runs]
    )
