"""Does the model see its inputs at all?

Asked of the output and of the gradients together: behind a last layer of zeros the output is the same for every input,
but the gradients are not.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from stethoscope.checkup.affected import all_equal
from stethoscope.checkup.examination import Examination
from stethoscope.checkup.findings import CRITICAL, found
from stethoscope.checkup.structure import is_open, map_tensors, tensors
from stethoscope.record import Finding


def examine(exam: Examination) -> Iterator[Finding]:
    """inputs_ignored."""
    subject = exam.subject
    inputs = [t for t in tensors(subject.inputs) if t.ndim and t.numel()]
    if not inputs or not exam.finite:
        return
    alike = constant_inputs(exam)
    exam.saw("whether the samples of the batch differ")
    if alike is not None:
        yield found(
            "inputs_ignored",
            CRITICAL,
            f"{alike}: there is nothing to learn from.",
            sites=["(input)"],
            numbers={
                "largest input": max(float(t.detach().abs().max()) for t in inputs),
                "samples": subject.num_samples,
            },
            remedy="x = images.float() / 255  # not // 255; look at one batch as it reaches the model",
        )
        return
    if not is_open(subject.inputs) or exam.has("dead_units", "symmetric_units"):
        # Behind units that are all off or all equal nothing is seen; that is said already.
        return
    before = _outputs_and_gradients(exam, None)
    exam.saw("outputs and gradients for the batch, for zeros and for other inputs")
    # Zeros, then the samples in another order with their targets left in place: the loss may not stay the same.
    for change in (_zeros, _other_values):
        if not all_equal(before, _outputs_and_gradients(exam, map_tensors(change, subject.inputs))):
            return
    yield found(
        "inputs_ignored",
        CRITICAL,
        "Outputs and gradients are the same for other inputs and for zeros: the model does not use what it is given.",
        sites=["(input)"],
        numbers={"loss": float(before[-1]), "loss with zero input": float(before[-1])},
        remedy="# follow the input through forward(): it is replaced, multiplied by 0 or never used",
    )


def constant_inputs(exam: Examination) -> str | None:
    """What is the same about all samples of the batch, None where they differ."""
    subject = exam.subject
    inputs = [t.detach() for t in tensors(subject.inputs) if t.ndim and t.numel() and t.dtype is not torch.bool]
    if not inputs or subject.num_samples < 4 or not all(t.is_floating_point() for t in inputs):
        return None
    if all(not bool(t.any()) for t in inputs):
        return "All inputs are 0"
    targets = [t.detach() for t in tensors(subject.targets) if t.ndim and t.shape[0] == subject.num_samples]
    if not any(bool((t != t[:1]).any()) for t in targets):
        return None
    by_sample = [t for t in inputs if t.shape[0] == subject.num_samples]
    if by_sample and all(bool((t == t[:1]).all()) for t in by_sample):
        return "All samples of the batch are the same"
    return None


def _zeros(tensor: torch.Tensor) -> torch.Tensor:
    return tensor if tensor.dtype is torch.bool else torch.zeros_like(tensor)


def _other_values(tensor: torch.Tensor) -> torch.Tensor:
    if tensor.is_floating_point():
        size = tensor.detach().abs().mean() + 1.0
        return torch.randn(tensor.shape, generator=torch.Generator().manual_seed(3), device="cpu").to(tensor) * size
    return tensor.flip(0) if tensor.ndim else tensor


def _outputs_and_gradients(exam: Examination, inputs: Any) -> list[torch.Tensor]:
    """Outputs in evaluation mode, gradients, and the loss."""
    from stethoscope.checkup.subject import output_tensors

    twin = exam.subject.twin()
    output = twin.forward(inputs)
    loss = twin.loss(output)
    asking = [p for p in twin.parameters().values() if p.requires_grad]
    grads: list[torch.Tensor] = []
    if asking and loss.requires_grad:
        found_grads = torch.autograd.grad(loss, asking, allow_unused=True)
        grads = [g.to_dense() if g.is_sparse else g for g in found_grads if g is not None]
    return [t.detach() for t in (*output_tensors(output), *grads, loss)]
