"""Unit by unit, on a schedule: which units of a layer never fire, which never get a gradient, which are saturated.

A unit is an output row of a weight, a channel of an image, or the last dimension of anything else.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import numpy.typing as npt
import torch

MAX_UNITS: Final = 8192
SATURATED: Final = 0.99


def per_unit(value: torch.Tensor) -> torch.Tensor | None:
    """[samples, units] of a module's output; None where it has no units to speak of."""
    if value.dim() < 2 or not value.is_floating_point() or not value.numel():
        return None
    # Images carry their channels second; everything else its features last.
    units = value.movedim(1, -1) if value.dim() == 4 else value
    flat = units.reshape(-1, units.shape[-1])
    return flat if 1 < flat.shape[1] <= MAX_UNITS else None


def activity(value: torch.Tensor) -> npt.NDArray[np.float32] | None:
    """Mean absolute value of every unit over a batch; exactly 0 where it never fired."""
    flat = per_unit(value.detach())
    return None if flat is None else flat.abs().mean(0).float().numpy()


def saturation(value: torch.Tensor) -> float | None:
    """The share of values at the ends of [-1, 1] or [0, 1]; None where the values are not bounded so."""
    values = value.detach()
    if values.device.type != "cpu" or not values.is_floating_point() or values.numel() < 2:
        return None
    low, high = torch.aminmax(values)
    if float(high) > 1.0 or float(low) < -1.0 or float(high) <= 0.0:
        return None
    ends = values.abs() > SATURATED
    if float(low) >= 0.0:
        ends |= values < 1.0 - SATURATED
    return float(ends.double().mean())


def is_squashed(value: torch.Tensor) -> bool:
    """Whether a tanh or a sigmoid made this tensor."""
    node = value.grad_fn
    return node is not None and node.name().startswith(("Tanh", "Sigmoid", "Hardtanh", "Hardsigmoid", "Softsign"))


def rows_with_gradient(gradient: torch.Tensor) -> npt.NDArray[np.float32] | None:
    """The largest absolute gradient of every output row of a weight; exactly 0 where none arrived."""
    values = gradient.detach()
    if values.dim() < 2 or values.layout is not torch.strided or values.device.type != "cpu":
        return None
    if not 1 < values.shape[0] <= MAX_UNITS:
        return None
    return values.flatten(1).abs().amax(1).float().numpy()


def logits(output: Any) -> dict[str, float]:
    """Of a model's output that looks like logits: mean log-sum-exp, the share of the commonest prediction."""
    if not isinstance(output, torch.Tensor) or not output.is_floating_point() or output.dim() < 1:
        return {}
    if output.dim() == 1 or output.shape[-1] == 1:
        return _one_logit(output.detach().flatten()[:4096])
    flat = output.detach().reshape(-1, output.shape[-1])
    if output.device.type != "cpu" or not 2 <= flat.shape[1] <= 1 << 17 or flat.shape[0] < 2:
        return {}
    flat = flat[:4096].float()
    winners = torch.bincount(flat.argmax(1), minlength=flat.shape[1])
    return {
        "output/log_z": float(flat.logsumexp(1).mean()),
        "output/top_share": float(winners.max()) / len(flat),
        "output/top_class": float(winners.argmax()),
        "output/num_units": float(flat.shape[1]),
    }


def _one_logit(values: torch.Tensor) -> dict[str, float]:
    """One number a sample: if it is a logit, its sign is the prediction."""
    if values.device.type != "cpu" or len(values) < 2:
        return {}
    positive = float((values > 0).double().mean())
    return {
        "output/top_share": max(positive, 1.0 - positive), "output/top_class": float(positive > 0.5), "output/num_units": 1.0,
    }  # fmt: skip


class UnitRecord:
    """How long each unit of each layer has been silent, and how many are dormant."""

    def __init__(self) -> None:
        self._quiet: dict[str, npt.NDArray[np.int64]] = {}
        self._dormant: dict[str, float] = {}
        self._looks = 0

    def see_gradient(self, path: str, rows: npt.NDArray[np.float32]) -> None:
        """The largest gradient of every row of a weight."""
        quiet = self._quiet.get(path)
        if quiet is None or len(quiet) != len(rows):
            quiet = np.zeros(len(rows), dtype=np.int64)
        self._quiet[path] = np.where(rows == 0, quiet + 1, 0)

    def see_activity(self, path: str, activity_: npt.NDArray[np.float32]) -> None:
        """Mean absolute output of every unit: dormant is a fortieth of the layer's mean or less (Sokar et al., 2023)."""
        mean = float(activity_.mean())
        self._dormant[path] = float((activity_ <= 0.025 * mean).mean()) if mean > 0 else 1.0

    def summary(self) -> dict[str, Any]:
        """Layers with silent units: how many units, how many silent for one, four and sixteen looks; dormant shares."""
        silent = {
            path: [len(quiet), *(int((quiet >= looks).sum()) for looks in (1, 4, 16))]
            for path, quiet in self._quiet.items()
            if (quiet > 0).any()
        }
        return {"silent": silent, "dormant": dict(self._dormant)}
