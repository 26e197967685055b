"""What the autograd graph of the loss shows: which operations lie between the model and the loss, and on which shapes.

Read from the loss downwards, before backward runs, on a few early steps and then now and then. Nothing is computed but
counts on small tensors that autograd saved anyway.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any, Final

import torch

MAX_NODES: Final = 48
PASSING: Final = (
    "View", "UnsafeView", "ReshapeAlias", "Squeeze", "Unsqueeze", "Transpose", "T", "Permute", "Slice", "Select", "Clone",
    "ToCopy", "Alias", "AsStrided", "Flatten", "Index", "Contiguous",
)  # fmt: skip
"""Operations that move values without changing them."""
REDUCING: Final = ("Mean", "Sum", "Div", "Mul", "Add", "Neg")
PAIRWISE: Final = ("MseLoss", "L1Loss", "SmoothL1Loss", "HuberLoss")
NEVER_NEGATIVE: Final = ("Relu", "Threshold", "Sigmoid", "Softplus", "Softmax", "Exp", "Abs", "ClampMin", "Clamp", "Hardtanh")
"""Operations whose result has a floor at zero; the last three where their lower limit says so."""
SUM: Final = 2
"""A loss function's `reduction` that adds up."""


def kind(node: Any) -> str:
    """A node's operation without decoration: "MseLoss" for MseLossBackward0."""
    name: str = node.name().rpartition("::")[2]
    return name.partition("Backward")[0]


def shape(node: Any) -> tuple[int, ...]:
    """The shape of what the node produced."""
    metadata = node._input_metadata
    return tuple(int(n) for n in metadata[0].shape) if metadata else ()


def parents(node: Any) -> list[Any]:
    """The nodes that fed it, in the order of its arguments; None where an argument needs no gradient."""
    return [parent for parent, _ in node.next_functions]


def through(node: Any, passing: tuple[str, ...] = PASSING) -> Any:
    """The first node at or before this one that changes values."""
    for _ in range(16):
        if node is None or kind(node) not in passing:
            break
        found = [parent for parent in parents(node) if parent is not None]
        node = found[0] if found else None
    return node


def nearest(root: Any) -> Iterator[Any]:
    """Nodes from the loss down, breadth first, the nearest ones only."""
    waiting: list[Any] = [root]
    seen: set[Any] = set()
    while waiting and len(seen) < MAX_NODES:
        node = waiting.pop(0)
        if node is None or node in seen:
            continue
        seen.add(node)
        yield node
        waiting.extend(parents(node))


def facts(loss: torch.Tensor) -> dict[str, Any]:
    """What can be told from the operations nearest to the loss; empty where there is no graph."""
    root = loss.grad_fn
    if root is None:
        return {}
    body: dict[str, Any] = {"operations": []}
    for node in nearest(root):
        name = kind(node)
        body["operations"].append([name, list(shape(node))])
        if name in ("NllLoss", "NllLoss2D", "CrossEntropyLoss"):
            _classification(node, body)
        elif name == "BinaryCrossEntropyWithLogits":
            before = through(parents(node)[0])
            if before is not None and kind(before) in ("Sigmoid", "Softmax"):
                body["double_sigmoid"] = kind(before)
        elif name in PAIRWISE or name == "Sub":
            _comparison(node, body)
    _clamped(root, body)
    return body


@dataclasses.dataclass(frozen=True, slots=True)
class Reading:
    """How a loss reads the tensor it is given: classes along a dimension, or every value a logit of its own."""

    shape: tuple[int, ...]
    dim: int | None
    """Where the classes lie; None where each value stands for itself."""


def reading(loss: torch.Tensor) -> Reading | None:
    """The classification nearest to the loss; None where there is none."""
    for node in nearest(loss.grad_fn):
        name = kind(node)
        if name == "LogSoftmax":
            dim = int(node._saved_dim)
            return Reading(shape(node), dim if dim < 2**31 else dim - 2**64)
        if name == "BinaryCrossEntropyWithLogits":
            logits = getattr(node, "_saved_self", None)
            return Reading(tuple(logits.shape), None) if isinstance(logits, torch.Tensor) else None
    return None


def share_in_step(loss: torch.Tensor) -> dict[str, Any]:
    """How one backward of several counts in its step: what it is multiplied by, and over how many targets it is a mean.

    `num_targets` is 0 where the loss function adds up instead, or is none that keeps the number.
    """
    factor, node = 1.0, loss.grad_fn
    for _ in range(8):
        node = through(node)
        if node is None or kind(node) not in ("Div", "Mul", "Neg"):
            break
        known = [parent for parent in parents(node) if parent is not None]
        if len(known) != 1:
            break
        if kind(node) != "Neg":
            other = _number(getattr(node, "_saved_other", None))
            factor = factor * other if kind(node) == "Mul" else factor / other if other else 0.0
        node = known[0]
    name = kind(node) if node is not None else ""
    body: dict[str, Any] = {"factor": abs(factor), "by": name, "num_targets": 0.0}
    if name.startswith("NllLoss") and getattr(node, "_saved_reduction", SUM) != SUM:
        body["num_targets"] = _number(getattr(node, "_saved_total_weight", None)) or 0.0
    elif name in (*PAIRWISE, "BinaryCrossEntropyWithLogits", "BinaryCrossEntropy"):
        target = getattr(node, "_saved_target", None)
        if getattr(node, "_saved_reduction", SUM) != SUM and isinstance(target, torch.Tensor):
            body["num_targets"] = float(target.numel())
    return body


def _number(value: Any) -> float:
    """A saved scalar, 1 where it is not one or would have to be waited for."""
    if isinstance(value, (int, float)):
        return float(value)
    if isinstance(value, torch.Tensor) and value.numel() == 1 and value.device.type == "cpu":
        return float(value)
    return 1.0


def _classification(node: Any, body: dict[str, Any]) -> None:
    before = through(parents(node)[0])
    if before is None or kind(before) != "LogSoftmax":
        return
    size = shape(before)
    dim = int(before._saved_dim)
    if size and -len(size) <= (dim if dim < 2**31 else dim - 2**64) < len(size):
        body["num_classes"] = size[dim if dim < 2**31 else dim - 2**64]
    earlier = through(parents(before)[0])
    if earlier is not None and kind(earlier) in ("Softmax", "Sigmoid"):
        body["double_softmax"] = kind(earlier)


def _comparison(node: Any, body: dict[str, Any]) -> None:
    """A prediction set against a target: broadcast against it, or cut off at zero before it."""
    inputs = parents(node)
    with_gradient = [parent for parent in inputs if parent is not None]
    out = shape(node)
    if len(with_gradient) != 1:
        return
    (first,) = with_gradient
    grown = _broadcast(first, out, kind(node))
    if grown:
        body.setdefault("broadcast", grown)
    source = through(first, (*PASSING, "Expand"))
    if source is None or not _is_never_negative(source):
        return
    target = getattr(node, "_saved_target", None)
    if isinstance(target, torch.Tensor) and target.device.type == "cpu":
        share = float((target < 0).double().mean())
        body["output_cut"] = {"by": kind(source), "negative_targets": share}
    elif kind(node) == "Sub":
        body["output_cut"] = {"by": kind(source), "negative_targets": None}


def _is_never_negative(node: Any) -> bool:
    name = kind(node)
    if name in ("ClampMin", "Clamp", "Hardtanh"):
        low = _limit(node, "_saved_min_val" if name == "Hardtanh" else "_saved_min")
        return low is not None and low >= 0
    return name in NEVER_NEGATIVE


def _broadcast(first: Any, out: tuple[int, ...], name: str) -> dict[str, Any] | None:
    """(B, 1) against (B): the prediction was repeated along a dimension that is as long as the batch."""
    if name in PAIRWISE:
        if kind(first) != "Expand":
            return None
        small, large = tuple(int(n) for n in first._saved_self_sym_sizes), shape(first)
    else:
        small, large = shape(first), out
    if len(large) != 2 or large[0] != large[1] or large[0] < 2:
        return None
    batch = large[0]
    return (
        {"prediction": list(small), "result": list(large)}
        if small in ((batch, 1), (batch,), (1, batch))
        else None
    )


def _clamped(root: Any, body: dict[str, Any]) -> None:
    """A loss cut off where it is large: beyond the limit nothing has a gradient. A hinge is cut off where it is small."""
    node, flipped = root, False
    for _ in range(16):
        node = through(node)
        if node is None or kind(node) not in REDUCING:
            break
        flipped ^= kind(node) == "Neg"
        known = [parent for parent in parents(node) if parent is not None]
        node = known[0] if known else None
    if node is None or kind(node) not in ("Clamp", "ClampMax", "ClampMin", "Minimum", "Hardtanh"):
        return
    values = getattr(node, "_saved_self", None)
    if not isinstance(values, torch.Tensor) or values.device.type != "cpu" or not values.numel():
        return
    low, high = (_limit(node, name) for name in ("_saved_min", "_saved_max"))
    limit = low if flipped else high
    if limit is None:
        return
    outside = values < limit if flipped else values > limit
    body["clamped"] = {"share": float(outside.double().mean()), "min": low, "max": high}


def _limit(node: Any, name: str) -> float | None:
    value = getattr(node, name, None)
    return float(value) if isinstance(value, (int, float)) else None
