"""What a run folder holds right now: its pieces, process starts and problems.

Promises a consistent view: a row is read from its journal or from the segment that replaced it, never from
both and never from neither, also while another process seals. Journals are listed before the manifest is
read, so one that was sealed in between is found in the manifest; where one goes later, the reading is repeated.
"""

from __future__ import annotations

import itertools
import threading
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from stethoscope.record import RunDamagedError, RunFormatError
from stethoscope.store import manifest as manifests
from stethoscope.store.cache import MEMORY_BYTES, ByteCache
from stethoscope.store.downsample.rollup import RollupPiece
from stethoscope.store.frame_file import FrameFile, Problem
from stethoscope.store.frames import Allowance
from stethoscope.store.inside import Entry, list_folder, stat_file
from stethoscope.store.journal_piece import JournalPiece
from stethoscope.store.locate import is_rank, journal_name, parse_journal_name, rank_folder, rank_folders
from stethoscope.store.losses import add_up
from stethoscope.store.manifest import Manifest, StartNote
from stethoscope.store.pieces import MOST_PROBLEMS, Piece, StartKey
from stethoscope.store.segment import SegmentPiece
from stethoscope.store.sitetable import SiteTable
from stethoscope.store.starts import Start, how

_MOST_LOOKS: Final = 5
_MOST_MISSING: Final = 20
"""Missing files between two that are there, told one by one."""


class _Rank:
    """One rank's manifest as last read, and its pieces."""

    def __init__(self) -> None:
        self.stamp: tuple[int, ...] | None = None
        self.manifest = Manifest()
        self.segments: list[SegmentPiece] = []
        self.rollups: list[RollupPiece] = []
        self.problems: list[Problem] = []


class Catalogue:
    """The pieces of a run, kept up to date by `update`."""

    def __init__(self, folder: Path, *, only_rank: int | None = None, memory_bytes: int = MEMORY_BYTES) -> None:
        self.folder = folder
        self.lock = threading.RLock()
        """Held while reading or updating: a run may be shared by the threads of a server."""
        self.sites = SiteTable()
        self.cache = ByteCache[bytes](memory_bytes)
        self.columns = ByteCache[npt.NDArray[Any]](memory_bytes)
        self.starts: list[Start] = []
        self._only_rank = only_rank
        self._ranks: dict[int, _Rank] = {}
        self._journals: dict[str, JournalPiece] = {}
        self._unreadable: dict[str, Problem] = {}
        self._allowance = Allowance()
        self.generation = 0
        """Grows whenever anything is new: what was worked out of the pieces is good until then."""
        self._missing: tuple[int, list[Problem]] = -1, []

    def update(self) -> bool:
        """Looks at the folder again; True where anything is new."""
        with self.lock:
            changed = False
            self._unreadable = {}
            for rank, folder in self._rank_folders().items():
                try:
                    changed |= self._update_rank(rank, folder)
                except FileNotFoundError:
                    raise
                except OSError as error:
                    self._note_unreadable(folder.name, error)
            self.generation += changed
            self.starts = self._list_starts()
            return changed

    def _rank_folders(self) -> dict[int, Path]:
        """The ranks' folders; whatever else bears a rank's name is told of."""
        if self._only_rank is not None:
            return {self._only_rank: rank_folder(self.folder, self._only_rank)}
        try:
            entries = list_folder(self.folder)
        except OSError as error:
            self._note_unreadable(".", error)
            return {}
        for entry in entries:
            if is_rank(entry.name) and not entry.is_folder:
                self._unreadable[entry.name] = Problem(
                    entry.name, 0, "is not a folder, or a link to one, and is not followed"
                )
        return rank_folders(self.folder)

    def _note_unreadable(self, label: str, error: OSError) -> None:
        self._unreadable[label] = Problem(label, 0, f"cannot be read: {error.strerror}")

    def _update_rank(self, rank: int, folder: Path) -> bool:
        changed = False
        for _ in range(_MOST_LOOKS):
            there = {entry.name: entry for entry in list_folder(self.folder, folder.name) if _is_journal(entry.name)}
            changed |= self._update_manifest(rank, folder)
            sealed = self._ranks[rank].manifest.sealed_parts()
            try:
                changed |= self._update_journals(rank, folder, there, sealed)
            except FileNotFoundError:
                continue
            self._miss_manifest(rank, folder, has_journals=bool(there))
            break
        return changed

    def _miss_manifest(self, rank: int, folder: Path, *, has_journals: bool) -> None:
        """Sealed files that no manifest names: while journals are there one may be on its way, after that it is gone."""
        mine = self._ranks[rank]
        if mine.stamp or has_journals:
            return
        if any(entry.name.endswith(".parquet") for entry in list_folder(self.folder, f"rows/rank={rank}")):
            gone = "is gone, and without it the sealed files of this rank cannot be trusted"
            mine.problems = [Problem(f"{folder.name}/{manifests.NAME}", 0, gone)]

    def _update_manifest(self, rank: int, folder: Path) -> bool:
        """Reads the manifest where it is not the one read last."""
        mine = self._ranks.setdefault(rank, _Rank())
        label = f"{folder.name}/{manifests.NAME}"
        stamp: tuple[int, ...] = ()
        try:
            found = stat_file(self.folder, label)
            stamp = found.st_ino, found.st_mtime_ns, found.st_size
        except FileNotFoundError:
            stamp = ()  # none yet
        except OSError as error:
            self._note_unreadable(label, error)
            return False
        if stamp == mine.stamp:
            return False
        try:
            manifest = Manifest.load(folder)
        except RunFormatError:
            raise
        except RunDamagedError as error:
            mine.problems = [Problem(label, 0, error.what)]
            return False
        mine.stamp, mine.manifest, mine.problems = stamp, manifest, list(manifest.problems)
        numbers = np.array([self.sites.add(info) for info in manifest.sites], np.int64)
        known = {piece.segment.files.get("rows"): piece for piece in mine.segments if piece.segment.files.get("rows")}
        mine.segments = []
        for segment in manifest.segments:
            old = known.get(segment.files.get("rows"))
            if old is not None and old.segment == segment:
                mine.segments.append(old)
            else:
                mine.segments.append(SegmentPiece(self.folder, segment, numbers, self.columns))
        kept = {piece.rollup.file: piece for piece in mine.rollups}
        mine.rollups = [kept.get(one.file) or RollupPiece(self.folder, one, numbers) for one in manifest.rollups]
        return True

    def _update_journals(
        self, rank: int, folder: Path, entries: dict[str, Entry], sealed: set[tuple[StartKey, int]]
    ) -> bool:
        changed = False
        there = {f"{folder.name}/{name}": entry for name, entry in entries.items()}
        for label in [label for label in self._journals if label.startswith(f"{folder.name}/")]:
            piece = self._journals[label]
            if (piece.key, piece.part) in sealed or label not in there:
                del self._journals[label]
                self.cache.forget(label)
                changed = True
        for label, entry in there.items():
            named = parse_journal_name(entry.name)
            if named is None:
                self._unreadable[label] = Problem(label, 0, "is not read: no journal is called so")
                continue
            if (StartKey(rank, *named[:2]), named[2]) in sealed:
                continue
            if label not in self._journals:
                key = StartKey(rank, *named[:2])
                file = FrameFile(self.folder, label, self._allowance)
                self._journals[label] = JournalPiece(file, key, named[2], self.sites, self.cache)
                changed = True
            piece = self._journals[label]
            if piece.file.is_read_to(entry) or (piece.is_closed and piece.file.tail is None):
                continue  # of a file without a byte there is nothing to read: it is not even opened
            try:
                changed |= piece.advance()
            except FileNotFoundError:
                raise
            except OSError as error:
                self._note_unreadable(label, error)
        return changed

    def journals(self) -> list[JournalPiece]:
        """The journals that are not sealed, in the order in which they were written."""
        return sorted(self._journals.values(), key=lambda piece: (piece.key, piece.part))

    def segments(self) -> list[SegmentPiece]:
        """The sealed pieces, in the order in which they were written."""
        found = [piece for rank in self._ranks.values() for piece in rank.segments]
        return sorted(found, key=lambda piece: (piece.key, piece.part))

    def rollups(self, rank: int) -> list[RollupPiece]:
        """The rollups of one rank."""
        with self.lock:
            return list(self._ranks[rank].rollups) if rank in self._ranks else []

    def pieces(self, rank: int | None = None) -> list[Piece]:
        """All pieces in the order in which they were written, of one rank or of all."""
        with self.lock:
            found: list[Piece] = [*self.journals(), *self.segments()]
        found.sort(key=lambda piece: (piece.key, piece.part))
        return [piece for piece in found if rank is None or piece.key.rank == rank]

    def ranks(self) -> tuple[int, ...]:
        """The ranks that wrote anything."""
        return tuple(sorted({start.rank for start in self.starts}))

    def losses(self) -> dict[str, int]:
        """What the writers say they lost, added up over process starts."""
        with self.lock:
            notes = self._process_notes()
        return add_up(note.losses for note in notes.values())

    def problems(self) -> list[Problem]:
        """Everything that cannot be trusted or is not there."""
        with self.lock:
            return self._all_problems()

    def _all_problems(self) -> list[Problem]:
        live = {(s.rank, s.ordinal, s.token) for s in self.starts if s.how == "live"}
        found = [*self._unreadable.values(), *self._missing_parts()]
        for rank in self._ranks.values():
            found += rank.problems
            found += [problem for piece in rank.segments for problem in piece.problems]
            found += [problem for rollup in rank.rollups for problem in rollup.problems]
        for piece in self.journals():
            key = piece.key.rank, piece.key.ordinal, piece.key.token
            found += piece.all_problems(is_live=key in live)
        return found

    def _missing_parts(self) -> list[Problem]:
        """Files of a start are numbered without gaps: one that is not there was lost."""
        if self._missing[0] != self.generation:
            self._missing = self.generation, self._look_for_missing()
        return self._missing[1]

    def _look_for_missing(self) -> list[Problem]:
        parts: dict[StartKey, set[int]] = {}
        for rank in self._ranks.values():
            for key, part in rank.manifest.sealed_parts():
                parts.setdefault(key, set()).add(part)
        for piece in self._journals.values():
            parts.setdefault(piece.key, set()).add(piece.part)
        found = []
        for key, there in sorted(parts.items()):
            for before, after in itertools.pairwise([-1, *sorted(there)]):
                for part in range(before + 1, min(after, before + 1 + _MOST_MISSING)):
                    label = f"rank-{key.rank}/{journal_name(key.ordinal, key.token, part)}"
                    found.append(Problem(label, 0, "the file is missing"))
                if after - before - 1 > _MOST_MISSING:
                    found.append(
                        Problem(found[-1].file, 0, f"{after - before - 1 - _MOST_MISSING} more after it are missing")
                    )
        return found[:MOST_PROBLEMS]

    def _process_notes(self) -> dict[StartKey, StartNote]:
        """What is known about each process start, from manifests and journals."""
        notes: dict[StartKey, StartNote] = {}
        for rank in self._ranks.values():
            for key, note in rank.manifest.starts.items():
                notes[key] = StartNote(dict(note.head), note.ended, dict(note.losses), note.last_time)
        for piece in self.journals():
            notes.setdefault(piece.key, StartNote()).take(piece)
        return notes

    def _list_starts(self) -> list[Start]:
        steps: dict[StartKey, list[Any]] = {}
        for piece in self.pieces():
            steps.setdefault(piece.key, []).append(piece.steps())
        return [_make_start(key, note, steps.get(key, [])) for key, note in sorted(self._process_notes().items())]


def _is_journal(name: str) -> bool:
    return name.startswith("journal-") and name.endswith(".stj")


def _make_start(key: StartKey, note: StartNote, steps: list[Any]) -> Start:
    who = note.head.get("process", {})
    return Start(
        rank=key.rank,
        ordinal=key.ordinal,
        token=key.token,
        pid=who.get("pid"),
        host=str(who.get("host", "")),
        started_at=note.head.get("started_at"),
        ended=note.ended,
        how=how(note.head, note.ended, note.last_time),
        first_step=min((int(s[0]) for s in steps if len(s)), default=None),
        last_step=max((int(s[-1]) for s in steps if len(s)), default=None),
    )
