"""Whether a run has what a rule needs, and what would bring it: a rule that lacks it is silent, which is not health."""

from __future__ import annotations

import dataclasses
from typing import Any, Final

import numpy as np

from stethoscope.detect.curves import is_validation
from stethoscope.detect.needs import Need
from stethoscope.record import Kind
from stethoscope.store import Run


@dataclasses.dataclass(frozen=True, slots=True)
class NeedStatus:
    """A need beside what the run has of it."""

    need: Need
    is_met: bool
    how_much: str

    @property
    def blinds(self) -> bool:
        """Whether the rule can say nothing for want of it."""
        return not self.is_met and not self.need.is_optional

    def to_json(self) -> dict[str, Any]:
        """As plain JSON values."""
        return {
            "what": self.need.what,
            "met": self.is_met,
            "required": not self.need.is_optional,
            "how_much": self.how_much,
            "hint": "" if self.is_met else self.need.hint,
        }


def status_of(need: Need, run: Run) -> NeedStatus:
    """What the run has of it."""
    count, words = _SOURCES[need.source](need, run)
    met = count > 0 or need.may_be_absent
    return NeedStatus(need, met, words if count else need.hint if need.may_be_absent else "none")


def _seen_rows(need: Need, run: Run) -> tuple[int, str]:
    matrix = run.matrix(Kind(need.names[0]), "count")
    there = ~matrix.missing
    num_sites, num_steps = int(np.any(there, axis=0).sum()), int(np.any(there, axis=1).sum())
    return num_sites, f"{num_sites:,} sites, {num_steps:,} of {len(run.steps):,} steps"


def _seen_metrics(need: Need, run: Run) -> tuple[int, str]:
    known = [name for name in need.names if name in run.metrics()]
    count = max((len(run.metric(name)) for name in known), default=0)
    return count, f"{count:,} steps"


def _seen_events(need: Need, run: Run) -> tuple[int, str]:
    count = sum(len(run.events(name)) for name in need.names)
    return count, "once" if count == 1 else f"{count:,} times"


def _seen_validation(_: Need, run: Run) -> tuple[int, str]:
    counts = {name: len(run.metric(name)) for name in run.metrics() if is_validation(name)}
    told = ", ".join(f"{name} {count:,} times" for name, count in sorted(counts.items())[:4])
    return max(counts.values(), default=0), told


def _seen_ranks(_: Need, run: Run) -> tuple[int, str]:
    return (len(run.ranks) if len(run.ranks) > 1 else 0), f"{len(run.ranks)} ranks"


_SOURCES: Final = {
    "rows": _seen_rows,
    "metric": _seen_metrics,
    "event": _seen_events,
    "validation": _seen_validation,
    "ranks": _seen_ranks,
}
