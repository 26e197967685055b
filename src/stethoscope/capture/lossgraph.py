"""What the autograd graph of the loss shows: which operations lie between the model and the loss, and on which shapes.

Read from the loss downwards, before backward runs, on a few early steps and then now and then. Nothing is computed but
counts on small tensors that autograd saved anyway. A count of what is on a device stays there, as a tensor of one element in
the place of its number (`unread`): nothing waits for it.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterator
from typing import Any, Final

import torch

from stethoscope.capture.batches import MAX_CLASSES
from stethoscope.capture.deferred_reads import can_defer, is_here
from stethoscope.capture.nodes import (
    MAX_NODES,
    PASSING,
    dimension,
    kept,
    kind,
    maker,
    nearest,
    only_parent,
    parents,
    shape,
    through,
    undecorated,
)
from stethoscope.capture.squashing import squashed_by
from stethoscope.capture.surrogate import coefficients

REDUCING: Final = ("Mean", "Sum", "Div", "Mul", "Add", "Neg")
PAIRWISE: Final = ("MseLoss", "L1Loss", "SmoothL1Loss", "HuberLoss")
DISTANCES: Final = ("Pow", "Mul", "Abs")
"""Operations that make a loss of a difference: its square, its product with itself, its size."""
KEEPING_ORDER: Final = (
    "View",
    "UnsafeView",
    "ReshapeAlias",
    "Squeeze",
    "Unsqueeze",
    "Clone",
    "Alias",
    "Flatten",
    "Contiguous",
)
"""Operations after which the values still come one after the other as before."""
NEVER_NEGATIVE: Final = (
    "Relu",
    "Threshold",
    "Sigmoid",
    "Softplus",
    "Softmax",
    "Exp",
    "Abs",
    "ClampMin",
    "Clamp",
    "Hardtanh",
)
"""Operations whose result has a floor at zero; the last three where their lower limit says so."""
BINARY: Final = ("BinaryCrossEntropyWithLogits", "BinaryCrossEntropy")
MAX_TARGETS: Final = 1 << 20
"""More are not counted."""
SUM: Final = 2
"""A loss function's `reduction` that adds up."""


def facts(loss: torch.Tensor) -> dict[str, Any]:
    """What can be told from the operations nearest to the loss; empty where there is no graph."""
    root = loss.grad_fn
    if root is None:
        return {}
    body: dict[str, Any] = {"operations": []}
    terms = set(_terms(root))
    for node in nearest(root):
        name = kind(node)
        body["operations"].append([name, list(shape(node))])
        if name in (*PAIRWISE, *BINARY):
            _targets(node, body)
        if name in ("NllLoss", "NllLoss2D", "CrossEntropyLoss"):
            _classification(node, body)
        elif name == "LogSoftmax":
            twice = squashed_by(parents(node)[0], dimension(int(node._saved_dim), len(shape(node))))
            _note(body, "double_softmax", twice, parents(node)[0])
        elif name == "BinaryCrossEntropyWithLogits":
            _note(body, "double_sigmoid", squashed_by(parents(node)[0]), parents(node)[0])
        elif name in PAIRWISE or name == "Sub":
            _comparison(node, body)
        elif name in DISTANCES and node in terms:
            _distance(node, body)
    _clamped(root, body)
    multiplied = coefficients(root)
    if multiplied is not None:
        body["coefficients"] = {name: _told(value) for name, value in multiplied.items()}
    return body


def unread(body: dict[str, Any]) -> list[tuple[dict[str, Any], str]]:
    """The places of numbers that are still on a device."""
    found: list[tuple[dict[str, Any], str]] = []
    for key, value in body.items():
        if isinstance(value, torch.Tensor):
            found.append((body, key))
        elif isinstance(value, dict):
            found += unread(value)
    return found


def _seen(node: Any, name: str) -> torch.Tensor | None:
    """A tensor that a node kept, where a look at it waits for nothing."""
    value = kept(node, name)
    return value if value is not None and value.numel() and can_defer(value) else None


def _share(flags: torch.Tensor) -> float | torch.Tensor:
    return _told(flags.double().mean())


def _told(number: torch.Tensor) -> float | torch.Tensor:
    """A number, or where it is until it has come."""
    return float(number) if is_here(number) else number.detach()


def _note(body: dict[str, Any], name: str, fact: Any, node: Any) -> None:
    """A fact where there is one, and the module that made the values it is about."""
    if fact is not None:
        body[name] = fact
        if path := maker(node):
            body.setdefault("made_by", {})[name] = path


def _terms(root: Any) -> Iterator[Any]:
    """The nodes that the loss is a sum or mean of, each times what it may."""
    waiting, seen = [root], 0
    while waiting and seen < MAX_NODES:
        node = waiting.pop(0)
        seen += 1
        yield node
        if kind(node) in (*REDUCING, *PASSING, "Sqrt"):
            waiting.extend(parent for parent in parents(node) if parent is not None)


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
            return Reading(shape(node), dimension(int(node._saved_dim), len(shape(node))))
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
        total = _seen(node, "_saved_total_weight")
        body["num_targets"] = 0.0 if total is None else _told(total)
    elif name in (*PAIRWISE, "BinaryCrossEntropyWithLogits", "BinaryCrossEntropy"):
        target = getattr(node, "_saved_target", None)
        if getattr(node, "_saved_reduction", SUM) != SUM and isinstance(target, torch.Tensor):
            body["num_targets"] = float(target.numel())
    return body


@functools.cache
def may_scale(name: str) -> bool:
    """Whether a node of this name multiplies, divides, or hands on what another one did."""
    return undecorated(name) in ("Div", "Mul", *PASSING)


def constant_factor(node: Any) -> float:
    """The number that a node multiplied by or divided by, as a factor; 1 where it did neither or the number is on a device."""
    node = through(node)
    if node is None or kind(node) not in ("Div", "Mul") or only_parent(node) is None:
        return 1.0
    other = _number(kept(node, "_saved_other"))
    return other if kind(node) == "Mul" else 1.0 / other if other else 0.0


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
    dim = dimension(int(before._saved_dim), len(size))
    if 0 <= dim < len(size):
        body["num_classes"] = size[dim]
        _labels(node, body)


def _labels(node: Any, body: dict[str, Any]) -> None:
    """How often each class is asked for: what guessing by that alone would give follows from it."""
    labels = _seen(node, "_saved_target")
    if labels is None or not is_here(labels) or labels.numel() > MAX_TARGETS or body["num_classes"] > MAX_CLASSES:
        return
    labels = labels.detach().flatten()
    counted = labels[
        (labels >= 0) & (labels < body["num_classes"]) & (labels != getattr(node, "_saved_ignore_index", -100))
    ]
    if "class_counts" not in body and counted.numel():
        body["class_counts"] = torch.bincount(counted).tolist()


def _targets(node: Any, body: dict[str, Any]) -> None:
    """How far the targets of the loss nearest to `backward` vary; not where they are a model's output themselves."""
    targets = _seen(node, "_saved_target")
    if "target_mean" in body or targets is None or targets.requires_grad or targets.numel() > MAX_TARGETS:
        return
    wide = targets.detach().double()
    body["target_mean"], body["target_square"] = _told(wide.mean()), _told(wide.square().mean())


def _comparison(node: Any, body: dict[str, Any]) -> None:
    """A prediction set against a target: broadcast against it, or cut off at zero before it."""
    inputs = parents(node)
    with_gradient = [parent for parent in inputs if parent is not None]
    out = shape(node)
    if len(with_gradient) != 1:
        return
    (first,) = with_gradient
    grown = _broadcast(first, out, kind(node))
    if "broadcast" not in body:
        _note(body, "broadcast", grown, first)
    source = through(first, (*PASSING, "Expand"))
    if source is None or not _is_never_negative(source):
        return
    target = getattr(node, "_saved_target", None)
    if isinstance(target, torch.Tensor) and can_defer(target):
        _note(body, "output_cut", {"by": kind(source), "negative_targets": _share(target < 0)}, source)
    elif kind(node) == "Sub" and "output_cut" not in body:
        _note(body, "output_cut", {"by": kind(source), "negative_targets": None}, source)


def _distance(node: Any, body: dict[str, Any]) -> None:
    """A loss written out: what is squared is the difference of a prediction and a target, and with the prediction gives the target."""
    below = parents(node)[0]
    if below is None or any(other is not below for other in parents(node)) or kind(below) != "Sub":
        return
    first = only_parent(below)
    source = through(first, KEEPING_ORDER)
    difference = _seen(node, "_saved_self")
    if difference is None or source is None or not _is_never_negative(source):
        return
    prediction = _result(source)
    if prediction is None or shape(first) != tuple(difference.shape) or prediction.numel() != difference.numel():
        return
    prediction, difference = prediction.detach().reshape(difference.shape), difference.detach()
    target = prediction - difference if parents(below)[0] is not None else prediction + difference
    # What rounding leaves of a target of zero is not below zero.
    rounding = 1e-5 * torch.maximum(prediction.abs(), difference.abs())
    _note(body, "output_cut", {"by": kind(source), "negative_targets": _share(target < -rounding)}, source)


def _result(node: Any) -> torch.Tensor | None:
    """What a node with a floor produced, where that can be read."""
    if kind(node) in ("Clamp", "ClampMin"):
        given = _seen(node, "_saved_self")
        return None if given is None else given.detach().clamp(_limit(node, "_saved_min"), _limit(node, "_saved_max"))
    return _seen(node, "_saved_result")


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
    return {"prediction": list(small), "result": list(large)} if small in ((batch, 1), (batch,), (1, batch)) else None


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
    if node is None:
        return
    if kind(node) == ("Maximum" if flipped else "Minimum"):
        _limited(node, body)
    if kind(node) not in ("Clamp", "ClampMax", "ClampMin", "Hardtanh"):
        return
    values = _seen(node, "_saved_self")
    if values is None:
        return
    low, high = (_limit(node, name) for name in ("_saved_min", "_saved_max"))
    limit = low if flipped else high
    if limit is None:
        return
    outside = values < limit if flipped else values > limit
    body["clamped"] = {"share": _share(outside), "min": low, "max": high}


def _limited(node: Any, body: dict[str, Any]) -> None:
    """The smaller of a loss and a constant is a clamp too; of two losses it is not."""
    values, limits = _seen(node, "_saved_self"), _seen(node, "_saved_other")
    if values is None or limits is None or only_parent(node) is None:
        return
    if parents(node)[0] is None:
        values, limits = limits, values
    outside = values < limits if kind(node) == "Maximum" else values > limits
    limit = _told(limits.max())
    ends = {"min": limit, "max": None} if kind(node) == "Maximum" else {"min": None, "max": limit}
    body["clamped"] = {"share": _share(outside), **ends}


def _limit(node: Any, name: str) -> float | None:
    value = getattr(node, name, None)
    return float(value) if isinstance(value, (int, float)) else None
