"""Which settings apply to which tensor: the optimizer's groups as the run recorded them."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, Final

from stethoscope.analyse.span import Span
from stethoscope.record import metrics
from stethoscope.record.events import Ownership, ParameterGroup

SCALE_FREE: Final = {
    "Adam": 1e-8,
    "AdamW": 1e-8,
    "NAdam": 1e-8,
    "RAdam": 1e-8,
    "Adamax": 1e-8,
    "RMSprop": 1e-8,
    "Adagrad": 1e-10,
}
"""Optimizers that divide by the size that the gradient has had, and the eps that they add to it unless they are told another."""
DECOUPLED: Final = ("AdamW",)
"""Of these, whose weight decay does not go through the gradient."""
EPS_FELT: Final = 0.1
"""Of a gradient's size: an eps above that is part of the step."""


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


def is_scale_free(group: ParameterGroup, size: float) -> bool:
    """Whether gradients of this size a value, all made shorter alike, move the weights as far as before.

    A step is m / (sqrt(v) + eps): a factor of the gradient is in m and in sqrt(v) and cancels. It is felt where eps is no longer
    small beside the gradient, and where weight decay is added to the gradient, which then weighs the more.
    """
    if group.optimizer not in SCALE_FREE:
        return False
    known = Group(group.optimizer, "", group.settings)
    is_decoupled = group.optimizer in DECOUPLED or bool(group.settings.get("decoupled_weight_decay"))
    has_decay = known.number("weight_decay", 0.0) > 0 and not is_decoupled
    return not has_decay and known.number("eps", SCALE_FREE[group.optimizer]) < EPS_FELT * size
