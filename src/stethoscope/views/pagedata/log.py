"""The log: findings, events, process starts and damage in the order they happened."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from typing import Final, Literal, TypedDict

from stethoscope.explain.ending import ending
from stethoscope.record import events, plural
from stethoscope.store import Event, Run
from stethoscope.views.common.open_run import OpenRun
from stethoscope.views.common.run_status import ended_at
from stethoscope.views.pagedata import facts
from stethoscope.views.pagedata.event_messages import event_message, says_something
from stethoscope.views.pagedata.packing import text
from stethoscope.views.pagedata.query import QueryParams
from stethoscope.views.pagedata.screens import Screen
from stethoscope.views.pagedata.verdict import FindingRow, finding_row

MAX_ENTRIES: Final = 1000
_BOOKKEEPING: Final = events.OLDER_KINDS | {
    kind.KIND
    for kind in (
        events.Ownership,
        events.DataFlow,
        events.Totals,
        events.Attention,
        events.Units,
        events.LossGraph,
        events.Batch,
        events.EvalBatch,
    )
}
"""Events that other screens are made of; as lines of a log they say nothing."""
Told = tuple[Event, Event | None]
_SERIES_FROM: Final = 200
"""A kind with more events than this is a series, not a log."""


class FindingEntry(FindingRow):
    """A finding as a line of the log."""

    type: Literal["finding"]
    step: int
    isCause: bool


class EventEntry(TypedDict):
    """An event as a line of the log."""

    type: Literal["event"]
    step: int
    kind: str
    time: float
    words: str
    note: str
    who: str


LogEntry = FindingEntry | EventEntry


class Began(TypedDict):
    """What was watched, and when that began."""

    words: str
    time: float | None


class Ended(TypedDict):
    """How the run ended."""

    words: str
    time: float | None
    step: int | None
    state: str


class Start(TypedDict):
    """A process that wrote."""

    rank: int
    ordinal: int
    pid: int | None
    host: str
    startedAt: float | None
    how: str
    firstStep: int | None
    lastStep: int | None
    ended: str


class Problem(TypedDict):
    """A part of a file that cannot be trusted."""

    file: str
    offset: int | None
    what: str
    framesLost: int | None


class LogData(TypedDict):
    """Findings and events by step, starts and problems beside them."""

    version: int
    entries: list[LogEntry]
    numEntries: int
    began: Began
    ended: Ended | None
    starts: list[Start]
    losses: dict[str, int]
    problems: list[Problem]


def num_entries(viewed: OpenRun) -> int:
    """How many lines the log has."""
    return len(viewed.diagnosis.findings) + len(_event_entries(viewed))


def _paired_events(run: Run) -> list[Told]:
    """Events to read, each with the one of its kind and rank before it."""
    last: dict[tuple[str, int | None], Event] = {}
    found: list[Told] = []
    for event in run.events():
        if event.kind in _BOOKKEEPING:
            continue
        before = last.get((event.kind, event.rank))
        last[event.kind, event.rank] = event
        if says_something(event, before):
            found.append((event, before))
    often = {kind for kind, amount in Counter(event.kind for event, _ in found).items() if amount > _SERIES_FROM}
    return [pair for pair in found if pair[0].kind not in often]


def _group_governor(told: list[Told], stops: list[int]) -> list[list[Told]]:
    """Turns of the governor one after the other are one line, up to the next finding; all else stands alone."""
    out: list[list[Told]] = []
    for pair in told:
        last = out[-1][-1][0] if out else None
        joins = last is not None and pair[0].kind == last.kind == events.Governor.KIND and pair[0].rank == last.rank
        if joins and last is not None and bisect_left(stops, last.step) == bisect_left(stops, pair[0].step):
            out[-1].append(pair)
        else:
            out.append([pair])
    return out


def _event_entries(viewed: OpenRun) -> list[EventEntry]:
    """Events as lines; what several ranks say at one step in the same words is one line, with who says it."""
    stops = sorted(finding.first_step for finding in viewed.diagnosis.findings)
    lines: dict[tuple[object, ...], tuple[EventEntry, set[int]]] = {}
    for group in _group_governor(_paired_events(viewed.run), stops)[-MAX_ENTRIES:]:
        (first, before), (event, _) = group[0], group[-1]
        words, note = event_message(event, before)
        if len(group) > 1:
            note = f"changed {len(group):,} times from here to step {event.step:,}"
        line: EventEntry = {
            "type": "event",
            "step": first.step,
            "kind": text(first.kind, 80),
            "time": first.time,
            "words": words,
            "note": note,
            "who": "",
        }
        _, ranks = lines.setdefault((first.step, first.kind, words, note), (line, set()))
        ranks |= set() if first.rank is None else {first.rank}
    all_ranks = set(viewed.run.ranks)
    for line, ranks in lines.values():
        if len(all_ranks) > 1 and ranks and ranks != all_ranks:
            line["who"] = f"rank{'s' * (len(ranks) > 1)} {', '.join(map(str, sorted(ranks)[:8]))}"
    return [line for line, _ in lines.values()]


def log_data(viewed: OpenRun) -> LogData:
    """Findings and events by step between how the run began and how it ended, starts and problems beside them."""
    run, diagnosis = viewed.run, viewed.diagnosis
    causes = {id(cause) for cause in diagnosis.causes}
    entries: list[LogEntry] = [
        {**finding_row(f, diagnosis), "type": "finding", "step": f.first_step, "isCause": id(f) in causes}
        for f in diagnosis.findings
    ]
    entries += _event_entries(viewed)
    entries.sort(key=lambda entry: (entry["step"], entry["type"] == "event"))
    return {
        "version": viewed.version,
        "entries": entries[-MAX_ENTRIES:],
        "numEntries": len(entries),
        "began": _began_entry(run),
        "ended": _ended_entry(run),
        "starts": starts_data(run),
        "losses": dict(run.losses),
        "problems": [
            {"file": text(p.file, 200), "offset": p.offset, "what": text(p.what, 300), "framesLost": p.frames_lost}
            for p in run.problems[:200]
        ],
    }


def _began_entry(run: Run) -> Began:
    """What was watched, and when that began."""
    model = facts.model_facts(run)
    words = f"Recording begins: {model['type'] or 'a model'}, {plural(model['numParameters'], 'parameter')}"
    held = ", ".join(
        dict.fromkeys(group.optimizer for _, said in run.events_of(events.Ownership)[:1] for group in said.groups)
    )
    started = facts.identity(run)["startedAt"]
    return {"words": text(f"{words}, {held}" if held else words, 300), "time": started}


def _ended_entry(run: Run) -> Ended | None:
    """How it ended, None while it has not."""
    if run.state in ("live", "stale"):
        return None
    words = ending(run) if run.state == "crashed" else facts.state_words(run)
    return {
        "words": text(words.rstrip("."), 400),
        "time": ended_at(run),
        "step": run.last_step,
        "state": run.state,
    }


def starts_data(run: Run) -> list[Start]:
    """Every process that wrote."""
    return [
        {
            "rank": s.rank,
            "ordinal": s.ordinal,
            "pid": s.pid,
            "host": text(s.host, 120),
            "startedAt": s.started_at,
            "how": s.how,
            "firstStep": s.first_step,
            "lastStep": s.last_step,
            "ended": text(str((s.ended or {}).get("ended", "")), 80),
        }
        for s in run.starts[:4096]
    ]


def _answer_log(viewed: OpenRun, _: QueryParams) -> LogData:
    return log_data(viewed)


SCREEN: Final = Screen(name="log", title="Log", order=60, icon="list", count="log", questions={"events": _answer_log})
