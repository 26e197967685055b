"""Run: everything that was recorded, as arrays.

Promises: reading never changes the run and never imports torch; a live run and a finished one read alike;
what cannot be trusted is left out and said in `problems`. Where a later process start recorded a step again
(a resume from a checkpoint) its value is the one shown; `starts` shows both.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

import numpy as np
import numpy.typing as npt

from stethoscope.kernels.columns import COLUMNS
from stethoscope.record import (
    Finding,
    IntArray,
    Kind,
    Record,
    RunNotFoundError,
    Series,
    SeriesMap,
    Site,
    SiteInfo,
)
from stethoscope.store.catalogue import Catalogue
from stethoscope.store.findings import FindingsReader
from stethoscope.store.grid import Block, Grid, Matrix, columns_of, lay_out, merge_ranks, statistic
from stethoscope.store.locate import is_run
from stethoscope.store.pieces import ALL_COLUMNS, Chunk, Event
from stethoscope.store.runfile import RUN_FILE, load
from stethoscope.store.scan import Problem
from stethoscope.store.starts import Start, overall

FIRST_STEP: Final = -(2**63)
LAST_STEP: Final = 2**63 - 1


def open_run(path: str | Path, *, trust_description: bool = True) -> Run:
    """The run in a folder: RunNotFoundError, RunFormatError (newer) or RunDamagedError where that cannot be.

    `trust_description=False` opens a run whose run.json is missing or damaged, with an empty `info`.
    """
    return Run(Path(path), trust_description=trust_description)


class Run:
    """A recorded run. Use `open_run`."""

    def __init__(self, path: Path, *, trust_description: bool = True) -> None:
        self.path = path
        self._own_problems: list[Problem] = []
        body = self._describe(trust_description)
        self.id = str(body.get("id", path.name.rpartition("-")[2]))
        self.name = str(body.get("name", path.name))
        self.info: dict[str, Any] = {**body, **body.get("info", {})}
        self.info.pop("info", None)
        self._catalogue = Catalogue(path)
        self._findings = FindingsReader(path)
        self.refresh()

    def _describe(self, trust: bool) -> dict[str, Any]:
        file = self.path / RUN_FILE
        if file.exists() and trust:
            return load(file)
        if not is_run(self.path):
            raise RunNotFoundError(
                "There is no run here", where=self.path, do="`stethoscope list` shows what there is"
            )
        what = "is missing" if not file.exists() else "was not trusted, as asked"
        self._own_problems.append(Problem(RUN_FILE, 0, what))
        return {}

    def refresh(self) -> bool:
        """Picks up what came since; True where that is anything."""
        changed = self._catalogue.update()
        return self._findings.update() or changed

    def close(self) -> None:
        """Forgets what was read."""
        self._catalogue.cache.clear()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"Run({str(self.path)!r}, {self.state}, {len(self.sites)} sites, last step {self.last_step})"

    @property
    def starts(self) -> list[Start]:
        """Every process that wrote to the run, by rank and order."""
        return list(self._catalogue.starts)

    @property
    def state(self) -> str:
        """ "live", "finished", "crashed", "stale", or "damaged" where some of it was lost on disk."""
        state = overall(self._catalogue.starts)
        harmed = any(not problem.is_torn_tail for problem in self.problems)
        return "damaged" if harmed and state != "live" else state

    @property
    def ended(self) -> dict[str, Any] | None:
        """What the latest process start of the lowest rank said at its end, None where it said nothing."""
        starts = self._catalogue.starts
        mine = [start for start in starts if start.rank == starts[0].rank]
        return mine[-1].ended if mine else None

    @property
    def sites(self) -> tuple[SiteInfo, ...]:
        """Every site that was registered, in order of first appearance."""
        return tuple(self._catalogue.sites.infos)

    @property
    def ranks(self) -> tuple[int, ...]:
        """The ranks that wrote anything."""
        return self._catalogue.ranks()

    @property
    def problems(self) -> list[Problem]:
        """What cannot be trusted or is not there."""
        return self._own_problems + self._catalogue.problems() + self._findings.problems()

    @property
    def losses(self) -> dict[str, int]:
        """What the writers say they dropped, by counter."""
        return self._catalogue.losses()

    @property
    def steps(self) -> IntArray:
        """Every step that has rows."""
        found = [piece.steps() for piece in self._catalogue.pieces()]
        return np.unique(np.concatenate(found)) if found else np.empty(0, np.int64)

    @property
    def last_step(self) -> int | None:
        """The highest step that has rows."""
        steps = self.steps
        return int(steps[-1]) if len(steps) else None

    def series(
        self,
        pattern: str = "*",
        kind: Kind | str | None = None,
        stat: str = "norm",
        *,
        rank: int | None = None,
    ) -> SeriesMap:
        """One statistic of each site that a glob and a kind name; of one rank, or merged over all."""
        numbers = self._catalogue.sites.select(pattern, kind)
        places = columns_of(stat)
        grid = self._grid(numbers, places, FIRST_STEP, LAST_STEP, rank)
        values = statistic(grid.values, stat, self._places(places, rank))
        found: dict[Site, Series] = {}
        for column, info in enumerate(self._catalogue.sites.of(numbers)):
            there = grid.present[:, column]
            if there.any():
                found[info.site] = Series(grid.steps[there], np.ascontiguousarray(values[there, column]))
        return SeriesMap(found)

    def matrix(
        self,
        kind: Kind | str | None,
        stat: str = "norm",
        *,
        pattern: str = "*",
        first: int | None = None,
        last: int | None = None,
        rank: int | None = None,
    ) -> Matrix:
        """One statistic as steps by sites, for the steps first..last inclusive."""
        numbers = self._catalogue.sites.select(pattern, kind)
        places = columns_of(stat)
        grid = self._grid(numbers, places, *_bounds(first, last), rank)
        values = statistic(grid.values, stat, self._places(places, rank))
        return Matrix(grid.steps, self._catalogue.sites.of(numbers), values, ~grid.present)

    def block(self, first: int, last: int, *, rank: int | None = None) -> Block:
        """All rows of the steps first..last inclusive."""
        numbers = self._catalogue.sites.select()
        grid = self._grid(numbers, ALL_COLUMNS, first, last, rank)
        return Block(grid.steps, self._catalogue.sites.of(numbers), grid.values, grid.present, grid.calls)

    def record(self, site: Site | str, step: int) -> Record | None:
        """The row of one site at one step, None where there is none."""
        number = self._number(site)
        if number is None:
            return None
        grid = self._grid(np.array([number]), ALL_COLUMNS, step, step, None)
        if not grid.present.any():
            return None
        stats = dict(zip(COLUMNS, grid.values[0, 0].tolist(), strict=True))
        return Record(step, self._catalogue.sites.infos[number].site, stats)

    def metrics(self) -> tuple[str, ...]:
        """The names of the scalars."""
        names = {
            name for piece in self._catalogue.pieces() for _, values in piece.scalars() for name in values
        }
        return tuple(sorted(names))

    def metric(self, name: str, *, rank: int | None = None) -> Series:
        """One scalar over steps; without a rank, of the lowest rank that has it."""
        for one in self.ranks if rank is None else (rank,):
            found: dict[int, float] = {}
            for piece in self._catalogue.pieces(one):
                for step, values in piece.scalars():
                    if name in values:
                        found[step] = values[name]
            if found:
                steps = np.array(sorted(found), np.int64)
                return Series(steps, np.array([found[int(step)] for step in steps]))
        return Series(np.empty(0, np.int64), np.empty(0))

    def events(
        self, kind: str | None = None, *, first: int | None = None, last: int | None = None
    ) -> list[Event]:
        """Discrete facts in order of step, then of writing."""
        low, high = _bounds(first, last)
        seen: set[tuple[object, int]] = set()
        found: list[Event] = []
        for piece in self._catalogue.pieces():
            for serial, event in piece.events():
                if (piece.key, serial) in seen:
                    continue
                seen.add((piece.key, serial))
                if kind in (None, event.kind) and low <= event.step <= high:
                    found.append(event)
        return sorted(found, key=lambda event: event.step)

    def vectors(
        self, name: str, site: Site | str, *, rank: int | None = None
    ) -> tuple[IntArray, npt.NDArray[Any]]:
        """One site's vectors: steps [S], values [S, k]; without a rank, of the lowest that has them."""
        number = self._number(site)
        for one in self.ranks if rank is None else (rank,):
            found: dict[int, npt.NDArray[Any]] = {}
            for piece in self._catalogue.pieces(one) if number is not None else ():
                found.update(piece.vectors(name, number if number is not None else -1))
            if found:
                steps = sorted(found)
                width = max(len(found[step]) for step in steps)
                kept = [step for step in steps if len(found[step]) == width]
                return np.array(kept, np.int64), np.stack([found[step] for step in kept])
        return np.empty(0, np.int64), np.empty((0, 0))

    def findings(self) -> list[Finding]:
        """What was found in the run so far, the latest version of each."""
        return self._findings.findings()

    def _number(self, site: Site | str) -> int | None:
        if isinstance(site, Site):
            return self._catalogue.sites.number(site)
        named = [n for n, info in enumerate(self._catalogue.sites.infos) if info.site.path == site]
        if len(named) > 1:
            raise KeyError(f"{site!r} names {len(named)} sites; give a Site")
        return named[0] if named else None

    def _places(self, places: tuple[int, ...], rank: int | None) -> tuple[int, ...]:
        return places if rank is not None or len(self.ranks) < 2 else ALL_COLUMNS

    def _grid(
        self, numbers: IntArray, places: tuple[int, ...], first: int, last: int, rank: int | None
    ) -> Grid:
        """Rows of these sites; of several ranks all columns, because merging needs them."""
        table = self._catalogue.sites
        wanted = np.zeros(len(table.infos), bool)
        wanted[numbers] = True
        used = self._places(places, rank)
        ranks = self.ranks if rank is None else (rank,)
        grids = [
            lay_out(self._chunks(used, wanted, first, last, one), numbers, len(table.infos), len(used))
            for one in ranks
        ]
        if not grids:
            return lay_out((), numbers, len(table.infos), len(used))
        return grids[0] if len(grids) == 1 else merge_ranks(grids)

    def _chunks(
        self, places: tuple[int, ...], wanted: npt.NDArray[np.bool_], first: int, last: int, rank: int
    ) -> Iterator[Chunk]:
        for piece in self._catalogue.pieces(rank):
            yield from piece.chunks(places, wanted, first, last)


def _bounds(first: int | None, last: int | None) -> tuple[int, int]:
    return FIRST_STEP if first is None else first, LAST_STEP if last is None else last
