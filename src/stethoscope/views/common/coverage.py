"""Which sites have reported, kept as a run grows: a look at the new steps, not at all of them again."""

from __future__ import annotations

import dataclasses
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from stethoscope.record import SiteInfo
from stethoscope.store import Event, Run

MAX_VALUES: Final = 4_000_000
"""Of a longer run, its first and last steps are looked at, up to this many rows together."""


@dataclasses.dataclass(frozen=True, slots=True)
class _Seen:
    """What `looked_at` asks of a matrix: the steps, the sites, and who is missing throughout."""

    steps: Any
    sites: tuple[SiteInfo, ...]
    missing: npt.NDArray[np.bool_]


class Coverage:
    """Stands for a run where only its coverage is asked for."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self._seen = np.zeros(0, dtype=bool)
        self._upto: int | None = None

    @property
    def sites(self) -> tuple[SiteInfo, ...]:
        """The run's sites."""
        return self._run.sites

    @property
    def losses(self) -> dict[str, int]:
        """The run's losses."""
        return self._run.losses

    def metrics(self) -> tuple[str, ...]:
        """The run's metrics."""
        return self._run.metrics()

    def events(self, kind: str) -> list[Event]:
        """The run's events of one kind."""
        return self._run.events(kind)

    def brought_up(self) -> Coverage:
        """Looks at the steps that came since."""
        steps = self._run.steps
        new = steps if self._upto is None else steps[steps >= self._upto]
        num_sites = len(self._run.sites)
        room = max(64, MAX_VALUES // max(1, num_sites) // 2)
        parts = [new] if len(new) <= 2 * room else [new[:room], new[len(new) - room :]]
        if len(self._seen) < num_sites:
            self._seen = np.concatenate([self._seen, np.zeros(num_sites - len(self._seen), dtype=bool)])
        if not self._seen.all():
            self._seen[self._run.reporting()] = True
        for part in parts:
            if len(part) and not self._seen.all():
                found = self._run.matrix(None, "count", first=int(part[0]), last=int(part[-1]))
                self._seen[: found.missing.shape[1]] |= ~found.missing.all(axis=0)
        if len(steps):
            self._upto = int(steps[-1])
        return self

    def matrix(self, kind: None, stat: str) -> _Seen:  # noqa: ARG002 - as `Run.matrix` is called
        """Who has ever reported, as one row."""
        return _Seen(self._run.steps, self._run.sites, ~self._seen[None, : len(self._run.sites)])
