"""Losses that are no measure of progress: log-probabilities, or ratios of probabilities, times numbers that the run itself makes.

A policy gradient's loss has the right gradient and no meaning as a number: it grows with the returns that it brings. What
shows it is in the graph: an operation of a log-probability on the way to the loss is multiplied by a constant, and that
constant is neither a mask nor one and the same for all.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import torch

from stethoscope.capture.deferred_reads import can_defer
from stethoscope.capture.nodes import PASSING, kept, kind, parents

MAX_NODES: Final = 96
ADDING: Final = (
    *PASSING,
    "Mean",
    "Sum",
    "Div",
    "Add",
    "Sub",
    "Rsub",
    "Neg",
    "Mul",
    "Minimum",
    "Maximum",
    "Stack",
    "Cat",
    "Clamp",
    "Expand",
    "Where",
)
"""Operations that a loss is put together with from its terms."""
ON_THE_WAY: Final = (*ADDING, "Gather", "Exp", "IndexSelect", "Pow", "MaskedFill")
LOG_PROBABILITY: Final = ("LogSoftmax", "Logsumexp", "Log", "LogSigmoid", "Pow", "BinaryCrossEntropyWithLogits")
"""What a log-probability is made by; a square is a normal distribution's."""
SELECTED: Final = ("Gather", "Index", "Exp", "Pow", "NllLoss", "BinaryCrossEntropyWithLogits", "Div")
"""What picks the probability of one action out, or sets it against another's."""


def coefficients(root: Any) -> dict[str, torch.Tensor] | None:
    """The numbers that log-probabilities are multiplied by on its way to the loss; None where there is none."""
    found: list[torch.Tensor] = []
    for node in _through(root, ADDING):
        if kind(node) != "Mul":
            continue
        before = [parent for parent in parents(node) if parent is not None]
        if len(before) != 1:
            continue
        constant = kept(node, "_saved_other" if parents(node)[0] is not None else "_saved_self")
        if (
            constant is not None
            and constant.numel()
            and constant.is_floating_point()
            and can_defer(constant)
            and _is_log_probability(before[0])
        ):
            found.append(constant.detach().reshape(-1))
    if not found or any(one.device != found[0].device for one in found):
        return None
    values = torch.cat([one.float() for one in found])
    if values.numel() < 2:
        return None
    in_mask = (values == 0) | (values.abs() == values.abs().max())
    return {"low": values.min(), "high": values.max(), "mask_share": in_mask.float().mean()}


def _is_log_probability(node: Any) -> bool:
    kinds = {kind(one) for one in _through(node, ON_THE_WAY)}
    return not kinds.isdisjoint(LOG_PROBABILITY) and not kinds.isdisjoint(SELECTED)


def _through(root: Any, passing: tuple[str, ...]) -> Iterator[Any]:
    """Nodes from this one on, as far as only these operations lie between; with those that end the way."""
    waiting: list[Any] = [root]
    seen: set[Any] = set()
    while waiting and len(seen) < MAX_NODES:
        node = waiting.pop(0)
        if node is None or node in seen:
            continue
        seen.add(node)
        yield node
        if kind(node) in passing:
            waiting.extend(parents(node))
