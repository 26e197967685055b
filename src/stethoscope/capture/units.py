"""Unit by unit, on a schedule: which units of a layer never fire, which never get a gradient, which are saturated.

A unit is an output row of a weight, a channel of an image, or the last dimension of anything else. What is worked out here
stays on the tensor's device, and nothing waits for it.
"""

from __future__ import annotations

import math
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import torch

from stethoscope.capture.deferred_reads import can_defer
from stethoscope.capture.lossgraph import Reading
from stethoscope.record import metrics

MAX_UNITS: Final = 8192
SATURATED: Final = 0.99
MAX_LOGITS: Final = 4096
"""Rows of an output that are read."""
MAX_VALUES: Final = 1 << 22
"""Values of an output on a device that are read: a copy of them is made."""
MAX_ROWS: Final = 4096
"""About how many rows of a layer's output on a device are read."""


def per_unit(value: torch.Tensor) -> torch.Tensor | None:
    """[samples, units] of a module's output; None where it has no units to speak of."""
    if value.dim() < 2 or not value.is_floating_point() or not value.numel():
        return None
    # Images carry their channels second; everything else its features last.
    units = value.movedim(1, -1) if value.dim() == 4 else value
    flat = units.reshape(-1, units.shape[-1])
    return flat if 1 < flat.shape[1] <= MAX_UNITS else None


def activity(value: torch.Tensor) -> torch.Tensor | None:
    """Mean absolute value of every unit over a batch; exactly 0 where it never fired. On a device of some of its rows."""
    flat = per_unit(_read(value))
    if flat is None:
        return None
    if flat.device.type == "cpu":
        return flat.abs().mean(0).float()
    # One launch that writes nothing but the sums; on a CPU it is the slower one.
    return _norm(flat, 1.0, 0) / len(flat)


def _norm(values: torch.Tensor, power: float, dim: int) -> torch.Tensor:
    """As float32, added up no more coarsely than that."""
    at_least = None if values.dtype == torch.float64 else torch.float32
    found: torch.Tensor = torch.linalg.vector_norm(values, power, dim=dim, dtype=at_least)
    return found.float()


def _read(value: torch.Tensor) -> torch.Tensor:
    """What is read of an output: on a device a look costs what it reads, so only a part of a large one."""
    return value.detach() if value.device.type == "cpu" else spread(value.detach(), MAX_ROWS)


def spread(value: torch.Tensor, most: int) -> torch.Tensor:
    """Rows spread over the whole of a tensor, at most about so many: no copy is made."""
    rows = value.numel() // max(value.shape[1 if value.dim() == 4 else -1], 1) if value.dim() > 1 else 0
    apart = -(-rows // most)
    if apart <= 1:
        return value
    if value.dim() == 4:
        side = math.isqrt(apart - 1) + 1
        return value[:, :, ::side, ::side]
    return value.flatten(0, -2)[::apart] if value.is_contiguous() else value[:: min(apart, len(value))]


def saturation(value: torch.Tensor) -> torch.Tensor | None:
    """The smallest and the largest value, the share at the ends of [-1, 1], the share at the lower end of [0, 1]."""
    values = _read(value)
    if not values.is_floating_point() or values.numel() < 2:
        return None
    outer, lower = values.abs() > SATURATED, values < 1.0 - SATURATED
    return torch.stack([values.amin().float(), values.amax().float(), outer.float().mean(), lower.float().mean()])


def saturated_share(low: float, high: float, outer: float, lower: float) -> float | None:
    """The share of values at the ends of [-1, 1] or [0, 1]; None where the values are not bounded so."""
    if high > 1.0 or low < -1.0 or high <= 0.0:
        return None
    return outer + lower if low >= 0.0 else outer


def is_squashed(value: torch.Tensor) -> bool:
    """Whether a tanh or a sigmoid made this tensor."""
    node = value.grad_fn
    return node is not None and node.name().startswith(("Tanh", "Sigmoid", "Hardtanh", "Hardsigmoid", "Softsign"))


def rows_with_gradient(gradient: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor | None:
    """The largest absolute gradient of every unit, of its row of a weight and its bias; exactly 0 where none arrived.

    A row without a gradient whose bias has one is no dead unit: what comes into the layer is zero.
    """
    values = gradient.detach()
    if values.dim() < 2 or not can_defer(values) or not 1 < values.shape[0] <= MAX_UNITS or not values.numel():
        return None
    rows = (values.abs() if values.is_complex() else values).flatten(1)
    if rows.device.type == "cpu":
        largest = torch.maximum(rows.amax(1), -rows.amin(1)).abs().float()
    else:
        largest = _norm(rows, math.inf, 1)
    if bias is not None and can_defer(bias) and bias.shape == largest.shape and bias.device == largest.device:
        largest = torch.maximum(largest, bias.detach().abs().float())
    return largest


def logits(output: Any, reading: Reading | None = None) -> torch.Tensor | None:
    """Of a model's output that looks like logits, the numbers that `logit_facts` reads; None where it does not.

    Where the classes lie is what the loss says; until one was seen, the last dimension of anything but images.
    """
    if (
        not isinstance(output, torch.Tensor)
        or not output.is_floating_point()
        or output.dim() < 1
        or not can_defer(output)
    ):
        return None
    size, dim = tuple(output.shape), -1
    if reading is not None and reading.dim is None and math.prod(reading.shape) == output.numel():
        # Several values a sample, each a label of its own, are no classes; an image of one logit a pixel is.
        alone = len(size) == 1 or size[-1] == 1 or size[1] == 1
        return _one_logit(output.detach().flatten()[:MAX_LOGITS]) if alone else None
    if reading is not None and reading.dim is not None and reading.shape == size:
        dim = reading.dim
    elif len(size) == 1 or size[-1] == 1:
        return _one_logit(output.detach().flatten()[:MAX_LOGITS])
    elif len(size) > 3:
        return None
    flat = output.detach().movedim(dim, -1).reshape(-1, size[dim])
    if not 2 <= flat.shape[1] <= 1 << 17 or flat.shape[0] < 2:
        return None
    most = MAX_LOGITS if flat.device.type == "cpu" else max(2, min(MAX_LOGITS, MAX_VALUES // flat.shape[1]))
    flat = flat[:most].float()
    # Counted by sorting: counting by class would have to know the number of classes before it begins.
    best = flat.argmax(1).sort().values
    times = torch.searchsorted(best, best, right=True) - torch.searchsorted(best, best)
    commonest = best.gather(0, times.argmax().reshape(1))
    numbers = [
        flat.logsumexp(1).mean(),
        times.max() / len(flat),
        commonest[0],
        torch.full_like(times[0], flat.shape[1]),
    ]
    return torch.stack([number.float() for number in numbers])


def logit_facts(values: npt.NDArray[np.float32]) -> dict[str, float]:
    """Mean log-sum-exp, the share of the commonest prediction, which one it is, how many there are."""
    if len(values) == 1:
        positive = float(values[0])
        return {
            metrics.TOP_SHARE: max(positive, 1.0 - positive),
            metrics.TOP_CLASS: float(positive > 0.5),
            metrics.NUM_UNITS: 1.0,
        }
    names = (metrics.LOG_Z, metrics.TOP_SHARE, metrics.TOP_CLASS, metrics.NUM_UNITS)
    return dict(zip(names, values.tolist(), strict=True))


def _one_logit(values: torch.Tensor) -> torch.Tensor | None:
    """One number a sample: if it is a logit, its sign is the prediction."""
    return None if len(values) < 2 else (values > 0).float().mean().reshape(1)


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
        """Layers with silent units and dormant shares, as fields of `events.Units`."""
        silent = {
            path: (len(quiet), *(int((quiet >= looks).sum()) for looks in (1, 4, 16)))
            for path, quiet in self._quiet.items()
            if (quiet > 0).any()
        }
        return {"silent": silent, "dormant": dict(self._dormant)}
