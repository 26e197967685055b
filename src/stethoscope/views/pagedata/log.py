"""The log: findings, events, process starts and damage in the order they happened."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from typing import Any, Final

from stethoscope.explain.headline import ending
from stethoscope.store import Event, Run
from stethoscope.views.common import numbers
from stethoscope.views.common.open_run import OpenRun
from stethoscope.views.pagedata import facts
from stethoscope.views.pagedata.event_messages import event_message, says_something
from stethoscope.views.pagedata.packing import plain, text
from stethoscope.views.pagedata.verdict import finding_row

MAX_ENTRIES: Final = 1000
_BOOKKEEPING: Final = frozenset(
    {
        "ownership",
        "graph",
        "coverage",
        "ledger",
        "totals",
        "attention",
        "units",
        "loss_graph",
        "logits",
        "batch",
        "eval_batch",
    }
)
"""Events that other screens are made of; as lines of a log they say nothing."""
Told = tuple[Event, Event | None]
_SERIES_FROM: Final = 200
"""A kind with more events than this is a series, not a log."""


def num_entries(viewed: OpenRun) -> int:
    """How many lines the log has."""
    return len(viewed.diagnosis.findings) + len(_event_entries(viewed))


def _told(run: Run) -> list[Told]:
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


def _grouped(told: list[Told], stops: list[int]) -> list[list[Told]]:
    """Turns of the governor one after the other are one line, up to the next finding; all else stands alone."""
    out: list[list[Told]] = []
    for pair in told:
        last = out[-1][-1][0] if out else None
        joins = last is not None and pair[0].kind == last.kind == "governor" and pair[0].rank == last.rank
        if joins and last is not None and bisect_left(stops, last.step) == bisect_left(stops, pair[0].step):
            out[-1].append(pair)
        else:
            out.append([pair])
    return out


def _event_entries(viewed: OpenRun) -> list[dict[str, Any]]:
    """Events as lines; what several ranks say at one step in the same words is one line, with who says it."""
    stops = sorted(finding.first_step for finding in viewed.diagnosis.findings)
    lines: dict[tuple[object, ...], dict[str, Any]] = {}
    for group in _grouped(_told(viewed.run), stops)[-MAX_ENTRIES:]:
        (first, before), (event, _) = group[0], group[-1]
        words, note = event_message(event, before)
        if len(group) > 1:
            note = f"changed {len(group):,} times from here to step {event.step:,}"
        line = lines.setdefault(
            (first.step, first.kind, words, note),
            {
                "type": "event",
                "step": first.step,
                "kind": text(first.kind, 80),
                "time": first.time,
                "words": words,
                "note": note,
                "ranks": [],
            },
        )
        line["ranks"].append(first.rank)
    all_ranks = set(viewed.run.ranks)
    for line in lines.values():
        ranks = sorted({rank for rank in line.pop("ranks") if rank is not None})
        some = len(all_ranks) > 1 and ranks and set(ranks) != all_ranks
        line["who"] = f"rank{'s' * (len(ranks) > 1)} {', '.join(map(str, ranks[:8]))}" if some else ""
    return list(lines.values())


def log_data(viewed: OpenRun) -> dict[str, Any]:
    """Findings and events by step between how the run began and how it ended, starts and problems beside them."""
    run, diagnosis = viewed.run, viewed.diagnosis
    causes = {id(cause) for cause in diagnosis.causes}
    entries: list[dict[str, Any]] = [
        {"type": "finding", "step": f.first_step, "isCause": id(f) in causes, **finding_row(f, diagnosis)}
        for f in diagnosis.findings
    ]
    entries += _event_entries(viewed)
    entries.sort(key=lambda entry: (entry["step"], entry["type"] == "event"))
    return {
        "version": viewed.version,
        "entries": entries[-MAX_ENTRIES:],
        "numEntries": len(entries),
        "began": _began(run),
        "ended": _ended(run),
        "starts": starts_data(run),
        "losses": plain(run.losses),
        "problems": [
            {"file": text(p.file, 200), "offset": p.offset, "what": text(p.what, 300), "framesLost": p.frames_lost}
            for p in run.problems[:200]
        ],
    }


def _began(run: Run) -> dict[str, Any]:
    """What was watched, and when that began."""
    model = facts.model_facts(run)
    words = f"Recording begins: {model['type'] or 'a model'}, {numbers.plural(model['numParameters'], 'parameter')}"
    held = ", ".join(
        dict.fromkeys(
            str(g.get("optimizer", "")) for e in run.events("ownership")[:1] for g in e.body.get("groups", ())
        )
    )
    started = facts.identity(run)["startedAt"]
    return {"words": text(f"{words}, {held}" if held else words, 300), "time": started}


def _ended(run: Run) -> dict[str, Any] | None:
    """How it ended, None while it has not."""
    if run.state in ("live", "stale"):
        return None
    words = ending(run) if run.state == "crashed" else facts.state_words(run)
    return {
        "words": text(words.rstrip("."), 400),
        "time": facts.ended_at(run),
        "step": run.last_step,
        "state": run.state,
    }


def starts_data(run: Run) -> list[dict[str, Any]]:
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
