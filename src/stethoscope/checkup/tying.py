"""Are weights that were meant to be one tensor two tensors with the same numbers?

Equal numbers alone are no fault: cloned layers and target networks begin so, and each does what its twin does. Flagged
are two tensors that do different things: one is looked up, the other multiplied; or one is the other transposed.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import torch

from stethoscope.checkup.examination import Examination
from stethoscope.checkup.findings import WARNING, found
from stethoscope.record import Finding, plural

LOOKED_UP: Final = (torch.nn.Embedding, torch.nn.EmbeddingBag)
MULTIPLIED: Final = (torch.nn.Linear,)
MIN_NUMBERS: Final = 16


def examine(exam: Examination) -> Iterator[Finding]:
    """tied_weights_split."""
    model = exam.subject.model
    roles = _weight_roles(exam)
    named = [(name, p) for name, p in model.named_parameters() if p.ndim == 2 and p.requires_grad and _is_random(p)]
    if len(named) > 1:
        exam.saw(f"{plural(len(named), 'matrix', 'matrices')}, each against the others")
    for index, (name, p) in enumerate(named):
        for other_name, other in named[index + 1 :]:
            if p.device != other.device or p.dtype != other.dtype:
                continue
            straight = p.shape == other.shape and roles.get(name) != roles.get(other_name) and torch.equal(p, other)
            both = {roles.get(name), roles.get(other_name)}
            if straight and both == {"looked up", "multiplied"}:
                yield _split_finding(name, other_name, "")
            elif p.shape == other.shape[::-1] and both == {"multiplied"} and _is_transposed(p, other):
                yield _split_finding(name, other_name, ".T")


def _is_transposed(p: torch.Tensor, other: torch.Tensor) -> bool:
    # A symmetric matrix (an identity) is its own transpose.
    return bool(torch.equal(p, other.T)) and not (p.shape == other.shape and torch.equal(p, other))


def _is_random(p: torch.Tensor) -> bool:
    """Whether equal numbers cannot be chance."""
    flat = p.detach().reshape(-1)
    return flat.numel() >= MIN_NUMBERS and int(torch.unique(flat[:4096]).numel()) > min(flat.numel(), 4096) // 2


def _weight_roles(exam: Examination) -> dict[str, str]:
    """What is done with each weight: by its module, or by the first operation in the graph for a bare parameter."""
    roles: dict[str, str] = {}
    for path, module in exam.subject.model.named_modules():
        for name, p in module.named_parameters(recurse=False):
            full = f"{path}.{name}" if path else name
            if p.ndim != 2:
                continue
            if isinstance(module, LOOKED_UP):
                roles[full] = "looked up"
            elif isinstance(module, MULTIPLIED):
                roles[full] = "multiplied"
    bare = {id(p): name for name, p in exam.first.parameters.items() if name not in roles}
    if bare and exam.first.loss.grad_fn is not None:
        roles |= _used_as(exam.first.loss.grad_fn, bare)
    return roles


def _used_as(root: torch.autograd.graph.Node, bare: dict[int, str]) -> dict[str, str]:
    roles: dict[str, str] = {}
    seen = {root}
    ahead = [root]
    while ahead:
        node = ahead.pop()
        for parent, _ in node.next_functions:
            if parent is None:
                continue
            name = bare.get(id(getattr(parent, "variable", None)))
            if name is not None:
                kind = "looked up" if node.name().startswith("Embedding") else "multiplied"
                if node.name().startswith(("T", "Mm", "Addmm", "Embedding", "Transpose", "Permute", "UnsafeView")):
                    roles[name] = kind
            if parent not in seen:
                seen.add(parent)
                ahead.append(parent)
    return roles


def _split_finding(name: str, other: str, transposed: str) -> Finding:
    return found(
        "tied_weights_split",
        WARNING,
        f"{other} holds the same numbers as {name}{transposed} but is another tensor: they will drift apart.",
        sites=[name, other],
        numbers={"largest difference now": 0.0},
        remedy=f"model.{other} = model.{name}"
        if not transposed
        else f"# use F.linear(x, model.{name}.T) instead of {other}",
    )
