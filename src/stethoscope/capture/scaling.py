"""What a GradScaler, accumulation and clipping do to losses and gradients between backward and step.

A scaled loss is recorded as the loss it was made of, and gradients of outputs are divided by the scale of the pass they
came with, also where the scaled loss was summed or divided again before its backward. Where a step has n backwards
of losses that were each divided by n, the loss is recorded as the mean before that division, which is what training
scripts print. Nothing waits for a device.
"""

from __future__ import annotations

import math
import weakref
from typing import Any, Final

import torch

from stethoscope.capture.lossgraph import constant_factor, may_scale
from stethoscope.capture.ring import StepRows
from stethoscope.capture.sites import Names
from stethoscope.kernels import Pending, measure_async
from stethoscope.record import metrics

MAX_NODES: Final = 64
"""Nodes of the loss's graph in which a scaled loss is looked for."""


class Scaling:
    """Follows scaled losses to their backward passes."""

    def __init__(self, names: Names) -> None:
        self._names = names
        self._scaler: weakref.ref[Any] | None = None
        self._scaled: dict[Any, torch.Tensor] = {}
        """From the graph node of a scaled loss to its scale."""
        self._accumulated: dict[str, float] = {}
        """By what each loss is divided in a step of as many backwards."""

    @property
    def is_at_work(self) -> bool:
        """Whether losses are scaled, or known to be divided for accumulation."""
        return self._scaler is not None or bool(self._scaled or self._accumulated)

    def forget(self) -> None:
        """A new Step begins."""
        if self._scaled:
            self._scaled.clear()

    def loss_scaled(self, scaler: Any, scaled: Any, rows: StepRows) -> None:
        """A scaler multiplied one loss or several."""
        scale = getattr(scaler, "_scale", None)
        if not isinstance(scale, torch.Tensor):
            return
        self._scaler = weakref.ref(scaler)
        # Its value now: the scaler changes it in place.
        copy = scale.detach().clone()
        rows.pending_scalars.append((metrics.LOSS_SCALE, measure_async([copy])))
        for tensor in [scaled] if isinstance(scaled, torch.Tensor) else list(scaled):
            if isinstance(tensor, torch.Tensor) and tensor.grad_fn is not None:
                self._scaled[tensor.grad_fn] = copy

    def scale_of(self, loss: torch.Tensor) -> torch.Tensor | None:
        """What this loss was multiplied by, None where no scaler touched it."""
        if not self._scaled or loss.grad_fn is None:
            return None
        waiting, seen = [loss.grad_fn], {loss.grad_fn}
        while waiting and len(seen) < MAX_NODES:
            node = waiting.pop(0)
            if node in self._scaled:
                return self._scaled.pop(node).to(loss.device)
            for following, _ in node.next_functions:
                if following is not None and following not in seen:
                    seen.add(following)
                    waiting.append(following)
        return None

    # ---- accumulation ----

    def divisor_of(self, loss: torch.Tensor) -> float:
        """The number by which the loss was divided last, but for a scaler; 1 where there is none."""
        node = loss.grad_fn
        if self._scaled and node is not None and node in self._scaled:
            node = node.next_functions[0][0]
        if node is None or not may_scale(node.name()):
            return 1.0
        factor = constant_factor(node)
        return 1.0 / factor if factor else 1.0

    def undo_accumulation(self, rows: StepRows) -> None:
        """Losses divided by the number of backwards of their step are told as they were before.

        Once that is known, a step with fewer backwards (the last one of an epoch) is treated alike.
        """
        if len(rows.losses) == 1 and not self._accumulated:
            return
        found: dict[str, list[float]] = {}
        for loss in rows.losses:
            found.setdefault(loss.name, []).append(loss.divisor)
        for name, divisors in found.items():
            same = all(math.isclose(one, divisors[0], rel_tol=1e-4) for one in divisors)
            if same and len(divisors) > 1 and math.isclose(divisors[0], len(divisors), rel_tol=1e-4):
                self._accumulated[name] = divisors[0]
            if same and math.isclose(divisors[0], self._accumulated.get(name, 0.0), rel_tol=1e-4):
                rows.factors[name] = divisors[0]

    # ---- clipping ----

    def clipped_norm(
        self, gradients: list[Any], max_norm: Any, total_norm: Any, rows: StepRows, optimizers: list[Any]
    ) -> None:
        """The norm before clipping, the limit, and whether both are multiplied by a scale."""
        mine = self._mine(gradients)
        if not mine:
            return
        rows.pending_scalars.append((metrics.GRADIENT_NORM, measure_async([total_norm.detach()])))
        rows.scalars[metrics.CLIP_NORM] = float(max_norm)
        rows.scalars[metrics.CLIP_SCALED] = float(self._still_scaled(mine, optimizers))

    def clipped_value(self, gradients: list[Any], clip_value: float, rows: StepRows) -> None:
        """The limit."""
        if self._mine(gradients):
            rows.scalars[metrics.CLIP_VALUE] = float(clip_value)

    def _mine(self, gradients: list[Any]) -> set[int]:
        """Our parameters among the owners of these gradients."""
        known = {id(g) for g in gradients}
        return {id(p) for p in self._names.tensors if p.grad is not None and id(p.grad) in known}

    def _still_scaled(self, parameters: set[int], optimizers: list[Any]) -> bool:
        """Whether a scaler multiplied the loss and nobody has divided these gradients yet."""
        scaler = self._scaler() if self._scaler is not None else None
        if scaler is None or not scaler.is_enabled():
            return False
        for optimizer in optimizers:
            if any(id(p) in parameters for group in optimizer.param_groups for p in group["params"]):
                # Asked without making an entry: the scaler is the user's.
                state = scaler._per_optimizer_states.get(id(optimizer))
                return state is None or bool(state["stage"].value == 0)
        return False


def host_scale(scaler: Any) -> float | None:
    """The loss scale where it can be read without waiting for a device."""
    scale = getattr(scaler, "_scale", None)
    return float(scale) if isinstance(scale, torch.Tensor) and scale.device.type == "cpu" else None


def pending_scale(scale: torch.Tensor | None) -> Pending | None:
    """The scale as something to divide rows by."""
    return None if scale is None else measure_async([scale])
