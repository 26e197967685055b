"""Which settings apply to which tensor: the optimizer's groups as the run recorded them."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from stethoscope.analyse.span import Span
from stethoscope.record import metrics
from stethoscope.record.events import Ownership


@dataclasses.dataclass(frozen=True, slots=True)
class Group:
    """One parameter group."""

    optimizer: str
    rate_metric: str
    settings: Mapping[str, Any]

    def number(self, name: str, default: float) -> float:
        """A setting as a number."""
        value = self.settings.get(name, default)
        return float(value) if isinstance(value, (int, float)) else default

    @property
    def betas(self) -> tuple[float, float]:
        """Adam's two decay rates."""
        found = self.settings.get("betas", (0.9, 0.999))
        return (
            (float(found[0]), float(found[1])) if isinstance(found, (list, tuple)) and len(found) == 2 else (0.9, 0.999)
        )

    @property
    def is_adam(self) -> bool:
        """Whether the plain Adam formula applies."""
        return self.optimizer in ("Adam", "AdamW") and not self.settings.get("amsgrad", False)


def groups_by_site(span: Span, known: dict[str, Group]) -> dict[str, Group]:
    """The latest groups by tensor path."""
    for _, ownership in span.events_of(Ownership):
        known = {
            site: Group(group.optimizer, metrics.learning_rate(number), group.settings)
            for number, group in enumerate(ownership.groups)
            for site in group.sites
        }
    return known
