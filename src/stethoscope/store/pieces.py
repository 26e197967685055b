"""A run's rows lie in pieces: journal files and sealed segments. What every piece can do.

A piece belongs to one process start. `chunks` yields its rows in the order they were written, so that laying
them down one after the other leaves the latest value of each site and step.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeVar, cast

import numpy as np
import numpy.typing as npt

from stethoscope.kernels.columns import NUM_COLUMNS
from stethoscope.record import FloatArray, IntArray
from stethoscope.record.events import KINDS
from stethoscope.record.wire import EventBody
from stethoscope.store.checked import Fields
from stethoscope.store.frame_file import Problem
from stethoscope.store.json_payload import EncodingError, decode_json
from stethoscope.store.locate import MOST_PARTS

if TYPE_CHECKING:
    from stethoscope.store.downsample.buckets import SiteBuckets

Said = TypeVar("Said", bound=EventBody)
ALL_COLUMNS: Final = tuple(range(NUM_COLUMNS))
FIRST_STEP: Final = -(2**63)
LAST_STEP: Final = 2**63 - 1
MOST_SITES: Final = 1 << 20
MOST_PROBLEMS: Final = 1000
"""Told of one file."""


@dataclasses.dataclass(frozen=True, slots=True, order=True)
class StartKey:
    """Which process start of which rank; ordered as they came."""

    rank: int
    ordinal: int
    token: str

    def to_json(self) -> list[Any]:
        """As a manifest holds it."""
        return [self.rank, self.ordinal, self.token]


def checked_key(parts: list[Any], rank: int) -> StartKey:
    """The key of a process start of this rank; EncodingError where it is another's or none."""
    if (
        len(parts) != 3
        or parts[0] != rank
        or not isinstance(parts[1], int)
        or not re.fullmatch("[0-9a-f]{8}", str(parts[2]))
    ):
        raise EncodingError(f"the key of a process start is not one of rank {rank}: {parts!r:.100}")
    return StartKey(rank, parts[1], parts[2])


def checked_parts(parts: list[int]) -> list[int]:
    """The numbers of journal files, rising or equal."""
    if not parts or parts[0] < 0 or parts[-1] > MOST_PARTS or any(a > b for a, b in itertools.pairwise(parts)):
        raise EncodingError(f"parts are not rising numbers of journals up to {MOST_PARTS}")
    return parts


@dataclasses.dataclass(slots=True)
class Chunk:
    """Some rows: `steps` is one step for all of them or one for each.

    Dense ones hold every step of every site: `values` [sites, steps, columns], `calls` [sites, steps].
    """

    steps: int | IntArray
    sites: IntArray
    values: npt.NDArray[np.float64]
    calls: IntArray
    is_dense: bool = False


@dataclasses.dataclass(frozen=True)
class Event:
    """A discrete fact of a run."""

    step: int
    kind: str
    body: dict[str, Any]
    rank: int
    time: float

    @functools.cached_property
    def typed(self) -> EventBody | None:
        """What it says, as `record.events` declares it; None of a kind that is not known here."""
        kind = KINDS.get(self.kind)
        return None if kind is None else kind.from_body(self.body)


def events_of(events: Iterable[Event], kind: type[Said]) -> list[tuple[Event, Said]]:
    """The events of one kind, each with what it says."""
    return [(event, cast("Said", event.typed)) for event in events if event.kind == kind.KIND]


def decode_event(payload: bytes, step: int, rank: int, time: float) -> Event:
    """The event of a payload."""
    fields = Fields(decode_json(payload), "an event")
    return Event(step, fields.text("kind"), fields.object("body"), rank, time)


class Piece(Protocol):
    """What the reader needs of a journal or a segment."""

    key: StartKey
    part: int
    problems: list[Problem]

    def steps(self) -> IntArray:
        """The steps that have rows, rising."""

    def chunks(self, columns: tuple[int, ...], wanted: npt.NDArray[np.bool_], first: int, last: int) -> Iterator[Chunk]:
        """The rows of the wanted sites and steps, with these columns."""

    def metric_names(self) -> set[str]:
        """The names of the scalars."""

    def metric(self, name: str, first: int = FIRST_STEP) -> tuple[IntArray, FloatArray]:
        """Steps and values of one scalar in order of writing; steps before `first` may be left out."""

    def events(self, first: int = FIRST_STEP, kind: str | None = None) -> Iterator[tuple[int, Event]]:
        """Serials and events, in order; those before `first` and of other kinds may be left out."""

    def vectors(self, name: str, site: int) -> Iterator[tuple[int, npt.NDArray[Any]]]:
        """Steps and vectors of one site, in order."""

    def vectors_from(self, name: str, first: int) -> Iterator[tuple[int, IntArray, Sequence[npt.NDArray[Any]]]]:
        """Step, sites and values of the vectors from a step on, whatever their sites, in order."""

    def site_buckets(self, site: int, stat: str) -> SiteBuckets | None:
        """One statistic of one site in buckets, where such are stored."""
