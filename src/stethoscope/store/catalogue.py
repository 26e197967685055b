"""What a run folder holds right now: its pieces, process starts and problems.

Promises a consistent view: a row is read from its journal or from the segment that replaced it, never from
both and never from neither, also while another process seals.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from stethoscope.store.locate import journal_name, parse_journal_name, rank_folders
from stethoscope.store.pieces import JournalPiece, PayloadCache, Piece, StartKey
from stethoscope.store.scan import Problem
from stethoscope.store.sitetable import SiteTable
from stethoscope.store.starts import Start, how


class Catalogue:
    """The pieces of a run, kept up to date by `update`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.sites = SiteTable()
        self.cache = PayloadCache()
        self.starts: list[Start] = []
        self._journals: dict[str, JournalPiece] = {}
        self._problems: list[Problem] = []

    def update(self) -> bool:
        """Looks at the folder again; True where anything is new."""
        changed = False
        self._problems = []
        for rank, folder in rank_folders(self.folder).items():
            changed |= self._update_journals(rank, folder)
        self.starts = self._list_starts()
        return changed

    def _update_journals(self, rank: int, folder: Path) -> bool:
        changed = False
        for path in sorted(folder.glob("journal-*.stj")):
            named = parse_journal_name(path.name)
            if named is None:
                continue
            label = f"{folder.name}/{path.name}"
            piece = self._journals.get(label)
            if piece is None:
                key = StartKey(rank, named[0], named[1])
                piece = self._journals[label] = JournalPiece(
                    path, label, key, named[2], self.sites, self.cache
                )
                changed = True
            if piece.is_closed and piece.file.tail is None:
                continue
            try:
                changed |= piece.advance()
            except OSError as error:
                self._problems.append(Problem(label, 0, f"cannot be read: {error.strerror}"))
        return changed

    def pieces(self, rank: int | None = None) -> list[Piece]:
        """All pieces in the order in which they were written, of one rank or of all."""
        journals = sorted(self._journals.values(), key=lambda piece: (piece.key, piece.part))
        return [piece for piece in journals if rank is None or piece.key.rank == rank]

    def ranks(self) -> tuple[int, ...]:
        """The ranks that wrote anything."""
        return tuple(sorted({piece.key.rank for piece in self.pieces()}))

    def losses(self) -> dict[str, int]:
        """What the writers say they lost, added up over process starts."""
        latest: dict[StartKey, dict[str, int]] = {}
        for piece in sorted(self._journals.values(), key=lambda piece: (piece.key, piece.part)):
            if piece.losses:
                latest[piece.key] = piece.losses
        total: dict[str, int] = {}
        for losses in latest.values():
            for name, value in losses.items():
                total[name] = total.get(name, 0) + value
        return total

    def problems(self) -> list[Problem]:
        """Everything that cannot be trusted or is not there."""
        live = {(s.rank, s.ordinal, s.token) for s in self.starts if s.how == "live"}
        found = self._problems + self._missing_parts()
        for piece in sorted(self._journals.values(), key=lambda piece: (piece.key, piece.part)):
            key = piece.key.rank, piece.key.ordinal, piece.key.token
            found += piece.all_problems(is_live=key in live)
        return found

    def _missing_parts(self) -> list[Problem]:
        """Files of a start are numbered without gaps: one that is not there was lost."""
        parts: dict[StartKey, set[int]] = {}
        for piece in self._journals.values():
            parts.setdefault(piece.key, set()).add(piece.part)
        found = []
        for key, there in sorted(parts.items()):
            for part in sorted(set(range(max(there))) - there):
                label = f"rank-{key.rank}/{journal_name(key.ordinal, key.token, part)}"
                found.append(Problem(label, 0, "the file is missing"))
        return found

    def _list_starts(self) -> list[Start]:
        grouped: dict[StartKey, list[JournalPiece]] = {}
        for piece in self._journals.values():
            grouped.setdefault(piece.key, []).append(piece)
        return [_start(key, sorted(pieces, key=lambda p: p.part)) for key, pieces in sorted(grouped.items())]


def _start(key: StartKey, pieces: list[JournalPiece]) -> Start:
    head: dict[str, Any] = next((piece.file.head for piece in pieces if piece.file.head), {})
    ended = next((piece.ended for piece in reversed(pieces) if piece.ended), None)
    who = head.get("process", {})
    steps = [piece.steps() for piece in pieces]
    return Start(
        rank=key.rank,
        ordinal=key.ordinal,
        token=key.token,
        pid=who.get("pid"),
        host=str(who.get("host", "")),
        started_at=head.get("started_at"),
        ended=ended,
        how=how(head, ended, max(piece.last_time for piece in pieces)),
        first_step=min((int(s[0]) for s in steps if len(s)), default=None),
        last_step=max((int(s[-1]) for s in steps if len(s)), default=None),
    )
