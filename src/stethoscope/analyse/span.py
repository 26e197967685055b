"""A run as detectors read it: spans of consecutive steps, all rows, metrics and events of them together.

How a run is cut into spans never changes what is found: a detector that sees one step at a time and one that
sees the whole run at once end in the same state. The live run and the finished one are read by this same code.
"""

from __future__ import annotations

import dataclasses
from bisect import bisect_left
from collections.abc import Iterator, Mapping
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from stethoscope.kernels.columns import NUM_COLUMNS, stat
from stethoscope.record import FloatArray, IntArray, Kind, SiteInfo
from stethoscope.store import Block, Event, Run
from stethoscope.store.pieces import Said, events_of

SPAN_STEPS: Final = 128
SPAN_ROWS: Final = 1 << 19
"""Of a run with many sites a span has fewer steps, so that its rows (some 16 numbers each) stay within 64 MB or so."""


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class RankRows:
    """One rank's rows of a span, at the span's steps and sites."""

    rows: FloatArray
    present: npt.NDArray[np.bool_]


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class Span:
    """Some steps of a run, of one rank or merged over ranks."""

    steps: IntArray
    sites: tuple[SiteInfo, ...]
    """Every site known by the end of this span; a site keeps its index, later spans only append."""
    rows: FloatArray
    """[steps, sites, columns], NaN where not present."""
    present: npt.NDArray[np.bool_]
    metrics: Mapping[str, tuple[FloatArray, npt.NDArray[np.bool_]]]
    """From a metric's name to its values and where they were recorded."""
    events: tuple[Event, ...]
    modules: Mapping[str, Mapping[str, Any]]
    """From a module's path to what run.json says of it: type, detail, num_parameters."""
    depth: Mapping[str, int]
    """From a module's path to its position in the order of execution, or of definition where none was seen."""
    by_rank: Mapping[int, RankRows] = dataclasses.field(default_factory=dict)
    """Each rank by itself, where the run has several and they were merged here; else empty."""

    @property
    def types(self) -> dict[str, str]:
        """From a module's path to its class."""
        return {path: str(module.get("type", "")) for path, module in self.modules.items()}

    def in_depth(self, indices: IntArray) -> IntArray:
        """These sites from the input to the output."""
        last = len(self.depth)
        return np.array(sorted(indices, key=lambda n: self.depth.get(self.sites[n].site.module, last)), dtype=np.int64)

    def stat(self, name: str) -> FloatArray:
        """One statistic as [steps, sites]."""
        return stat(self.rows, name)

    def events_of(self, kind: type[Said]) -> list[tuple[Event, Said]]:
        """The events of one kind, each with what it says."""
        return events_of(self.events, kind)

    def metric(self, name: str) -> FloatArray:
        """A metric at the span's steps, NaN where it was not recorded."""
        found = self.metrics.get(name)
        return np.full(len(self.steps), np.nan) if found is None else np.where(found[1], found[0], np.nan)

    def recorded(self, name: str) -> npt.NDArray[np.bool_]:
        """Where a metric was recorded."""
        found = self.metrics.get(name)
        return np.zeros(len(self.steps), dtype=bool) if found is None else found[1]

    def site_indices(self, kind: Kind) -> IntArray:
        """The indices of the sites of one kind, in their order."""
        return np.array([n for n, info in enumerate(self.sites) if info.site.kind is kind], dtype=np.int64)

    def inputs(self) -> list[int]:
        """The indices of what goes in, the most telling first: of logged batches, else of the model's own call."""
        indices = [int(n) for n in self.site_indices(Kind.INPUT)]
        logged = [n for n in indices if self.sites[n].site.name.startswith("batch")]
        return logged or [n for n in indices if not self.sites[n].site.module]


def spans(
    run: Run,
    *,
    after: int | None = None,
    upto: int | None = None,
    size: int | None = None,
) -> Iterator[Span]:
    """The run's steps after one and up to another, cut into spans; one without rows where there are only events."""
    if size is None:
        size = max(min(SPAN_STEPS, SPAN_ROWS // max(len(run.sites), 1)), 1)
    first = None if after is None else after + 1
    metrics = {name: run.metric(name, first=first) for name in run.metrics()}
    known = [run.steps, *(series.steps for series in metrics.values())]
    steps = np.unique(np.concatenate(known)) if known else np.empty(0, np.int64)
    events = run.events(first=first)
    if first is not None:
        steps = steps[steps >= first]
    if upto is not None:
        steps = steps[steps <= upto]
        events = [event for event in events if event.step <= upto]
    if not len(steps):
        if events:
            yield _make_span(run, steps, {}, tuple(events))
        return
    told = [event.step for event in events]
    cuts = [steps[start : start + size] for start in range(0, len(steps), size)]
    for number, cut in enumerate(cuts):
        low = 0 if number == 0 else bisect_left(told, int(cut[0]))
        high = len(told) if number == len(cuts) - 1 else bisect_left(told, int(cuts[number + 1][0]))
        inside = tuple(events[low:high])
        found = {name: _values_at(series.steps, series.values, cut) for name, series in metrics.items()}
        yield _make_span(run, cut, found, inside)


def events_alone(run: Run, kind: str, *, after: int | None = None) -> Span:
    """Events of one kind beyond a step, without rows: of a step that is still open, whose rows may grow."""
    events = run.events(kind, first=None if after is None else after + 1)
    return _make_span(run, np.empty(0, np.int64), {}, tuple(events))


def _values_at(steps: IntArray, values: FloatArray, wanted: IntArray) -> tuple[FloatArray, npt.NDArray[np.bool_]]:
    out = np.full(len(wanted), np.nan)
    if not len(steps):
        return out, np.zeros(len(wanted), dtype=bool)
    index = np.searchsorted(steps, wanted)
    there = (index < len(steps)) & (steps[np.minimum(index, len(steps) - 1)] == wanted)
    out[there] = values[index[there]]
    return out, there


def _make_span(
    run: Run,
    steps: IntArray,
    metrics: Mapping[str, tuple[FloatArray, npt.NDArray[np.bool_]]],
    events: tuple[Event, ...],
) -> Span:
    if not len(steps):
        shape = (0, len(run.sites))
        return Span(
            steps,
            run.sites,
            np.empty((*shape, NUM_COLUMNS)),
            np.empty(shape, bool),
            metrics,
            events,
            modules_of(run),
            depth_of(run),
        )
    block = run.block(int(steps[0]), int(steps[-1]))
    own = _at_steps(block, steps)
    first, last = int(steps[0]), int(steps[-1])
    by_rank = {n: _at_steps(run.block(first, last, rank=n), steps) for n in run.ranks} if len(run.ranks) > 1 else {}
    modules, depth = modules_of(run), depth_of(run)
    return Span(steps, block.sites, own.rows, own.present, metrics, events, modules, depth, by_rank)


def _at_steps(block: Block, steps: IntArray) -> RankRows:
    if len(block.steps) == len(steps):
        return RankRows(block.rows, block.present)
    # Steps that have metrics but no rows: a share of the steps was sampled out, or this rank is behind.
    rows = np.full((len(steps), *block.rows.shape[1:]), np.nan)
    present = np.zeros((len(steps), len(block.sites)), dtype=bool)
    index = np.searchsorted(steps, block.steps)
    rows[index], present[index] = block.rows, block.present
    return RankRows(rows, present)


def depth_of(run: Run) -> dict[str, int]:
    """From a module's path to its depth: the order it ran in, where outputs were seen, else the order it was defined in."""
    defined = [str(module["path"]) for module in run.info.get("model", {}).get("modules", ())]
    ran = [info.site.module for info in run.sites if info.site.kind is Kind.ACTIVATION and info.measured != "capped"]
    known = set(ran)
    order = dict.fromkeys(ran) if ran else {}
    order |= dict.fromkeys(path for path in defined if path not in known)
    return {path: index for index, path in enumerate(order)}


def modules_of(run: Run) -> dict[str, Mapping[str, Any]]:
    """From a module's path to its description in run.json."""
    return {str(module["path"]): module for module in run.info.get("model", {}).get("modules", ())}
