"""What a model is, beyond its numbers: modes, hooks, twins, units that are copies of each other.

Taken at the start and again at powers of two and every so often: facts that change rarely and cost a walk over modules.
"""

from __future__ import annotations

from typing import Any, Final

import torch

from stethoscope.capture.sites import Names
from stethoscope.capture.taps import Inert

MODE_DEPENDENT: Final = (torch.nn.modules.dropout._DropoutNd, torch.nn.modules.batchnorm._NormBase)
MAX_COMPARED: Final = 1 << 24
"""Elements of a tensor that is compared with another: larger ones would cost more than a step."""


def hooks_by_module(root: torch.nn.Module) -> dict[str, int]:
    """Hooks of others on the model's modules, by path, where there are any."""
    found: dict[str, int] = {}
    for path, module in root.named_modules():
        count = 0
        for hooks in (
            module._forward_hooks,
            module._forward_pre_hooks,
            module._backward_hooks,
            module._backward_pre_hooks,
        ):
            count += sum(not isinstance(hook, Inert) for hook in hooks.values())
        if count:
            found[path] = count
    return found


def modes(root: torch.nn.Module) -> dict[str, Any]:
    """Which modules whose behaviour depends on it are in evaluation mode, and which in training mode."""
    dependent = [
        (path, module) for path, module in root.named_modules() if isinstance(module, MODE_DEPENDENT)
    ]
    return {
        "training": bool(root.training),
        "evaluating": [path for path, module in dependent if not module.training][:50],
        "in_training": [path for path, module in dependent if module.training][:50],
        "kinds_evaluating": sorted({type(m).__name__ for _, m in dependent if not m.training}),
        "kinds_in_training": sorted({type(m).__name__ for _, m in dependent if m.training}),
    }


class Twins:
    """An embedding and a head that hold equal values in different storage: meant to be tied, and not."""

    def __init__(self, names: Names) -> None:
        embeddings = [
            (p, w)
            for p, m in names.root.named_modules()
            # Not by the attribute: reading a parametrized weight computes it, and may change the parametrization.
            if isinstance(m, torch.nn.Embedding) and (w := m._parameters.get("weight")) is not None
        ]
        heads = [
            (p, w)
            for p, m in names.root.named_modules()
            if isinstance(m, torch.nn.Linear) and (w := m._parameters.get("weight")) is not None
        ]
        self.pairs = [
            (a, first, b, second)
            for a, first in embeddings
            for b, second in heads
            if first is not second and _equal(first, second) and not _is_flat(first)
        ]

    def facts(self) -> dict[str, Any] | None:
        """Whether they are still equal."""
        if not self.pairs:
            return None
        return {
            "pairs": [
                {"embedding": f"{a}.weight", "head": f"{b}.weight", "equal": _equal(first, second)}
                for a, first, b, second in self.pairs
            ]
        }


class Copies:
    """Matrices whose rows are all the same: units that can only ever learn the same thing."""

    def __init__(self, names: Names) -> None:
        self._names = names
        self._suspects = [p for p in names.tensors if _has_equal_rows(p)]
        self._before = [p.detach().clone() for p in self._suspects]

    def facts(self) -> dict[str, Any] | None:
        """Which of them moved and still have equal rows; None where nothing was suspicious from the start."""
        if not self._suspects:
            return None
        moved = [
            p
            for p, old in zip(self._suspects, self._before, strict=True)
            if not torch.equal(p.detach(), old) and _has_equal_rows(p)
        ]
        return {
            "sites": [
                ".".join(filter(None, self._names.parameters[id(p)]))
                for p in moved
                if id(p) in self._names.parameters
            ]
        }


def _equal(first: torch.Tensor, second: torch.Tensor) -> bool:
    if (
        first.shape != second.shape
        or first.is_meta
        or first.device != second.device
        or first.numel() > MAX_COMPARED
    ):
        return False
    # A device would have to be waited for; what lives elsewhere is not compared.
    return first.device.type == "cpu" and torch.equal(first.detach(), second.detach())


def _is_flat(tensor: torch.Tensor) -> bool:
    flat = tensor.detach().flatten()
    return bool((flat == flat[0]).all())


def _has_equal_rows(parameter: torch.Tensor) -> bool:
    if (
        parameter.dim() < 2
        or parameter.is_meta
        or parameter.device.type != "cpu"
        or parameter.numel() > MAX_COMPARED
    ):
        return False
    if parameter.shape[0] < 2 or parameter.layout is not torch.strided:
        return False
    values = parameter.detach()
    return bool((values == values[:1]).all())
