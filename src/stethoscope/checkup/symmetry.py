"""Do the units of a layer begin as copies of each other, and stay so?

Equal rows alone are no fault: a head of zeros, the B of LoRA, a residual branch of zeros get different gradients in
the first steps. So a copy is trained for a few steps without noise, and rows that are still equal are the fault.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import torch

from stethoscope.checkup.examination import Examination
from stethoscope.checkup.findings import CRITICAL, found, listed
from stethoscope.checkup.subject import Twin
from stethoscope.record import Finding, plural

NUM_STEPS: Final = 6
NUM_DIRECTIONS: Final = 6
NOISE_FLOOR: Final = 1e-7
"""Gradients this much smaller than the largest one are rounding."""


def examine(exam: Examination) -> Iterator[Finding]:
    """symmetric_units."""
    if not exam.finite:
        return
    twin = exam.subject.twin(train=False)
    weights = {name: p for name, p in _unit_weights(twin).items() if exam.first.gradients.get(name) is not None}
    exam.saw(f"the units of {plural(len(weights), 'weight')}")
    suspects = {name: p for name, p in weights.items() if num_distinct(p.detach(), 0.0) <= p.shape[0] // 2}
    if not suspects:
        return
    began = {name: p.detach().clone() for name, p in suspects.items()}
    if not _train_few_steps(twin):
        return
    equal = []
    for name, p in suspects.items():
        moved = float((p.detach() - began[name]).abs().max())
        if num_distinct(p.detach(), 1e-4 * moved) <= p.shape[0] // 2:
            equal.append(name)
    if equal:
        first = suspects[equal[0]]
        yield found(
            "symmetric_units",
            CRITICAL,
            f"The units of {listed([name.rpartition('.')[0] or name for name in equal])} are copies of each other and get "
            "the same gradients: they will stay one unit.",
            sites=equal,
            numbers={"units": first.shape[0], "different units after training": num_distinct(first.detach(), 1e-6)},
            remedy="nn.init.kaiming_uniform_(layer.weight, a=5**0.5)  # random, not constant",
        )


def _unit_weights(twin: Twin) -> dict[str, torch.nn.Parameter]:
    """Matrices and kernels with several units; embeddings have rows that nothing happens to."""
    tables = {
        id(p)
        for m in twin.model.modules()
        if isinstance(m, (torch.nn.Embedding, torch.nn.EmbeddingBag))
        for p in m.parameters()
    }
    return {
        name: p
        for name, p in twin.parameters().items()
        if p.ndim >= 2
        and p.shape[0] > 1
        and p.requires_grad
        and id(p) not in tables
        and p[0].numel() > 1
        and p.is_floating_point()
    }


def num_distinct(weight: torch.Tensor, tolerance: float) -> int:
    """How many different rows there are, up to a tolerance: by their products with random directions."""
    rows = weight.detach().double().reshape(weight.shape[0], -1).cpu()
    generator = torch.Generator().manual_seed(11)
    directions = torch.randn(rows.shape[1], NUM_DIRECTIONS, generator=generator, dtype=torch.float64, device="cpu")
    products = rows @ (directions / directions.norm(dim=0))
    # A cell wider than the tolerance, because equal rows differ by rounding.
    cell = max(10 * tolerance, 1e-12 * float(rows.abs().max()), 1e-300)
    return int(torch.unique(torch.round((products - products.min(0).values) / cell), dim=0).shape[0])


def _train_few_steps(twin: Twin) -> bool:
    """A few steps along the gradient, each tensor by one percent of its size; no noise, no momentum."""
    parameters = [p for p in twin.parameters().values() if p.requires_grad]
    for _ in range(NUM_STEPS):
        loss = twin.loss(twin.forward())
        if not loss.requires_grad or not bool(torch.isfinite(loss)):
            return False
        grads = torch.autograd.grad(loss, parameters, allow_unused=True)
        largest = max((float(g.abs().max()) for g in grads if g is not None and g.numel()), default=0.0)
        with torch.no_grad():
            for p, g in zip(parameters, grads, strict=True):
                if g is None or not g.numel() or g.is_sparse:
                    continue
                size = float(g.square().mean().sqrt())
                if size > NOISE_FLOOR * largest:
                    p.sub_(g * (0.01 * max(float(p.square().mean().sqrt()), 0.05) / size))
    return True
