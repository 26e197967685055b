"""Run: everything that was recorded, as arrays.

Promises: reading never changes the run and never imports torch; a live run and a finished one read alike;
what cannot be trusted is left out and said in `problems`. Where a later process start recorded a step again
(a resume from a checkpoint) its value is the one shown; `starts` shows both.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Iterator
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from stethoscope.kernels.columns import COLUMNS
from stethoscope.record import (
    Drawn,
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
from stethoscope.store.cache import MEMORY_BYTES
from stethoscope.store.catalogue import Catalogue
from stethoscope.store.checked import checked_info
from stethoscope.store.downsample.buckets import BASE_LEVEL, SiteBuckets, join
from stethoscope.store.downsample.reading import BucketMatrix
from stethoscope.store.findings import FindingsReader, Search
from stethoscope.store.frame_file import Problem
from stethoscope.store.inside import Entry, list_folder
from stethoscope.store.layout import Block, Matrix
from stethoscope.store.locate import is_run
from stethoscope.store.pieces import FIRST_STEP, LAST_STEP, Event, Said, events_of
from stethoscope.store.queries import Queries
from stethoscope.store.runfile import RUN_FILE, load
from stethoscope.store.starts import Start, overall


@dataclasses.dataclass(frozen=True, slots=True)
class Thinned:
    """Steps of which only the last row of each bucket was kept, outside the ranges kept whole."""

    rank: int
    first_step: int
    last_step: int
    bucket_steps: int
    rows_dropped: int


def open_run(path: str | Path, *, trust_description: bool = True, memory_bytes: int = MEMORY_BYTES) -> Run:
    """The run in a folder: RunNotFoundError, RunFormatError (newer) or RunDamagedError where that cannot be.

    `trust_description=False` opens a run whose run.json is missing or damaged, with an empty `info`.
    `memory_bytes` bounds what is kept of what was read, for those who read a run once and along its way.
    """
    return Run(Path(path), trust_description=trust_description, memory_bytes=memory_bytes)


class Run(Drawn):
    """A recorded run. Use `open_run`."""

    def __init__(self, path: Path, *, trust_description: bool = True, memory_bytes: int = MEMORY_BYTES) -> None:
        self.path = path
        self._own_problems: list[Problem] = []
        body = self._read_description(trust_description)
        self.id = str(body.get("id", path.name.rpartition("-")[2]))
        self.name = str(body.get("name", path.name))
        self.info: dict[str, Any] = body
        self._catalogue = Catalogue(path, memory_bytes=memory_bytes)
        self._queries = Queries(self._catalogue)
        self._findings = FindingsReader(path)
        self._steps: tuple[int, IntArray] = -1, np.empty(0, np.int64)
        self.refresh()

    def _read_description(self, trust: bool) -> dict[str, Any]:
        is_there = any(entry.name == RUN_FILE for entry in self._folder_entries())
        if is_there and trust:
            body = load(self.path)
            own = body.pop("info", {})
            body, wrong = checked_info({**body, **own} if isinstance(own, dict) else body)
            self._own_problems += [Problem(RUN_FILE, 0, what) for what in wrong]
            return body
        if not is_run(self.path):
            raise RunNotFoundError("There is no run here", where=self.path, do="`stethoscope list` shows what there is")
        self._own_problems.append(Problem(RUN_FILE, 0, "was not trusted, as asked" if is_there else "is missing"))
        return {}

    def _folder_entries(self) -> list[Entry]:
        try:
            return list_folder(self.path)
        except OSError as error:
            what = f"The folder cannot be read ({error.strerror})"
            raise RunNotFoundError(what, where=self.path, do="`stethoscope list` shows what there is") from error

    def refresh(self) -> bool:
        """Picks up what came since; True where that is anything."""
        changed = self._catalogue.update()
        return self._findings.update() or changed

    def close(self) -> None:
        """Forgets what was read."""
        self._catalogue.cache.clear()
        self._catalogue.columns.clear()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"Run({str(self.path)!r}, {self.state}, {len(self.sites)} sites, last step {self.last_step})"

    @property
    def catalogue(self) -> Catalogue:
        """The pieces that the run is read from."""
        return self._catalogue

    @property
    def generation(self) -> int:
        """Grows whenever anything is new: what was worked out of the run is good until then."""
        return self._catalogue.generation

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
        generation = self._catalogue.generation
        if self._steps[0] != generation:
            found = [piece.steps() for piece in self._catalogue.pieces()]
            self._steps = generation, np.unique(np.concatenate(found)) if found else np.empty(0, np.int64)
        return self._steps[1]

    @property
    def last_step(self) -> int | None:
        """The highest step that has rows."""
        steps = self.steps
        return int(steps[-1]) if len(steps) else None

    def reporting(self) -> npt.NDArray[np.int64]:
        """The numbers of the sites that have sealed rows: known without reading any."""
        found = [piece.site_numbers for piece in self._catalogue.segments()]
        return np.unique(np.concatenate(found)) if found else np.empty(0, np.int64)

    @property
    def thinned(self) -> list[Thinned]:
        """Where rows were thinned out to keep to the disk budget, and how many went."""
        found = []
        for piece in self._catalogue.segments():
            segment = piece.segment
            if segment.thinned and segment.first_step is not None and segment.last_step is not None:
                span = segment.first_step, segment.last_step
                found.append(Thinned(piece.key.rank, *span, segment.thinned, segment.rows_dropped))
        return found

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
        grid, values = self._queries.grid(stat, numbers, FIRST_STEP, LAST_STEP, rank)
        found: dict[Site, Series] = {}
        for column, info in enumerate(self._catalogue.sites.of(numbers)):
            there = grid.present[:, column]
            if there.any():
                found[info.site] = Series(grid.steps[there], values[there, column])
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
        grid, values = self._queries.grid(stat, numbers, *_step_bounds(first, last), rank)
        return Matrix(grid.steps, self._catalogue.sites.of(numbers), values, ~grid.present)

    def block(self, first: int, last: int, *, kinds: Collection[Kind] | None = None, rank: int | None = None) -> Block:
        """All rows of the steps first..last inclusive, or those of sites of some kinds."""
        numbers = self._catalogue.sites.select()
        if kinds is not None:
            infos = self._catalogue.sites.infos
            numbers = np.array([number for number in numbers if infos[number].site.kind in kinds], np.int64)
        grid, _ = self._queries.grid(None, numbers, first, last, rank)
        return Block(grid.steps, self._catalogue.sites.of(numbers), grid.values, grid.present, grid.calls)

    def record(self, site: Site | str, step: int) -> Record | None:
        """The row of one site at one step, None where there is none."""
        number = self._site_number(site)
        if number is None:
            return None
        grid, _ = self._queries.grid(None, np.array([number]), step, step, None)
        if not grid.present.any():
            return None
        stats = dict(zip(COLUMNS, grid.values[0, 0].tolist(), strict=True))
        return Record(step, self._catalogue.sites.infos[number].site, stats)

    def metrics(self) -> tuple[str, ...]:
        """The names of the scalars."""
        return tuple(sorted(self._queries.metric_names()))

    def metric(self, name: str, *, rank: int | None = None, first: int | None = None) -> Series:
        """One scalar over steps, from `first` on; without a rank, of the lowest rank that has it. Empty where none has."""
        low, _ = _step_bounds(first, None)
        for one in self.ranks if rank is None else (rank,):
            if len(self.ranks) == 1 or name in self._queries.metric_names(one):
                return self._queries.metric(name, one, low)
        return Series()

    def events(self, kind: str | None = None, *, first: int | None = None, last: int | None = None) -> list[Event]:
        """Discrete facts in order of step, then of writing."""
        low, high = _step_bounds(first, last)
        return self._queries.events(kind, low, high)

    def events_of(self, kind: type[Said]) -> list[tuple[Event, Said]]:
        """All events of one kind, each with what it says as `record.events` declares it."""
        return events_of(self.events(kind.KIND), kind)

    def vectors(self, name: str, site: Site | str, *, rank: int | None = None) -> tuple[IntArray, npt.NDArray[Any]]:
        """One site's vectors: steps [S], values [S, k]; without a rank, of the lowest that has them."""
        number = self._site_number(site)
        for one in self.ranks if rank is None else (rank,):
            found = {} if number is None else self._queries.vectors(name, number, one)
            if found:
                width = max(len(vector) for vector in found.values())
                kept = [step for step in sorted(found) if len(found[step]) == width]
                return np.array(kept, np.int64), np.stack([found[step] for step in kept])
        return np.empty(0, np.int64), np.empty((0, 0))

    def latest_vectors(
        self, name: str, most: int, *, first: int, rank: int
    ) -> list[tuple[int, Site, npt.NDArray[Any]]]:
        """The last `most` vectors of one rank from step `first` on, whatever their sites, in order of writing."""
        infos = self._catalogue.sites.infos
        found = self._queries.latest_vectors(name, most, first, rank)
        return [(step, infos[number].site, vector) for step, number, vector in found]

    def site_buckets(
        self, site: Site | str, stat: str = "norm", level: int = BASE_LEVEL, *, rank: int | None = None
    ) -> SiteBuckets:
        """One statistic of one site in buckets of 2**level steps, also of rows thinned out since."""
        number = self._site_number(site)
        return join((), level) if number is None else self._queries.site_buckets(number, stat, level, rank)

    def buckets(
        self, kind: Kind | str | None, stat: str, first: int, last: int, level: int, *, pattern: str = "*"
    ) -> BucketMatrix | None:
        """One statistic of many sites over first..last in buckets of 2**level steps, read in a moment also of long runs.

        None where only the rows can tell: finer than the stored buckets, or several ranks or starts to be merged.
        """
        numbers = self._catalogue.sites.select(pattern, kind)
        return self._queries.buckets(stat, numbers, (first, last), level)

    def findings(self) -> list[Finding]:
        """What was found in the run so far, the latest version of each."""
        return self._findings.findings()

    def failures(self) -> dict[str, str]:
        """What failed where findings were looked for: from a detector's name, or "sealing", to the error."""
        return self._findings.failures()

    @property
    def search(self) -> Search:
        """How far the process beside the training has come with looking for problems."""
        return self._findings.search()

    @property
    def was_examined(self) -> bool:
        """Whether that process has looked at everything that there is; of a live run, whether it is looking."""
        return self.search is Search.COMPLETE or (self.search is Search.UNDER_WAY and self.state == "live")

    def verify(self) -> list[Problem]:
        """Tests every byte of the run, also those that no question has touched yet; returns `problems`."""

        def test() -> None:
            for piece in self._catalogue.segments():
                piece.verify()

        self._queries.ask(test)
        return self.problems

    def to_arrow(self, table: str = "rows") -> Any:
        """A whole table as Arrow: "rows", "scalars", "events", "sites" or "findings"."""
        from stethoscope.store import sql

        return sql.arrow_table(self, table)

    def arrow_parts(self, table: str = "rows") -> Iterator[Any]:
        """The table of `to_arrow` a part at a time, in its order: for runs that do not fit in memory."""
        from stethoscope.store import sql

        return sql.arrow_batches(self, table)

    def sql(self, query: str) -> Any:
        """The answer to a query over the tables of `to_arrow`, as Arrow. Needs DuckDB, writes nothing."""
        from stethoscope.store import sql

        return sql.answer(self, query)

    def _site_number(self, site: Site | str) -> int | None:
        if isinstance(site, Site):
            return self._catalogue.sites.number(site)
        named = [n for n, info in enumerate(self._catalogue.sites.infos) if info.site.path == site]
        if len(named) > 1:
            raise KeyError(f"{site!r} names {len(named)} sites; give a Site")
        return named[0] if named else None


def _step_bounds(first: int | None, last: int | None) -> tuple[int, int]:
    return FIRST_STEP if first is None else first, LAST_STEP if last is None else last
