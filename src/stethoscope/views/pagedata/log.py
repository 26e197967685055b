"""The log: findings, events, process starts and damage in the order they happened."""

from __future__ import annotations

from collections import Counter
from typing import Any, Final

from stethoscope.store import Event, Run
from stethoscope.views.pagedata.desk import Desk
from stethoscope.views.pagedata.packing import plain, text
from stethoscope.views.pagedata.verdict import finding_row

MAX_ENTRIES: Final = 1000
_BOOKKEEPING: Final = frozenset({
    "ownership", "graph", "coverage", "ledger", "totals", "attention", "units", "loss_graph", "modes", "logits",
})  # fmt: skip
"""Events that other screens are made of; as lines of a log they say nothing."""
_SERIES_FROM: Final = 200
"""A kind with more events than this is a series, not a log."""


def log_events(run: Run) -> list[Event]:
    """The events a person would want to read."""
    found = [event for event in run.events() if event.kind not in _BOOKKEEPING]
    often = {kind for kind, amount in Counter(event.kind for event in found).items() if amount > _SERIES_FROM}
    return [event for event in found if event.kind not in often]


def log_data(desk: Desk) -> dict[str, Any]:
    """Findings and events by step, starts and problems beside them."""
    run, diagnosis = desk.run, desk.diagnosis
    causes = {id(cause) for cause in diagnosis.causes}
    entries: list[dict[str, Any]] = [
        {"type": "finding", "step": f.first_step, "isCause": id(f) in causes, **finding_row(f, diagnosis)}
        for f in diagnosis.findings
    ]
    events = log_events(run)
    entries += [
        {"type": "event", "step": e.step, "kind": text(e.kind, 80), "rank": e.rank, "time": e.time,
         "body": plain(e.body, 200)}
        for e in events[-MAX_ENTRIES:]
    ]  # fmt: skip
    entries.sort(key=lambda entry: (entry["step"], entry["type"] == "event"))
    return {
        "version": desk.version, "entries": entries[-MAX_ENTRIES:], "numEntries": len(entries),
        "starts": starts_data(run), "losses": plain(run.losses),
        "problems": [
            {"file": text(p.file, 200), "offset": p.offset, "what": text(p.what, 300), "framesLost": p.frames_lost}
            for p in run.problems[:200]
        ],
    }  # fmt: skip


def starts_data(run: Run) -> list[dict[str, Any]]:
    """Every process that wrote."""
    return [
        {"rank": s.rank, "ordinal": s.ordinal, "pid": s.pid, "host": text(s.host, 120), "startedAt": s.started_at,
         "how": s.how, "firstStep": s.first_step, "lastStep": s.last_step,
         "ended": text(str((s.ended or {}).get("ended", "")), 80)}
        for s in run.starts[:4096]
    ]  # fmt: skip
