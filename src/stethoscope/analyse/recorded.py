"""What a history asks of a run: met by a stored run, a live one, and one that a test makes of arrays."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from stethoscope.record import IntArray, Kind, Series, SiteInfo, metrics
from stethoscope.store import Block, BucketMatrix, Event, Matrix, Start


class Recorded(Protocol):
    """Sites, steps, and what was recorded of them as rows or in buckets."""

    @property
    def info(self) -> Mapping[str, Any]:
        """What is said of the model, under "model"."""

    @property
    def sites(self) -> Sequence[SiteInfo]:
        """Every site; later ones are only appended."""

    @property
    def steps(self) -> IntArray:
        """Every step that has rows."""

    @property
    def starts(self) -> Sequence[Start]:
        """The processes that write, each with its first and last step."""

    @property
    def generation(self) -> int:
        """Grows whenever anything is new."""

    def metrics(self) -> Sequence[str]:
        """The names of the scalars."""

    def metric(self, name: str) -> Series:
        """One scalar over steps; empty where it was not recorded."""

    def matrix(self, kind: Kind, stat: str, *, pattern: str, first: int, last: int) -> Matrix:
        """One statistic as steps by sites."""

    def block(self, first: int, last: int) -> Block:
        """All rows of these steps."""

    def buckets(
        self, kind: Kind, stat: str, first: int, last: int, level: int, *, pattern: str = "*"
    ) -> BucketMatrix | None:
        """One statistic in buckets of 2**level steps; None where only the rows can tell."""

    def events(self, kind: str, *, first: int, last: int) -> Sequence[Event]:
        """Events of one kind at these steps."""


def recorded_span(run: Recorded) -> tuple[int, int]:
    """First and last step with rows or a loss."""
    known = [steps for steps in (run.steps, run.metric(metrics.LOSS).steps) if len(steps)]
    return (min(int(steps[0]) for steps in known), max(int(steps[-1]) for steps in known)) if known else (0, 0)


def model_modules(run: Recorded) -> list[Mapping[str, Any]]:
    """What is said of each module of the model."""
    model = run.info.get("model")
    found = model.get("modules", []) if isinstance(model, Mapping) else []
    return [module for module in found if isinstance(module, Mapping)]
